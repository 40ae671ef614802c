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
// The index bounds the work of a publish: see patternWork and lengthWork. No lock is held while
// patterns are tried: chunks of a bucket do not change, and are copied for one that comes or goes.
type patternIndex struct {
	mu             sync.RWMutex
	buckets        [runPlaceCount]map[uint64]bucket // by the hash of the run
	runLengths     [runPlaceCount][]lengthWork      // by the length of the run
	maxPublishWork atomic.Int64                     // at most of one publish; changed under mu
	spentWork      atomic.Int64                     // work of all publishes
}

// runPlace is where a literal run is.
type runPlace int

const (
	atStart runPlace = iota
	atEnd
	within
	runPlaceCount = iota
)

// literalRun is a literal run of a pattern.
type literalRun struct {
	place runPlace
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
	*globProgram
}

// withPattern returns the bucket with p in the slot b.size.
func (b bucket) withPattern(p indexedPattern) bucket {
	chunks := slices.Clone(b.chunks)
	if b.size%chunkSize == 0 {
		chunks = append(chunks, nil)
	}
	last := len(chunks) - 1
	chunks[last] = slices.Concat(chunks[last], []indexedPattern{p})
	return bucket{chunks, b.size + 1, b.work}
}

// withoutSlot returns the bucket without the pattern in a slot, to which the last one moves.
func (b bucket) withoutSlot(slot int) bucket {
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

// patternAt returns the pattern in a slot.
func (b bucket) patternAt(slot int) indexedPattern { return b.chunks[slot/chunkSize][slot%chunkSize] }

// slotOf returns the slot of a pattern, or -1.
func (b bucket) slotOf(t *topic) int {
	for i, chunk := range b.chunks {
		for k := range chunk {
			if chunk[k].topic == t {
				return i*chunkSize + k
			}
		}
	}
	return -1
}

func (p indexedPattern) matches(name string) bool {
	return glob{p.topic.name, p.globProgram}.matches(name)
}

// hashBase is that of the hash of a run, the polynomial of its bytes, by which the hashes of
// all parts of a text come from those of its beginnings.
var hashBase = rand.Uint64() | 1

func extendHash(hash uint64, b byte) uint64 { return hash*hashBase + uint64(b) + 1 }

// maxInnerRuns is the most runs of a pattern that are looked at between its first and its last.
const maxInnerRuns = 16

// indexedRunSize is how much of a run of n bytes is taken where it may be anywhere in a topic: there
// are few sizes, because a topic is gone through for each of them.
func indexedRunSize(runSize int) int {
	if runSize <= 16 {
		return runSize
	}
	size := 16
	for 2*size <= runSize {
		size *= 2
	}
	return size
}

// eachLiteralRun calls f for the literal runs under which a pattern may be kept, until it returns
// false: what it begins with, always, and then what it ends with and others, if there are any.
func eachLiteralRun(pattern string, yield func(literalRun) bool) {
	var (
		literal = make([]byte, 0, 64)
		ended   bool // there was a byte that is not literal
		inner   int
	)
	yieldRun := func(at runPlace, s []byte) bool {
		r := literalRun{place: at, size: len(s)}
		for _, b := range s {
			r.hash = extendHash(r.hash, b)
		}
		return yield(r)
	}
	for p := 0; p < len(pattern); {
		var e element
		if e, p = parseElement(pattern, p); e.kind == literalByte {
			literal = append(literal, e.literal)
			continue
		}
		switch {
		case !ended:
			if !yieldRun(atStart, literal) {
				return
			}
		case len(literal) > 0 && inner < maxInnerRuns:
			if inner++; !yieldRun(within, literal[:indexedRunSize(len(literal))]) {
				return
			}
		}
		literal, ended = literal[:0], true
	}
	switch {
	case !ended:
		yieldRun(atStart, literal)
	case len(literal) > 0:
		yieldRun(atEnd, literal)
	}
}

// add takes a pattern in, if the work of a publish stays within the limits, and that which the
// pattern adds to it within the rest that its client has. It returns the pattern's cost, which
// is that work and its share of memory. A pattern that is there has the cost that it has had.
func (x *patternIndex) add(t *topic, limits Limits, budget int) (cost int, err error) {
	x.mu.RLock()
	if t.indexed {
		defer x.mu.RUnlock()
		return int(t.cost), checkPatternCost(int(t.cost), budget, limits)
	}
	x.mu.RUnlock()
	g := compileGlob(t.name)
	x.mu.Lock()
	defer x.mu.Unlock()
	if t.indexed { // by another client, meanwhile
		return int(t.cost), checkPatternCost(int(t.cost), budget, limits)
	}
	best, fewest := literalRun{}, -1
	eachLiteralRun(t.name, func(r literalRun) bool {
		if n := x.buckets[r.place][r.hash].size; fewest < 0 || n < fewest || n == fewest && r.size > best.size {
			best, fewest = r, n
		}
		return true
	})
	b := x.buckets[best.place][best.hash]
	added := x.replaceBucketWork(best, b.work, b.work+g.maxMatchUnits(limits.maxName()), limits)
	work := int(x.maxPublishWork.Load())
	cost = added + g.compiledBytes()/memoryBytesPerUnit
	if err = checkPatternCost(cost, budget, limits); err == nil && added > 0 && work > limits.maxPatternWork() {
		err = fmt.Errorf("%w: with it the patterns of all clients would take %d, at most %d are allowed", errPatternTooCostly, work, limits.maxPatternWork())
	}
	if err != nil {
		x.replaceBucketWork(best, b.work+g.maxMatchUnits(limits.maxName()), b.work, limits)
		return 0, err
	}
	if x.buckets[best.place] == nil {
		x.buckets[best.place] = make(map[uint64]bucket)
	}
	t.indexed, t.cost = true, uint32(cost)
	b = b.withPattern(indexedPattern{t, g.globProgram})
	b.work += g.maxMatchUnits(limits.maxName())
	x.buckets[best.place][best.hash] = b
	return cost, nil
}

// checkPatternCost is the error for a client that has not enough left for a pattern's cost.
func checkPatternCost(cost, budget int, limits Limits) error {
	if cost <= max(budget, 0) {
		return nil
	}
	return fmt.Errorf("%w: the pattern costs %d, and the client has %d left of %d: its address and all clients together have limits, too", errPatternTooCostly, cost, max(budget, 0), limits.maxPatternCost())
}

// remove takes a pattern out.
func (x *patternIndex) remove(t *topic, limits Limits) {
	x.mu.Lock()
	defer x.mu.Unlock()
	if !t.indexed {
		return
	}
	t.indexed = false
	eachLiteralRun(t.name, func(r literalRun) bool {
		b := x.buckets[r.place][r.hash]
		slot := b.slotOf(t)
		if slot < 0 {
			return true
		}
		p := b.patternAt(slot)
		rest := b.withoutSlot(slot)
		rest.work -= glob{t.name, p.globProgram}.maxMatchUnits(limits.maxName())
		x.replaceBucketWork(r, b.work, rest.work, limits)
		if rest.size == 0 {
			delete(x.buckets[r.place], r.hash)
			return false
		}
		x.buckets[r.place][r.hash] = rest
		return false
	})
}

// replaceBucketWork notes that the work of the bucket of a run is another one, and returns by how much that
// of a publish has become more.
func (x *patternIndex) replaceBucketWork(r literalRun, oldWork, newWork int, limits Limits) (added int) {
	lengths := &x.runLengths[r.place]
	for len(*lengths) <= r.size {
		*lengths = append(*lengths, lengthWork{})
	}
	maxBuckets := 1 // runs of one length that one name has
	if r.place == within {
		maxBuckets = limits.maxName()
	}
	added = (*lengths)[r.size].replaceBucketWork(oldWork, newWork, maxBuckets)
	x.maxPublishWork.Add(int64(added))
	return added
}

// A unit of work is some 10 ns of a processor of 2020. Trying a pattern takes tryUnits, and one more for
// each star. A unit is also maxSearchUnits bytes of a name in which a literal segment is searched,
// maskWordsPerUnit words of the automaton of segment.find, anchorBytesPerUnit bytes that are compared with sets at
// the name's beginning or end, and memoryBytesPerUnit bytes.
const (
	tryUnits           = 4
	searchBytesPerUnit = 128
	maskWordsPerUnit   = 8
	anchorBytesPerUnit = 6
	memoryBytesPerUnit = 64
)

// maxMatchUnits is the most that it takes to try the pattern on a name.
func (g glob) maxMatchUnits(maxNameBytes int) int {
	stars, search := strings.Count(g.pattern, "*"), 0
	anchors := 0
	if g.globProgram != nil {
		for _, i := range slices.Compact([]int{0, len(g.segments) - 1}) {
			if s := &g.segments[i]; s.masks != nil {
				anchors += s.size / anchorBytesPerUnit
			}
		}
	}
	switch {
	case g.globProgram != nil && stars > 1:
		for i := 1; i < len(g.segments)-1; i++ {
			search = max(search, g.segments[i].maxSearchUnits(maxNameBytes))
		}
	case stars > 1:
		search = maxNameBytes / searchBytesPerUnit
	}
	return tryUnits + stars + anchors + search
}

// maxSearchUnits is the work of find.
func (s *segment) maxSearchUnits(maxNameBytes int) int {
	if s.masks == nil {
		return maxNameBytes / searchBytesPerUnit
	}
	return s.maskWords() * maxNameBytes / maskWordsPerUnit
}

// compiledBytes is how many bytes the compiled pattern takes, beside its text.
func (g glob) compiledBytes() (n int) {
	if g.globProgram != nil {
		for i := range g.segments {
			n += int(unsafe.Sizeof(segment{})) + g.segments[i].compiledBytes()
		}
	}
	return n
}

// lengthWork is the work of the buckets whose runs have one length.
type lengthWork struct {
	levels []level // by work
	work   int     // of those that one name has at most
}

// level is how many buckets take the same work.
type level struct{ work, n int }

// replaceBucketWork notes that the work of a bucket is another one; 0 is of one that is not there. It returns
// by how much the work of a publish has become more, whose name has most of the buckets.
func (l *lengthWork) replaceBucketWork(oldWork, newWork, maxBuckets int) (added int) {
	l.addBuckets(oldWork, -1)
	l.addBuckets(newWork, 1)
	before := l.work
	l.work = 0
	for i := len(l.levels) - 1; i >= 0 && maxBuckets > 0; i-- {
		n := min(maxBuckets, l.levels[i].n)
		l.work += n * l.levels[i].work
		maxBuckets -= n
	}
	return l.work - before
}

func (l *lengthWork) addBuckets(work, n int) {
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

// matchScratch is what match needs for a while.
type matchScratch struct {
	hashes     []uint64 // of the topic's beginnings, by length
	candidates []candidateBucket
}

// candidateBucket is a bucket with patterns to try.
type candidateBucket struct {
	hash uint64
	bucket
}

var matchScratchPool = sync.Pool{New: func() any { return new(matchScratch) }}

// maxPooledMatchEntries is the most of each whose room is used again.
const maxPooledMatchEntries = 4096

// eachMatch calls f for each pattern that matches the name of a topic. It says how many it has
// tried.
func (x *patternIndex) eachMatch(name string, yield func(*topic)) (tried int) {
	m := matchScratchPool.Get().(*matchScratch)
	m.hashes = append(m.hashes[:0], 0)
	for i := range len(name) {
		m.hashes = append(m.hashes, extendHash(m.hashes[i], name[i]))
	}
	x.mu.RLock()
	m.findCandidates(x, name)
	x.mu.RUnlock()
	work := 0
	for _, h := range m.candidates {
		tried += h.size
		work += h.work
		for _, chunk := range h.chunks {
			for _, p := range chunk {
				if p.matches(name) {
					yield(p.topic)
				}
			}
		}
	}
	x.spentWork.Add(int64(work))
	clear(m.candidates)
	m.candidates = m.candidates[:0]
	if max(cap(m.candidates), cap(m.hashes)) <= maxPooledMatchEntries {
		matchScratchPool.Put(m)
	}
	return tried
}

// findCandidates finds the buckets of the runs that the name has.
func (m *matchScratch) findCandidates(index *patternIndex, name string) {
	power := uint64(1) // of hashBase, by the size
	for size := range len(name) + 1 {
		if index.hasRunsOfSize(atStart, size) {
			m.addBucket(index.buckets[atStart], m.hashes[size])
		}
		if index.hasRunsOfSize(atEnd, size) {
			m.addBucket(index.buckets[atEnd], m.substringHash(len(name)-size, size, power))
		}
		if index.hasRunsOfSize(within, size) {
			before := len(m.candidates)
			for at := range len(name) - size + 1 {
				m.addBucket(index.buckets[within], m.substringHash(at, size, power))
			}
			// A run that the name has several times is tried once.
			runs := m.candidates[before:]
			slices.SortFunc(runs, func(a, b candidateBucket) int { return cmp.Compare(a.hash, b.hash) })
			runs = slices.CompactFunc(runs, func(a, b candidateBucket) bool { return a.hash == b.hash })
			m.candidates = m.candidates[:before+len(runs)]
		}
		power *= hashBase
	}
}

// addBucket adds the patterns under a hash.
func (m *matchScratch) addBucket(buckets map[uint64]bucket, hash uint64) {
	if b, ok := buckets[hash]; ok {
		m.candidates = append(m.candidates, candidateBucket{hash, b})
	}
}

// hasRunsOfSize reports whether patterns are kept under runs of a size.
func (x *patternIndex) hasRunsOfSize(at runPlace, size int) bool {
	return size < len(x.runLengths[at]) && len(x.runLengths[at][size].levels) > 0
}

// substringHash is the hash of a part of the name, where power is hashBase to the size.
func (m *matchScratch) substringHash(start, size int, power uint64) uint64 {
	return m.hashes[start+size] - m.hashes[start]*power
}
