package procfs

import "os"

// slabDir is where the kernel's allocator (SLUB) has a directory for each of its
// caches, and a link for each name that shares a cache with others.
const slabDir = "/sys/kernel/slab"

// maxSlabs bounds the names of caches that are read; a kernel has some hundreds.
const maxSlabs = 16 << 10

// Slab is one of the kernel's caches of small objects, all of one size.
type Slab struct {
	// Name is the name under which /proc/slabinfo has it. Caches of one size are
	// often merged: then it holds objects of other names too.
	Name string
	// Active is how many of its objects are in use, and Objects how many there is
	// room for. The kernel counts all objects of the slabs that its processors
	// work with as in use.
	Active, Objects int64
	// Size is an object's size in bytes, and Each what one takes of the machine's
	// memory: its share of the pages of a full slab.
	Size int64
	Each float64
	// Bytes is the memory that the cache holds now.
	Bytes int64
}

// Slabs are the kernel's caches.
type Slabs struct {
	// Caches are all by their names in /proc/slabinfo, each once.
	Caches map[string]Slab
	// Merged has the names that /proc/slabinfo doesn't have, because the kernel
	// has merged their caches with others: each tells the name in Caches.
	Merged map[string]string
}

// Find returns the cache of a name, also of one that was merged: Slab.Name is the
// name that it has then.
func (s Slabs) Find(name string) (Slab, bool) {
	if shown, ok := s.Merged[name]; ok {
		name = shown
	}
	slab, ok := s.Caches[name]
	return slab, ok
}

// ReadSlabs reads /proc/slabinfo, which commonly only root may, and from /sys which
// names share a cache. It takes some milliseconds.
func ReadSlabs() (Slabs, error) {
	root, err := mounted()
	if err != nil {
		return Slabs{}, err
	}
	info, err := root.SlabInfo()
	if err != nil {
		return Slabs{}, err
	}
	page := int64(os.Getpagesize())
	caches := make(map[string]Slab, len(info.Slabs))
	for _, s := range info.Slabs {
		if s.ObjPerSlab > 0 {
			caches[s.Name] = Slab{
				Name: s.Name, Active: s.ObjActive, Objects: s.ObjNum, Size: s.ObjSize,
				Each:  float64(s.PagesPerSlab*page) / float64(s.ObjPerSlab),
				Bytes: s.SlabNum * s.PagesPerSlab * page,
			}
		}
	}
	return Slabs{Caches: caches, Merged: mergedSlabs(slabDir, caches)}, nil
}

// mergedSlabs finds the names that share a cache with one that is shown: those
// whose links have the same target. A kernel without these links merges nothing.
func mergedSlabs(dir string, shown map[string]Slab) map[string]string {
	targets := map[string]string{}
	left := maxSlabs
	// What can't be read is not merged, as far as is known.
	_ = eachName(dir, func(name string) error {
		if left--; left < 0 {
			return errEnough
		}
		if target, err := os.Readlink(dir + "/" + name); err == nil {
			targets[name] = target
		}
		return nil
	})
	names := map[string]string{} // of what is shown, by target
	for name, target := range targets {
		if _, ok := shown[name]; ok {
			names[target] = name
		}
	}
	merged := map[string]string{}
	for name, target := range targets {
		if _, ok := shown[name]; ok {
			continue
		}
		if of, ok := names[target]; ok {
			merged[name] = of
		}
	}
	return merged
}
