package engine

import (
	"strconv"
	"sync/atomic"
	"time"

	"github.com/myriad-go/myriad/internal/histogram"
)

// Counter names what an owner counts.
type Counter int

// The counters. The first ones tell what is now, and go down too; the others
// only grow.
const (
	Open           Counter = iota // connections open
	Greeting                      // of those, before Opened has been called
	Paused                        // of those, owing so much that nothing is read
	Closing                       // of those, closing
	Buffered                      // bytes of memory in buffers
	LoopsOnWorkers                // loops whose handlers are called by workers
	Casting                       // broadcasts under way,
	CastBytes                     // their bytes,
	CastAge                       // and since when the oldest is, in nanoseconds
	Holding                       // who accepts nothing, because of Engine.Hold: loops, or the one acceptor
	Goroutines                    // of a worker process, which alone fills it in, see package supervisor

	Accepted     // connections accepted, refused ones not counted
	Dialled      // connections made by Dial
	AcceptErrors // accept failed, such as for want of descriptors
	AcceptPauses // accepting paused because of Limits.AcceptRate
	Reads        // receive calls that brought bytes
	Writes       // send calls
	BytesIn
	BytesOut
	Messages   // that framers have cut out
	Dropped    // messages that were dropped because their peer is slow
	Replaced   // values that newer ones have replaced before they were sent
	Broadcasts // messages to all
	Heartbeats // sent
	HandedOver // connections, to another process
	TakenOver  // connections, from another process
	Panics     // in handlers
	Slow       // calls of handlers that took longer than Limits.HandlerTime
	Moved      // how often auto has moved handlers onto workers
	Shed       // how often a connection's input was shed
	BusyTime   // nanoseconds that loops have worked
	GCs        // collections of garbage of a worker process, as Goroutines
	GCPause    // nanoseconds that they have stopped the world

	refusals  // by Cause, from here
	closings  = refusals + Counter(RefusedCauses)
	callTimes = closings + Counter(Causes-RefusedCauses) // how long handlers take
	turnTimes = callTimes + perHistogram                 // how long turns take
	counters  = turnTimes + perHistogram

	gauges = Accepted // so many of them tell what is now
)

// Counters are what an owner counts. Each loop has its own, so that counting
// touches no shared cache line.
type Counters struct {
	n [counters]atomic.Int64
	_ [64]byte // keeps the next loop's counters off the last line
}

// Add counts n more, and says how many it makes.
func (c *Counters) Add(what Counter, n int64) int64 { return c.n[what].Add(n) }

// Set sets one that tells what is now.
func (c *Counters) Set(what Counter, n int64) { c.n[what].Store(n) }

// SetFlag sets one to 1 or 0.
func (c *Counters) SetFlag(what Counter, on bool) {
	n := int64(0)
	if on {
		n = 1
	}
	c.Set(what, n)
}

// Get is one of them.
func (c *Counters) Get(what Counter) int64 { return c.n[what].Load() }

// Refuse counts a connection that is turned away, or never gets to its handler.
func (c *Counters) Refuse(why Cause) { c.n[refusals+Counter(why)].Add(1) }

// close counts one that has closed.
func (c *Counters) close(why Cause) { c.n[closings+Counter(why-RefusedCauses)].Add(1) }

// Turn counts a turn of a loop.
func (c *Counters) Turn(took time.Duration) {
	c.n[BusyTime].Add(int64(took))
	c.observe(turnTimes, took)
}

// Called counts a call of the handler that was timed.
func (c *Counters) Called(took time.Duration) { c.observe(callTimes, took) }

// AddTo adds the counters to sum. Of ages the largest counts.
func (c *Counters) AddTo(sum *Counts) {
	for i := range c.n {
		if n := c.n[i].Load(); Counter(i) == CastAge {
			sum[i] = max(sum[i], n)
		} else {
			sum[i] += n
		}
	}
}

// Store sets all of them.
func (c *Counters) Store(n *Counts) {
	for i := range c.n {
		c.n[i].Store(n[i])
	}
}

// Counts is a copy of Counters at one moment.
type Counts [counters]int64

// Past is the counts without those that tell what is now.
func (n Counts) Past() Counts {
	clear(n[:gauges])
	return n
}

// Refused is how many connections were turned away for a reason.
func (n Counts) Refused(why Cause) int64 { return n[refusals+Counter(why)] }

// AllRefused is how many were turned away.
func (n Counts) AllRefused() (sum int64) {
	for why := range RefusedCauses {
		sum += n.Refused(why)
	}
	return sum
}

// Closed is how many connections have closed for a reason.
func (n Counts) Closed(why Cause) int64 { return n[closings+Counter(why-RefusedCauses)] }

// CallTimes is how long calls of handlers have taken.
func (n Counts) CallTimes() Histogram { return n.histogram(callTimes) }

// TurnTimes is how long turns of loops have taken.
func (n Counts) TurnTimes() Histogram { return n.histogram(turnTimes) }

// Buckets is how many buckets a Histogram has: up to a microsecond, and each
// twice as far; the last is for all beyond 8 s.
const Buckets = 25

// perHistogram is how many counters one takes: its buckets and the sum.
const perHistogram = Buckets + 1

// Histogram counts durations by size.
type Histogram struct {
	Sum     time.Duration
	Buckets [Buckets]int64
}

func (c *Counters) observe(at Counter, took time.Duration) {
	c.n[at+Counter(histogram.BucketIndex(took, Buckets))].Add(1)
	c.n[at+Buckets].Add(int64(took))
}

func (n Counts) histogram(at Counter) Histogram {
	return Histogram{Sum: time.Duration(n[at+Buckets]), Buckets: [Buckets]int64(n[at : at+Buckets])}
}

// Counters go to another process, of another version, by name. A counter that
// the other side does not know is left out; those that tell what is now stay.

var counterNames = [...]string{
	Accepted: "accepted", Dialled: "dialled", AcceptErrors: "accept_errors", AcceptPauses: "accept_pauses",
	Reads: "reads", Writes: "writes", BytesIn: "bytes_in", BytesOut: "bytes_out", Messages: "messages",
	Dropped: "dropped", Replaced: "replaced", Broadcasts: "broadcasts", Heartbeats: "heartbeats",
	HandedOver: "handed_over", TakenOver: "taken_over", Panics: "panics", Slow: "slow", Moved: "moved", Shed: "shed",
	BusyTime: "busy_time", GCs: "gcs", GCPause: "gc_pause",
}

var causeNames = [...]string{
	RefusedFull: "refused_full", RefusedSource: "refused_source", RefusedDenied: "refused_denied", RefusedProxy: "refused_proxy",
	RefusedHandshake: "refused_handshake", RefusedTimeout: "refused_timeout", RefusedOther: "refused_other",
	ClosedByPeer: "closed_peer", ClosedByReset: "closed_reset", ClosedByHandler: "closed_handler", ClosedFirstByte: "closed_first_byte",
	ClosedMessage: "closed_message", ClosedIdle: "closed_idle", ClosedWrite: "closed_write", ClosedClose: "closed_close",
	ClosedHeartbeat: "closed_heartbeat", ClosedSlow: "closed_slow", ClosedBudget: "closed_budget", ClosedTooLong: "closed_too_long",
	ClosedTLS: "closed_tls", ClosedPanic: "closed_panic", ClosedShutdown: "closed_shutdown", ClosedExpelled: "closed_expelled",
	ClosedOther: "closed_other",
}

// name is what a counter that only grows is called.
func (what Counter) name() string {
	switch {
	case what >= turnTimes:
		return "turn_times_" + strconv.Itoa(int(what-turnTimes))
	case what >= callTimes:
		return "call_times_" + strconv.Itoa(int(what-callTimes))
	case what >= refusals:
		return causeNames[what-refusals]
	}
	return counterNames[what]
}

// Named gives the counts that only grow by their names, but for those that are 0.
func (n Counts) Named() map[string]int64 {
	named := make(map[string]int64)
	for what := gauges; what < counters; what++ {
		if n[what] != 0 {
			named[what.name()] = n[what]
		}
	}
	return named
}

// AddNamed adds counts that Named has given.
func (n *Counts) AddNamed(named map[string]int64) {
	for what := gauges; what < counters; what++ {
		n[what] += named[what.name()]
	}
}

// Add adds other counts.
func (n *Counts) Add(other *Counts) {
	for i := range n {
		n[i] += other[i]
	}
}
