package supervisor

import (
	"testing"

	"github.com/myriad-go/myriad/internal/engine"
)

func distinctCounts(factor int64) *engine.Counts {
	var n engine.Counts
	for i := range n {
		n[i] = int64(i+1) * factor
	}
	return &n
}

func sumOf(all ...*engine.Counters) (sum engine.Counts) {
	for _, c := range all {
		c.AddToWithMaxAge(&sum)
	}
	return sum
}

func TestSharedCounters(t *testing.T) {
	b := make(sharedCounters, 2*blockStride)
	var past endedCounters
	first, second := b.workerBlock(0), b.workerBlock(1)
	first.counts.SetAll(distinctCounts(1))
	second.counts.SetAll(distinctCounts(10))
	first.loops.Store(2)
	first.listeners[1].store(engine.ListenerStats{Open: 1, Accepted: 2, Refused: 3})
	past.listeners[1].store(engine.ListenerStats{Accepted: 10, Refused: 10})

	want := *distinctCounts(11)
	want[engine.OldestBroadcastAge] = distinctCounts(10)[engine.OldestBroadcastAge] // the larger one
	if sum := sumOf(&first.counts, &second.counts); sum != want {
		t.Errorf("the sum is %+v, want %+v", sum, want)
	}
	if lost := first.addToEndedAndClear(&past); lost != 1 {
		t.Errorf("%d open when it ended, want 1", lost)
	}
	if sum := sumOf(&first.counts); sum != (engine.Counts{}) || first.loops.Load() != 0 {
		t.Errorf("a collected block holds %+v and %d loops", sum, first.loops.Load())
	}
	first.counts.SetAll(distinctCounts(100)) // the next run
	first.addToEndedAndClear(&past)
	if sum, want := sumOf(&past.counts), distinctCounts(101).WithoutGauges(); sum != want {
		t.Errorf("the past is %+v, want %+v", sum, want)
	}
	var came engine.ListenerStats
	past.listeners[1].addTo(&came)
	first.listeners[1].addTo(&came)
	if want := (engine.ListenerStats{Accepted: 12, Refused: 13}); came != want {
		t.Errorf("the past of the listener is %+v, want %+v", came, want)
	}
}
