package engine

import (
	"strconv"
	"sync/atomic"
	"time"

	"github.com/myriad-go/myriad/internal/histogram"
	"github.com/myriad-go/myriad/internal/overload"
)

type Counter int

// Values of Counter. The counters before Accepted can decrease; all others only grow.
const (
	Open                 Counter = iota // open connections
	Handshaking                         // open connections before Opened
	Paused                              // open connections that are not read because too much output is unsent
	Closing                             // open connections that are closing
	Buffered                            // bytes of memory in buffers
	LoopsOnWorkers                      // loops whose handlers are called by workers
	ActiveBroadcasts                    // broadcasts under way
	ActiveBroadcastBytes                // total size of these broadcasts in bytes
	OldestBroadcastAge                  // age of the oldest of these broadcasts in nanoseconds
	AcceptPausedCount                   // loops paused by Engine.PauseAccept; without loops, 1 if all acceptors pause
	Goroutines                          // of a worker process; see package supervisor
	OverloadActions                     // one for each action of package overload: 1 if it is active
	_
	_
	_
	_
	_
	_

	Accepted     // accepted connections, without refused ones
	Dialled      // connections made by Dial
	AcceptErrors // failed accepts, for example without free descriptors
	AcceptPauses // pauses because of Limits.AcceptRate
	ReadLimited  // pauses of connections because of their ReadRate or MessageRate
	Reads        // receive calls that returned bytes
	Writes       // send calls
	BytesIn
	BytesOut
	Messages // messages that handlers have used; see Conn.CountMessagesAndLimitRate
	Dropped  // messages dropped because the peer is slow
	Replaced // latest values that were replaced before they were sent
	Broadcasts
	Heartbeats       // sent
	ConnsExported    // to another process
	ConnsImported    // from another process
	Panics           // in handlers
	SlowCalls        // handler calls longer than Limits.SlowHandlerTime
	MovedToWorkers   // how often AutoWorkers moved handlers to workers
	LoopsContinued   // how often another goroutine continued a loop, because a LoopJob took long
	Shed             // calls of the handler's Shed
	ShedByQueueDelay // requests shed, in the order of overload.Reason
	ShedByLag
	ShedByMemory
	BusyTime // nanoseconds that loops were busy

	// TLS handshakes by secure.StayReason. TLSCompact counts connections that have left crypto/tls and use less memory.
	// The others count connections that stay with crypto/tls, by the reason.
	TLSCompact
	TLSDisabled
	TLSVersion
	TLSCipherSuite
	TLSFIPS
	TLSSessionCache

	GCs     // garbage collections of a worker process
	GCPause // nanoseconds in which garbage collections stopped the world

	refusals         // first counter of refusals; there is one for each Cause before NumRefusedCauses
	closings         = refusals + Counter(NumRefusedCauses)
	handlerCallTimes = closings + Counter(NumCauses-NumRefusedCauses) // durations of handler calls
	loopTurnTimes    = handlerCallTimes + countersPerHistogram        // durations of loop turns
	counters         = loopTurnTimes + countersPerHistogram

	gauges = Accepted // number of gauges
)

const _ = uint(Accepted - OverloadActions - Counter(overload.NumActions)) // there is a gauge for each action

// Counters contains the counters of a loop or of another owner of connections. Each owner has its own Counters, because
// counters that several processors change are slow. Counters is safe for concurrent use.
type Counters struct {
	n [counters]atomic.Int64
	_ [64]byte // pads the next loop's counters onto another cache line
}

// Add adds n to a counter and returns the counter's new value.
func (c *Counters) Add(counter Counter, n int64) int64 { return c.n[counter].Add(n) }

func (c *Counters) Set(what Counter, n int64) { c.n[what].Store(n) }

func (c *Counters) SetGaugeBool(gauge Counter, on bool) {
	n := int64(0)
	if on {
		n = 1
	}
	c.Set(gauge, n)
}

func (c *Counters) Get(what Counter) int64 { return c.n[what].Load() }

// CountRefused counts a connection that was rejected or that ended before the handler's Opened was called.
func (c *Counters) CountRefused(cause Cause) { c.n[refusals+Counter(cause)].Add(1) }

func (c *Counters) countClosed(cause Cause) { c.n[closings+Counter(cause-NumRefusedCauses)].Add(1) }

func (c *Counters) CountLoopTurn(took time.Duration) {
	c.n[BusyTime].Add(int64(took))
	c.recordDuration(loopTurnTimes, took)
}

func (c *Counters) CountHandlerCall(took time.Duration) { c.recordDuration(handlerCallTimes, took) }

// AddToWithMaxAge adds all counters to sum, except OldestBroadcastAge. For OldestBroadcastAge, sum gets the larger of
// the two values.
func (c *Counters) AddToWithMaxAge(sum *Counts) {
	for i := range c.n {
		if n := c.n[i].Load(); Counter(i) == OldestBroadcastAge {
			sum[i] = max(sum[i], n)
		} else {
			sum[i] += n
		}
	}
}

func (c *Counters) SetAll(counts *Counts) {
	for i := range c.n {
		c.n[i].Store(counts[i])
	}
}

// Counts is a snapshot of Counters.
type Counts [counters]int64

// WithoutGauges returns a copy of n in which all gauges are 0. Gauges are the counters that can decrease.
func (n Counts) WithoutGauges() Counts {
	clear(n[:gauges])
	return n
}

func (n Counts) RefusedBy(cause Cause) int64 { return n[refusals+Counter(cause)] }

func (n Counts) TotalRefused() (sum int64) {
	for reason := range NumRefusedCauses {
		sum += n.RefusedBy(reason)
	}
	return sum
}

func (n Counts) ClosedBy(cause Cause) int64 { return n[closings+Counter(cause-NumRefusedCauses)] }

func (n Counts) HandlerCallTimes() Histogram { return n.histogram(handlerCallTimes) }

func (n Counts) LoopTurnTimes() Histogram { return n.histogram(loopTurnTimes) }

// Buckets is the number of buckets of a Histogram. The upper bound of bucket i is 2^i µs; the last bucket is unbounded.
const Buckets = 25

const countersPerHistogram = Buckets + 1

type Histogram struct {
	Sum     time.Duration
	Buckets [Buckets]int64
}

// DurationWeightedMeanSince estimates the mean duration of the loop iteration that is in progress at a random time.
// Long iterations have more weight, because a random time is more likely to fall into a long iteration. The estimate
// ignores iterations that are already part of the earlier snapshot.
func (h Histogram) DurationWeightedMeanSince(before Histogram) time.Duration {
	var sum, squares float64
	for i, n := range h.Buckets {
		middle := 0.75 * float64(histogram.BucketUpperBound(i))
		if i == Buckets-1 {
			middle *= 2
		}
		sum += middle * float64(n-before.Buckets[i])
		squares += middle * middle * float64(n-before.Buckets[i])
	}
	if sum <= 0 {
		return 0
	}
	return time.Duration(squares / sum)
}

func (c *Counters) recordDuration(histogramStart Counter, took time.Duration) {
	c.n[histogramStart+Counter(histogram.BucketIndex(took, Buckets))].Add(1)
	c.n[histogramStart+Buckets].Add(int64(took))
}

func (n Counts) histogram(first Counter) Histogram {
	return Histogram{Sum: time.Duration(n[first+Buckets]), Buckets: [Buckets]int64(n[first : first+Buckets])}
}

// Counters are sent to other processes, possibly of another version, by name. Gauges are not sent.

var counterNames = [...]string{
	Accepted: "accepted", Dialled: "dialled", AcceptErrors: "accept_errors", AcceptPauses: "accept_pauses", ReadLimited: "read_limited",
	Reads: "reads", Writes: "writes", BytesIn: "bytes_in", BytesOut: "bytes_out", Messages: "messages",
	Dropped: "dropped", Replaced: "replaced", Broadcasts: "broadcasts", Heartbeats: "heartbeats",
	ConnsExported: "handed_over", ConnsImported: "taken_over", Panics: "panics", SlowCalls: "slow", MovedToWorkers: "moved", LoopsContinued: "loops_continued", Shed: "shed",
	ShedByQueueDelay: "shed_queue_delay", ShedByLag: "shed_lag", ShedByMemory: "shed_memory",
	TLSCompact: "tls_compact", TLSDisabled: "tls_disabled", TLSVersion: "tls_version", TLSCipherSuite: "tls_cipher_suite",
	TLSFIPS: "tls_fips", TLSSessionCache: "tls_session_cache",
	BusyTime: "busy_time", GCs: "gcs", GCPause: "gc_pause",
}

var causeNames = [...]string{
	RefusedFull: "refused_full", RefusedSource: "refused_source", RefusedDenied: "refused_denied", RefusedProxy: "refused_proxy",
	RefusedHandshake: "refused_handshake", RefusedTimeout: "refused_timeout", RefusedOverload: "refused_overload", RefusedOther: "refused_other",
	ClosedByPeer: "closed_peer", ClosedByReset: "closed_reset", ClosedByHandler: "closed_handler", ClosedFirstByte: "closed_first_byte",
	ClosedMessage: "closed_message", ClosedIdle: "closed_idle", ClosedWrite: "closed_write", ClosedClose: "closed_close",
	ClosedHeartbeat: "closed_heartbeat", ClosedSlow: "closed_slow", ClosedBudget: "closed_budget", ClosedTooLong: "closed_too_long",
	ClosedTLS: "closed_tls", ClosedPanic: "closed_panic", ClosedShutdown: "closed_shutdown", ClosedByOperator: "closed_expelled",
	ClosedOther: "closed_other",
}

func (what Counter) name() string {
	switch {
	case what >= loopTurnTimes:
		return "turn_times_" + strconv.Itoa(int(what-loopTurnTimes))
	case what >= handlerCallTimes:
		return "call_times_" + strconv.Itoa(int(what-handlerCallTimes))
	case what >= refusals:
		return causeNames[what-refusals]
	}
	return counterNames[what]
}

// NonzeroCountersByName returns a map from the names of counters to their counts. It omits gauges and counts of 0.
func (n Counts) NonzeroCountersByName() map[string]int64 {
	named := make(map[string]int64)
	for what := gauges; what < counters; what++ {
		if n[what] != 0 {
			named[what.name()] = n[what]
		}
	}
	return named
}

// AddByName adds counts from NonzeroCountersByName, possibly of another process. It ignores unknown names.
func (n *Counts) AddByName(named map[string]int64) {
	for what := gauges; what < counters; what++ {
		n[what] += named[what.name()]
	}
}

func (n *Counts) Add(other *Counts) {
	for i := range n {
		n[i] += other[i]
	}
}
