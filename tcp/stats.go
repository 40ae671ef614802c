package tcp

import (
	"time"

	"github.com/myriad-go/myriad/internal/engine"
)

// Stats are a server's counters at one moment. They count since the start, but for those
// that say "now".
type Stats struct {
	// Model is the I/O model that serves, "" before the start; Loops is the number of its
	// event loops, 0 for a model without them.
	Model string
	Loops int
	// Processes is how many worker processes run now, 0 without Server.Processes. All that
	// follows, and Loops, is then the sum over them, up to 100 ms old. The counts of a
	// worker that has ended remain, but for those of now; one that was killed has taken
	// the last 100 ms with it. Restarts counts the workers that were started again.
	Processes int
	Restarts  int64
	// Goroutines is how many goroutines the worker processes have now, GCs how many garbage
	// collections they have made, and GCPause how long those have stopped one of them, all
	// together. Without Server.Processes they are 0: Go's runtime tells of this process.
	Goroutines, GCs int64
	GCPause         time.Duration
	// Draining says that the server shuts down, or has. AcceptingPaused says that nothing
	// is accepted now because of Server.PauseAccepting: all loops have paused.
	Draining, AcceptingPaused bool
	// MaxConns is Limits.MaxConns with its default filled in.
	MaxConns int

	// Open is the number of connections that are open now. Of those, Greeting are before
	// their first message (PROXY header, TLS handshake), Paused are not read from because
	// they owe more than Limits.HighWater, and Closing wait for output to be taken or for
	// the peer's end.
	Open, Greeting, Paused, Closing int64
	// Accepted counts connections that were opened, Dialed those that Dial has made. HandedOver
	// counts those that another process goes on with, TakenOver those that have come from one:
	// see Upgrade.
	Accepted, Dialed, HandedOver, TakenOver int64
	// Refused counts those that were turned away, Closed those that have closed, by cause.
	Refused Refusals
	Closed  Closes
	// AcceptErrors counts failures to accept, such as for want of descriptors, AcceptPauses
	// how often Limits.AcceptRate has let connections wait.
	AcceptErrors, AcceptPauses int64

	// Reads counts receive calls that brought bytes, Writes send calls.
	Reads, Writes int64
	// BytesIn and BytesOut count bytes received and sent, as they are on the wire.
	BytesIn, BytesOut int64
	// Messages counts the messages that Lines and Split have cut out.
	Messages int64
	// Dropped counts messages that were not taken because their peer reads too slowly:
	// writes under SlowConsumer DropMessage, and broadcasts. Replaced counts values of
	// Group.Publish that newer ones have replaced before they were sent, for each
	// connection.
	Dropped, Replaced int64
	// Broadcasts counts messages to all (Server.Broadcast), in each worker process that they
	// reached. Casting is how many of them are under way now, not given to all connections
	// yet, CastBytes their bytes, and CastAge for how long the oldest has been, with worker
	// processes that of the slowest. What single peers have not taken is in Buffered.
	Broadcasts, Casting, CastBytes int64
	CastAge                        time.Duration
	// Heartbeats counts those that were sent.
	Heartbeats int64
	// Buffered is how many bytes of memory the buffers of all connections hold now, with what
	// is queued for them; see Limits.MaxBuffered.
	Buffered int64

	// Panics counts panics in the handler, SlowHandlers calls that took longer than
	// Limits.HandlerTime.
	Panics, SlowHandlers int64
	// OnWorkers is the number of loops whose handlers are called by workers now, and Moved
	// counts how often Auto has moved the handlers of a loop there, because they held it.
	OnWorkers, Moved int64
	// Shed counts how often a connection's input, however many messages, went to the
	// handler's Shed because no worker had time for it. What waits is not counted here.
	Shed int64
	// HandlerTime is how long calls of the handler take: one in 64 is timed, and on workers
	// all.
	HandlerTime Histogram
	// Lag is how long the turns of event loops take: a connection that becomes ready waits
	// so long at the most until its loop looks again.
	Lag Histogram
	// Busy is the time that event loops have worked, all together: its growth, divided by
	// the time and Loops, is their utilisation.
	Busy time.Duration
}

// Stats gives the counters. It is safe for concurrent use.
func (s *Server) Stats() Stats {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.engine == nil {
		return Stats{Draining: s.closed}
	}
	n := s.engine.Counters()
	n.Add(&s.base)
	processes, restarts := s.processes()
	return Stats{
		Model: s.model, Loops: s.engine.Loops(), MaxConns: s.maxConns(s.limits.MaxConns),
		Processes: processes, Restarts: restarts, Draining: s.closed,
		Goroutines: n[engine.Goroutines], GCs: n[engine.GCs], GCPause: time.Duration(n[engine.GCPause]),
		AcceptingPaused: n[engine.AcceptPausedCount] > 0 && int(n[engine.AcceptPausedCount]) >= max(s.engine.Loops(), processes),
		Open:            n[engine.Open], Greeting: n[engine.Handshaking], Paused: n[engine.Paused], Closing: n[engine.Closing],
		Accepted: n[engine.Accepted], Dialed: n[engine.Dialled], HandedOver: n[engine.ConnsExported], TakenOver: n[engine.ConnsImported], AcceptErrors: n[engine.AcceptErrors], AcceptPauses: n[engine.AcceptPauses],
		Refused: refusals(n), Closed: closes(n),
		Reads: n[engine.Reads], Writes: n[engine.Writes], BytesIn: n[engine.BytesIn], BytesOut: n[engine.BytesOut],
		Messages: n[engine.Messages], Dropped: n[engine.Dropped], Replaced: n[engine.Replaced],
		Casting: n[engine.ActiveBroadcasts], CastBytes: n[engine.ActiveBroadcastBytes], CastAge: time.Duration(n[engine.OldestBroadcastAge]), Broadcasts: n[engine.Broadcasts],
		Heartbeats: n[engine.Heartbeats], Buffered: n[engine.Buffered],
		Panics: n[engine.Panics], SlowHandlers: n[engine.SlowCalls], OnWorkers: n[engine.LoopsOnWorkers], Moved: n[engine.MovedToWorkers], Shed: n[engine.Shed],
		HandlerTime: histogram(n.HandlerCallTimes()), Lag: histogram(n.LoopTurnTimes()), Busy: time.Duration(n[engine.BusyTime]),
	}
}

// Refusals counts connections that were refused before their handler
// was called, by cause.
type Refusals struct {
	// Full counts those beyond Limits.MaxConns, Source those beyond
	// Limits.MaxConnsPerSource, Denied those that Server.Allow and
	// Server.Deny keep out.
	Full, Source, Denied int64
	// Proxy counts those with a wrong PROXY header or none, Handshake those
	// whose TLS handshake failed, Timeout those that had not finished either
	// within Limits.HandshakeTimeout, and Other those that ended before for
	// another reason: by the peer, the network, or the server's end.
	Proxy, Handshake, Timeout, Other int64
}

// Total is the sum of all.
func (r Refusals) Total() int64 {
	return r.Full + r.Source + r.Denied + r.Proxy + r.Handshake + r.Timeout + r.Other
}

// Closes counts connections that have closed, by cause. Those that were refused
// are not among them.
type Closes struct {
	// Peer counts those that the peer ended, within a message or without
	// TLS's close_notify (io.ErrUnexpectedEOF) too, Reset those that it or the
	// network broke off, Handler those that the handler closed, also by an
	// error of its own or of a bufio.SplitFunc.
	Peer, Reset, Handler int64
	// FirstByte, Message, Idle, Write, Close and Heartbeat count those whose
	// time was over, by the limit: Limits.FirstByteTimeout and so on.
	FirstByte, Message, Idle, Write, Close, Heartbeat int64
	// SlowConsumer counts those that owed more than Limits.MaxUnsent, Budget
	// those that gave way to Limits.MaxBuffered, TooLong those with a message
	// longer than Limits.MaxMessage, TLS those whose TLS has broken after the
	// handshake, see TLSError, or whose StartTLS has failed.
	SlowConsumer, Budget, TooLong, TLS int64
	// Panic counts those whose handler panicked, Shutdown those that the
	// server's end closed, Operator those that Server.CloseConns closed, Other
	// the rest.
	Panic, Shutdown, Operator, Other int64
}

// Buckets is how many buckets a Histogram has.
const Buckets = engine.Buckets

// Histogram counts durations by size.
type Histogram struct {
	// Count is how many durations, Sum all of them together.
	Count int64
	Sum   time.Duration
	// Buckets has in place i the durations that are at most Bound(i) and
	// more than the bound before.
	Buckets [Buckets]int64
}

// Bound is the upper bound of bucket i: a microsecond, doubled i times. The last
// has none; there it is Never.
func (Histogram) Bound(i int) time.Duration {
	if i >= Buckets-1 {
		return Never
	}
	return time.Microsecond << i
}

func refusals(n engine.Counts) Refusals {
	return Refusals{
		Full: n.RefusedBy(engine.RefusedFull), Source: n.RefusedBy(engine.RefusedSource), Denied: n.RefusedBy(engine.RefusedDenied),
		Proxy: n.RefusedBy(engine.RefusedProxy), Handshake: n.RefusedBy(engine.RefusedHandshake), Timeout: n.RefusedBy(engine.RefusedTimeout),
		Other: n.RefusedBy(engine.RefusedOther),
	}
}

func closes(n engine.Counts) Closes {
	return Closes{
		Peer: n.ClosedBy(engine.ClosedByPeer), Reset: n.ClosedBy(engine.ClosedByReset), Handler: n.ClosedBy(engine.ClosedByHandler),
		FirstByte: n.ClosedBy(engine.ClosedFirstByte), Message: n.ClosedBy(engine.ClosedMessage), Idle: n.ClosedBy(engine.ClosedIdle),
		Write: n.ClosedBy(engine.ClosedWrite), Close: n.ClosedBy(engine.ClosedClose), Heartbeat: n.ClosedBy(engine.ClosedHeartbeat),
		SlowConsumer: n.ClosedBy(engine.ClosedSlow), Budget: n.ClosedBy(engine.ClosedBudget), TooLong: n.ClosedBy(engine.ClosedTooLong), TLS: n.ClosedBy(engine.ClosedTLS),
		Panic: n.ClosedBy(engine.ClosedPanic), Shutdown: n.ClosedBy(engine.ClosedShutdown),
		Operator: n.ClosedBy(engine.ClosedByOperator), Other: n.ClosedBy(engine.ClosedOther),
	}
}

func histogram(h engine.Histogram) Histogram {
	out := Histogram{Sum: h.Sum, Buckets: h.Buckets}
	for _, n := range h.Buckets {
		out.Count += n
	}
	return out
}
