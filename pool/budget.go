package pool

import (
	"math"
	"runtime/debug"
	"runtime/metrics"

	"github.com/myriad-go/myriad/internal/cgroup"
)

// memoryBudget reduces the number of workers when memory runs short.
type memoryBudget struct {
	limit      int64  // bytes; MaxInt64 is no limit
	maxWorkers int    // Config.Max
	allowed    int    // workers, at most maxWorkers
	lastCycle  uint64 // number of the garbage collection before the last reduction
	usedAtCut  int64  // memory in use at the last reduction, in bytes
	futileCuts int    // consecutive reductions without effect
	samples    []metrics.Sample
	readUsage  func() (used int64, cycle uint64) // readHeapAndStackBytes, except in tests
}

const (
	// highWater and lowWater are percentages of the limit. Above highWater, workers end; below lowWater, more may
	// start.
	highWater, lowWater = 70, 60
	// maxFutile is the maximum number of consecutive reductions without effect (less than 5%).
	maxFutile = 2
)

func newMemoryBudget(limit int64, maxWorkers int) *memoryBudget {
	b := &memoryBudget{limit: limit, maxWorkers: maxWorkers, allowed: maxWorkers, samples: []metrics.Sample{
		{Name: "/memory/classes/heap/objects:bytes"}, {}, {Name: "/memory/classes/heap/stacks:bytes"}, {Name: "/gc/cycles/total:gc-cycles"},
	}}
	b.readUsage = b.readHeapAndStackBytes
	if limit == 0 {
		b.limit, _ = cgroup.SmallestKnownMemoryLimit()
	} else if limit < 0 {
		b.limit = math.MaxInt64
	}
	return b
}

// updateMaxWorkers adapts the maximum number of workers to the memory usage. It returns the new maximum.
func (b *memoryBudget) updateMaxWorkers(currentWorkers int) int {
	switch used, cycle := b.readUsage(); {
	case used > b.limit/100*highWater && cycle != b.lastCycle:
		b.lastCycle = cycle
		b.reduceAllowedWorkersUnlessFutile(currentWorkers, used)
	case used < b.limit/100*lowWater:
		b.futileCuts, b.usedAtCut = 0, 0
		b.allowed = min(b.allowed+b.allowed/8+1, b.maxWorkers)
	}
	return b.allowed
}

func (b *memoryBudget) reduceAllowedWorkersUnlessFutile(currentWorkers int, usedBytes int64) {
	if b.futileCuts++; usedBytes <= b.usedAtCut-b.usedAtCut/20 || b.usedAtCut == 0 {
		b.futileCuts = 0
	}
	b.usedAtCut = usedBytes
	if b.futileCuts < maxFutile {
		b.allowed = max(1, min(b.allowed, currentWorkers)*4/5)
	}
}

// isHeapAboveHighWater reports whether the heap, including garbage, exceeds highWater percent of the limit.
func (b *memoryBudget) isHeapAboveHighWater() bool {
	if b.limit == math.MaxInt64 {
		return false
	}
	metrics.Read(b.samples[:1])
	return int64(valueOr(b.samples[0], 0)) > b.limit/100*highWater
}

// readHeapAndStackBytes returns the memory that heap and stacks need. gcCycle is the number of the last garbage
// collection. If the Go runtime has a memory limit, the size of the live heap is used. Otherwise, the heap goal is
// used, which is the size up to which the heap grows before the next collection.
func (b *memoryBudget) readHeapAndStackBytes() (bytes int64, gcCycle uint64) {
	b.samples[1].Name = "/gc/heap/goal:bytes"
	if debug.SetMemoryLimit(-1) < math.MaxInt64 { // the program may change this limit at any time
		b.samples[1].Name = "/gc/heap/live:bytes"
	}
	metrics.Read(b.samples)
	return int64(valueOr(b.samples[1], 0) + valueOr(b.samples[2], 0)), valueOr(b.samples[3], 0)
}

func valueOr(s metrics.Sample, unknown uint64) uint64 {
	if s.Value.Kind() != metrics.KindUint64 {
		return unknown
	}
	return s.Value.Uint64()
}
