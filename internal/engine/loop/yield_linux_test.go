package loop

import (
	"context"
	"log/slog"
	"runtime"
	"sync/atomic"
	"testing"

	"github.com/myriad-go/myriad/internal/engine"
	"github.com/myriad-go/myriad/internal/testkit"
)

// giver is a driver whose first turns give another goroutine something to do.
type giver struct {
	rest
	gave, waitsThen atomic.Int64
	done, inTime    atomic.Int64
}

const gifts = 200

func (r *giver) Poll() (some, more bool) {
	if r.done.Load() == r.gave.Load() {
		r.inTime.Add(1)
	}
	if r.gave.Load() < gifts {
		r.gave.Add(1)
		r.loop.host.RetainCalls.Add(1)
		go r.done.Add(1)
	} else if r.polls.Add(1) == 1 {
		r.waitsThen.Store(r.waits.Load())
	}
	return false, false
}

// On one processor a loop that has given others something to do doesn't sleep before they
// have done it; then it does.
func TestYield(t *testing.T) {
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(1))
	r := &giver{}
	e, err := Start(engine.Config{Loops: 1, Log: slog.New(slog.DiscardHandler)}, func(l *Loop) Driver {
		r.loop = l
		return r
	})
	if err != nil {
		t.Fatal(err)
	}
	testkit.WaitFor(t, "the loop does not sleep when nothing is left to do", func() bool { return r.waits.Load() > 0 })
	if n := r.waitsThen.Load(); n > 0 {
		t.Errorf("it slept %d times while others had something to do", n)
	}
	// A turn polls twice and yields once, in between.
	if n := r.inTime.Load(); n < gifts/4 {
		t.Errorf("of %d times others were through %d times when it went on; expected about %d", gifts, n, gifts/2)
	}
	if err := e.Stop(context.Background()); err != nil {
		t.Error(err)
	}
}
