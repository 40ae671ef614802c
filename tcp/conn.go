package tcp

import (
	"context"
	"log/slog"
	"net"
	"time"

	"github.com/myriad-go/myriad/internal/engine"
)

// Conn is what a handler sees of one connection. It belongs to the call that it was given to:
// its methods are for the handler, during that call, and need no lock. They must not be used
// from other goroutines or after the call; [Ref] is for that. None of them blocks.
//
// The methods of a Conn that was kept for later do nothing and answer ErrOutsideCall, or are
// logged, once for each method and server, if they have no error. That is so within a call
// for another connection always, and in another goroutine unless a call for the same
// connection happens to be under way: that is a data race, which the race detector finds.
type Conn engine.Conn

// core is the connection as the engines know it.
func (c *Conn) core() *engine.Conn { return (*engine.Conn)(c) }

// inCall says whether a call for the connection is under way, for methods that can't answer
// ErrOutsideCall: then it is logged.
func (c *Conn) inCall(method string) bool {
	if c.core().InHandlerCall() {
		return true
	}
	s := c.Server()
	if _, told := s.outside.LoadOrStore(method, true); !told {
		s.log().LogAttrs(context.Background(), slog.LevelError, "a Conn that was kept does nothing",
			slog.String("method", "Conn."+method), slog.String("error", ErrOutsideCall.Error()))
	}
	return false
}

// Write appends a copy of p to the output. It is sent when the handler has returned for all
// the input at hand, together with everything else that was written by then: many writes, one
// system call. A piece of 16 KiB or more is sent at once, in one call with what was written
// before it in this turn, such as its header; only what the kernel does not take is copied.
// (Not with TLS, with Server.Workers, behind output that the peer has not taken yet, and under
// the goroutine model on other systems than Linux.)
//
// Write takes all of p or nothing. It fails with ErrOutsideCall when no call for this
// connection is under way, with ErrClosed once the connection is closing, and with
// ErrTooLarge when p alone is larger than Limits.MaxUnsent. When the peer does not read, so
// that more than Limits.MaxUnsent bytes would wait, Server.SlowConsumer says what happens: it
// fails with ErrSlowConsumer, for which the connection is closed, or with ErrFull. Check
// Paused before writing large output.
func (c *Conn) Write(p []byte) (int, error) {
	if !c.core().InHandlerCall() {
		return 0, ErrOutsideCall
	}
	return c.core().Write(p)
}

// Writev is Write for all of pieces, one behind the other, as if they were joined: it
// takes all of them or nothing, with the errors that Write has for a piece of their
// size. Together 16 KiB or more are sent at once, in one call, if there are fewer than 64;
// net.Buffers are pieces, too: c.Writev(buffers...).
func (c *Conn) Writev(pieces ...[]byte) (int, error) {
	if !c.core().InHandlerCall() {
		return 0, ErrOutsideCall
	}
	return c.core().Writev(pieces...)
}

// WriteString is Write for a string. What Write is given escapes to the heap, a string does not.
func (c *Conn) WriteString(s string) (int, error) {
	if !c.core().InHandlerCall() {
		return 0, ErrOutsideCall
	}
	return c.core().WriteString(s)
}

// Close starts to close the connection: the handler gets no more input, what was written so
// far is sent, and then Closed is called with a nil reason. Closing takes at most
// Limits.CloseTimeout for the output and Limits.Linger for the peer's end. Further calls do
// nothing. It fails with ErrOutsideCall.
func (c *Conn) Close() error {
	if !c.core().InHandlerCall() {
		return ErrOutsideCall
	}
	c.core().CloseWith(nil)
	return nil
}

// CloseWith is Close with a reason: Closed gets why.
func (c *Conn) CloseWith(why error) {
	if c.inCall("CloseWith") {
		c.core().CloseWith(why)
	}
}

// Loop returns the index of the event loop that owns the connection, from 0 to Stats.Loops-1.
// It is 0 in the goroutine model, which has no loops.
func (c *Conn) Loop() int { return c.core().LoopIndex() }

// Pending is the number of bytes that were written and not sent yet, with those of
// files (SendFile). In Closed it is the number of those that were dropped. What the kernel has
// taken counts as sent.
func (c *Conn) Pending() int { return c.core().UnsentBytes() }

// Dropped is how many messages the connection has not got because its peer reads too
// slowly: writes and broadcasts under SlowConsumer DropMessage that its output had no
// room for, and values of Group.Publish that newer ones have replaced.
func (c *Conn) Dropped() int64 { return c.core().MissedMessages() }

// Paused says whether the connection takes no more input for now, because it owes its peer
// more than Limits.HighWater bytes and has not come down to Limits.LowWater since, or because
// it is closing. A handler that still has input to use returns then and leaves the rest: it
// comes again when output has been sent.
func (c *Conn) Paused() bool { return c.core().IsPaused() }

// CloseWrite ends our direction when everything has been sent, what Refs have sent by
// then included: the peer reads the end, and may go on sending. Later writes fail with
// ErrClosed, and what Refs send later is dropped and counted in Stats.Dropped. The
// connection closes when the peer has ended, too. It fails with ErrOutsideCall.
func (c *Conn) CloseWrite() error {
	if !c.core().InHandlerCall() {
		return ErrOutsideCall
	}
	c.core().CloseWrite()
	return nil
}

// Pause stops reading: Received and Ended are not called until Resume, and what the call
// at hand leaves unused comes again then, without new input. The kernel's buffers fill
// up, so that the peer has to wait, which is not counted as its silence; what has been
// read already is kept, a few buffers at most. Writes go on. Ref.Do is the way to do
// it from elsewhere. In a relay, and before one, neither of the two does anything.
func (c *Conn) Pause() {
	if c.inCall("Pause") {
		c.core().SetReading(false)
	}
}

// Resume ends what Pause has begun.
func (c *Conn) Resume() {
	if c.inCall("Resume") {
		c.core().SetReading(true)
	}
}

// Retain says that something is still to be written, such as an answer that another
// goroutine works on: the connection is not closed for the peer's end, nor for a drain,
// until Release, or Ref.Release, has been called as often. A peer that has ended waits for
// Limits.IdleTimeout from its end at most, or, while Pending is above 0,
// Limits.WriteTimeout; a drain has its own bound. Close and all limits close it as ever.
func (c *Conn) Retain() {
	if c.inCall("Retain") {
		c.core().Retain()
	}
}

// Release takes one Retain back.
func (c *Conn) Release() {
	if c.inCall("Release") {
		c.core().Release()
	}
}

// SetTimer has Timer of a TimerHandler called once after d, which an event loop looks
// at in slices: up to 400 ms later. Each call takes the place of the one before; 0 is
// never. There is one timer for each connection.
func (c *Conn) SetTimer(d time.Duration) {
	if c.inCall("SetTimer") {
		c.core().SetTimer(min(d, forever))
	}
}

// SetDeadline has the connection closed after d, or up to 400 ms later, for the reason
// ErrDeadline: what is written by then is sent. Each call takes the place of the one
// before; 0 is never.
func (c *Conn) SetDeadline(d time.Duration) {
	if c.inCall("SetDeadline") {
		c.core().SetDeadline(min(d, forever))
	}
}

// Relay joins the connection with another one of the same server: from now on what
// either receives is sent to the other, each with the other's backpressure, and the end
// of either direction is passed on (half-close). When both directions have ended, or
// either connection closes for any reason, both are closed, after sending what they
// owe. Their handlers are called only for Closed. Input that the call at hand has left
// unused, or that a paused connection has kept, is relayed first; to is best paused
// (Pause) until then, or its handler may still get some. Both are resumed.
//
// In each direction at most Limits.HighWater and one read (64 KiB) wait here, where the
// connections are on two loops, or have no loops, up to twice as much. Neither gets
// heartbeats or broadcasts. IdleTimeout counts from what has come by either. A drain
// waits for relays to end, as long as it may.
//
// It fails with ErrClosed when either connection is closing, or this one's CloseWrite was
// called, with ErrBadUse when this one is relayed already, has asked for that, for TLS or
// to be given up, or to is this one, and with ErrFull when to's mailbox is full. What is
// found later closes the connection for that reason: ErrBadUse where to is relayed with
// another one, is given up, or has ended its direction, and ErrClosed where it has closed.
func (c *Conn) Relay(to Ref) error {
	if !c.core().InHandlerCall() {
		return ErrOutsideCall
	}
	return c.core().Relay(to.r)
}

// Ref names the connection for use from anywhere. It is the same value during
// the whole life of the connection, Closed included.
func (c *Conn) Ref() Ref { return Ref{c.core().Ref()} }

// RemoteAddr is the peer's address: a *net.TCPAddr, or a *net.UnixAddr without a
// name. Behind a proxy that Server.TrustedProxies names it is what the proxy has
// told. It stays known in Closed.
func (c *Conn) RemoteAddr() net.Addr { return netAddr(c.core().Peer()) }

// LocalAddr is this side's address, by which the peer has come: a *net.TCPAddr, or a
// *net.UnixAddr without a name. Behind a proxy it is that by which the proxy has come. It
// is nil once the connection is closing. It asks the kernel. Where loops have descriptor
// tables of their own (Server.Loops) and a worker calls it, it waits for the loop.
func (c *Conn) LocalAddr() net.Addr {
	addr, ok := c.core().Ref().LocalAddr()
	if !ok {
		return nil
	}
	return netAddr(addr)
}

// Value is what SetValue was last given for this connection, nil at first.
func (c *Conn) Value() any { return c.core().Value() }

// SetValue keeps v with the connection, until Closed returns; Ref.Value gives it to
// others.
func (c *Conn) SetValue(v any) {
	if c.inCall("SetValue") {
		c.core().SetValue(v)
	}
}
