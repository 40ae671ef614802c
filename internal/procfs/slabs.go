package procfs

import (
	"bytes"
	"errors"
	"fmt"
	"math"
	"os"
	"strconv"
	"strings"
)

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
func ReadSlabs() (Slabs, error) { return readSlabs("") }

func readSlabs(root string) (Slabs, error) {
	b, err := readFile(root + "/proc/slabinfo")
	if err != nil {
		return Slabs{}, err
	}
	caches, err := parseSlabs(b, int64(os.Getpagesize()))
	if err != nil {
		return Slabs{}, err
	}
	return Slabs{Caches: caches, Merged: mergedSlabs(root+slabDir, caches)}, nil
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
		if target, err := readLink(dir + "/" + name); err == nil {
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

// parseSlabs parses /proc/slabinfo, version 2.1, whose rows are like
//
//	TCP 6461 6461 2368 13 8 : tunables 0 0 0 : slabdata 497 497 0
//
// with the name, the objects in use and in all, the bytes of one, the objects and the
// pages of a slab, and behind "slabdata" the slabs in use and in all.
func parseSlabs(b []byte, page int64) (map[string]Slab, error) {
	caches := make(map[string]Slab)
	for line := range bytes.Lines(b) {
		text := strings.TrimSpace(string(line))
		if text == "" || strings.HasPrefix(text, "#") || strings.HasPrefix(text, "slabinfo - version:") {
			continue
		}
		s, err := parseSlab(text, page)
		if err != nil {
			return nil, fmt.Errorf("procfs: slabinfo: %w", err)
		}
		if len(caches) == maxSlabs {
			return nil, fmt.Errorf("procfs: slabinfo: more than %d caches", maxSlabs)
		}
		caches[s.Name] = s
	}
	if len(caches) == 0 {
		return nil, errors.New("procfs: slabinfo: no caches")
	}
	return caches, nil
}

// parseSlab parses a row of /proc/slabinfo.
func parseSlab(line string, page int64) (Slab, error) {
	fields := strings.Fields(line)
	if len(fields) < 16 || fields[6] != ":" || fields[12] != "slabdata" {
		return Slab{}, fmt.Errorf("%.60q: expected NAME, 5 numbers, tunables and slabdata", line)
	}
	var n [6]int64
	for i, at := range [...]int{1, 2, 3, 4, 5, 14} {
		v, err := strconv.ParseUint(fields[at], 10, 63)
		if err != nil {
			return Slab{}, fmt.Errorf("%.60q: %w", line, err)
		}
		n[i] = int64(v)
	}
	perSlab, pages, slabs := n[3], n[4], n[5]
	if perSlab == 0 || pages == 0 || pages > math.MaxInt64/page || slabs > math.MaxInt64/(pages*page) {
		return Slab{}, fmt.Errorf("%.60q: out of range", line)
	}
	return Slab{
		Name: fields[0], Active: n[0], Objects: n[1], Size: n[2],
		Each:  float64(pages*page) / float64(perSlab),
		Bytes: slabs * pages * page,
	}, nil
}
