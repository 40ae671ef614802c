package hub

import (
	"math/rand/v2"
	"slices"
	"sync"
)

// patternIndex finds the patterns that match a topic, without a look at all of them. A pattern
// is kept under one of its literal runs: what it begins with, what it ends with, or one
// between two of *, ? and [. A topic that it matches has that run at its beginning, at its
// end, or somewhere. So a publish looks up what its topic begins and ends with, and has
// within, by length, of those lengths that there are, and tries the patterns it finds.
//
// Of a pattern's runs that one is taken which the fewest patterns are kept under, so that a
// run which many have in common is taken by few. Runs are known by their hash alone: a
// pattern that is found by another's run does not match, and is no more than a try in vain.
type patternIndex struct {
	mu    sync.RWMutex
	kept  [places]map[uint64]bucket // by the hash of the run
	sizes [places][]int             // how many patterns are kept under runs of each length
}

// place is where a literal run is.
type place int

const (
	atStart place = iota
	atEnd
	within
	places = iota
)

// run is a literal run of a pattern.
type run struct {
	place place
	size  int
	hash  uint64
}

// bucket is the patterns under one run: mostly one.
type bucket struct {
	one  *topic
	more map[*topic]struct{}
}

func (b bucket) len() int {
	if b.one == nil {
		return len(b.more)
	}
	return 1 + len(b.more)
}

// hashBase is that of the hash of a run, the polynomial of its bytes, by which the hashes of
// all parts of a text come from those of its beginnings.
var hashBase = rand.Uint64() | 1

func hashOn(h uint64, b byte) uint64 { return h*hashBase + uint64(b) + 1 }

// maxInner is the most runs of a pattern that are looked at between its first and its last.
const maxInner = 16

// innerSize is how much of a run of n bytes is taken where it may be anywhere in a topic: there
// are few sizes, because a topic is gone through for each of them.
func innerSize(n int) int {
	if n <= 16 {
		return n
	}
	size := 16
	for 2*size <= n {
		size *= 2
	}
	return size
}

// runsOf calls f for the literal runs under which a pattern may be kept, until it returns
// false: what it begins with, always, and then what it ends with and others, if there are any.
func runsOf(pattern string, f func(run) bool) {
	var (
		literal = make([]byte, 0, 64)
		ended   bool // there was a byte that is not literal
		inner   int
	)
	hashed := func(at place, s []byte) bool {
		r := run{place: at, size: len(s)}
		for _, b := range s {
			r.hash = hashOn(r.hash, b)
		}
		return f(r)
	}
	for p := 0; p < len(pattern); {
		switch pattern[p] {
		case '*', '?', '[':
			switch {
			case !ended:
				if !hashed(atStart, literal) {
					return
				}
			case len(literal) > 0 && inner < maxInner:
				if inner++; !hashed(within, literal[:innerSize(len(literal))]) {
					return
				}
			}
			literal, ended = literal[:0], true
			_, p = globStep(pattern, p)
			continue
		case '\\':
			if p+1 < len(pattern) {
				p++
			}
		}
		literal = append(literal, pattern[p])
		p++
	}
	switch {
	case !ended:
		hashed(atStart, literal)
	case len(literal) > 0:
		hashed(atEnd, literal)
	}
}

// globStep is where a pattern goes on behind what stands at p, a *, ? or [.
func globStep(pattern string, p int) (ok bool, next int) {
	if pattern[p] == '*' {
		return true, p + 1
	}
	return globByte(pattern, p, 0)
}

// add takes a pattern in. One that is there stays.
func (x *patternIndex) add(t *topic) {
	x.mu.Lock()
	defer x.mu.Unlock()
	if t.indexed {
		return
	}
	t.indexed = true
	best, least := run{}, -1
	runsOf(t.name, func(r run) bool {
		if n := x.kept[r.place][r.hash].len(); least < 0 || n < least || n == least && r.size > best.size {
			best, least = r, n
		}
		return true
	})
	if x.kept[best.place] == nil {
		x.kept[best.place] = make(map[uint64]bucket)
	}
	b := x.kept[best.place][best.hash]
	switch {
	case b.one == nil:
		b.one = t
	case b.more == nil:
		b.more = make(map[*topic]struct{})
		fallthrough
	default:
		b.more[t] = struct{}{}
	}
	x.kept[best.place][best.hash] = b
	sizes := &x.sizes[best.place]
	for len(*sizes) <= best.size {
		*sizes = append(*sizes, 0)
	}
	(*sizes)[best.size]++
}

// remove takes a pattern out.
func (x *patternIndex) remove(t *topic) {
	x.mu.Lock()
	defer x.mu.Unlock()
	if !t.indexed {
		return
	}
	t.indexed = false
	runsOf(t.name, func(r run) bool {
		b := x.kept[r.place][r.hash]
		if _, ok := b.more[t]; ok {
			delete(b.more, t)
		} else if b.one == t {
			b.one = nil
		} else {
			return true
		}
		if b.len() == 0 {
			delete(x.kept[r.place], r.hash)
		} else {
			x.kept[r.place][r.hash] = b
		}
		x.sizes[r.place][r.size]--
		return false
	})
}

// matches is what match needs for a while.
type matches struct {
	hashes []uint64 // of the topic's beginnings, by length
	seen   []uint64 // the runs within that have led to patterns
	found  []*topic
	tried  int
}

var matchesPool = sync.Pool{New: func() any { return new(matches) }}

// maxKeptMatches is the most of each whose room is used again.
const maxKeptMatches = 4096

// match calls f for each pattern that matches the name of a topic. It says how many it has
// tried.
func (x *patternIndex) match(name string, f func(*topic)) (tried int) {
	m := matchesPool.Get().(*matches)
	m.hashes = append(m.hashes[:0], 0)
	for i := range len(name) {
		m.hashes = append(m.hashes, hashOn(m.hashes[i], name[i]))
	}
	m.tried = 0
	x.mu.RLock()
	m.lookUp(x, name)
	x.mu.RUnlock()
	for _, t := range m.found {
		f(t)
	}
	tried = m.tried
	clear(m.found)
	m.found, m.seen = m.found[:0], m.seen[:0]
	if max(cap(m.found), cap(m.hashes), cap(m.seen)) <= maxKeptMatches {
		matchesPool.Put(m)
	}
	return tried
}

// lookUp finds the patterns that match.
func (m *matches) lookUp(x *patternIndex, name string) {
	power := uint64(1) // of hashBase, by the size
	for size := range len(name) + 1 {
		if x.any(atStart, size) {
			m.try(x.kept[atStart][m.hashes[size]], name)
		}
		if x.any(atEnd, size) {
			m.try(x.kept[atEnd][m.part(len(name)-size, size, power)], name)
		}
		if x.any(within, size) {
			for at := range len(name) - size + 1 {
				h := m.part(at, size, power)
				// A run that the topic has twice is tried once.
				if b := x.kept[within][h]; b.len() > 0 && !slices.Contains(m.seen, h) {
					m.seen = append(m.seen, h)
					m.try(b, name)
				}
			}
		}
		power *= hashBase
	}
}

// any says whether patterns are kept under runs of a size.
func (x *patternIndex) any(at place, size int) bool {
	return size < len(x.sizes[at]) && x.sizes[at][size] > 0
}

// part is the hash of a part of the name, where power is hashBase to the size.
func (m *matches) part(at, size int, power uint64) uint64 {
	return m.hashes[at+size] - m.hashes[at]*power
}

// try takes those of a bucket that match.
func (m *matches) try(b bucket, name string) {
	m.tried += b.len()
	if b.one != nil && globMatches(b.one.name, name) {
		m.found = append(m.found, b.one)
	}
	for t := range b.more {
		if globMatches(t.name, name) {
			m.found = append(m.found, t)
		}
	}
}
