package hub

import (
	"cmp"
	"fmt"
	"math/bits"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"unsafe"
)

// patternIndex finds the patterns that match a topic without trying every pattern.
//
// A literal run is a wildcard-free part of a pattern. The index stores each pattern under the hash of one of its
// literal runs. When a message is published, the index looks up the hashes of the substrings of the topic's name.
type patternIndex struct {
	mu             sync.RWMutex
	buckets        [runPlaceCount]map[uint64]bucket // by hash of the run
	runLengths     [runPlaceCount][]runLengthWork   // by length of the run
	maxPublishWork atomic.Int64                     // upper bound for one publish; written under mu
	spentWork      atomic.Int64                     // by all publishes
}

type runPlace int

const (
	atStart runPlace = iota
	atEnd
	within
	runPlaceCount = iota
)

type literalRun struct {
	place runPlace
	size  int
	hash  uint64
}

// bucket contains the patterns that are stored under one literal run. A chunk of patterns never changes after it was
// stored, so readers need no lock.
type bucket struct {
	chunks [][]indexedPattern
	size   int
	work   int // of all patterns
}

const chunkSize = 64

type indexedPattern struct {
	topic *topic
	*globProgram
}

func (b bucket) copyWithPatternAppended(p indexedPattern) bucket {
	chunks := slices.Clone(b.chunks)
	if b.size%chunkSize == 0 {
		chunks = append(chunks, nil)
	}
	last := len(chunks) - 1
	chunks[last] = slices.Concat(chunks[last], []indexedPattern{p})
	return bucket{chunks, b.size + 1, b.work}
}

// copyWithSlotRemoved returns a copy of the bucket without the pattern at index slot. In the copy, the last pattern
// takes this index.
func (b bucket) copyWithSlotRemoved(slot int) bucket {
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

func (b bucket) patternAt(slot int) indexedPattern { return b.chunks[slot/chunkSize][slot%chunkSize] }

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

// hashBase is the random base of the polynomial hash in substringHash.
var hashBase = rand.Uint64() | 1

func extendHash(hash uint64, b byte) uint64 { return hash*hashBase + uint64(b) + 1 }

// maxInnerRuns limits the number of literal runs in the middle of one pattern that the index considers. The index
// ignores any further runs.
const maxInnerRuns = 16

// roundDownRunSize returns how many leading bytes of a literal run of runSize bytes are hashed.
func roundDownRunSize(runSize int) int {
	if runSize <= 16 {
		return runSize
	}
	return 1 << (bits.Len(uint(runSize)) - 1) // a power of two: each size in use slows down a publish
}

// eachHashedLiteralRun yields the literal runs of a pattern. The first run may be empty.
func eachHashedLiteralRun(pattern string, yield func(literalRun) bool) {
	var (
		literal = make([]byte, 0, 64)
		ended   bool // a wildcard has been seen
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
			if inner++; !yieldRun(within, literal[:roundDownRunSize(len(literal))]) {
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

// addPatternWithinBudget adds a pattern and returns its cost. It fails if the cost exceeds clientBudget, or if the work
// of all patterns would exceed MaxPatternWork.
func (x *patternIndex) addPatternWithinBudget(t *topic, limits Limits, clientBudget int) (cost int, err error) {
	x.mu.RLock()
	if t.indexed {
		defer x.mu.RUnlock()
		return int(t.cost), checkCostWithinClientBudget(int(t.cost), clientBudget, limits)
	}
	x.mu.RUnlock()
	g := compileGlob(t.name)
	x.mu.Lock()
	defer x.mu.Unlock()
	if t.indexed { // added by another client meanwhile
		return int(t.cost), checkCostWithinClientBudget(int(t.cost), clientBudget, limits)
	}
	bestRun, fewest := literalRun{}, -1
	eachHashedLiteralRun(t.name, func(r literalRun) bool {
		if n := x.buckets[r.place][r.hash].size; fewest < 0 || n < fewest || n == fewest && r.size > bestRun.size {
			bestRun, fewest = r, n
		}
		return true
	})
	b := x.buckets[bestRun.place][bestRun.hash]
	added := x.updateMaxPublishWorkLocked(bestRun, b.work, b.work+g.maxMatchWork(limits.maxName()), limits)
	work := int(x.maxPublishWork.Load())
	cost = added + g.compiledBytes()/memoryBytesPerUnit
	if err = checkCostWithinClientBudget(cost, clientBudget, limits); err == nil && added > 0 && work > limits.maxPatternWork() {
		err = fmt.Errorf("%w: all patterns together would cost %d; at most %d is allowed", errPatternTooCostly, work, limits.maxPatternWork())
	}
	if err != nil {
		x.updateMaxPublishWorkLocked(bestRun, b.work+g.maxMatchWork(limits.maxName()), b.work, limits)
		return 0, err
	}
	if x.buckets[bestRun.place] == nil {
		x.buckets[bestRun.place] = make(map[uint64]bucket)
	}
	t.indexed, t.cost = true, uint32(cost)
	b = b.copyWithPatternAppended(indexedPattern{t, g.globProgram})
	b.work += g.maxMatchWork(limits.maxName())
	x.buckets[bestRun.place][bestRun.hash] = b
	return cost, nil
}

func checkCostWithinClientBudget(cost, clientBudget int, limits Limits) error {
	if cost <= max(clientBudget, 0) {
		return nil
	}
	return fmt.Errorf("%w: it costs %d, but the client has %d of %d left; limits also apply to each address and to all clients together", errPatternTooCostly, cost, max(clientBudget, 0), limits.maxPatternCost())
}

func (x *patternIndex) removeIndexedPattern(t *topic, limits Limits) {
	x.mu.Lock()
	defer x.mu.Unlock()
	if !t.indexed {
		return
	}
	t.indexed = false
	eachHashedLiteralRun(t.name, func(r literalRun) bool {
		b := x.buckets[r.place][r.hash]
		slot := b.slotOf(t)
		if slot < 0 {
			return true
		}
		p := b.patternAt(slot)
		rest := b.copyWithSlotRemoved(slot)
		rest.work -= glob{t.name, p.globProgram}.maxMatchWork(limits.maxName())
		x.updateMaxPublishWorkLocked(r, b.work, rest.work, limits)
		if rest.size == 0 {
			delete(x.buckets[r.place], r.hash)
			return false
		}
		x.buckets[r.place][r.hash] = rest
		return false
	})
}

// updateMaxPublishWorkLocked updates x.maxPublishWork after the work of the bucket for r has changed from oldWork to
// newWork. It returns the increase of x.maxPublishWork, which may be negative.
func (x *patternIndex) updateMaxPublishWorkLocked(r literalRun, oldWork, newWork int, limits Limits) (increase int) {
	lengths := &x.runLengths[r.place]
	for len(*lengths) <= r.size {
		*lengths = append(*lengths, runLengthWork{})
	}
	maxBuckets := 1 // number of such runs that one name can contain
	if r.place == within {
		maxBuckets = limits.maxName()
	}
	increase = (*lengths)[r.size].updateMaxWork(oldWork, newWork, maxBuckets)
	x.maxPublishWork.Add(int64(increase))
	return increase
}

// Costs of matching and storing a pattern, in units of about 10 ns. tryUnits is the cost of trying one pattern. Each
// other constant is the amount that costs one unit. maskWordsPerUnit is a number of 64-bit mask words. The others are
// numbers of bytes.
const (
	tryUnits           = 4
	searchBytesPerUnit = 128
	maskWordsPerUnit   = 8
	anchorBytesPerUnit = 6
	memoryBytesPerUnit = 64
)

func (g glob) maxMatchWork(maxNameBytes int) int {
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
			work := maxNameBytes / searchBytesPerUnit
			if s := &g.segments[i]; s.masks != nil {
				work = s.maskWords() * maxNameBytes / maskWordsPerUnit
			}
			search = max(search, work)
		}
	case stars > 1:
		search = maxNameBytes / searchBytesPerUnit
	}
	return tryUnits + stars + anchors + search
}

func (g glob) compiledBytes() (n int) {
	if g.globProgram != nil {
		for i := range g.segments {
			s := &g.segments[i]
			n += int(unsafe.Sizeof(*s)) + len(s.class)*min(1, len(s.masks)) + 8*len(s.masks)
		}
	}
	return n
}

type runLengthWork struct {
	levels []level // sorted by work
	work   int     // maximum for one name
}

type level struct{ work, n int } // n buckets that each have this work

// updateMaxWork updates l.work after the work of one bucket has changed from oldWork to newWork. oldWork is 0 for a new
// bucket. newWork is 0 for a removed bucket. maxBuckets is the number of buckets that one topic name can match. The
// method returns the increase of l.work, which may be negative.
func (l *runLengthWork) updateMaxWork(oldWork, newWork, maxBuckets int) (increase int) {
	l.adjustBucketCountForWork(oldWork, -1)
	l.adjustBucketCountForWork(newWork, 1)
	before := l.work
	l.work = 0
	for i := len(l.levels) - 1; i >= 0 && maxBuckets > 0; i-- {
		n := min(maxBuckets, l.levels[i].n)
		l.work += n * l.levels[i].work
		maxBuckets -= n
	}
	return l.work - before
}

func (l *runLengthWork) adjustBucketCountForWork(work, delta int) {
	if work == 0 {
		return
	}
	i, found := slices.BinarySearchFunc(l.levels, work, func(l level, work int) int { return cmp.Compare(l.work, work) })
	if !found {
		l.levels = slices.Insert(l.levels, i, level{work: work})
	}
	if l.levels[i].n += delta; l.levels[i].n == 0 {
		l.levels = slices.Delete(l.levels, i, i+1)
	}
}

type matchScratch struct {
	hashes     []uint64 // of the topic's prefixes, by length
	candidates []candidateBucket
}

type candidateBucket struct {
	hash uint64
	bucket
}

var matchScratchPool = sync.Pool{New: func() any { return new(matchScratch) }}

const maxPooledMatchEntries = 4096

func (x *patternIndex) eachMatchingPattern(name string, yield func(*topic)) (patternsTried int) {
	m := matchScratchPool.Get().(*matchScratch)
	m.hashes = append(m.hashes[:0], 0)
	for i := range len(name) {
		m.hashes = append(m.hashes, extendHash(m.hashes[i], name[i]))
	}
	x.mu.RLock()
	m.appendCandidateBuckets(x, name)
	x.mu.RUnlock()
	work := 0
	for _, h := range m.candidates {
		patternsTried += h.size
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
	return patternsTried
}

func (m *matchScratch) appendCandidateBuckets(index *patternIndex, name string) {
	power := uint64(1) // hashBase to the power of size
	for size := range len(name) + 1 {
		if index.hasRunsOfSize(atStart, size) {
			m.appendCandidateIfBucketExists(index.buckets[atStart], m.hashes[size])
		}
		if index.hasRunsOfSize(atEnd, size) {
			m.appendCandidateIfBucketExists(index.buckets[atEnd], m.substringHash(len(name)-size, size, power))
		}
		if index.hasRunsOfSize(within, size) {
			before := len(m.candidates)
			for at := range len(name) - size + 1 {
				m.appendCandidateIfBucketExists(index.buckets[within], m.substringHash(at, size, power))
			}
			// A run that occurs several times in the name must be tried only once.
			runs := m.candidates[before:]
			slices.SortFunc(runs, func(a, b candidateBucket) int { return cmp.Compare(a.hash, b.hash) })
			runs = slices.CompactFunc(runs, func(a, b candidateBucket) bool { return a.hash == b.hash })
			m.candidates = m.candidates[:before+len(runs)]
		}
		power *= hashBase
	}
}

func (m *matchScratch) appendCandidateIfBucketExists(buckets map[uint64]bucket, hash uint64) {
	if b, ok := buckets[hash]; ok {
		m.candidates = append(m.candidates, candidateBucket{hash, b})
	}
}

func (x *patternIndex) hasRunsOfSize(at runPlace, size int) bool {
	return size < len(x.runLengths[at]) && len(x.runLengths[at][size].levels) > 0
}

func (m *matchScratch) substringHash(start, size int, power uint64) uint64 {
	return m.hashes[start+size] - m.hashes[start]*power
}
