package loop

import (
	"context"
	"fmt"
	"log/slog"
	"sync/atomic"
	"testing"
	"time"

	"github.com/myriad-go/myriad/internal/engine"
	"github.com/myriad-go/myriad/internal/sock"
	"github.com/myriad-go/myriad/internal/testkit"
)

// idleDriver is a driver without events. It counts calls.
type idleDriver struct {
	Driver // nil: no other method is called
	poll   *sock.Poll
	loop   *Loop

	polls, waits atomic.Int64
}

func (r *idleDriver) Open() (err error) {
	if r.poll, err = sock.NewEpoll(1); err == nil {
		r.poll.Add(r.loop.Eventfd().FD, 0, sock.In)
	}
	return err
}

func (r *idleDriver) Close() { r.poll.Close() }

func (r *idleDriver) HandleEvents() (handled, left bool) {
	r.polls.Add(1)
	return false, false
}

func (r *idleDriver) WaitForEvents(limit time.Duration) {
	r.waits.Add(1)
	r.poll.Wait(limit)
}

// startLoop starts a loop that is stopped when the test ends.
func startLoop(t *testing.T, spin time.Duration, newDriver func(l *Loop) Driver) {
	t.Helper()
	e, err := Start(engine.Config{Loops: 1, Spin: spin, Log: slog.New(slog.DiscardHandler)}, newDriver)
	testkit.RequireNoError(t, err)
	t.Cleanup(func() {
		testkit.ExpectNoError(t, e.Stop(context.Background()))
	})
}

// A loop that spins polls for events without blocking, and notices that it must stop. After its spin time it
// blocks; a loop that does not spin blocks after one poll.
func TestSpinForEvents(t *testing.T) {
	for _, test := range []struct {
		spin         time.Duration
		least, waits int64 // before it is stopped
	}{
		{0, 1, 1},
		{time.Millisecond, 10, 1},
		{time.Hour, 1000, 0},
	} {
		r := &idleDriver{}
		startLoop(t, test.spin, func(l *Loop) Driver {
			r.loop = l
			return r
		})
		testkit.WaitForFunc(t, func() bool { return r.polls.Load() >= test.least && r.waits.Load() >= test.waits }, func() string {
			return fmt.Sprintf("spin %v: %d polls and %d waits, want %d and %d", test.spin, r.polls.Load(), r.waits.Load(), test.least, test.waits)
		})
		if waits := r.waits.Load(); waits != test.waits {
			t.Errorf("spin %v: %d waits before it was stopped, want %d", test.spin, waits, test.waits)
		}
	}
}
