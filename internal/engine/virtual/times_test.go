package virtual

import (
	"bytes"
	"errors"
	"testing"
	"time"

	"github.com/myriad-go/myriad/internal/engine"
)

// lines answers lines. After "deaf" it turns reading off until it is nudged.
type lines struct{ echo }

func (lines) Received(c *engine.Conn, in []byte) int {
	n := bytes.IndexByte(in, '\n') + 1
	c.Write(in[:n])
	if bytes.HasPrefix(in, []byte("deaf\n")) {
		c.SetReading(false)
	}
	return n
}

func (lines) Nudged(c *engine.Conn) { c.SetReading(true) }

var errUnlucky = errors.New("unlucky")

// TestTimes checks when time limits apply and what does not count against the peer.
func TestTimes(t *testing.T) {
	const limit, late = time.Second, 100 * time.Millisecond
	long := bytes.Repeat([]byte("0123456789"), 9)
	says := func(what string) func(*Peer) { return func(p *Peer) { p.Send([]byte(what)) } }
	takes := func(n int) func(*Peer) { return func(p *Peer) { p.SetReceiveWindow(n) } }
	owed := func(p *Peer) {
		p.SetReceiveWindow(0)
		p.Send(append(long, '\n'))
	}
	nothing := func(*Peer) {}
	first := func(c *engine.Config) { c.Limits.FirstByteTimeout = limit }
	message := func(c *engine.Config) { c.Limits.MessageTimeout = limit }
	idle := func(c *engine.Config) { c.Limits.IdleTimeout = limit }
	write := func(c *engine.Config) { c.Limits.WriteTimeout = limit }
	silence := func(c *engine.Config) {
		first(c)
		message(c)
		idle(c)
		c.Limits.HighWater, c.Limits.LowWater = 50, 10
	}
	beats := func(c *engine.Config) {
		c.Heartbeat = engine.Heartbeat{Every: limit, MaxMissed: 2, Send: func(c *engine.Conn) { c.Write([]byte("beat")) }}
	}
	unlucky := func(c *engine.Config) {
		c.Heartbeat = engine.Heartbeat{Every: limit, MaxMissed: 2, Send: func(*engine.Conn) { panic(errUnlucky) }}
	}
	for _, c := range []struct {
		name  string
		set   func(*engine.Config)
		begin func(*Peer)   // at once
		each  time.Duration // and so often,
		then  func(*Peer)   // this
		why   error         // nil if it is never closed
		at    time.Duration
	}{
		{"no first byte", first, nothing, 0, nil, engine.ErrFirstByteTimeout, limit},
		{"a first byte", first, says("x"), 0, nil, nil, 0},
		{"a message that drips in", message, says("x"), limit / 10, says("x"), engine.ErrMessageTimeout, limit},
		{"messages that take a while", message, says("x"), limit * 9 / 10, says("\nx"), nil, 0},
		{"silence behind a message", idle, says("hello\n"), 0, nil, engine.ErrIdleTimeout, limit},
		{"a word now and then", idle, says("hello\n"), limit * 9 / 10, says("hello\n"), nil, 0},
		{"output that nobody takes", write, owed, 0, nil, engine.ErrWriteTimeout, limit},
		{"output that drips out", write, owed, limit / 20, takes(1), engine.ErrWriteTimeout, limit},
		{"output that is taken in time", write, owed, limit * 4 / 10, takes(50), nil, 0},
		{"output that keeps its peer from being heard", silence, owed, 0, nil, nil, 0},
		{"a handler that does not listen", silence, says("deaf\nhalf a mess"), 0, nil, nil, 0},
		{"heartbeats without an answer", beats, nothing, 0, nil, engine.ErrHeartbeatTimeout, 3 * limit},
		{"heartbeats with an answer", beats, nothing, 2 * limit, says("x\n"), nil, 0},
		{"a heartbeat that panics", unlucky, nothing, 0, nil, errUnlucky, limit},
	} {
		t.Run(c.name, func(t *testing.T) {
			e := startEngine(t, &lines{}, c.set)
			p := connect(t, e)
			e.DoAndRunUntilIdle(func() { c.begin(p) })
			end := 20 * limit
			if c.why != nil {
				end = c.at + late
			}
			pass := func(d time.Duration) { e.DoAndRunUntilIdle(func() { e.AdvanceClockAndRunDue(d) }) }
			step := c.each
			if step == 0 {
				step = c.at - 2*clockCoarseness
			}
			if c.why == nil && c.each == 0 {
				step = limit
			}
			for now := time.Duration(0); now < end; now += step {
				if why, closed := p.Closed(); closed && (c.why == nil || now < c.at-clockCoarseness) {
					t.Fatalf("closed after %v because of %v", now, why)
				}
				if pass(step); c.then != nil {
					e.DoAndRunUntilIdle(func() { c.then(p) })
				}
			}
			if c.why != nil {
				pass(2 * limit) // for the end of the close
			}
			if why, closed := p.Closed(); closed != (c.why != nil) || !errors.Is(why, c.why) {
				t.Errorf("closed: %v, because of %v; want %v", closed, why, c.why)
			}
		})
	}
}

// Silence counts again once reading is on.
func TestTimesAfterPause(t *testing.T) {
	e := startEngine(t, &lines{}, func(c *engine.Config) { c.Limits.MessageTimeout = time.Second })
	p := connect(t, e)
	e.DoAndRunUntilIdle(func() { p.Send([]byte("deaf\nhalf a mess")) })
	e.DoAndRunUntilIdle(func() { e.AdvanceClockAndRunDue(time.Hour) })
	if err := p.conn.Ref().Nudge(); err != nil {
		t.Fatal(err)
	}
	e.DoAndRunUntilIdle(func() { e.AdvanceClockAndRunDue(time.Second - 2*clockCoarseness) })
	if why, closed := p.Closed(); closed {
		t.Errorf("closed at once for what came while nobody listened: %v", why)
	}
	e.DoAndRunUntilIdle(func() { e.AdvanceClockAndRunDue(4 * clockCoarseness) })
	if why, _ := p.Closed(); !errors.Is(why, engine.ErrMessageTimeout) {
		t.Errorf("half a message that was waited for is given up for %v", why)
	}
}
