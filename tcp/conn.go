package tcp

import (
	"context"
	"log/slog"
	"net"
	"time"

	"github.com/myriad-go/myriad/internal/engine"
)

// Conn is a connection as its handler sees it. A Conn is valid only during the handler call that received it. Its
// methods do not block and need no lock. For other goroutines and later use, take a [Ref].
//
// After the call, a method of Conn does nothing and returns ErrOutsideCall. A method without an error result logs the
// misuse instead. Use on another goroutine is a data race, which the methods do not always detect.
type Conn engine.Conn

func (c *Conn) core() *engine.Conn { return (*engine.Conn)(c) }

// inHandlerCallOrLogMisuse reports whether a handler call is in progress. If not, it logs the misuse.
func (c *Conn) inHandlerCallOrLogMisuse(method string) bool {
	if c.core().InHandlerCall() {
		return true
	}
	s := c.Server()
	if _, told := s.loggedMisuse.LoadOrStore(method, true); !told {
		s.rateLimitedLogger().LogAttrs(context.Background(), slog.LevelError, "Conn used outside a handler call; the call has no effect",
			slog.String("method", "Conn."+method), slog.String("error", ErrOutsideCall.Error()))
	}
	return false
}

// Write appends a copy of p to the output. The server sends the output in one system call after the handler has
// processed all available input. If p has at least 16 KiB, the server sends p immediately if possible, without a copy.
//
// Write accepts all of p or nothing. If the unsent output would exceed Limits.MaxUnsent, Write fails.
// Server.SlowConsumer selects the error: ErrFull, or ErrSlowConsumer, which closes the connection. Check Paused before
// writing large output. Write also fails with
//   - ErrOutsideCall outside of a handler call for this connection
//   - ErrClosed if the connection is closing
//   - ErrTooLarge if p alone exceeds Limits.MaxUnsent
func (c *Conn) Write(p []byte) (int, error) {
	if !c.core().InHandlerCall() {
		return 0, ErrOutsideCall
	}
	return c.core().Write(p)
}

// Writev is like Write for the concatenation of pieces. The limits apply to the total size. To write a net.Buffers,
// call c.Writev(buffers...).
func (c *Conn) Writev(pieces ...[]byte) (int, error) {
	if !c.core().InHandlerCall() {
		return 0, ErrOutsideCall
	}
	return c.core().Writev(pieces...)
}

// WriteString is like Write for a string. s does not escape to the heap.
func (c *Conn) WriteString(s string) (int, error) {
	if !c.core().InHandlerCall() {
		return 0, ErrOutsideCall
	}
	return c.core().WriteString(s)
}

// Close starts to close the connection. The handler receives no more input. The server sends the pending output, within
// Limits.CloseTimeout. It then waits at most Limits.Linger for the peer to end its direction. Closed receives a nil
// reason. Further calls do nothing. The only error is ErrOutsideCall.
func (c *Conn) Close() error {
	if !c.core().InHandlerCall() {
		return ErrOutsideCall
	}
	c.core().CloseWith(nil)
	return nil
}

// CloseWith is like Close, but passes the given reason to Closed.
func (c *Conn) CloseWith(reason error) {
	if c.inHandlerCallOrLogMisuse("CloseWith") {
		c.core().CloseWith(reason)
	}
}

// Loop returns the index of the connection's event loop, from 0 to Stats.Loops-1. In the goroutine model, it returns 0.
func (c *Conn) Loop() int { return c.core().LoopIndex() }

// Pending returns the number of output bytes that the kernel has not yet accepted, including files of SendFile. In
// Closed, Pending returns the number of bytes that were never sent.
func (c *Conn) Pending() int { return c.core().UnsentAndDroppedBytes() }

// Dropped returns the number of messages that the connection missed because its peer reads too slowly. It counts
// messages that Server.SlowConsumer dropped (DropMessage), and values that Group.SendLatest replaced. When the peer has
// caught up, the server calls a MissedHandler.
func (c *Conn) Dropped() int64 { return c.core().MissedMessages() }

// Paused reports whether the connection accepts no more input because too much output is unsent. A pause begins above
// Limits.HighWater unsent bytes and ends at Limits.LowWater. A closing connection is also paused. During a pause, a
// handler should return without using further input. The server passes the unused input again afterwards.
func (c *Conn) Paused() bool { return c.core().IsPaused() }

// CloseWrite ends the server's direction after all output has been sent, including earlier messages from Refs. The peer
// reads the end of the stream and may continue to send. Later writes fail with ErrClosed, and later messages from Refs
// are dropped. The connection closes when the peer also ends its direction. The only error is ErrOutsideCall.
func (c *Conn) CloseWrite() error {
	if !c.core().InHandlerCall() {
		return ErrOutsideCall
	}
	c.core().CloseWrite()
	return nil
}

// Pause stops reading from the connection. The server does not call Received and Ended until Resume. After Resume, the
// server passes unused input again, even if nothing new has arrived. The time of the pause does not count as silence of
// the peer for any timeout. Writing is not affected. Pause has no effect on a relayed connection or after Relay.
func (c *Conn) Pause() {
	if c.inHandlerCallOrLogMisuse("Pause") {
		c.core().SetReading(false)
	}
}

// Resume ends the effect of Pause. It has no effect on a relayed connection or after a call of Relay.
func (c *Conn) Resume() {
	if c.inHandlerCallOrLogMisuse("Resume") {
		c.core().SetReading(true)
	}
}

// Retain keeps the connection open for later output, such as an answer computed by another goroutine, during a drain
// and after the peer has ended its direction. Each call needs a matching call of Release or Ref.Release.
//
// After the peer has ended its direction, the connection stays open for at most Limits.IdleTimeout or, with pending
// output, Limits.WriteTimeout. The connection still closes when Close is called, when it exceeds any other limit, or
// when the time limit of a drain ends.
func (c *Conn) Retain() {
	if c.inHandlerCallOrLogMisuse("Retain") {
		c.core().Retain()
	}
}

// Release undoes one call of Retain.
func (c *Conn) Release() {
	if c.inHandlerCallOrLogMisuse("Release") {
		c.core().Release()
	}
}

// SetReadRate replaces Limits.ReadRate and Limits.MessageRate for this connection. The connection may use the allowance
// of the first second at once. Values of 0 or less mean no limit; the maximum is 1,000,000,000. An Upgrade does not
// preserve these rates, so set them again, for example in Migrator.Restore.
func (c *Conn) SetReadRate(bytesPerSecond, messagesPerSecond int) {
	if c.inHandlerCallOrLogMisuse("SetReadRate") {
		c.core().SetReadRate(min(max(bytesPerSecond, 0), maxRate), min(max(messagesPerSecond, 0), maxRate))
	}
}

// SetTimer makes the server call Timer of a TimerHandler once, after d, at most 10 ms late unless the event loop or
// goroutine is busy. A connection has one timer: a further call replaces it, and SetTimer(0) stops it.
func (c *Conn) SetTimer(d time.Duration) {
	if c.inHandlerCallOrLogMisuse("SetTimer") {
		c.core().SetTimer(min(d, forever))
	}
}

// SetDeadline closes the connection with ErrDeadline when closeAfter has passed, at most 10 ms late. The server then
// still sends pending output, as after CloseWith. A further call replaces the deadline; SetDeadline(0) removes it.
func (c *Conn) SetDeadline(closeAfter time.Duration) {
	if c.inHandlerCallOrLogMisuse("SetDeadline") {
		c.core().SetDeadline(min(closeAfter, forever))
	}
}

// Relay passes all further input of c to another connection of the same server, and vice versa. Relaying applies
// backpressure. When a peer ends its direction, the server passes the end on to the other peer (half-close). Both
// connections close after both directions have ended. Closed is the only method of the handlers that is still called.
//
// If one connection closes early, the other sends its pending output and closes. After an error, the other connection
// sends no close_notify over TLS, because data may be missing.
//
// The server first relays unused input of the current call and earlier input of paused connections. Call Pause on the
// other connection before Relay; otherwise its handler may still receive input. Relay resumes both connections.
//
// Each direction buffers at most Limits.HighWater plus one read (64 KiB). The maximum is twice as high in the goroutine
// model, or if the connections belong to different loops. Relayed connections receive no heartbeats and no broadcasts.
// Input of either connection restarts IdleTimeout. A drain waits for relays to end, within its time limit.
//
// Relay fails with
//   - ErrClosed if either connection is closing, or if CloseWrite was called for this connection
//   - ErrBadUse if this connection is relayed, is starting TLS or is being detached, or if both are the same
//   - ErrFull if the mailbox of the other connection is full
//
// Problems that are found later close this connection. The reason is ErrClosed if the other connection has closed. It
// is ErrBadUse if the other connection is relayed to a third one, is detached or has closed its sending direction.
func (c *Conn) Relay(other Ref) error {
	if !c.core().InHandlerCall() {
		return ErrOutsideCall
	}
	return c.core().RequestRelayWith(other.r)
}

// Ref returns a handle for use on any goroutine and at any time. It is the same until Closed has returned.
func (c *Conn) Ref() Ref { return Ref{c.core().Ref()} }

// RemoteAddr returns the peer's address: a *net.TCPAddr, or a *net.UnixAddr without a name. Behind a proxy in
// Server.TrustedProxies, it returns the client's address that the proxy has reported. RemoteAddr also works in Closed.
func (c *Conn) RemoteAddr() net.Addr { return toTCPOrUnixAddr(c.core().Peer()) }

// LocalAddr returns the connection's local address: a *net.TCPAddr, or a *net.UnixAddr without a name. Behind a proxy,
// it returns the address to which the proxy has connected. If the connection is closing, LocalAddr returns nil. If
// loops have their own descriptor tables (Server.Loops), a call on a worker waits for the loop.
func (c *Conn) LocalAddr() net.Addr {
	addr, ok := c.core().Ref().LocalAddr()
	if !ok {
		return nil
	}
	return toTCPOrUnixAddr(addr)
}

// Value returns the value last set by SetValue, initially nil.
func (c *Conn) Value() any { return c.core().Value() }

// SetValue attaches v to the connection until Closed has returned. Other goroutines can read v with Ref.Value.
func (c *Conn) SetValue(v any) {
	if c.inHandlerCallOrLogMisuse("SetValue") {
		c.core().SetValue(v)
	}
}
