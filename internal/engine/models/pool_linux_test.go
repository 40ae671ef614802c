package models_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/myriad-go/myriad/internal/engine"
	"github.com/myriad-go/myriad/internal/engine/enginetest"
	"github.com/myriad-go/myriad/internal/testkit"
)

var errNoTime = errors.New("no time for it")

// fickle is a pool that takes each connection, and drops it at once on the goroutine
// that submits it, for as long as it is told to.
type fickle struct {
	mu      sync.Mutex
	drops   bool
	dropped int
	running sync.WaitGroup
}

func (p *fickle) TrySubmit(c *engine.Conn) error {
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

func (p *fickle) Closed(error) bool { return false }

// drop has the pool drop what comes from now on, or not, and says how much it has.
func (p *fickle) drop(on bool) (dropped int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.drops = on
	return p.dropped
}

// A pool may drop on the loop's own thread, while it is handed a connection. What
// must wait is then offered sparingly, however much there is, and all of it is
// served when the pool has changed its mind.
func TestDroppedAtOnce(t *testing.T) {
	eachWithLoops(t, func(t *testing.T, m engine.Model) {
		const n = 200
		p := &fickle{}
		e := p.start(t, m, nil)
		conns := make([]net.Conn, n)
		for i := range conns {
			conns[i] = reach(t, e)
			talk(t, conns[i], "hello\n")
		}
		p.drop(true)
		for i, c := range conns {
			fmt.Fprintf(c, "%d\n", i)
		}
		p.wantDropped(t, n)
		begin, before := time.Now(), p.drop(true)
		time.Sleep(100 * time.Millisecond)
		p.wantDropped(t, before+5) // so many at the least, however busy the machine is
		did, took := p.drop(true)-before, time.Since(begin)
		// Once a millisecond; and all of them when the process has stood still for 100.
		if most := int(took/time.Millisecond) + 2 + n*int(took/(100*time.Millisecond)); did > most {
			t.Errorf("%d connections were offered %d times in %v; want at most %d", n, did, took, most)
		}
		p.drop(false)
		for i, c := range conns {
			expect(t, c, fmt.Sprintf("%d\n", i))
		}
	})
}

// Opened is dropped as often as the pool likes, and not shed.
func TestDroppedOpened(t *testing.T) {
	eachWithLoops(t, func(t *testing.T, m engine.Model) {
		p := &fickle{drops: true}
		e := p.start(t, m, func(_ *engine.Conn, in []byte, _ error) int { return len(in) })
		c := reach(t, e)
		p.wantDropped(t, 10)
		if n := e.Counters()[engine.Shed]; n != 0 {
			t.Errorf("%d sheds are counted where nothing but Opened is due", n)
		}
		p.drop(false)
		talk(t, c, "hello\n")
	})
}

// An engine ends by force although the pool drops each connection that it is handed:
// those that wait, and those whose Closed is due then.
func TestEndsWhileDropped(t *testing.T) {
	eachWithLoops(t, func(t *testing.T, m engine.Model) {
		const n = 20
		p := &fickle{}
		e := p.start(t, m, nil)
		conns := make([]net.Conn, n)
		for i := range conns {
			conns[i] = reach(t, e)
			talk(t, conns[i], "hello\n")
		}
		p.drop(true)
		for _, c := range conns[:n/2] {
			io.WriteString(c, "dropped\n")
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

// start starts an engine on the pool.
func (p *fickle) start(t *testing.T, m engine.Model, shed func(*engine.Conn, []byte, error) int) engine.Engine {
	t.Helper()
	e, err := m.Start(engine.Config{
		Network: "tcp", Addr: "127.0.0.1:0", Handler: &echo{}, Limits: enginetest.Limits(), Loops: 1, Pool: p, Shed: shed,
		Log: slog.New(slog.DiscardHandler),
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := e.Stop(context.Background()); err != nil {
			t.Error(err)
		}
		p.running.Wait()
	})
	return e
}

// wantDropped waits until it has dropped so many.
func (p *fickle) wantDropped(t *testing.T, n int) {
	t.Helper()
	testkit.WaitForFunc(t, func() bool { return p.drop(true) >= n }, func() string {
		return fmt.Sprintf("%d connections were offered, want %d", p.drop(true), n)
	})
}

// reach connects to an engine.
func reach(t *testing.T, e engine.Engine) net.Conn {
	t.Helper()
	c, err := net.Dial("tcp", e.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	c.SetDeadline(time.Now().Add(patience))
	return c
}

func talk(t *testing.T, c net.Conn, line string) {
	t.Helper()
	if _, err := io.WriteString(c, line); err != nil {
		t.Fatal(err)
	}
	expect(t, c, line)
}

func expect(t *testing.T, c net.Conn, line string) {
	t.Helper()
	if got, err := bufio.NewReader(c).ReadString('\n'); err != nil || got != line {
		t.Fatalf("got %q, %v; want %q", got, err, line)
	}
}
