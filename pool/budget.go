package pool

import (
	"math"
	"runtime/metrics"

	"github.com/myriad-go/myriad/internal/cgroup"
)

// memoryBudget keeps the number of workers within the memory limit. It goes by the live heap,
// as the last garbage collection found it: how far the heap grows above that is for the
// collector to decide. When fewer workers don't make the heap smaller, it is not theirs.
type memoryBudget struct {
	limit      int64  // bytes; MaxInt64 is none
	allowed    int    // the number of workers there may be; 0 is any
	lastCycle  uint64 // of the garbage collector, at the last cut
	usedAtCut  int64  // what was used then
	futileCuts int    // cuts in a row that did not help
	samples    []metrics.Sample
	readUsage  func() (used int64, cycle uint64) // used, but in tests
}

const (
	// Above highWater of the limit, in per cent, workers are taken away, and below
	// lowWater they may come back.
	highWater, lowWater = 70, 60
	// A cut helps if it takes a twentieth off the heap. After maxFutile in a row that
	// did not there are no more.
	maxFutile = 2
)

func newMemoryBudget(limit int64) *memoryBudget {
	b := &memoryBudget{limit: limit, samples: []metrics.Sample{
		{Name: "/gc/heap/live:bytes"}, {Name: "/memory/classes/heap/stacks:bytes"}, {Name: "/gc/cycles/total:gc-cycles"},
	}}
	b.readUsage = b.liveBytes
	switch {
	case limit == 0:
		b.limit, _ = cgroup.MemoryLimit()
	case limit < 0:
		b.limit = math.MaxInt64
	}
	return b
}

// maxWorkers is how many workers there may be at most, for so many that there are.
func (b *memoryBudget) maxWorkers(current, limit int) int {
	if b.limit == math.MaxInt64 {
		return limit
	}
	if b.allowed == 0 {
		b.allowed = limit
	}
	switch used, cycle := b.readUsage(); {
	case used > b.limit/100*highWater:
		if cycle != b.lastCycle {
			b.lastCycle = cycle
			b.reduceWorkers(current, used)
		}
	case used < b.limit/100*lowWater:
		b.futileCuts, b.usedAtCut = 0, 0
		b.allowed = min(b.allowed+b.allowed/8+1, limit)
	}
	return min(b.allowed, limit)
}

// reduceWorkers takes a fifth of the workers away, unless that has not helped before.
func (b *memoryBudget) reduceWorkers(workers int, used int64) {
	if b.usedAtCut > 0 && used > b.usedAtCut-b.usedAtCut/20 {
		b.futileCuts++
	} else {
		b.futileCuts = 0
	}
	b.usedAtCut = used
	if b.futileCuts < maxFutile {
		b.allowed = max(1, min(b.allowed, workers)*4/5)
	}
}

// liveBytes is how many bytes live, and which garbage collection has found that.
func (b *memoryBudget) liveBytes() (bytes int64, cycle uint64) {
	metrics.Read(b.samples)
	number := func(i int) uint64 {
		if v := b.samples[i].Value; v.Kind() == metrics.KindUint64 {
			return v.Uint64()
		}
		return 0
	}
	return int64(number(0) + number(1)), number(2)
}
