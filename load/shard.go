package load

import (
	"sync"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"
	"github.com/myriad-go/myriad/internal/engine"
)

// maxLatency is the longest latency that is told apart; longer ones count as
// this one.
const maxLatency = time.Minute

// newHistogram makes a histogram of nanoseconds with three significant digits:
// steps of 1 ns up to 2 µs, of a thousandth of the value from there on.
func newHistogram() *hdrhistogram.Histogram {
	return hdrhistogram.New(1, int64(maxLatency), 3)
}

// tally counts messages.
type tally struct {
	sent, answered, bytesIn int64
}

func (t *tally) add(u tally) {
	t.sent += u.sent
	t.answered += u.answered
	t.bytesIn += u.bytesIn
}

// sum is what links add up to. All of it is of the whole run, but for window.
type sum struct {
	// opened and closed count connections.
	opened, closed int64
	// lastOpened is when the last connection was established, lastAnswer
	// when the last answer came, since the run's start.
	lastOpened, lastAnswer time.Duration

	whole, window tally
	// dropped counts messages that were in flight on a connection when it
	// closed; they will not be answered.
	dropped int64
	// finished counts links that are through with their messages, exchanged
	// those of them that got all their answers.
	finished, exchanged int64
}

func (s *sum) add(t sum) {
	s.opened += t.opened
	s.closed += t.closed
	s.lastOpened = max(s.lastOpened, t.lastOpened)
	s.lastAnswer = max(s.lastAnswer, t.lastAnswer)
	s.whole.add(t.whole)
	s.window.add(t.window)
	s.dropped += t.dropped
	s.finished += t.finished
	s.exchanged += t.exchanged
}

// open is how many connections are open.
func (s *sum) open() int64 { return s.opened - s.closed }

// flying is how many messages an answer can still come for.
func (s *sum) flying() int64 { return s.whole.sent - s.whole.answered - s.dropped }

// shard adds up what happens on the links of one loop, or of some goroutines.
type shard struct {
	mu      sync.Mutex
	sum     sum
	latency *hdrhistogram.Histogram
	// next to before end are links that are not in use yet.
	next, end int
	// shut says that the connect phase is over: links are no longer given.
	shut bool
	_    [64]byte // keeps the next shard off this line
}

// newLink gives a connection that was established at now its link, nil when the
// connect phase is over or every link is in use.
func (s *shard) newLink(from *slab, ref engine.Ref, now time.Duration) *link {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.shut {
		return nil
	}
	if s.next == s.end {
		s.next, s.end = from.takeRun()
	}
	if s.next == s.end {
		return nil
	}
	l := &from.links[s.next]
	l.id, l.ref = uint32(s.next), ref
	s.next++
	s.sum.opened++
	s.sum.lastOpened = now
	return l
}

// shutLinks ends the connect phase for the shard: what newLink wrote can be
// read afterwards.
func (s *shard) shutLinks() {
	s.mu.Lock()
	s.shut = true
	s.mu.Unlock()
}

// record keeps n equal latencies. The caller holds the lock.
func (s *shard) record(d time.Duration, n int) {
	// The error says that a value is out of range, which these are not.
	_ = s.latency.RecordValues(int64(min(max(d, 0), maxLatency)), int64(n))
}

// sumOf adds up shards.
func sumOf(shards []*shard) sum {
	var all sum
	for _, s := range shards {
		s.mu.Lock()
		all.add(s.sum)
		s.mu.Unlock()
	}
	return all
}

// latencyOf merges the histograms of shards and reads the result off.
func latencyOf(shards []*shard) Latency {
	all := newHistogram()
	for _, s := range shards {
		s.mu.Lock()
		all.Merge(s.latency)
		s.mu.Unlock()
	}
	if all.TotalCount() == 0 {
		return Latency{}
	}
	at := func(q float64) time.Duration { return time.Duration(all.ValueAtQuantile(q)) }
	return Latency{
		Count: all.TotalCount(),
		Min:   time.Duration(all.Min()),
		Mean:  time.Duration(all.Mean()),
		P50:   at(50),
		P90:   at(90),
		P99:   at(99),
		P999:  at(99.9),
		Max:   time.Duration(all.Max()),
	}
}
