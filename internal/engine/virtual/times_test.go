package virtual

import (
	"bytes"
	"errors"
	"testing"
	"time"

	"github.com/myriad-go/myriad/internal/engine"
)

// lines answers lines. After "deaf" it turns reading off.
type lines struct{ echo }

func (lines) Received(c *engine.Conn, in []byte) int {
	n := bytes.IndexByte(in, '\n') + 1
	c.Write(in[:n])
	if bytes.HasPrefix(in, []byte("deaf\n")) {
		c.SetReading(false)
	}
	return n
}

// TestTimes checks that time limits are checked when they end, and that what peers do meanwhile counts. The rules
// themselves are tested in package engine.
func TestTimes(t *testing.T) {
	const limit, late = time.Second, 100 * time.Millisecond
	says := func(what string) func(*Peer) { return func(p *Peer) { p.Send([]byte(what)) } }
	takes := func(n int) func(*Peer) { return func(p *Peer) { p.SetReceiveWindow(n) } }
	owed := func(p *Peer) {
		p.SetReceiveWindow(0)
		p.Send(append(bytes.Repeat([]byte("0123456789"), 9), '\n'))
	}
	nothing := func(*Peer) {}
	silence := func(c *engine.Config) {
		c.Limits.FirstByteTimeout, c.Limits.MessageTimeout, c.Limits.IdleTimeout = 4*limit, limit, 4*limit
	}
	write := func(c *engine.Config) { c.Limits.WriteTimeout = limit }
	beats := func(c *engine.Config) {
		c.Heartbeat = engine.Heartbeat{Every: limit, MaxMissed: 2, Send: func(c *engine.Conn) { c.Write([]byte("beat")) }}
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
		{"no first byte", silence, nothing, limit, nothing, engine.ErrFirstByteTimeout, 4 * limit},
		{"a message that drips in", silence, says("x"), limit / 10, says("x"), engine.ErrMessageTimeout, limit},
		{"messages that take a while", silence, says("x"), limit * 9 / 10, says("\nx"), nil, 0},
		{"silence behind a message", silence, says("hello\n"), limit, nothing, engine.ErrIdleTimeout, 4 * limit},
		{"output that drips out", write, owed, limit / 20, takes(1), engine.ErrWriteTimeout, limit},
		{"output that is taken in time", write, owed, limit * 4 / 10, takes(50), nil, 0},
		{"a handler that does not listen", silence, says("deaf\nhalf a mess"), limit, nothing, nil, 0},
		{"heartbeats without an answer", beats, nothing, limit, nothing, engine.ErrHeartbeatTimeout, 3 * limit},
		{"heartbeats with an answer", beats, nothing, 2 * limit, says("x\n"), nil, 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			e := startEngine(t, &lines{}, c.set)
			p := connect(t, e)
			e.DoAndRunUntilIdle(func() { c.begin(p) })
			const step = limit / 100
			end, next := 20*limit, c.each
			if c.why != nil {
				end = c.at + late
			}
			for now := time.Duration(0); now < end; now += step {
				if why, closed := p.Closed(); closed && (c.why == nil || now < c.at-clockCoarseness) {
					t.Fatalf("closed after %v because of %v", now, why)
				}
				e.DoAndRunUntilIdle(func() { e.AdvanceClockAndRunDue(step) })
				if now+step >= next {
					next += c.each
					e.DoAndRunUntilIdle(func() { c.then(p) })
				}
			}
			if c.why != nil {
				e.DoAndRunUntilIdle(func() { e.AdvanceClockAndRunDue(2 * limit) }) // for the end of the close
			}
			if why, closed := p.Closed(); closed != (c.why != nil) || !errors.Is(why, c.why) {
				t.Errorf("closed: %v, because of %v; want %v", closed, why, c.why)
			}
		})
	}
}
