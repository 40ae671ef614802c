package procfs

import (
	"os"

	prom "github.com/prometheus/procfs"
)

// slabDir is where the kernel's allocator (SLUB) has a directory for each of its
// caches, and a link for each name that shares a cache with others.
const slabDir = "/sys/kernel/slab"

// maxSlabs bounds the names of caches that are read; a kernel has some hundreds.
const maxSlabs = 16 << 10

// Slab is one of the kernel's caches of small objects, all of one size.
type Slab struct {
	// Objects is how many objects there is room for.
	Objects int64
	// Each is the bytes that one takes of the machine's memory: its share of the pages of
	// a full slab.
	Each float64
}

// ReadSlabCaches reads the kernel's caches by name from /proc/slabinfo, which commonly only root
// may, and from /sys which names share a cache: often all caches of one size. It takes some
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

// addMergedCacheNames adds the names that share a cache with one of caches: those whose links have
// the same target. A kernel without these links merges nothing.
func addMergedCacheNames(dir string, caches map[string]Slab) {
	shown, hidden := map[string]Slab{}, map[string]string{} // by target; targets by name
	left := maxSlabs
	for name, err := range dirEntryNames(dir) {
		if left--; err != nil || left < 0 {
			break // what can't be read is not merged, as far as is known
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
