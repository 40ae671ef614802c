package myriad

import (
	"math"
	"time"

	"github.com/myriad-go/myriad/internal/engine"
	"github.com/myriad-go/myriad/internal/sock"
)

// Limits are the bounds that a Server keeps. The zero value of each field means
// its default; a negative value is an error.
type Limits struct {
	// MaxConns is the most connections at a time. Further ones are accepted
	// and closed at once, and counted in Stats.Refused. The default is the
	// limit of descriptors less 128, at most 1,048,576. More than that are
	// held by loops with a descriptor table each, because the limit is one
	// of each table; see Server.Loops for what that means. The goroutine
	// model has no loops: there it is an error.
	MaxConns int

	// MaxMessage is the most bytes of a message, its framing included, and
	// so the most input that a connection keeps for its handler. A longer
	// one closes the connection with ErrMessageTooLong. The default is
	// 65,536, as in bufio.Scanner; the most is 1 GiB.
	MaxMessage int

	// MaxUnsent is the most bytes of output that wait for one peer to take
	// them: as many written by the handler, and as many sent by Refs. Above
	// half of it no more input is read. The default is 1 MiB; the most is
	// 1 GiB.
	MaxUnsent int

	// MaxMail is the most messages from Refs that wait for one loop, or in
	// the goroutine model for one connection. Beyond it Send fails with
	// ErrFull; requests to close have room for as many again. The default
	// is 1,048,576.
	MaxMail int

	// MaxMailBytes is the most bytes of such messages that wait, but for one
	// message, which an empty mailbox takes whatever its size. The default
	// is 64 MiB; the most is 1 GiB.
	MaxMailBytes int

	// CloseTimeout is the most time that a peer may take to read what it is
	// owed when its connection is closing, or when it has ended its own
	// direction; then the connection ends with ErrCloseTimeout. The default
	// is 10 s. The event-driven models look every 50 to 400 ms.
	CloseTimeout time.Duration

	// Linger is the most time that a connection waits for the peer to end
	// as well, when we have sent everything and ended. Without it the
	// kernel would answer input that is still coming with a reset, which
	// can destroy answers that the peer has not read. The default is 1 s;
	// CloseTimeout says how exact it is.
	Linger time.Duration

	// ShutdownTimeout bounds the drain that begins when the context of
	// ListenAndServe or Serve ends. The default is 30 s. Shutdown is
	// bounded by its own context instead.
	ShutdownTimeout time.Duration
}

// The defaults and bounds that are not simply constants of the fields.
const (
	maxBytes      = 1 << 30
	defaultUnsent = 1 << 20
	defaultBytes  = 64 << 10
	defaultMail   = 1 << 20
	defaultMailed = 64 << 20
)

// resolve fills in the defaults and says what is wrong.
func (l Limits) resolve() (Limits, error) {
	numbers := []struct {
		name          string
		value         *int
		standard, max int
	}{
		{"MaxConns", &l.MaxConns, sock.MaxConns(), math.MaxInt32},
		{"MaxMessage", &l.MaxMessage, defaultBytes, maxBytes},
		{"MaxUnsent", &l.MaxUnsent, defaultUnsent, maxBytes},
		{"MaxMail", &l.MaxMail, defaultMail, math.MaxInt32},
		{"MaxMailBytes", &l.MaxMailBytes, defaultMailed, maxBytes},
	}
	for _, n := range numbers {
		if *n.value < 0 || *n.value > n.max {
			return l, badConfig("Limits.%s is %d; expected 0 (the default, %d) to %d", n.name, *n.value, n.standard, n.max)
		}
		if *n.value == 0 {
			*n.value = n.standard
		}
	}
	return l, l.resolveTimes()
}

func (l *Limits) resolveTimes() error {
	times := []struct {
		name     string
		value    *time.Duration
		standard time.Duration
	}{
		{"CloseTimeout", &l.CloseTimeout, 10 * time.Second},
		{"Linger", &l.Linger, time.Second},
		{"ShutdownTimeout", &l.ShutdownTimeout, 30 * time.Second},
	}
	for _, t := range times {
		if *t.value < 0 {
			return badConfig("Limits.%s is %v; expected 0 (the default, %v) or more", t.name, *t.value, t.standard)
		}
		if *t.value == 0 {
			*t.value = t.standard
		}
	}
	return nil
}

// engine gives the engines their part.
func (l Limits) engine() engine.Limits {
	return engine.Limits{
		MaxConns: l.MaxConns, MaxMessage: l.MaxMessage, MaxUnsent: l.MaxUnsent,
		MaxMail: l.MaxMail, MaxMailBytes: l.MaxMailBytes, CloseTimeout: l.CloseTimeout, Linger: l.Linger,
	}
}
