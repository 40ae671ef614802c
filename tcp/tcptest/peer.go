package tcptest

import (
	"crypto/tls"
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"time"

	"github.com/myriad-go/myriad/internal/engine/virtual"
	"github.com/myriad-go/myriad/tcp"
)

// Limits of the real time for which a test waits for goroutines that a handler has started. The limit is
// pausedWaitTimeout if the connection is paused because of unsent output, and otherwise waitTimeout.
const (
	waitTimeout       = 5 * time.Second
	pausedWaitTimeout = 800 * time.Millisecond
)

const maxShown = 1 << 10

// Peer is the remote end of a connection to a Server. It reads output immediately and buffers up to 16 MiB for the
// test. When the server closes its writing side, the peer also closes its writing side.
type Peer struct {
	s          *Server
	end        *virtual.Peer
	reasonSeen bool      // the test has read the close reason
	tls        *tls.Conn // nil without TLS
	plaintext  []byte    // received by tls
}

// Addr returns the peer's address.
func (p *Peer) Addr() netip.AddrPort { return p.end.Addr }

// Send sends text to the server, which receives it in reads of at most 64 KiB. To test framing, send a message in
// several calls. While the server does not read, up to 16 MiB wait. Send fails the test if the peer has closed its
// writing side or the connection has closed.
func (p *Peer) Send(text string) {
	p.s.t.Helper()
	if _, err := p.Write([]byte(text)); err != nil {
		p.s.t.Fatalf("tcptest: send %q: %v; %s", truncate(text), err, p.describeStateMarkingReasonSeen())
	}
}

// Write is like Send, but returns an error instead of failing the test. The error is syscall.EPIPE if the peer has
// closed its writing side or the connection has closed.
func (p *Peer) Write(b []byte) (n int, err error) {
	p.s.runAndSettle(func() {
		if p.tls != nil {
			_, err = p.tls.Write(b)
		} else {
			err = p.end.Send(b)
		}
	})
	if err != nil {
		return 0, err
	}
	return len(b), nil
}

// CloseWrite closes the peer's writing side, like a client's shutdown(2) or close(2). The server may still answer.
func (p *Peer) CloseWrite() {
	p.s.runAndSettle(func() {
		if p.tls != nil {
			_ = p.tls.CloseWrite()
		}
		p.end.CloseWrite()
	})
}

// Reset resets the connection, as if the client had crashed. The close reason is syscall.ECONNRESET.
func (p *Peer) Reset() { p.s.runAndSettle(p.end.Reset) }

// StopReading makes the peer accept no more output, like a slow client whose buffers are full. Output then waits in the
// server and counts for Limits.MaxUnsent, HighWater and WriteTimeout.
func (p *Peer) StopReading() { p.s.runAndSettle(func() { p.end.SetReceiveWindow(0) }) }

// ReadMore makes the peer read n more bytes of output. It requires an earlier call of StopReading.
func (p *Peer) ReadMore(n int) {
	p.s.t.Helper()
	reads := false
	p.s.runAndSettle(func() {
		if reads = p.end.Window() < 0; !reads {
			p.end.SetReceiveWindow(p.end.Window() + max(n, 0))
		}
	})
	if reads || n < 0 {
		p.s.t.Fatalf("tcptest: ReadMore(%d); expected 0 or more, after StopReading", n)
	}
}

// StartReading ends the effect of StopReading. The peer reads all output again.
func (p *Peer) StartReading() { p.s.runAndSettle(func() { p.end.SetReceiveWindow(-1) }) }

// Output returns the output of the server that the test has not yet read with Output or Expect.
func (p *Peer) Output() (text string) {
	p.s.runAndSettle(func() {
		text = string(p.unreadServerOutput())
		p.discardReceived(len(text))
	})
	return text
}

// Expect reads the text want from the server's output, after the output that the test has already read. If the output
// is not yet complete, Expect waits, because a handler may still write from another goroutine. If the output does not
// begin with want, Expect fails the test.
func (p *Peer) Expect(want string) {
	p.s.t.Helper()
	met, got := false, ""
	p.waitUntilOrGiveUp(func() bool {
		have := p.unreadServerOutput()
		got = string(have[:min(len(have), len(want))])
		if met = got == want; met {
			p.discardReceived(len(want))
		}
		_, closed := p.end.Closed()
		return met || closed || !strings.HasPrefix(want, got)
	})
	if !met {
		p.s.t.Fatalf("tcptest: output is %q; expected %q; %s", truncate(got), truncate(want), p.describeStateMarkingReasonSeen())
	}
}

// ExpectClosed waits until the connection has closed. It fails the test if the connection does not close soon, or if
// errors.Is reports that the close reason does not match reason. ExpectClosed(nil) requires a nil close reason. For a
// rejected peer, the close reason is an error such as tcp.ErrTooManyConns.
func (p *Peer) ExpectClosed(reason error) {
	p.s.t.Helper()
	var got error
	closed := false
	p.waitUntilOrGiveUp(func() bool {
		got, closed = p.closeReason()
		return closed
	})
	if !closed || !errors.Is(got, reason) {
		p.s.t.Fatalf("tcptest: %s; expected it to be closed with the error: %v", p.describeStateMarkingReasonSeen(), reason)
	}
}

// Closed returns the close reason, which is nil after Conn.Close. ok reports whether the connection has closed.
func (p *Peer) Closed() (reason error, ok bool) {
	p.s.runAndSettle(func() { reason, ok = p.closeReason() })
	return reason, ok
}

// waitUntilOrGiveUp calls the function found repeatedly until it returns true: first immediately, and then after each
// activity of the engine. It gives up after waitTimeout or, if the connection is paused, after pausedWaitTimeout.
func (p *Peer) waitUntilOrGiveUp(found func() bool) {
	for end := time.Now().Add(waitTimeout); ; {
		ok, paused := false, false
		p.s.runAndSettle(func() {
			ok = found()
			_, _, paused = p.end.PausedAtHighWater()
		})
		if ok {
			return
		}
		left := time.Until(end)
		if paused {
			left = min(left, pausedWaitTimeout)
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

func (p *Peer) closeReason() (reason error, ok bool) {
	p.reasonSeen = true
	return p.end.Closed()
}

func (p *Peer) handlerPanic() (reason *tcp.PanicError, ok bool) {
	err, _ := p.end.Closed()
	return errors.AsType[*tcp.PanicError](err)
}

func (p *Peer) describeStateMarkingReasonSeen() string {
	reason, closed := p.end.Closed()
	if !closed {
		high, low, paused := p.end.PausedAtHighWater()
		switch {
		case paused:
			return fmt.Sprintf("the connection is open, and paused: %d bytes of input wait, because the peer has %d bytes of output to take, "+
				"and that was more than Limits.HighWater (%d); reading goes on when at most LowWater (%d) are left: see Peer.ReadMore and StartReading",
				p.end.UnreadBytes(), p.end.UnsentBytes(), high, low)
		case p.end.PausedByHandler():
			return fmt.Sprintf("the connection is open, and paused by its handler (Conn.Pause) or its rates (Limits.ReadRate): %d bytes of input wait", p.end.UnreadBytes())
		}
		return "the connection is open"
	}
	text := fmt.Sprintf("the connection has closed: %v", reason)
	if panicked, ok := p.handlerPanic(); ok {
		p.reasonSeen = true
		text += "\n" + string(panicked.Stack)
	}
	return text
}

func truncate(text string) string {
	if len(text) > maxShown {
		return text[:maxShown] + "..."
	}
	return text
}
