package tcptest

import (
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"time"

	"github.com/myriad-go/myriad/internal/engine/virtual"
	"github.com/myriad-go/myriad/tcp"
)

// patience is how long is waited for goroutines of a handler, in real time. A connection that is
// paused for its peer is waited for until nothing has happened for pausedPatience.
const (
	patience       = 5 * time.Second
	pausedPatience = 800 * time.Millisecond
)

// maxShown is how many bytes of output a failure shows.
const maxShown = 1 << 10

// Peer is the other end of a connection. It takes what the server sends at once, up to
// 16 MiB that the test has not asked for, and ends when it has read the server's end, as most
// clients do.
type Peer struct {
	s     *Server
	end   *virtual.Peer
	asked bool // the test has asked for the reason to close
}

// Addr is the address that the peer has connected from.
func (p *Peer) Addr() netip.AddrPort { return p.end.Addr }

// Send sends text to the server, which gets it in one read if it has no more than 64 KiB: a test
// of framing sends a message in parts. What the server does not read, because it is paused,
// waits, up to 16 MiB. It fails the test when the peer has ended, or the connection has closed.
func (p *Peer) Send(text string) {
	p.s.t.Helper()
	if _, err := p.Write([]byte(text)); err != nil {
		p.s.t.Fatalf("tcptest: send %q: %v; %s", shorten(text), err, p.state())
	}
}

// Write is Send with an error in place of a failure: syscall.EPIPE when the peer has ended or
// the connection has closed.
func (p *Peer) Write(b []byte) (n int, err error) {
	p.s.do(func() { err = p.end.Send(b) })
	if err != nil {
		return 0, err
	}
	return len(b), nil
}

// CloseWrite ends the peer's direction, as a client does that half-closes, or closes: the
// server gets an end of file, and may still answer.
func (p *Peer) CloseWrite() { p.s.do(p.end.CloseWrite) }

// Reset breaks the connection, as a client does that crashes: the reason is
// syscall.ECONNRESET.
func (p *Peer) Reset() { p.s.do(p.end.Reset) }

// StopReading has the peer take no more output, as if all buffers on the way to a slow client
// were full: from then on it waits at the server, and Limits.MaxUnsent, HighWater and
// WriteTimeout see it.
func (p *Peer) StopReading() { p.s.do(func() { p.end.SetWindow(0) }) }

// Take lets n more bytes of output through after StopReading, once they are there.
func (p *Peer) Take(n int) {
	p.s.t.Helper()
	reads := false
	p.s.do(func() {
		if reads = p.end.Window() < 0; !reads {
			p.end.SetWindow(p.end.Window() + max(n, 0))
		}
	})
	if reads || n < 0 {
		p.s.t.Fatalf("tcptest: Take(%d); expected 0 or more, after StopReading", n)
	}
}

// StartReading ends StopReading.
func (p *Peer) StartReading() { p.s.do(func() { p.end.SetWindow(-1) }) }

// Output is what the server has sent since Output and Expect were last called.
func (p *Peer) Output() (text string) {
	p.s.do(func() {
		text = string(p.end.Received())
		p.end.DiscardReceived(len(text))
	})
	return text
}

// Expect takes want from the beginning of the output, or fails the test if that is not how it
// begins. What follows is left for later calls.
func (p *Peer) Expect(want string) {
	p.s.t.Helper()
	met, got := false, ""
	p.await(func() bool {
		have := p.end.Received()
		got = string(have[:min(len(have), len(want))])
		if met = got == want; met {
			p.end.DiscardReceived(len(want))
		}
		_, closed := p.end.Closed()
		return met || closed || !strings.HasPrefix(want, got)
	})
	if !met {
		p.s.t.Fatalf("tcptest: output is %q; expected %q; %s", shorten(got), shorten(want), p.state())
	}
}

// ExpectClosed fails the test unless the connection has closed, or closes, for a reason: nil, or
// one that errors.Is finds. A peer that was turned away has a reason like
// tcp.ErrTooManyConns.
func (p *Peer) ExpectClosed(why error) {
	p.s.t.Helper()
	var got error
	closed := false
	p.await(func() bool {
		got, closed = p.reason()
		return closed
	})
	if !closed || !errors.Is(got, why) {
		p.s.t.Fatalf("tcptest: %s; expected that it has closed: %v", p.state(), why)
	}
}

// Closed says whether the connection has closed, and why: nil after Conn.Close.
func (p *Peer) Closed() (why error, ok bool) {
	p.s.do(func() { why, ok = p.reason() })
	return why, ok
}

// await looks until it is found, or the patience is over.
func (p *Peer) await(found func() bool) {
	for end := time.Now().Add(patience); ; {
		ok, paused := false, false
		p.s.do(func() {
			ok = found()
			_, _, paused = p.end.Paused()
		})
		if ok {
			return
		}
		left := time.Until(end)
		if paused {
			left = min(left, pausedPatience)
		}
		timer := time.NewTimer(left)
		select {
		case <-p.s.engine.Wakeups():
			timer.Stop()
		case <-timer.C:
			return
		}
	}
}

// reason is Closed, within do.
func (p *Peer) reason() (why error, ok bool) {
	p.asked = true
	return p.end.Closed()
}

// panicked says whether the handler's panic is the reason.
func (p *Peer) panicked() (why *tcp.PanicError, ok bool) {
	err, _ := p.end.Closed()
	return errors.AsType[*tcp.PanicError](err)
}

// state is what a failure says of the connection.
func (p *Peer) state() string {
	why, closed := p.end.Closed()
	if !closed {
		high, low, paused := p.end.Paused()
		switch {
		case paused:
			return fmt.Sprintf("the connection is open, and paused: %d bytes of input wait, because the peer has %d bytes of output to take, "+
				"and that was more than Limits.HighWater (%d); reading goes on when at most LowWater (%d) are left: see Peer.Take and StartReading",
				p.end.UnreadBytes(), p.end.UnsentBytes(), high, low)
		case p.end.PausedByHandler():
			return fmt.Sprintf("the connection is open, and paused by its handler (Conn.Pause): %d bytes of input wait", p.end.UnreadBytes())
		}
		return "the connection is open"
	}
	text := fmt.Sprintf("the connection has closed: %v", why)
	if panicked, ok := p.panicked(); ok {
		p.asked = true
		text += "\n" + string(panicked.Stack)
	}
	return text
}

// shorten is as much of a text as a failure shows.
func shorten(text string) string {
	if len(text) > maxShown {
		return text[:maxShown] + "..."
	}
	return text
}
