package hub

import (
	"cmp"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"unsafe"
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
//
// The index bounds the work of a publish: see patternWork and runLength. No lock is held while
// patterns are tried: chunks of a bucket do not change, and are copied for one that comes or goes.
type patternIndex struct {
	mu      sync.RWMutex
	kept    [places]map[uint64]bucket // by the hash of the run
	lengths [places][]runLength       // by the length of the run
	work    atomic.Int64              // at most of one publish; changed under mu
	spent   atomic.Int64              // work of all publishes
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

// bucket is the patterns under one run: mostly one. Its chunks do not change once they are in the index, so
// publishers read them without a lock. All chunks but the last have chunkSize patterns.
type bucket struct {
	chunks [][]indexedPattern
	size   int
	work   int // of all
}

// chunkSize is the number of patterns that a change of a bucket copies, beside a pointer for each chunk.
const chunkSize = 64

type indexedPattern struct {
	topic *topic
	*program
}

// with returns the bucket with p in the slot b.size.
func (b bucket) with(p indexedPattern) bucket {
	chunks := slices.Clone(b.chunks)
	if b.size%chunkSize == 0 {
		chunks = append(chunks, nil)
	}
	last := len(chunks) - 1
	chunks[last] = slices.Concat(chunks[last], []indexedPattern{p})
	return bucket{chunks, b.size + 1, b.work}
}

// without returns the bucket without the pattern in a slot, to which the last one moves.
func (b bucket) without(slot int) bucket {
	chunks := slices.Clone(b.chunks)
	last := len(chunks) - 1
	end := len(chunks[last]) - 1
	p := chunks[last][end]
	chunks[last] = slices.Clone(chunks[last][:end])
	if slot < b.size-1 {
		if slot/chunkSize != last {
			chunks[slot/chunkSize] = slices.Clone(chunks[slot/chunkSize])
		}
		chunks[slot/chunkSize][slot%chunkSize] = p
	}
	if end == 0 {
		chunks = chunks[:last]
	}
	return bucket{chunks, b.size - 1, b.work}
}

// in returns the pattern in a slot.
func (b bucket) in(slot int) indexedPattern { return b.chunks[slot/chunkSize][slot%chunkSize] }

// find returns the slot of a pattern, or -1.
func (b bucket) find(t *topic) int {
	for i, chunk := range b.chunks {
		for k := range chunk {
			if chunk[k].topic == t {
				return i*chunkSize + k
			}
		}
	}
	return -1
}

func (p indexedPattern) matches(name string) bool { return glob{p.topic.name, p.program}.matches(name) }

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
		var e element
		if e, p = nextElement(pattern, p); e.kind == literalByte {
			literal = append(literal, e.literal)
			continue
		}
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
	}
	switch {
	case !ended:
		hashed(atStart, literal)
	case len(literal) > 0:
		hashed(atEnd, literal)
	}
}

// add takes a pattern in, if the work of a publish stays within the limits, and that which the
// pattern adds to it within the rest that its client has. It returns the pattern's cost, which
// is that work and its share of memory. A pattern that is there has the cost that it has had.
func (x *patternIndex) add(t *topic, l Limits, rest int) (cost int, err error) {
	x.mu.RLock()
	if t.indexed {
		defer x.mu.RUnlock()
		return int(t.cost), costsTooMuch(int(t.cost), rest, l)
	}
	x.mu.RUnlock()
	g := compileGlob(t.name)
	x.mu.Lock()
	defer x.mu.Unlock()
	if t.indexed { // by another client, meanwhile
		return int(t.cost), costsTooMuch(int(t.cost), rest, l)
	}
	best, least := run{}, -1
	runsOf(t.name, func(r run) bool {
		if n := x.kept[r.place][r.hash].size; least < 0 || n < least || n == least && r.size > best.size {
			best, least = r, n
		}
		return true
	})
	b := x.kept[best.place][best.hash]
	added := x.change(best, b.work, b.work+g.work(l.maxName()), l)
	work := int(x.work.Load())
	cost = added + g.memory()/memoryWork
	if err = costsTooMuch(cost, rest, l); err == nil && added > 0 && work > l.maxPatternWork() {
		err = fmt.Errorf("%w: with it the patterns of all clients would take %d, at most %d are allowed", errPatterns, work, l.maxPatternWork())
	}
	if err != nil {
		x.change(best, b.work+g.work(l.maxName()), b.work, l)
		return 0, err
	}
	if x.kept[best.place] == nil {
		x.kept[best.place] = make(map[uint64]bucket)
	}
	t.indexed, t.cost = true, uint32(cost)
	b = b.with(indexedPattern{t, g.program})
	b.work += g.work(l.maxName())
	x.kept[best.place][best.hash] = b
	return cost, nil
}

// costsTooMuch is the error for a client that has not enough left for a pattern's cost.
func costsTooMuch(cost, rest int, l Limits) error {
	if cost <= max(rest, 0) {
		return nil
	}
	return fmt.Errorf("%w: the pattern costs %d, and the client has %d left of %d: its address and all clients together have limits, too", errPatterns, cost, max(rest, 0), l.maxPatternCost())
}

// remove takes a pattern out.
func (x *patternIndex) remove(t *topic, l Limits) {
	x.mu.Lock()
	defer x.mu.Unlock()
	if !t.indexed {
		return
	}
	t.indexed = false
	runsOf(t.name, func(r run) bool {
		b := x.kept[r.place][r.hash]
		slot := b.find(t)
		if slot < 0 {
			return true
		}
		p := b.in(slot)
		rest := b.without(slot)
		rest.work -= glob{t.name, p.program}.work(l.maxName())
		x.change(r, b.work, rest.work, l)
		if rest.size == 0 {
			delete(x.kept[r.place], r.hash)
			return false
		}
		x.kept[r.place][r.hash] = rest
		return false
	})
}

// change notes that the work of the bucket of a run is another one, and returns by how much that
// of a publish has become more.
func (x *patternIndex) change(r run, from, to int, l Limits) (added int) {
	lengths := &x.lengths[r.place]
	for len(*lengths) <= r.size {
		*lengths = append(*lengths, runLength{})
	}
	most := 1 // runs of one length that one name has
	if r.place == within {
		most = l.maxName()
	}
	added = (*lengths)[r.size].change(from, to, most)
	x.work.Add(int64(added))
	return added
}

// A unit of work is some 10 ns of a processor of 2020. Trying a pattern takes tryWork, and one more for
// each star. A unit is also searchWork bytes of a name in which a literal segment is searched,
// wordWork words of the automaton of segment.find, anchorWork bytes that are compared with sets at
// the name's beginning or end, and memoryWork bytes.
const (
	tryWork    = 4
	searchWork = 128
	wordWork   = 8
	anchorWork = 6
	memoryWork = 64
)

// work is the most that it takes to try the pattern on a name.
func (g glob) work(maxName int) int {
	stars, search := strings.Count(g.pattern, "*"), 0
	anchors := 0
	if g.program != nil {
		for _, i := range slices.Compact([]int{0, len(g.segments) - 1}) {
			if s := &g.segments[i]; s.masks != nil {
				anchors += s.size / anchorWork
			}
		}
	}
	switch {
	case g.program != nil && stars > 1:
		for i := 1; i < len(g.segments)-1; i++ {
			search = max(search, g.segments[i].searchWork(maxName))
		}
	case stars > 1:
		search = maxName / searchWork
	}
	return tryWork + stars + anchors + search
}

// searchWork is the work of find.
func (s *segment) searchWork(maxName int) int {
	if s.masks == nil {
		return maxName / searchWork
	}
	return s.words() * maxName / wordWork
}

// memory is how many bytes the compiled pattern takes, beside its text.
func (g glob) memory() (n int) {
	if g.program != nil {
		for i := range g.segments {
			n += int(unsafe.Sizeof(segment{})) + g.segments[i].memory()
		}
	}
	return n
}

// runLength is the work of the buckets whose runs have one length.
type runLength struct {
	levels []level // by work
	work   int     // of those that one name has at most
}

// level is how many buckets take the same work.
type level struct{ work, n int }

// change notes that the work of a bucket is another one; 0 is of one that is not there. It returns
// by how much the work of a publish has become more, whose name has most of the buckets.
func (l *runLength) change(from, to, most int) (added int) {
	l.count(from, -1)
	l.count(to, 1)
	before := l.work
	l.work = 0
	for i := len(l.levels) - 1; i >= 0 && most > 0; i-- {
		n := min(most, l.levels[i].n)
		l.work += n * l.levels[i].work
		most -= n
	}
	return l.work - before
}

func (l *runLength) count(work, n int) {
	if work == 0 {
		return
	}
	i, found := slices.BinarySearchFunc(l.levels, work, func(l level, work int) int { return cmp.Compare(l.work, work) })
	if !found {
		l.levels = slices.Insert(l.levels, i, level{work: work})
	}
	if l.levels[i].n += n; l.levels[i].n == 0 {
		l.levels = slices.Delete(l.levels, i, i+1)
	}
}

// matches is what match needs for a while.
type matches struct {
	hashes []uint64 // of the topic's beginnings, by length
	found  []hit
}

// hit is a bucket with patterns to try.
type hit struct {
	hash uint64
	bucket
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
	x.mu.RLock()
	m.lookUp(x, name)
	x.mu.RUnlock()
	work := 0
	for _, h := range m.found {
		tried += h.size
		work += h.work
		for _, chunk := range h.chunks {
			for _, p := range chunk {
				if p.matches(name) {
					f(p.topic)
				}
			}
		}
	}
	x.spent.Add(int64(work))
	clear(m.found)
	m.found = m.found[:0]
	if max(cap(m.found), cap(m.hashes)) <= maxKeptMatches {
		matchesPool.Put(m)
	}
	return tried
}

// lookUp finds the buckets of the runs that the name has.
func (m *matches) lookUp(x *patternIndex, name string) {
	power := uint64(1) // of hashBase, by the size
	for size := range len(name) + 1 {
		if x.any(atStart, size) {
			m.add(x.kept[atStart], m.hashes[size])
		}
		if x.any(atEnd, size) {
			m.add(x.kept[atEnd], m.part(len(name)-size, size, power))
		}
		if x.any(within, size) {
			before := len(m.found)
			for at := range len(name) - size + 1 {
				m.add(x.kept[within], m.part(at, size, power))
			}
			// A run that the name has several times is tried once.
			runs := m.found[before:]
			slices.SortFunc(runs, func(a, b hit) int { return cmp.Compare(a.hash, b.hash) })
			runs = slices.CompactFunc(runs, func(a, b hit) bool { return a.hash == b.hash })
			m.found = m.found[:before+len(runs)]
		}
		power *= hashBase
	}
}

// add adds the patterns under a hash.
func (m *matches) add(kept map[uint64]bucket, hash uint64) {
	if b, ok := kept[hash]; ok {
		m.found = append(m.found, hit{hash, b})
	}
}

// any reports whether patterns are kept under runs of a size.
func (x *patternIndex) any(at place, size int) bool {
	return size < len(x.lengths[at]) && len(x.lengths[at][size].levels) > 0
}

// part is the hash of a part of the name, where power is hashBase to the size.
func (m *matches) part(at, size int, power uint64) uint64 {
	return m.hashes[at+size] - m.hashes[at]*power
}
