package supervisor

import (
	"runtime"
	"runtime/debug"
	"sync/atomic"
	"time"
	"unsafe"

	"github.com/myriad-go/myriad/internal/engine"
)

const publishEvery = 100 * time.Millisecond

// counterBlock holds the counters of a worker. It is stored in memory that the worker shares with the supervisor.
type counterBlock struct {
	counts    engine.Counters
	loops     atomic.Int64
	listeners [engine.MaxListeners]listenerCounters
}

type listenerCounters struct{ open, accepted, refused atomic.Int64 }

func (l *listenerCounters) store(stats engine.ListenerStats) {
	l.open.Store(stats.Open)
	l.accepted.Store(stats.Accepted)
	l.refused.Store(stats.Refused)
}

func (l *listenerCounters) addTo(sum *engine.ListenerStats) {
	sum.Open += l.open.Load()
	sum.Accepted += l.accepted.Load()
	sum.Refused += l.refused.Load()
}

type endedCounters struct {
	counts    engine.Counters
	listeners [engine.MaxListeners]listenerCounters
}

// blockStride is the distance in bytes between the counterBlocks of successive workers. It is a multiple of 128, so
// that two workers never write to the same cache line.
const blockStride = int((unsafe.Sizeof(counterBlock{}) + 127) &^ 127)

type sharedCounters []byte

// PageSize is the size in bytes of the memory page that the supervisor shares with all workers. The page initially
// contains zeros.
const PageSize = 1024

func (c sharedCounters) workerCount() int { return len(c) / blockStride }

func (c sharedCounters) workerBlock(index int) *counterBlock {
	return (*counterBlock)(unsafe.Pointer(&c[index*blockStride]))
}

// counterPublisher copies a worker's counters to the worker's block of shared memory. Only Worker.Run uses it.
type counterPublisher struct {
	block  *counterBlock
	engine engine.Engine
	gc     debug.GCStats // reused by each call of publishToSharedMemory
}

func (p *counterPublisher) publishToSharedMemory() {
	counts := p.engine.Counters()
	debug.ReadGCStats(&p.gc)
	counts[engine.Goroutines] = int64(runtime.NumGoroutine())
	counts[engine.GCs], counts[engine.GCPause] = p.gc.NumGC, int64(p.gc.PauseTotal)
	p.block.counts.SetAll(&counts)
	p.block.loops.Store(int64(p.engine.Loops()))
	for i, l := range p.engine.ListenerStats() {
		p.block.listeners[i].store(l)
	}
}

// addToEndedAndClear is called when a worker has ended. It adds the worker's counters to ended, which contains the sums
// for all ended workers, and then sets the worker's counters to 0. openConns is the number of connections that were
// open in the worker when it ended.
func (b *counterBlock) addToEndedAndClear(ended *endedCounters) (openConns int64) {
	var last, none engine.Counts
	b.counts.AddToWithMaxAge(&last)
	openConns = last[engine.Open]
	sum := last.WithoutGauges()
	ended.counts.AddToWithMaxAge(&sum)
	ended.counts.SetAll(&sum)
	b.counts.SetAll(&none)
	b.loops.Store(0)
	for i := range b.listeners {
		var sum engine.ListenerStats
		b.listeners[i].addTo(&sum)
		ended.listeners[i].addTo(&sum)
		sum.Open = 0 // nothing is open any more
		ended.listeners[i].store(sum)
		b.listeners[i].store(engine.ListenerStats{})
	}
	return openConns
}
