package engine

import (
	"context"
	"log/slog"
	"runtime/debug"
	"sync/atomic"
	"time"
)

// Poster leaves mail with a connection's owner and wakes it. It is safe for
// concurrent use.
type Poster interface {
	Post(c *Conn, gen uint32, kind MailKind, data []byte) error
}

// Host is what connections share with their owner. A loop has one of its own;
// in the goroutine model all connections share one. It does not change after
// the start but where that is said.
type Host struct {
	Handler  Handler
	Limits   Limits
	Log      *slog.Logger
	Buffers  Buffers
	Poster   Poster
	Counters *Counters
	// Now is the time since an arbitrary start, for Due and Expire. A
	// deterministic driver brings its own clock.
	Now func() time.Duration
	// Index numbers the loops.
	Index int
	// Away says that handlers are called by workers: Opened and Received
	// are left to Deliver, which asks the driver to hand the connection
	// over. The owner may change it, and Buffers, between two events.
	Away bool
	// Times, if set, counts how long workers take.
	Times *RunTimes
	// Direct, if set, sends what a handler on the loop writes at once, as
	// far as the kernel takes it, and says how much that was. It is for
	// pieces from DirectSize on, which copying costs more than a call. The
	// owner may change it between two events.
	Direct     func(c *Conn, p []byte) int
	DirectSize int
	// direct is how much was sent so in this event. It counts as if it were
	// waiting still, so that a handler is bounded wherever it runs.
	direct int
	// Returned is called by a worker that has run a connection, to give it
	// back to its owner.
	Returned func(*Conn)
}

// Pool runs what would hold up a loop. It is safe for concurrent use.
type Pool interface {
	// TrySubmit has r run by a worker, or says at once that there is no
	// room. What has been taken is run.
	TrySubmit(r Runner) bool
}

// RunTimes counts the calls of handlers by workers, and their time.
type RunTimes struct{ runs, took atomic.Int64 }

// Take gives what was counted, and starts anew.
func (t *RunTimes) Take() (runs int64, took time.Duration) {
	return t.runs.Swap(0), time.Duration(t.took.Swap(0))
}

func (t *RunTimes) add(took time.Duration) {
	t.runs.Add(1)
	t.took.Add(int64(took))
}

// Runner is a piece of work.
type Runner interface{ Run() }

// epoch is the start of Since.
var epoch = time.Now()

// Since is the monotonic clock of the real drivers.
func Since() time.Duration { return time.Since(epoch) }

// panicked logs and counts a handler's panic.
func (h *Host) panicked(c *Conn, value any) *PanicError {
	err := &PanicError{Value: value, Stack: debug.Stack()}
	h.Counters.Panics.Add(1)
	h.Log.LogAttrs(context.Background(), slog.LevelError, "handler panicked; its connection is closed",
		slog.Any("panic", value),
		slog.String("peer", c.Peer().String()),
		slog.String("stack", string(err.Stack)))
	return err
}
