package tcp

import (
	"math"
	"time"

	"github.com/myriad-go/myriad/internal/cgroup"
	"github.com/myriad-go/myriad/internal/engine"
	"github.com/myriad-go/myriad/internal/sock"
)

// Never, as the value of a time limit, means no limit.
const Never = time.Duration(math.MaxInt64)

// Limits are the limits of a Server. A zero field selects the default; a negative value is an error. A timeout may take
// effect late. The delay is at most 400 ms or an eighth of the timeout, whichever is larger.
type Limits struct {
	// MaxConns is the maximum number of connections. Further connections are accepted, closed immediately and counted
	// in Stats.Refused. The default is the descriptor limit minus 128, at most 1,048,576. If MaxConns exceeds the
	// descriptor limit, every event loop uses its own descriptor table (see Server.Loops). In the goroutine model, such
	// a MaxConns is an error.
	MaxConns int

	// MaxConnsPerSource is the maximum number of connections from one IPv4 address, or from one IPv6 prefix of
	// SourcePrefix bits. Behind proxies with the PROXY protocol, the limit applies to the clients' addresses that the
	// proxies report. The default, 0, means no limit, because many users can share an address.
	MaxConnsPerSource int

	// SourcePrefix is the length, in bits, of the IPv6 prefix that counts as one source in MaxConnsPerSource. The
	// default is 64, the maximum 128.
	SourcePrefix int

	// AcceptRate is the maximum number of connections accepted per second. After a second without connections, the
	// server may accept AcceptRate connections at once. Further connections wait in the kernel's queue. The default, 0,
	// means no limit. With Server.Processes, every process gets an equal share, rounded down, and AcceptRate must be at
	// least Processes.
	AcceptRate int

	// ReadRate is the maximum number of bytes per second that a connection passes to its handler. MessageRate is the
	// maximum number of messages per second, as counted by Stats.Messages. After a second without input, or after an
	// Upgrade, a connection may use the allowance of a second at once. The defaults, 0, mean no limit; the maximum is
	// 1,000,000,000. See Conn.SetReadRate.
	//
	// A faster client is not closed. The server reads from the client again at most 10 ms after the rate permits, so
	// the client's sends block. This wait does not count as silence, and Stats.ReadLimited counts it.
	//
	// The server checks ReadRate after each read, usually of at most 64 KiB. Excess bytes delay the next read. With
	// TLS, ReadRate counts decrypted bytes. MessageRate is exact, but limits only handlers made by Lines or Split.
	// Relays are not limited.
	ReadRate, MessageRate int

	// MaxMessage is the maximum size of a message in bytes, including its framing, such as a line end or a length
	// prefix. It is also the maximum input that a connection buffers for its handler. The connection closes with
	// ErrMessageTooLong when MaxMessage bytes have arrived without the end of the message. With LengthPrefixed, the
	// connection closes as soon as a prefix with a larger length has arrived. The default is 65,536, as in
	// bufio.Scanner; the maximum is 1 GiB.
	//
	// After ErrMessageTooLong, the client receives the answers to its earlier messages and then the end of the stream.
	// A client that continues to send for longer than Linger receives a reset (ECONNRESET or EPIPE).
	MaxMessage int

	// MaxUnsent is the maximum number of bytes that wait for one peer. The server counts output of the handler
	// separately from messages of Refs and broadcasts, and the limit applies to each of the two counts.
	// Server.SlowConsumer selects what happens above the limit. The default is 1 MiB, the maximum 1 GiB.
	//
	// The peer must receive waiting output within WriteTimeout. It must therefore read at least MaxUnsent bytes per
	// WriteTimeout, which is 34 KiB/s with the defaults. If peers are slower, raise WriteTimeout.
	MaxUnsent int

	// HighWater is the number of unsent output bytes above which a connection stops reading. LowWater is the number at
	// which reading resumes. The two fields limit the output for a peer that sends but does not read. The default of
	// HighWater is 64 KiB or half of MaxUnsent, whichever is less. The default of LowWater is half of HighWater.
	// LowWater must not exceed HighWater, and HighWater must not exceed MaxUnsent.
	HighWater, LowWater int

	// MaxBuffered is the maximum memory, in bytes, of the buffers of all connections. Above the limit, the server
	// closes the connections that have the largest buffers, and their close reason is ErrOverBudget. In the goroutine
	// model, Ref.SendWait blocks above the limit, and Ref.Send fails with ErrFull above 5/4 of the limit.
	//
	// The limit covers unused input, unsent output, incomplete TLS records and TLS handshakes. It also covers,
	// approximately, the memory that TLS retains after large records. Messages of Refs, groups and broadcasts count
	// from the moment they are accepted. The limit does not cover the minimum size of TLS sessions, read buffers, free
	// buffers, values of Group.SendLatest, or memory of the handler and the kernel.
	//
	// The default is a quarter of the memory available to the process. The available memory is the smallest of the
	// machine's memory, the cgroup's limit and GOMEMLIMIT. With Server.Processes, the processes share the memory of the
	// machine or cgroup, but GOMEMLIMIT applies to each of them.
	MaxBuffered int

	// MaxMail is the maximum number of messages from Refs that wait for one event loop or, in the goroutine model, for
	// one connection. At the limit, Send fails with ErrFull. Requests to close connections have a separate limit of the
	// same size. A message to a large group counts once for every 512 members. The default is 1,048,576, the maximum
	// 268,435,456.
	MaxMail int

	// MaxMailBytes is the maximum total size, in bytes, of the messages in the mailbox of one loop or connection. If a
	// mailbox is empty, it accepts a message that exceeds the limit. A quarter of the limit is reserved for
	// Ref.SendWait. While a loop delivers messages, it may use 2*MaxMailBytes in addition. All mailboxes together are
	// limited to a sixteenth of MaxBuffered. Broadcasts in progress are not counted here, and have a separate limit of
	// MaxMailBytes. The default is 8 MiB, the maximum 1 GiB.
	MaxMailBytes int

	// MaxHandshakes is the maximum number of TLS handshakes in progress. A handshake takes about 22 KiB. At this limit,
	// further connections wait for their handshake. The server then ends handshakes whose client has sent nothing for a
	// second, and counts them in Stats.Refused.Handshake. The default is 4,096.
	MaxHandshakes int

	// HandshakeTimeout limits the time for the PROXY header and TLS handshake of a new connection. Conn.StartTLS begins
	// a new period of the same length. The default is 10 s.
	HandshakeTimeout time.Duration

	// FirstByteTimeout limits the time until the first byte from a peer. A slower connection closes with
	// ErrFirstByteTimeout. The default is 1 min. Use Never if some clients only receive.
	FirstByteTimeout time.Duration

	// MessageTimeout limits the time from the first byte of a message to the last. Input that the handler has left
	// unused counts as an incomplete message. A slower connection closes with ErrMessageTimeout. The default is 30 s.
	MessageTimeout time.Duration

	// IdleTimeout limits the time for which a peer may send nothing after the handler has used all of its input. If the
	// peer is silent for longer, the connection closes with ErrIdleTimeout. The default is Never: an idle peer costs
	// little, and TCP keep-alive detects lost peers within 3 minutes. If heartbeats or IdleTimeout detect lost peers
	// within 3 minutes, the server turns keep-alive off.
	IdleTimeout time.Duration

	// WriteTimeout limits the time until the peer has received a byte that the server has written. If the peer is
	// slower, the connection closes with ErrWriteTimeout. The default is 30 s.
	//
	// The kernel enforces a similar limit (TCP_USER_TIMEOUT). If the kernel detects the problem first, the close reason
	// is syscall.ETIMEDOUT, counted in Stats.Closed.Reset. The kernel's limit also applies to unanswered keep-alive
	// probes. It is at least 3 minutes, so that one lost probe does not close a connection. If heartbeats or
	// IdleTimeout detect lost peers sooner, the kernel's limit may be shorter.
	WriteTimeout time.Duration

	// HandlerTime is the duration above which a handler call counts as slow. The server logs slow calls and counts them
	// in Stats.SlowHandlers, but does not interrupt them. An event loop begins to measure each call only after it was
	// slow once. The first log message may therefore name the loop but not the call. The default is 1 s.
	HandlerTime time.Duration

	// CloseTimeout limits the time for a peer to receive pending output. The time begins when the connection begins to
	// close, or when the peer closes its writing side (shutdown(2), nc -N). If the peer is slower, the connection
	// closes with ErrCloseTimeout. The default is 10 s. Raise it for clients that close their writing side after the
	// request and then read a long answer.
	CloseTimeout time.Duration

	// Linger limits how long the server waits for the peer to close its writing side, after the server has closed its
	// own writing side. The default is 1 s. Without this wait, a reset by the kernel could destroy answers that the
	// peer has not read.
	Linger time.Duration

	// ShutdownTimeout limits the drain when the context of ListenAndServe or Serve ends. It does not apply to Shutdown,
	// which has its own context. The default is 30 s.
	ShutdownTimeout time.Duration

	// ShutdownRate is the maximum number of connections that a process drains per second. Because of this limit, the
	// clients do not all reconnect elsewhere at the same time. The default is 100,000.
	ShutdownRate int
}

const (
	maxBytes            = 1 << 30
	defaultMaxUnsent    = 1 << 20
	defaultMaxMessage   = 64 << 10
	defaultMaxMail      = 1 << 20
	maxMail             = 1 << 28 // 2*maxMail fits in an int32
	defaultMaxMailBytes = 8 << 20
	maxRate             = 1_000_000_000
)

// maxBufferedIfMemoryUnknown is the default of MaxBuffered, in bytes, if no memory limit is known.
const maxBufferedIfMemoryUnknown int64 = 4 << 30

func (l Limits) withDefaults() (Limits, error) {
	numbers := []struct {
		name          string
		value         *int
		standard, max int
	}{
		{"MaxConns", &l.MaxConns, sock.DefaultMaxConnsForDescriptorLimit(), math.MaxInt32},
		{"MaxConnsPerSource", &l.MaxConnsPerSource, 0, math.MaxInt32},
		{"SourcePrefix", &l.SourcePrefix, 64, 128},
		{"AcceptRate", &l.AcceptRate, 0, maxRate},
		{"ReadRate", &l.ReadRate, 0, maxRate},
		{"MessageRate", &l.MessageRate, 0, maxRate},
		{"MaxMessage", &l.MaxMessage, defaultMaxMessage, maxBytes},
		{"MaxUnsent", &l.MaxUnsent, defaultMaxUnsent, maxBytes},
		{"HighWater", &l.HighWater, 0, maxBytes},
		{"LowWater", &l.LowWater, 0, maxBytes},
		{"MaxBuffered", &l.MaxBuffered, 0, math.MaxInt},
		{"MaxMail", &l.MaxMail, defaultMaxMail, maxMail},
		{"MaxMailBytes", &l.MaxMailBytes, defaultMaxMailBytes, maxBytes},
		{"MaxHandshakes", &l.MaxHandshakes, 4096, math.MaxInt32},
		{"ShutdownRate", &l.ShutdownRate, 100_000, maxRate},
	}
	for _, n := range numbers {
		if *n.value < 0 || *n.value > n.max {
			return l, badConfig("Limits.%s is %d; expected 0 (the default, %d) to %d", n.name, *n.value, n.standard, n.max)
		}
		if *n.value == 0 {
			*n.value = n.standard
		}
	}
	if err := l.fillAndCheckWaterMarks(); err != nil {
		return l, err
	}
	if l.MaxBuffered == 0 {
		l.MaxBuffered = defaultMaxBuffered(1)
	}
	return l, l.fillAndCheckTimeouts()
}

func (l *Limits) fillAndCheckWaterMarks() error {
	if l.HighWater == 0 {
		l.HighWater = max(min(l.MaxUnsent/2, defaultMaxMessage), l.LowWater)
	}
	if l.HighWater > l.MaxUnsent {
		return badConfig("Limits.HighWater is %d; expected 0 (the default, 65536 or half of MaxUnsent) to MaxUnsent, which is %d", l.HighWater, l.MaxUnsent)
	}
	if l.LowWater > l.HighWater {
		return badConfig("Limits.LowWater is %d; expected 0 (the default, half of HighWater) to HighWater, which is %d", l.LowWater, l.HighWater)
	}
	if l.LowWater == 0 {
		l.LowWater = l.HighWater / 2
	}
	return nil
}

// defaultMaxBuffered returns a quarter of the memory, in bytes, that is available to each of the processes.
func defaultMaxBuffered(processes int) int {
	limit, from := cgroup.SmallestKnownMemoryLimit()
	if limit == math.MaxInt64 {
		limit = 4 * maxBufferedIfMemoryUnknown
	}
	if from == "GOMEMLIMIT" {
		processes = 1
	}
	return int(min(limit/4/int64(processes), math.MaxInt)) // for 32-bit systems
}

func (l *Limits) fillAndCheckTimeouts() error {
	times := []struct {
		name     string
		value    *time.Duration
		standard time.Duration
	}{
		{"HandshakeTimeout", &l.HandshakeTimeout, 10 * time.Second},
		{"FirstByteTimeout", &l.FirstByteTimeout, time.Minute},
		{"MessageTimeout", &l.MessageTimeout, 30 * time.Second},
		{"IdleTimeout", &l.IdleTimeout, Never},
		{"WriteTimeout", &l.WriteTimeout, 30 * time.Second},
		{"HandlerTime", &l.HandlerTime, time.Second},
		{"CloseTimeout", &l.CloseTimeout, 10 * time.Second},
		{"Linger", &l.Linger, time.Second},
		{"ShutdownTimeout", &l.ShutdownTimeout, 30 * time.Second},
	}
	for _, t := range times {
		if *t.value < 0 {
			return badConfig("Limits.%s is %v; expected 0 (the default, %s) or more", t.name, *t.value, formatTimeoutOrNever(t.standard))
		}
		if *t.value == 0 {
			*t.value = t.standard
		}
	}
	return nil
}

func formatTimeoutOrNever(d time.Duration) string {
	if d == Never {
		return "Never"
	}
	return d.String()
}

// toEngine converts the limits for the engine. In the result, a timeout of 0 means no limit.
func (l Limits) toEngine() engine.Limits {
	bound := func(d time.Duration) time.Duration {
		if d >= forever {
			return 0
		}
		return d
	}
	return engine.Limits{
		ReadRate: l.ReadRate, MessageRate: l.MessageRate,
		MaxConns: l.MaxConns, MaxMessage: l.MaxMessage, MaxBuffered: l.MaxBuffered,
		MaxUnsent: l.MaxUnsent, HighWater: l.HighWater, LowWater: l.LowWater,
		MaxMail: l.MaxMail, MaxMailBytes: l.MaxMailBytes,
		CloseTimeout: min(l.CloseTimeout, forever), Linger: min(l.Linger, forever), ShutdownRate: l.ShutdownRate,
		HandshakeTimeout: bound(l.HandshakeTimeout), FirstByteTimeout: bound(l.FirstByteTimeout),
		MessageTimeout: bound(l.MessageTimeout), IdleTimeout: bound(l.IdleTimeout),
		WriteTimeout: bound(l.WriteTimeout), SlowHandlerTime: bound(l.HandlerTime),
	}
}

// forever is the shortest time limit that counts as Never.
const forever = 365 * 24 * time.Hour
