package procfs

import (
	"os"

	prom "github.com/prometheus/procfs"
)

// slabDir is the directory with one subdirectory per kernel cache of small objects (slab).
const slabDir = "/sys/kernel/slab"

const maxSlabs = 16 << 10

// Slab is a kernel cache of small objects of equal size.
type Slab struct {
	// Objects is the number of objects for which the cache has memory.
	Objects int64
	// Each is the memory per object in bytes. The kernel allocates pages for several objects at once, so Each includes
	// the unused rest of these pages.
	Each float64
}

// ReadSlabCaches returns the kernel's slab caches by name. A cache with several names appears under each of them.
// Usually, only root may read slab caches.
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

// addMergedCacheNames adds the other names of the caches in the map. The kernel merges similar caches into one that has
// several names, but lists it under only one of them.
func addMergedCacheNames(dir string, caches map[string]Slab) {
	shown, hidden := map[string]Slab{}, map[string]string{} // shown: caches by target; hidden: targets by name
	left := maxSlabs
	for name, err := range dirEntryNames(dir) {
		if left--; err != nil || left < 0 {
			break // unreadable, or too many names: the other names stay unknown
		}
		target, err := os.Readlink(dir + "/" + name)
		if err != nil {
			continue // a directory
		}
		// All names of a cache are links to the same target.
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
