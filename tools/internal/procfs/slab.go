package procfs

import (
	"os"

	prom "github.com/prometheus/procfs"
)

// slabDir is the directory of the kernel's allocator (SLUB). It contains a directory per cache, and a link per
// name that shares a cache with other names.
const slabDir = "/sys/kernel/slab"

// maxSlabs limits the number of cache names read. A kernel has several hundred.
const maxSlabs = 16 << 10

// Slab is a kernel cache of small objects of equal size.
type Slab struct {
	// Objects is the number of objects that the cache can hold without growing.
	Objects int64
	// Each is the memory in bytes that an object takes: its share of the pages of a full slab.
	Each float64
}

// ReadSlabCaches reads the kernel's caches by name from /proc/slabinfo, which usually only root may read. From /sys
// it reads which names share a cache; often, all caches of one object size are shared. ReadSlabCaches takes some
// milliseconds.
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

// addMergedCacheNames adds names that share a cache with one in caches: names whose links have the same target. A
// kernel without such links shares no caches.
func addMergedCacheNames(dir string, caches map[string]Slab) {
	shown, hidden := map[string]Slab{}, map[string]string{} // caches by target; targets by name
	left := maxSlabs
	for name, err := range dirEntryNames(dir) {
		if left--; err != nil || left < 0 {
			break // unreadable: not known to be shared
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
