package myriad

import (
	"fmt"
	"net"

	"github.com/myriad-go/myriad/internal/engine"
)

// Conn is what a handler sees of one connection. It belongs to the call that it
// was given to: its methods are for the handler, during that call, and need no
// lock. They must not be used from other goroutines or after the call; [Ref]
// is for that. None of them blocks.
//
// A Conn that was kept for later answers Write and Close with ErrOutsideCall, unless a
// call for the same connection is under way at that moment: in a call for another
// connection always, in another goroutine as a rule. That is a data race all the same,
// which the race detector finds: no lock is spent on telling it for certain.
type Conn engine.Conn

// core is the connection as the engines know it.
func (c *Conn) core() *engine.Conn { return (*engine.Conn)(c) }

// Write appends a copy of p to the output. It is sent when the handler has
// returned for all the input at hand, together with everything else that was
// written by then: many writes, one system call. A loop sends a piece of 16 KiB
// or more at once, if nothing is waiting before it, and copies only what the
// kernel does not take.
//
// Write takes all of p or nothing. It fails with ErrOutsideCall when no call for this
// connection is under way, with ErrClosed once the connection is closing, and with ErrTooLarge when p alone is larger than
// Limits.MaxUnsent. When the peer does not read, so that more than Limits.MaxUnsent
// bytes would wait, it fails with ErrSlowConsumer and the connection is closed
// for that reason, or it fails with ErrFull, as Server.SlowConsumer says; a handler that has much to write looks at Paused.
func (c *Conn) Write(p []byte) (int, error) {
	if !c.core().Called() {
		return 0, ErrOutsideCall
	}
	return c.core().Write(p)
}

// WriteString is Write for a string.
func (c *Conn) WriteString(s string) (int, error) {
	if !c.core().Called() {
		return 0, ErrOutsideCall
	}
	return c.core().WriteString(s)
}

// Close starts to close the connection: the handler gets no more input, what
// was written so far is sent, and then Closed is called with a nil reason.
// Closing takes at most Limits.CloseTimeout for the output and Limits.Linger
// for the peer's end. Further calls do nothing. It fails with ErrOutsideCall, having
// done nothing, when no call for this connection is under way.
func (c *Conn) Close() error {
	if !c.core().Called() {
		return ErrOutsideCall
	}
	c.core().CloseWith(nil)
	return nil
}

// CloseWith is Close with a reason: Closed gets why. Outside of a call it does nothing.
func (c *Conn) CloseWith(why error) {
	if c.core().Called() {
		c.core().CloseWith(why)
	}
}

// Pending is the number of bytes that were written and not sent yet.
func (c *Conn) Pending() int { return c.core().Pending() }

// Paused says whether the connection takes no more input for now, because it
// owes its peer more than Limits.HighWater bytes and has not come down to
// Limits.LowWater since, or because it is closing. A
// handler that still has input to use is to return then and leave the rest: it
// comes again when output has been sent.
func (c *Conn) Paused() bool { return c.core().Paused() }

// Ref names the connection for use from anywhere. It is the same value during
// the whole life of the connection, Closed included.
func (c *Conn) Ref() Ref { return Ref{c.core().Ref()} }

// RemoteAddr is the peer's address: a *net.TCPAddr, or a *net.UnixAddr without a
// name. Behind a proxy that Server.TrustedProxies names it is what the proxy has
// told. It stays known in Closed.
func (c *Conn) RemoteAddr() net.Addr { return netAddr(c.core().Peer()) }

// Value is what SetValue was last given for this connection, nil at first.
func (c *Conn) Value() any { return c.core().Value() }

// SetValue keeps v with the connection, until Closed returns.
func (c *Conn) SetValue(v any) { c.core().SetValue(v) }

// Ref names a connection from anywhere and safely outlives it. It is a small
// value that can be copied, compared and used as a key. After the connection
// has closed, its methods answer ErrClosed, even when everything that made up
// the connection serves another one by then. The zero Ref names no connection.
//
// The methods are safe for concurrent use and never block. They reach the
// connection through a mailbox with a bound (Limits.MaxMail), which wakes its
// loop or goroutine.
type Ref struct{ r engine.Ref }

// Send posts a copy of p to be sent to the peer. Messages from one goroutine to
// one connection are sent in order. Send takes all of p or nothing: it fails
// with ErrClosed when the connection is closing or closed, with ErrFull when
// there is no room, and with ErrTooLarge when p is larger than Limits.MaxUnsent.
// It answers at once. A handler that sends to many connections of its own loop
// in one call fills the mailbox, because the loop empties it only afterwards:
// Limits.MaxMail and Limits.MaxMailBytes say how many fit.
//
// A nil error means that p is on its way: it is sent unless the connection
// ends first.
func (r Ref) Send(p []byte) error { return r.r.Send(p) }

// Close posts a request to close the connection as Conn.Close does, after the
// messages sent before. It fails with ErrClosed when the connection is closing
// or closed, and with ErrFull when the mailbox is full.
func (r Ref) Close() error { return r.r.Close() }

// String tells connections apart in logs: loop, slot and generation.
func (r Ref) String() string {
	loop, slot, generation := r.r.Slot()
	return fmt.Sprintf("%d.%d.%d", loop, slot, generation)
}
