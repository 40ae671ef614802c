package models_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/myriad-go/myriad/internal/engine"
	"github.com/myriad-go/myriad/internal/testkit"
)

var errNoTime = errors.New("no time for it")

// droppingPool drops each connection on the submitting goroutine while it is told to.
type droppingPool struct {
	mu      sync.Mutex
	drops   bool
	dropped int
	running sync.WaitGroup
}

func (p *droppingPool) TrySubmit(c *engine.Conn) error {
	p.mu.Lock()
	drops := p.drops
	if drops {
		p.dropped++
	}
	p.mu.Unlock()
	if drops {
		c.Dropped(errNoTime)
		return nil
	}
	p.running.Go(func() { c.Run(context.Background()) })
	return nil
}

func (p *droppingPool) IsClosedErr(error) bool { return false }

// setDropping turns dropping on or off and returns the number of dropped jobs.
func (p *droppingPool) setDropping(on bool) (dropped int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.drops = on
	return p.dropped
}

// TestDroppedAtOnce drops jobs on the loop's thread during the submission. The loop must retry at a
// limited rate, whatever the number, and serve all once the pool accepts them.
func TestDroppedAtOnce(t *testing.T) {
	forEachModelWithLoops(t, func(t *testing.T, m engine.Model) {
		const n = 200
		p := &droppingPool{}
		e := p.startEngine(t, m, nil)
		conns := dialAndGreet(t, e, n)
		p.setDropping(true)
		for i, c := range conns {
			c.Send(fmt.Sprintf("%d\n", i))
		}
		p.wantDropped(t, n)
		begin, before := time.Now(), p.setDropping(true)
		p.wantDropped(t, before+50)
		did, took := p.setDropping(true)-before, time.Since(begin)
		// Once a millisecond, and all of them after the process was suspended for 100 ms.
		if most := int(took/time.Millisecond) + 2 + n*int(took/(100*time.Millisecond)); did > most {
			t.Errorf("%d connections were offered %d times in %v; want at most %d", n, did, took, most)
		}
		p.setDropping(false)
		for i, c := range conns {
			c.Expect(fmt.Sprintf("%d\n", i))
		}
	})
}

// Opened may be dropped any number of times, and is not shed.
func TestDroppedOpened(t *testing.T) {
	forEachModelWithLoops(t, func(t *testing.T, m engine.Model) {
		p := &droppingPool{drops: true}
		e := p.startEngine(t, m, func(_ *engine.Conn, in []byte, _ error) int { return len(in) })
		c := dial(t, e)
		p.wantDropped(t, 10)
		if n := e.Counters()[engine.Shed]; n != 0 {
			t.Errorf("%d sheds are counted where nothing but Opened is due", n)
		}
		p.setDropping(false)
		c.ExchangeLine("hello", "hello")
	})
}

// TestEndsWhileDropped stops by force while the pool drops everything: waiting connections, and
// those whose Closed is due then.
func TestEndsWhileDropped(t *testing.T) {
	forEachModelWithLoops(t, func(t *testing.T, m engine.Model) {
		const n = 20
		p := &droppingPool{}
		e := p.startEngine(t, m, nil)
		conns := dialAndGreet(t, e, n)
		p.setDropping(true)
		for _, c := range conns[:n/2] {
			c.Send("dropped\n")
		}
		p.wantDropped(t, n)
		now, end := context.WithCancel(context.Background())
		end()
		if err := e.Stop(now); !errors.Is(err, context.Canceled) || strings.Contains(err.Error(), "not returned") {
			t.Errorf("Stop: %v; want %d connections that were cut off, and no handler that has not returned", err, n)
		}
		e.Wait()
	})
}

// startEngine starts an engine with the pool.
func (p *droppingPool) startEngine(t *testing.T, m engine.Model, shed func(*engine.Conn, []byte, error) int) engine.Engine {
	t.Helper()
	t.Cleanup(p.running.Wait)
	return startEngine(t, m, engine.Config{Addr: "127.0.0.1:0", Handler: &echo{}, Loops: 1, Pool: p, Shed: shed})
}

// wantDropped waits for n dropped jobs.
func (p *droppingPool) wantDropped(t *testing.T, n int) {
	t.Helper()
	testkit.WaitForFunc(t, func() bool { return p.setDropping(true) >= n }, func() string {
		return fmt.Sprintf("%d connections were offered, want %d", p.setDropping(true), n)
	})
}
