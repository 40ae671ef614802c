package tcp

import (
	"time"

	"github.com/myriad-go/myriad/internal/engine"
)

// Stats is a snapshot of a server's counters. Fields described with "now" are current values. All other counters count
// from the start of the server.
type Stats struct {
	// Model is the I/O model in use, or "" before the start. Loops is the number of event loops, 0 in the goroutine
	// model.
	Model string
	Loops int
	// Processes is the number of worker processes now, or 0 without Server.Processes. Restarts counts restarts of
	// workers. If there are workers, Loops and all fields below are sums over the workers, and are up to 100 ms old.
	// Counters include workers that have ended, but current values do not. If a worker is killed, the counts of its
	// last 100 ms are lost.
	Processes int
	Restarts  int64
	// Goroutines is the number of goroutines in the workers now. GCs is the number of garbage collections. GCPause is
	// the total time for which garbage collections stopped a worker. All three are 0 without Server.Processes.
	Goroutines, GCs int64
	GCPause         time.Duration
	// Draining reports whether the server is shutting down or has ended. AcceptingPaused reports whether all loops have
	// stopped accepting because of Server.PauseAccepting.
	Draining, AcceptingPaused bool
	// MaxConns is the effective limit of connections: Limits.MaxConns or its default.
	MaxConns int

	// Open is the number of open connections now. Handshaking, Paused and Closing count parts of the open connections.
	// Handshaking counts connections that have not completed their PROXY header or TLS handshake. Paused counts
	// connections from which the server does not read, because their unsent output exceeded Limits.HighWater. Closing
	// counts connections that wait until the peer has received the output or has closed its writing side.
	Open, Handshaking, Paused, Closing int64
	// Accepted counts accepted connections, except those that were rejected or have not completed their PROXY header
	// and TLS handshake. Dialed counts connections made by Dial. HandedOver counts connections that moved to another
	// process in an Upgrade. TakenOver counts connections that came from another process.
	Accepted, Dialed, HandedOver, TakenOver int64
	// Refused counts rejected connections by cause. Closed counts closed connections by cause.
	Refused Refusals
	Closed  Closes
	// AcceptErrors counts failed accepts, for example for lack of descriptors. AcceptPauses counts how often
	// Limits.AcceptRate has delayed accepting.
	AcceptErrors, AcceptPauses int64
	// ReadLimited counts how often Limits.ReadRate or MessageRate has paused the reading from a connection.
	ReadLimited int64

	// Reads counts receive calls that returned data. Writes counts send calls.
	Reads, Writes int64
	// BytesIn and BytesOut count bytes received and sent on the wire.
	BytesIn, BytesOut int64
	// Messages counts the messages that Lines and Split have found.
	Messages int64
	// Dropped counts messages that a slow peer missed: writes under SlowConsumer DropMessage, and broadcasts. Replaced
	// counts values of Group.SendLatest that were replaced before they were sent, once for each connection.
	Dropped, Replaced int64
	// Broadcasts counts messages to all connections (Server.Broadcast). ActiveBroadcasts is the number of broadcasts in
	// progress now. ActiveBroadcastBytes is their total size in bytes. OldestBroadcastAge is the age of the oldest one,
	// in any worker process. With Server.Processes, each worker counts a broadcast once.
	Broadcasts, ActiveBroadcasts, ActiveBroadcastBytes int64
	OldestBroadcastAge                                 time.Duration
	// Heartbeats counts the heartbeats sent.
	Heartbeats int64
	// Buffered is the memory, in bytes, that the buffers of all connections use now; see Limits.MaxBuffered.
	Buffered int64

	// TLS counts completed TLS handshakes, according to whether the compact implementation or crypto/tls processes the
	// connection afterwards.
	TLS TLSHandshakes

	// Panics counts panics in handlers. SlowHandlers counts calls longer than Limits.HandlerTime.
	Panics, SlowHandlers int64
	// OnWorkers is the number of loops whose handlers run on pool workers now. Moved counts how often Auto has moved
	// the handlers of a loop to workers, because they blocked the loop.
	OnWorkers, Moved int64
	// LoopsMovedToThread counts how often an event loop was moved to another thread, because a handler of package web
	// had blocked its thread. See web.HTTP.
	LoopsMovedToThread int64
	// Overload is the state of the overload manager; see Server.Overload.
	Overload OverloadStats
	// Shed counts calls of the method Shed of a ShedHandler or MessageShedHandler. The server calls Shed when no worker
	// is available. One call may cover several messages. Connections that wait for a worker are not counted.
	Shed int64
	// HandlerTime is a histogram of the durations of handler calls. On event loops, every 64th call is measured. On
	// workers, every call is measured.
	HandlerTime Histogram
	// Lag is a histogram of the durations of event loop iterations. A ready connection waits for at most one iteration.
	Lag Histogram
	// Busy is the total time for which event loops were not idle. To get the utilization of the loops, divide the
	// increase of Busy by the elapsed time and by Loops.
	Busy time.Duration
}

// Stats returns the server's counters. It is safe for concurrent use.
func (s *Server) Stats() Stats {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.engine == nil {
		return Stats{Draining: s.closed}
	}
	n := s.engine.Counters()
	n.Add(&s.predecessorCounts)
	processes, restarts := s.workerCountsLocked()
	return Stats{
		Model: s.model, Loops: s.engine.Loops(), MaxConns: s.configuredOrSummedMaxConns(s.limits.MaxConns),
		Processes: processes, Restarts: restarts, Draining: s.closed,
		Goroutines: n[engine.Goroutines], GCs: n[engine.GCs], GCPause: time.Duration(n[engine.GCPause]),
		AcceptingPaused: n[engine.AcceptPausedCount] > 0 && int(n[engine.AcceptPausedCount]) >= max(s.engine.Loops(), processes),
		Open:            n[engine.Open], Handshaking: n[engine.Handshaking], Paused: n[engine.Paused], Closing: n[engine.Closing],
		Accepted: n[engine.Accepted], Dialed: n[engine.Dialled], HandedOver: n[engine.ConnsExported], TakenOver: n[engine.ConnsImported], AcceptErrors: n[engine.AcceptErrors], AcceptPauses: n[engine.AcceptPauses], ReadLimited: n[engine.ReadLimited],
		Refused: toRefusals(n), Closed: toCloses(n),
		Reads: n[engine.Reads], Writes: n[engine.Writes], BytesIn: n[engine.BytesIn], BytesOut: n[engine.BytesOut],
		Messages: n[engine.Messages], Dropped: n[engine.Dropped], Replaced: n[engine.Replaced],
		ActiveBroadcasts: n[engine.ActiveBroadcasts], ActiveBroadcastBytes: n[engine.ActiveBroadcastBytes], OldestBroadcastAge: time.Duration(n[engine.OldestBroadcastAge]), Broadcasts: n[engine.Broadcasts],
		Heartbeats: n[engine.Heartbeats], Buffered: n[engine.Buffered],
		TLS: TLSHandshakes{
			Compact: n[engine.TLSCompact], Version: n[engine.TLSVersion], CipherSuite: n[engine.TLSCipherSuite], FIPS: n[engine.TLSFIPS],
			SessionCache: n[engine.TLSSessionCache], Disabled: n[engine.TLSDisabled],
		},
		Overload: toOverloadStats(&n),
		Panics:   n[engine.Panics], SlowHandlers: n[engine.SlowCalls], OnWorkers: n[engine.LoopsOnWorkers], Moved: n[engine.MovedToWorkers], LoopsMovedToThread: n[engine.LoopsContinued], Shed: n[engine.Shed],
		HandlerTime: toHistogram(n.HandlerCallTimes()), Lag: toHistogram(n.LoopTurnTimes()), Busy: time.Duration(n[engine.BusyTime]),
	}
}

// TLSHandshakes counts completed TLS handshakes, according to whether the compact implementation or crypto/tls
// processes the records of the connection afterwards. Dialed connections are included.
type TLSHandshakes struct {
	// Compact counts connections that use the compact implementation; see Server.DisableCompactTLS. All other fields
	// count connections that use crypto/tls. Each of these fields stands for a reason.
	Compact int64
	// Version counts connections with a version before TLS 1.3. CipherSuite counts connections with ChaCha20-Poly1305.
	// FIPS counts connections of a program in FIPS 140 mode. SessionCache counts dialed connections with a
	// tls.Config.ClientSessionCache. Disabled counts all connections with Server.DisableCompactTLS.
	Version, CipherSuite, FIPS, SessionCache, Disabled int64
}

// Refusals counts, by cause, connections that the server rejected before it called their handler.
type Refusals struct {
	// Full counts connections above Limits.MaxConns. Source counts connections above Limits.MaxConnsPerSource. Denied
	// counts connections excluded by Server.Allow or Server.Deny.
	Full, Source, Denied int64
	// Proxy counts connections with an invalid or missing PROXY header. Handshake counts failed TLS handshakes. Timeout
	// counts connections that exceeded Limits.HandshakeTimeout. Overload counts connections refused because of
	// Server.Overload. Other counts connections that ended for other reasons.
	Proxy, Handshake, Timeout, Overload, Other int64
}

// Total returns the number of rejected connections for all causes.
func (r Refusals) Total() int64 {
	return r.Full + r.Source + r.Denied + r.Proxy + r.Handshake + r.Timeout + r.Overload + r.Other
}

// Closes counts closed connections by cause. Rejected connections are not included.
type Closes struct {
	// Peer counts connections ended by the peer. It includes ends within a message or without TLS's close_notify
	// (io.ErrUnexpectedEOF). Reset counts connections broken by the peer or the network. Handler counts connections
	// closed by the handler, including errors of the handler or of a bufio.SplitFunc.
	Peer, Reset, Handler int64
	// FirstByte, Message, Idle, Write, Close and Heartbeat count connections that exceeded a time limit:
	// Limits.FirstByteTimeout and so on.
	FirstByte, Message, Idle, Write, Close, Heartbeat int64
	// SlowConsumer counts connections that exceeded Limits.MaxUnsent. Budget counts connections closed because of
	// Limits.MaxBuffered. TooLong counts connections with a message longer than Limits.MaxMessage. TLS counts
	// connections whose TLS failed after the handshake (TLSError) or in StartTLS.
	SlowConsumer, Budget, TooLong, TLS int64
	// Panic counts connections whose handler panicked. Shutdown counts connections closed by the server's end. Operator
	// counts connections closed by Server.CloseConns. Other counts all remaining connections.
	Panic, Shutdown, Operator, Other int64
}

// Buckets is the number of buckets of a Histogram.
const Buckets = engine.Buckets

// Histogram counts durations in buckets. The upper bound doubles from each bucket to the next.
type Histogram struct {
	// Count is the number of durations. Sum is the total of the durations.
	Count int64
	Sum   time.Duration
	// Buckets[i] counts the durations that are at most Bound(i) and longer than Bound(i-1).
	Buckets [Buckets]int64
}

// Bound returns the upper bound of bucket i. The bound of bucket 0 is 1 µs, and each bound is twice the previous bound.
// The bound of the last bucket is Never.
func (Histogram) Bound(i int) time.Duration {
	if i >= Buckets-1 {
		return Never
	}
	return time.Microsecond << i
}

func toRefusals(n engine.Counts) Refusals {
	return Refusals{
		Full: n.RefusedBy(engine.RefusedFull), Source: n.RefusedBy(engine.RefusedSource), Denied: n.RefusedBy(engine.RefusedDenied),
		Proxy: n.RefusedBy(engine.RefusedProxy), Handshake: n.RefusedBy(engine.RefusedHandshake), Timeout: n.RefusedBy(engine.RefusedTimeout),
		Overload: n.RefusedBy(engine.RefusedOverload), Other: n.RefusedBy(engine.RefusedOther),
	}
}

func toCloses(n engine.Counts) Closes {
	return Closes{
		Peer: n.ClosedBy(engine.ClosedByPeer), Reset: n.ClosedBy(engine.ClosedByReset), Handler: n.ClosedBy(engine.ClosedByHandler),
		FirstByte: n.ClosedBy(engine.ClosedFirstByte), Message: n.ClosedBy(engine.ClosedMessage), Idle: n.ClosedBy(engine.ClosedIdle),
		Write: n.ClosedBy(engine.ClosedWrite), Close: n.ClosedBy(engine.ClosedClose), Heartbeat: n.ClosedBy(engine.ClosedHeartbeat),
		SlowConsumer: n.ClosedBy(engine.ClosedSlow), Budget: n.ClosedBy(engine.ClosedBudget), TooLong: n.ClosedBy(engine.ClosedTooLong), TLS: n.ClosedBy(engine.ClosedTLS),
		Panic: n.ClosedBy(engine.ClosedPanic), Shutdown: n.ClosedBy(engine.ClosedShutdown),
		Operator: n.ClosedBy(engine.ClosedByOperator), Other: n.ClosedBy(engine.ClosedOther),
	}
}

func toHistogram(h engine.Histogram) Histogram {
	out := Histogram{Sum: h.Sum, Buckets: h.Buckets}
	for _, n := range h.Buckets {
		out.Count += n
	}
	return out
}
