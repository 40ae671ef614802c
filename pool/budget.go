package pool

import (
	"math"
	"runtime/metrics"

	"github.com/myriad-go/myriad/internal/cgroup"
)

// budget keeps the number of workers within the memory limit. It goes by the live heap,
// as the last garbage collection found it: how far the heap grows above that is for the
// collector to decide. When fewer workers don't make the heap smaller, it is not theirs.
type budget struct {
	limit   int64  // bytes; MaxInt64 is none
	now     int    // the number of workers there may be; 0 is any
	cycle   uint64 // of the garbage collector, at the last cut
	before  int64  // what was used then
	futile  int    // cuts in a row that did not help
	samples []metrics.Sample
	read    func() (used int64, cycle uint64) // used, but in tests
}

const (
	// Above highWater of the limit, in per cent, workers are taken away, and below
	// lowWater they may come back.
	highWater, lowWater = 70, 60
	// A cut helps if it takes a twentieth off the heap. After maxFutile in a row that
	// did not there are no more.
	maxFutile = 2
)

func newBudget(limit int64) *budget {
	b := &budget{limit: limit, samples: []metrics.Sample{
		{Name: "/gc/heap/live:bytes"}, {Name: "/memory/classes/heap/stacks:bytes"}, {Name: "/gc/cycles/total:gc-cycles"},
	}}
	b.read = b.used
	switch {
	case limit == 0:
		b.limit, _ = cgroup.MemoryLimit()
	case limit < 0:
		b.limit = math.MaxInt64
	}
	return b
}

// cap is how many workers there may be at most, for so many that there are.
func (b *budget) cap(workers, most int) int {
	if b.limit == math.MaxInt64 {
		return most
	}
	if b.now == 0 {
		b.now = most
	}
	switch used, cycle := b.read(); {
	case used > b.limit/100*highWater:
		if cycle != b.cycle {
			b.cycle = cycle
			b.cut(workers, used)
		}
	case used < b.limit/100*lowWater:
		b.futile, b.before = 0, 0
		b.now = min(b.now+b.now/8+1, most)
	}
	return min(b.now, most)
}

// cut takes a fifth of the workers away, unless that has not helped before.
func (b *budget) cut(workers int, used int64) {
	if b.before > 0 && used > b.before-b.before/20 {
		b.futile++
	} else {
		b.futile = 0
	}
	b.before = used
	if b.futile < maxFutile {
		b.now = max(1, min(b.now, workers)*4/5)
	}
}

// used is how many bytes live, and which garbage collection has found that.
func (b *budget) used() (bytes int64, cycle uint64) {
	metrics.Read(b.samples)
	number := func(i int) uint64 {
		if v := b.samples[i].Value; v.Kind() == metrics.KindUint64 {
			return v.Uint64()
		}
		return 0
	}
	return int64(number(0) + number(1)), number(2)
}
