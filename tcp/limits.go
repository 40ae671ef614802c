package tcp

import (
	"math"
	"time"

	"github.com/myriad-go/myriad/internal/cgroup"
	"github.com/myriad-go/myriad/internal/engine"
	"github.com/myriad-go/myriad/internal/sock"
)

// Never, as a time limit, means that there is none.
const Never = time.Duration(math.MaxInt64)

// Limits are the bounds that a Server keeps. The zero value of each field means
// its default; a negative value is an error. Times of a connection are looked at
// in slices, not by a timer for each: what is said to happen after a time happens
// up to an eighth of it later, or 400 ms if that is more.
type Limits struct {
	// MaxConns is the most connections at a time. Further ones are accepted and closed at
	// once, and counted in Stats.Refused. The default is the limit of descriptors less 128,
	// at most 1,048,576. More than that limit are held by loops with a descriptor table
	// each, see Server.Loops; for the goroutine model, which has no loops, it is an error.
	MaxConns int

	// MaxConnsPerSource is the most connections at a time from one address, for IPv6 from
	// one prefix of SourcePrefix bits. The default is 0: no limit, because many people can
	// share an address. With the PROXY protocol it counts the addresses that proxies tell.
	MaxConnsPerSource int

	// SourcePrefix is how many bits of an IPv6 address tell sources apart, at most 128. The
	// default is 64, what one subscriber has at least.
	SourcePrefix int

	// AcceptRate is the most connections accepted in a second; as many may come at once
	// after a quiet second. Further ones wait in the kernel's queue. The default is 0: no
	// limit. With Server.Processes it is at least that many, and each process has its part,
	// rounded down.
	AcceptRate int

	// MaxMessage is the most bytes of a message, its framing included, and so the most
	// input that a connection keeps for its handler. A longer one closes the connection
	// with ErrMessageTooLong as soon as so many bytes have come without its end, or
	// LengthPrefixed has read a length beyond it; the log tells this limit and what was
	// seen. The client gets the answers to its earlier messages and then the end of the
	// stream, or, if it goes on sending for longer than Linger, a reset (ECONNRESET or
	// EPIPE). A server that answers with larger messages raises MaxUnsent, too. The default
	// is 65,536, as in bufio.Scanner; the most is 1 GiB.
	MaxMessage int

	// MaxUnsent is the most bytes of output that wait for one peer: as many written by the
	// handler, and as many sent by Refs and broadcasts. Server.SlowConsumer says what
	// happens beyond. As what waits must be gone within WriteTimeout, a peer that is owed
	// all of it has to take MaxUnsent/WriteTimeout, 34 KiB a second with the defaults: who
	// raises the one for slow peers raises the other. The default is 1 MiB; the most is
	// 1 GiB.
	MaxUnsent int

	// HighWater is how many bytes of unsent output pause reading on a connection, and
	// LowWater how few let it go on: what a peer that sends and never reads makes the
	// server hold. The defaults are 64 KiB, or half of MaxUnsent if that is less, and half
	// of HighWater; LowWater is at most HighWater, and that at most MaxUnsent.
	HighWater, LowWater int

	// MaxBuffered is the most memory, in bytes, that the buffers of all connections hold
	// together: unused input and unsent output, what Refs, groups and broadcasts have sent
	// from the moment at which that is accepted, what TLS keeps of incomplete records and
	// handshakes, and about what it keeps after large records. A message to several
	// connections counts once until it is in their outputs. Above MaxBuffered the connections
	// with the largest buffers are closed with ErrOverBudget until it is kept; without loops,
	// Ref.SendWait waits meanwhile, and Ref.Send fails with ErrFull above 5/4 of it. It does
	// not count what a TLS session takes in any case, buffers that are read into, free ones,
	// the newest values of Group.Publish, the handler's own memory, or the kernel's. The
	// default is a quarter of the memory that this process may use: of the machine's, its
	// cgroup's or GOMEMLIMIT, whichever is least; with Server.Processes of its part of the
	// machine's or cgroup's, but of all of GOMEMLIMIT, which is one of each process.
	MaxBuffered int

	// MaxMail is the most messages from Refs that wait for one loop, or in the goroutine
	// model for one connection. Beyond it Send fails with ErrFull; requests to close have
	// room for as many again. A message to a group of more than a few is one for each 512 of
	// its members, or fewer. The default is 1,048,576; the most is 268,435,456. On loops the
	// memory of these messages, without their bytes, is bounded as MaxMailBytes is.
	MaxMail int

	// MaxMailBytes is the most bytes of such messages that wait, but for one message, which
	// an empty mailbox takes whatever its size. A quarter of it is for Ref.SendWait, which
	// waits for more; the rest is for senders that can't. A loop may hold twice as much again
	// that it is giving to its connections. The default is 8 MiB; the most is 1 GiB. The
	// mailboxes of all loops together have a sixteenth of MaxBuffered at the most, but 64 KiB
	// each. It bounds broadcasts under way, too.
	MaxMailBytes int

	// MaxHandshakes is the most TLS handshakes under way at a time, of some 22 KiB each.
	// Further connections wait for their turn. While others wait, a handshake whose client
	// has sent nothing for a second gives up its place and is closed, and counted in
	// Stats.Refused.Handshake. The default is 4,096.
	MaxHandshakes int

	// HandshakeTimeout is the most time for what comes before the first message, from the
	// connection's beginning: the PROXY protocol's header and the TLS handshake, where
	// there are any. The handshake of Conn.StartTLS has as much again. The default is 10 s.
	HandshakeTimeout time.Duration

	// FirstByteTimeout is the most time until a peer's first byte: a connection that stays
	// silent is closed with ErrFirstByteTimeout. The default is 1 min; Never suits servers
	// whose clients only listen.
	FirstByteTimeout time.Duration

	// MessageTimeout is the most time from the first byte of a message to its last, as far
	// as they have not come together: then the connection is closed with ErrMessageTimeout,
	// however busily its bytes drip in. A message is what the handler has left unused. The
	// default is 30 s.
	MessageTimeout time.Duration

	// IdleTimeout is the most time without a byte from the peer, while no message is
	// incomplete; then the connection is closed with ErrIdleTimeout. The default is Never:
	// a peer that has gone without a word is found by TCP keep-alive within 3 minutes, and
	// one that is there costs little. There is no keep-alive where heartbeats or this find
	// it within 3 minutes.
	IdleTimeout time.Duration

	// WriteTimeout is the most time that a peer may take to take what is owed: bytes that
	// wait at one moment must have gone so much later, whatever has been added behind them.
	// Otherwise the connection is closed with ErrWriteTimeout. The kernel goes by it too
	// (TCP_USER_TIMEOUT): it gives up a peer that does not acknowledge what was sent, or
	// keeps its window closed; if it is first, the reason is syscall.ETIMEDOUT, counted in
	// Stats.Closed.Reset. The kernel waits for 3 minutes if that is more, unless heartbeats
	// or IdleTimeout find peers that have gone within 3 minutes: otherwise one lost
	// keep-alive probe would end an idle connection. The default is 30 s.
	WriteTimeout time.Duration

	// HandlerTime is how long a call of the handler may take before that is reported, in
	// the log and in Stats.SlowHandlers; nothing is done to it. On an event loop calls are
	// timed one by one only after a turn of the loop has taken that long: the first is
	// counted with its turn, further ones are named. The default is 1 s.
	HandlerTime time.Duration

	// CloseTimeout is the most time that a peer may take to read what it is owed when its
	// connection is closing, or when it has ended its own direction; then the connection
	// ends with ErrCloseTimeout. It counts from that moment, however steadily the peer
	// reads: a client that ends its direction behind its request (shutdown(2), nc -N) and
	// then reads a long answer needs one as long as that takes. The default is 10 s.
	CloseTimeout time.Duration

	// Linger is the most time to wait for the peer's end when we have sent everything and
	// ended. Without it the kernel would answer input that still comes with a reset, which
	// can destroy answers that the peer has not read. The default is 1 s.
	Linger time.Duration

	// ShutdownTimeout bounds the drain that begins when the context of ListenAndServe or
	// Serve ends. Shutdown is bounded by its own context instead. The default is 30 s.
	ShutdownTimeout time.Duration

	// ShutdownRate is how many connections a second, at most, each process tells to end
	// while the server shuts down, so that their clients do not all come to its neighbours
	// at one moment. The default is 100,000: up to 10,000 are drained within a tenth of a
	// second.
	ShutdownRate int
}

// The defaults and bounds that are not simply constants of the fields.
const (
	maxBytes      = 1 << 30
	defaultUnsent = 1 << 20
	defaultBytes  = 64 << 10
	defaultMail   = 1 << 20
	maxMail       = 1 << 28 // twice as many fit in an int32
	defaultMailed = 8 << 20
	// maxAccepts bounds the rates of accepting and of ending.
	maxAccepts = 1_000_000_000
)

// Where the memory of this process has no limit that is known, buffers may hold
// unlimitedBuffers of it.
const unlimitedBuffers int64 = 4 << 30

// resolve fills in the defaults and says what is wrong.
func (l Limits) resolve() (Limits, error) {
	numbers := []struct {
		name          string
		value         *int
		standard, max int
	}{
		{"MaxConns", &l.MaxConns, sock.MaxConns(), math.MaxInt32},
		{"MaxConnsPerSource", &l.MaxConnsPerSource, 0, math.MaxInt32},
		{"SourcePrefix", &l.SourcePrefix, 64, 128},
		{"AcceptRate", &l.AcceptRate, 0, maxAccepts},
		{"MaxMessage", &l.MaxMessage, defaultBytes, maxBytes},
		{"MaxUnsent", &l.MaxUnsent, defaultUnsent, maxBytes},
		{"HighWater", &l.HighWater, 0, maxBytes},
		{"LowWater", &l.LowWater, 0, maxBytes},
		{"MaxBuffered", &l.MaxBuffered, 0, math.MaxInt},
		{"MaxMail", &l.MaxMail, defaultMail, maxMail},
		{"MaxMailBytes", &l.MaxMailBytes, defaultMailed, maxBytes},
		{"MaxHandshakes", &l.MaxHandshakes, 4096, math.MaxInt32},
		{"ShutdownRate", &l.ShutdownRate, 100_000, maxAccepts},
	}
	for _, n := range numbers {
		if *n.value < 0 || *n.value > n.max {
			return l, badConfig("Limits.%s is %d; expected 0 (the default, %d) to %d", n.name, *n.value, n.standard, n.max)
		}
		if *n.value == 0 {
			*n.value = n.standard
		}
	}
	if err := l.resolveWater(); err != nil {
		return l, err
	}
	if l.MaxBuffered == 0 {
		l.MaxBuffered = defaultBuffered(1)
	}
	return l, l.resolveTimes()
}

// resolveWater fills in the marks that depend on MaxUnsent.
func (l *Limits) resolveWater() error {
	if l.HighWater == 0 {
		l.HighWater = max(min(l.MaxUnsent/2, defaultBytes), l.LowWater)
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

// defaultBuffered is a quarter of the memory that this process may use, one of so
// many that share the machine or the cgroup. Go's own limit is for this process
// alone: it is not divided again.
func defaultBuffered(processes int) int {
	limit, from := cgroup.MemoryLimit()
	if limit == math.MaxInt64 {
		limit = 4 * unlimitedBuffers
	}
	if from == "GOMEMLIMIT" {
		processes = 1
	}
	limit = min(limit, math.MaxInt) // with 32 bits there are addresses for not much more
	return int(limit / 4 / int64(processes))
}

func (l *Limits) resolveTimes() error {
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
			return badConfig("Limits.%s is %v; expected 0 (the default, %s) or more", t.name, *t.value, timeText(t.standard))
		}
		if *t.value == 0 {
			*t.value = t.standard
		}
	}
	return nil
}

func timeText(d time.Duration) string {
	if d == Never {
		return "Never"
	}
	return d.String()
}

// engine gives the engines their part. What lasts for ever is 0 there, but for
// the times of an end, which has one.
func (l Limits) engine() engine.Limits {
	bound := func(d time.Duration) time.Duration {
		if d >= forever {
			return 0
		}
		return d
	}
	return engine.Limits{
		MaxConns: l.MaxConns, MaxMessage: l.MaxMessage, MaxBuffered: l.MaxBuffered,
		MaxUnsent: l.MaxUnsent, HighWater: l.HighWater, LowWater: l.LowWater,
		MaxMail: l.MaxMail, MaxMailBytes: l.MaxMailBytes,
		CloseTimeout: min(l.CloseTimeout, forever), Linger: min(l.Linger, forever), ShutdownRate: l.ShutdownRate,
		HandshakeTimeout: bound(l.HandshakeTimeout), FirstByteTimeout: bound(l.FirstByteTimeout),
		MessageTimeout: bound(l.MessageTimeout), IdleTimeout: bound(l.IdleTimeout),
		WriteTimeout: bound(l.WriteTimeout), SlowHandlerTime: bound(l.HandlerTime),
	}
}

// forever is as good as Never: a year.
const forever = 365 * 24 * time.Hour
