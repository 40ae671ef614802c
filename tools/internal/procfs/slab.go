package procfs

import (
	"os"

	prom "github.com/prometheus/procfs"
)

// slabDir is the directory of the kernel's allocator for small objects (SLUB). It contains a directory for each cache.
// If a cache has several names, each name is a link to the cache's directory.
const slabDir = "/sys/kernel/slab"

// maxSlabs limits the number of cache names that are read. A kernel has several hundred.
const maxSlabs = 16 << 10

// Slab is a kernel cache of small objects of equal size.
type Slab struct {
	// Objects is the number of objects that the cache can contain without growing.
	Objects int64
	// The field Each is the memory in bytes per object: the size of a slab divided by its number of objects.
	Each float64
}

// ReadSlabCaches returns the kernel's slab caches by name. It reads /proc/slabinfo, which usually only root may read.
// From /sys, it adds further names of these caches. Reading takes some milliseconds.
func ReadSlabCaches() (map[string]Slab, error) {
	info, err := parseProcFS(prom.FS.SlabInfo)
	if err != nil {
		return nil, err
	}
	caches := make(map[string]Slab, len(info.Slabs))
	for _, s := range info.Slabs {
		if s.ObjPerSlab > 0 {
			slab := float64(s.PagesPerSlab) * float64(os.Getpagesize())
			caches[s.Name] = Slab{Objects: s.ObjNum, Each: slab / float64(s.ObjPerSlab)}
		}
	}
	addMergedCacheNames(slabDir, caches)
	return caches, nil
}

// addMergedCacheNames adds the further names of each cache. In dir, all names of a cache are links to the same target.
func addMergedCacheNames(dir string, caches map[string]Slab) {
	shown, hidden := map[string]Slab{}, map[string]string{} // caches by target; targets by name
	left := maxSlabs
	for name, err := range dirEntryNames(dir) {
		if left--; err != nil || left < 0 {
			break // unreadable, so no name is known to share a cache
		}
		target, err := os.Readlink(dir + "/" + name)
		if err != nil {
			continue // a directory
		}
		if slab, ok := caches[name]; ok {
			shown[target] = slab
		} else {
			hidden[name] = target
		}
	}
	for name, target := range hidden {
		if slab, ok := shown[target]; ok {
			caches[name] = slab
		}
	}
}
