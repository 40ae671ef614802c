package tcp

import (
	"context"
	"log/slog"
	"net"
	"time"

	"github.com/myriad-go/myriad/internal/engine"
)

// Conn is a connection as its handler sees it. It is valid only during the call it was passed to:
// its methods are for the handler, during that call, and need no lock. Use [Ref] from other
// goroutines and after the call. No method blocks.
//
// Methods of a Conn that was kept after its call do nothing. They return ErrOutsideCall or, if
// they have no error result, log the misuse once per method and server. This always holds within
// a call for another connection. In another goroutine it is a data race, which goes unnoticed if
// a call for the same connection happens to run; the race detector finds it.
type Conn engine.Conn

// core returns c as the engine's type.
func (c *Conn) core() *engine.Conn { return (*engine.Conn)(c) }

// inHandlerCallOrLogMisuse reports whether a call for the connection is in progress. If not, it logs the
// misuse, for methods that can't return ErrOutsideCall.
func (c *Conn) inHandlerCallOrLogMisuse(method string) bool {
	if c.core().InHandlerCall() {
		return true
	}
	s := c.Server()
	if _, told := s.loggedMisuse.LoadOrStore(method, true); !told {
		s.rateLimitedLogger().LogAttrs(context.Background(), slog.LevelError, "a Conn that was kept does nothing",
			slog.String("method", "Conn."+method), slog.String("error", ErrOutsideCall.Error()))
	}
	return false
}

// Write appends a copy of p to the output. The output is sent in one system call after the
// handler has returned for all available input. A piece of 16 KiB or more is sent at once,
// together with earlier output of this turn, such as its header; only what the kernel does not
// accept is copied. That shortcut does not apply with TLS, with Server.Workers, behind output
// that the peer has not yet taken, and to the goroutine model except on Linux.
//
// Write accepts all of p or nothing. It fails with ErrOutsideCall outside of a call for this
// connection, with ErrClosed once the connection is closing, and with ErrTooLarge if p alone
// exceeds Limits.MaxUnsent. If the peer does not read and more than Limits.MaxUnsent bytes would
// be waiting, Server.SlowConsumer decides: Write fails with ErrSlowConsumer and the connection is
// closed, or it fails with ErrFull. Check Paused before writing large output.
func (c *Conn) Write(p []byte) (int, error) {
	if !c.core().InHandlerCall() {
		return 0, ErrOutsideCall
	}
	return c.core().Write(p)
}

// Writev writes the concatenation of pieces like Write, with the errors that Write has for their
// total size. A total of 16 KiB or more in fewer than 64 pieces is sent at once, in one system
// call. It accepts net.Buffers: c.Writev(buffers...).
func (c *Conn) Writev(pieces ...[]byte) (int, error) {
	if !c.core().InHandlerCall() {
		return 0, ErrOutsideCall
	}
	return c.core().Writev(pieces...)
}

// WriteString is Write for a string. Unlike the argument of Write, s does not escape to the heap.
func (c *Conn) WriteString(s string) (int, error) {
	if !c.core().InHandlerCall() {
		return 0, ErrOutsideCall
	}
	return c.core().WriteString(s)
}

// Close starts to close the connection: the handler gets no more input, pending output is sent,
// and Closed is called with a nil reason. Limits.CloseTimeout bounds the sending, and
// Limits.Linger the wait for the peer's end. Further calls do nothing. It fails only with
// ErrOutsideCall.
func (c *Conn) Close() error {
	if !c.core().InHandlerCall() {
		return ErrOutsideCall
	}
	c.core().CloseWith(nil)
	return nil
}

// CloseWith is Close with a reason, which Closed gets as why.
func (c *Conn) CloseWith(why error) {
	if c.inHandlerCallOrLogMisuse("CloseWith") {
		c.core().CloseWith(why)
	}
}

// Loop returns the index of the event loop that owns the connection, from 0 to Stats.Loops-1. In
// the goroutine model, which has no loops, it is 0.
func (c *Conn) Loop() int { return c.core().LoopIndex() }

// Pending returns the number of output bytes not yet accepted by the kernel, including those of
// files (SendFile). In Closed it returns the number of bytes that were dropped.
func (c *Conn) Pending() int { return c.core().UnsentBytes() }

// Dropped returns the number of messages that the connection missed because its peer reads too
// slowly: writes and broadcasts under SlowConsumer DropMessage for which the output had no space,
// and values of Group.SendLatest that newer ones replaced.
func (c *Conn) Dropped() int64 { return c.core().MissedMessages() }

// Paused reports whether the connection accepts no more input for now: its unsent output has
// exceeded Limits.HighWater and not yet dropped to Limits.LowWater, or it is closing. A handler
// that still has unused input should then return; that input is passed again after output has
// been sent.
func (c *Conn) Paused() bool { return c.core().IsPaused() }

// CloseWrite ends our direction after everything has been sent, including what Refs sent before.
// The peer reads the end and may go on sending. Later writes fail with ErrClosed; what Refs send
// later is dropped and counted in Stats.Dropped. The connection closes when the peer ends its
// direction, too. CloseWrite fails only with ErrOutsideCall.
func (c *Conn) CloseWrite() error {
	if !c.core().InHandlerCall() {
		return ErrOutsideCall
	}
	c.core().CloseWrite()
	return nil
}

// Pause stops reading: Received and Ended are not called until Resume, which passes input that
// the current call leaves unused again even if nothing new has arrived. A few buffers of input
// may still be held; beyond that the kernel's buffers fill and the peer has to wait, which does
// not count as silence of the peer. Writing is not affected. From elsewhere use Ref.Do. Pause and
// Resume have no effect in a relay or before one.
func (c *Conn) Pause() {
	if c.inHandlerCallOrLogMisuse("Pause") {
		c.core().SetReading(false)
	}
}

// Resume undoes Pause.
func (c *Conn) Resume() {
	if c.inHandlerCallOrLogMisuse("Resume") {
		c.core().SetReading(true)
	}
}

// Retain keeps the connection open for output that is still to come, such as an answer computed
// by another goroutine. Neither the peer's end nor a drain closes it until Release or Ref.Release
// has been called as often as Retain. After its end, a peer is kept for at most
// Limits.IdleTimeout, or Limits.WriteTimeout while Pending is above 0; a drain has its own limit.
// Close and all limits still close the connection.
func (c *Conn) Retain() {
	if c.inHandlerCallOrLogMisuse("Retain") {
		c.core().Retain()
	}
}

// Release undoes one Retain.
func (c *Conn) Release() {
	if c.inHandlerCallOrLogMisuse("Release") {
		c.core().Release()
	}
}

// SetTimer calls Timer of a TimerHandler once after d; on an event loop up to 400 ms later. A
// connection has one timer: each call replaces the previous one, and 0 stops it.
func (c *Conn) SetTimer(d time.Duration) {
	if c.inHandlerCallOrLogMisuse("SetTimer") {
		c.core().SetTimer(min(d, forever))
	}
}

// SetDeadline closes the connection with ErrDeadline after d, or up to 400 ms later, after
// sending the output written so far. Each call replaces the previous one; 0 removes the deadline.
func (c *Conn) SetDeadline(d time.Duration) {
	if c.inHandlerCallOrLogMisuse("SetDeadline") {
		c.core().SetDeadline(min(d, forever))
	}
}

// Relay connects this connection with another one of the same server: from now on, input of
// either is sent to the other, with backpressure, and the end of either direction is passed on
// (half-close). Both close after both directions have ended, or when either closes for any
// reason, after sending pending output. Of their handlers only Closed is called. Input that the
// current call leaves unused, or that a paused connection holds, is relayed first. Pause to
// before calling Relay, or its handler may still receive input. Relay resumes both.
//
// Each direction buffers at most Limits.HighWater plus one read (64 KiB), or twice as much if the
// connections are on two loops or have none. Neither gets heartbeats or broadcasts. For
// IdleTimeout, input of either counts. A drain waits for relays to end, within its limit.
//
// Relay fails with ErrClosed if either connection is closing or CloseWrite was called for this
// one; with ErrBadUse if this one is already relayed, starting TLS or being detached, or to is
// this one; and with ErrFull if the mailbox of to is full. Problems found later close this
// connection: with ErrBadUse if to is relayed with another one, is detached or has ended its
// direction, with ErrClosed if to has closed.
func (c *Conn) Relay(to Ref) error {
	if !c.core().InHandlerCall() {
		return ErrOutsideCall
	}
	return c.core().RequestRelayWith(to.r)
}

// Ref returns a handle for use from anywhere. It stays the same until Closed has returned.
func (c *Conn) Ref() Ref { return Ref{c.core().Ref()} }

// RemoteAddr returns the peer's address: a *net.TCPAddr, or a *net.UnixAddr without a name.
// Behind a proxy in Server.TrustedProxies it is the client's address as reported by the proxy. It
// remains available in Closed.
func (c *Conn) RemoteAddr() net.Addr { return toNetAddr(c.core().Peer()) }

// LocalAddr returns the local address of the connection: a *net.TCPAddr, or a *net.UnixAddr
// without a name; behind a proxy, the address that the proxy connected to. It is nil once the
// connection is closing. It makes a system call; if loops have their own descriptor tables
// (Server.Loops), a call on a worker waits for the loop.
func (c *Conn) LocalAddr() net.Addr {
	addr, ok := c.core().Ref().LocalAddr()
	if !ok {
		return nil
	}
	return toNetAddr(addr)
}

// Value returns the value last set by SetValue, initially nil.
func (c *Conn) Value() any { return c.core().Value() }

// SetValue attaches v to the connection until Closed has returned. Ref.Value returns it to
// others.
func (c *Conn) SetValue(v any) {
	if c.inHandlerCallOrLogMisuse("SetValue") {
		c.core().SetValue(v)
	}
}
