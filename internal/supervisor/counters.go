package supervisor

import (
	"runtime"
	"runtime/debug"
	"sync/atomic"
	"time"
	"unsafe"

	"github.com/myriad-go/myriad/internal/engine"
)

// publishEvery is how often a worker publishes its counters.
const publishEvery = 100 * time.Millisecond

// block holds a worker's counters in memory that it shares with the supervisor. The
// worker copies its engine's counters there, so a reader sees each counter whole, but
// not all of one moment.
type block struct {
	counts    engine.Counters
	loops     atomic.Int64
	listeners [engine.MaxListeners]listener
}

// listener is what has come by one.
type listener struct{ open, accepted, refused atomic.Int64 }

func (l *listener) store(from engine.ListenerStats) {
	l.open.Store(from.Open)
	l.accepted.Store(from.Accepted)
	l.refused.Store(from.Refused)
}

func (l *listener) addTo(sum *engine.ListenerStats) {
	sum.Open += l.open.Load()
	sum.Accepted += l.accepted.Load()
	sum.Refused += l.refused.Load()
}

// past is what workers that have ended have counted.
type past struct {
	counts    engine.Counters
	listeners [engine.MaxListeners]listener
}

// stride is the distance of two blocks: whole pairs of cache lines, so that no
// two workers write to one.
const stride = int((unsafe.Sizeof(block{}) + 127) &^ 127)

// sharedCounters are the blocks of all workers.
type sharedCounters []byte

func (c sharedCounters) workers() int { return len(c) / stride }

func (c sharedCounters) block(index int) *block { return (*block)(unsafe.Pointer(&c[index*stride])) }

// publisher writes a worker's block. It belongs to Run.
type publisher struct {
	block  *block
	engine engine.Engine
	gc     debug.GCStats // whose memory is used again
}

// publish writes what the engine has counted, and what Go's runtime says of this process.
func (p *publisher) publish() {
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

// collect adds the counters of a worker that has ended to those of the past, and
// clears the block. It returns how many connections the worker had open.
func (b *block) collect(past *past) (lost int64) {
	var last, none engine.Counts
	b.counts.AddTo(&last)
	lost = last[engine.Open]
	sum := last.WithoutGauges()
	past.counts.AddTo(&sum)
	past.counts.SetAll(&sum)
	b.counts.SetAll(&none)
	b.loops.Store(0)
	for i := range b.listeners {
		var sum engine.ListenerStats
		b.listeners[i].addTo(&sum)
		past.listeners[i].addTo(&sum)
		sum.Open = 0 // that is of now
		past.listeners[i].store(sum)
		b.listeners[i].store(engine.ListenerStats{})
	}
	return lost
}
