package pool

import (
	"math"
	"runtime/debug"
	"runtime/metrics"

	"github.com/myriad-go/myriad/internal/cgroup"
)

// memoryBudget reduces the number of workers when memory runs short. If Go has a memory limit (GOMEMLIMIT), it uses the
// live heap found by the last garbage collection. Otherwise it uses the size to which the heap grows before the next
// collection, twice the live heap by default. If fewer workers do not reduce the heap, the memory belongs to other code,
// and memoryBudget stops reducing the number.
type memoryBudget struct {
	limit      int64  // bytes; MaxInt64 is no limit
	allowed    int    // workers; 0 before the first call
	lastCycle  uint64 // garbage collection at the last reduction
	usedAtCut  int64  // memory in use then, in bytes
	futileCuts int    // consecutive reductions without effect
	samples    []metrics.Sample
	objects    []metrics.Sample
	readUsage  func() (used int64, cycle uint64) // readHeapAndStacks, except in tests
}

const (
	// highWater is the percentage of the limit above which workers are removed. Below lowWater, workers may return.
	highWater, lowWater = 70, 60
	// maxFutile is the maximum number of consecutive reductions that shrink the heap by less than a twentieth.
	maxFutile = 2
)

func newMemoryBudgetOrCgroupLimit(limit int64) *memoryBudget {
	b := &memoryBudget{limit: limit, samples: []metrics.Sample{
		{}, {Name: "/memory/classes/heap/stacks:bytes"}, {Name: "/gc/cycles/total:gc-cycles"},
	}}
	b.objects = []metrics.Sample{{Name: "/memory/classes/heap/objects:bytes"}}
	b.readUsage = b.readHeapAndStacks
	switch {
	case limit == 0:
		b.limit, _ = cgroup.SmallestMemoryLimit()
	case limit < 0:
		b.limit = math.MaxInt64
	}
	return b
}

// updateMaxWorkers updates and returns the number of workers that the memory allows, at most configuredMax.
func (b *memoryBudget) updateMaxWorkers(currentWorkers, configuredMax int) int {
	if b.limit == math.MaxInt64 {
		return configuredMax
	}
	if b.allowed == 0 {
		b.allowed = configuredMax
	}
	switch used, cycle := b.readUsage(); {
	case used > b.limit/100*highWater:
		if cycle != b.lastCycle {
			b.lastCycle = cycle
			b.reduceAllowedWorkersUnlessFutile(currentWorkers, used)
		}
	case used < b.limit/100*lowWater:
		b.futileCuts, b.usedAtCut = 0, 0
		b.allowed = min(b.allowed+b.allowed/8+1, configuredMax)
	}
	return min(b.allowed, configuredMax)
}

func (b *memoryBudget) reduceAllowedWorkersUnlessFutile(currentWorkers int, usedBytes int64) {
	if b.usedAtCut > 0 && usedBytes > b.usedAtCut-b.usedAtCut/20 {
		b.futileCuts++
	} else {
		b.futileCuts = 0
	}
	b.usedAtCut = usedBytes
	if b.futileCuts < maxFutile {
		b.allowed = max(1, min(b.allowed, currentWorkers)*4/5)
	}
}

// isHeapFull reports whether the heap, garbage included, exceeds highWater now. Between two garbage collections, workers
// that hold memory must not increase without limit.
func (b *memoryBudget) isHeapFull() bool {
	if b.limit == math.MaxInt64 {
		return false
	}
	metrics.Read(b.objects)
	v := b.objects[0].Value
	return v.Kind() == metrics.KindUint64 && int64(v.Uint64()) > b.limit/100*highWater
}

func liveHeapOrGoalMetric() string {
	if debug.SetMemoryLimit(-1) < math.MaxInt64 {
		return "/gc/heap/live:bytes"
	}
	return "/gc/heap/goal:bytes"
}

// readHeapAndStacks returns the bytes of the heap, as measured or planned by the last garbage collection, number
// gcCycle, and of stacks.
func (b *memoryBudget) readHeapAndStacks() (bytes int64, gcCycle uint64) {
	b.samples[0].Name = liveHeapOrGoalMetric() // the program may have set a memory limit since
	metrics.Read(b.samples)
	number := func(i int) uint64 {
		if v := b.samples[i].Value; v.Kind() == metrics.KindUint64 {
			return v.Uint64()
		}
		return 0
	}
	return int64(number(0) + number(1)), number(2)
}
