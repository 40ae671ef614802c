package tcp

import (
	"context"
	"log/slog"
	"net"
	"time"

	"github.com/myriad-go/myriad/internal/engine"
)

// Conn is a connection as its handler sees it. A Conn is valid only during the handler call that received it. Its
// methods do not block and need no lock. Other goroutines and later code must use a [Ref] of the connection instead;
// see Conn.Ref.
//
// If a method is called after the handler call has returned, it has no effect and returns ErrOutsideCall. A method that
// returns no error logs the misuse instead. Calling a method on another goroutine is a data race, which the method does
// not always detect.
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
// Write accepts all of p or nothing. It fails if the unsent output would exceed Limits.MaxUnsent. If
// Server.SlowConsumer is DropMessage, the error is then ErrFull. Otherwise, the error is ErrSlowConsumer, and the
// connection closes. Check Paused before writing large output. Write also fails with
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
// Limits.CloseTimeout, and closes its writing side. It then waits at most Limits.Linger until the peer also closes its
// writing side. When the connection has closed, the server calls Closed with a nil reason. Further calls of Close do
// nothing. The only error is ErrOutsideCall.
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

// Pending returns the number of output bytes that the kernel has not yet accepted, including files of SendFile. During
// a call of Closed, Pending returns the number of bytes that were never sent.
func (c *Conn) Pending() int { return c.core().UnsentAndDroppedBytes() }

// Dropped returns the number of messages that the connection missed because its peer reads too slowly. It counts
// messages that were dropped because Server.SlowConsumer is DropMessage, and values that Group.SendLatest replaced.
// When the peer has caught up, the server calls Missed if the handler is a MissedHandler.
func (c *Conn) Dropped() int64 { return c.core().MissedMessages() }

// Paused reports whether the handler should use no more input for now, because too much output is unsent. A pause
// begins when more than Limits.HighWater bytes are unsent, and ends when at most Limits.LowWater bytes are unsent.
// Paused also returns true if the connection is closing. While Paused returns true, a handler should return without
// using further input. After the pause, the server passes the unused input to the handler again.
func (c *Conn) Paused() bool { return c.core().IsPaused() }

// CloseWrite closes the server's writing side of the connection after all output has been sent, including messages that
// were sent through Refs. The peer then reads the end of the stream, and may continue to send. Later writes fail with
// ErrClosed, and later messages from Refs are dropped. The connection closes when the peer also closes its writing
// side. The only error is ErrOutsideCall.
func (c *Conn) CloseWrite() error {
	if !c.core().InHandlerCall() {
		return ErrOutsideCall
	}
	c.core().CloseWrite()
	return nil
}

// Pause stops reading from the connection. The server calls neither Received nor Ended until Resume is called. After
// that, it passes unused input to the handler again, even if no new input has arrived. The duration of the pause does
// not count towards any timeout for a silent peer. Writing is not affected. Pause has no effect if the connection is
// relayed or Relay was called.
func (c *Conn) Pause() {
	if c.inHandlerCallOrLogMisuse("Pause") {
		c.core().SetReading(false)
	}
}

// Resume ends the effect of Pause. It has no effect if the connection is relayed or Relay was called.
func (c *Conn) Resume() {
	if c.inHandlerCallOrLogMisuse("Resume") {
		c.core().SetReading(true)
	}
}

// Retain keeps the connection open because output will follow later, such as an answer that another goroutine computes.
// Without Retain, the server closes an idle connection when it drains, or when the peer has closed its writing side.
// Each call of Retain needs a matching call of Release or Ref.Release.
//
// After the peer has closed its writing side, a retained connection stays open for at most Limits.IdleTimeout or, if
// output is pending, Limits.WriteTimeout. A retained connection still closes when Close is called, when it exceeds any
// other limit, or when the time limit of a drain ends.
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

// SetReadRate replaces Limits.ReadRate and Limits.MessageRate for this connection. The connection may use up the
// allowance of the first second at once. Values of 0 or less mean no limit; the maximum is 1,000,000,000. An Upgrade
// does not preserve these rates, so set them again, for example in Migrator.Restore.
func (c *Conn) SetReadRate(bytesPerSecond, messagesPerSecond int) {
	if c.inHandlerCallOrLogMisuse("SetReadRate") {
		c.core().SetReadRate(min(max(bytesPerSecond, 0), maxRate), min(max(messagesPerSecond, 0), maxRate))
	}
}

// SetTimer makes the server call Timer once, after the duration d, if the handler is a TimerHandler. The call is at
// most 10 ms late, unless the event loop or the connection's goroutine is busy. A connection has only one timer. A
// further call of SetTimer replaces the timer, and SetTimer(0) stops it.
func (c *Conn) SetTimer(d time.Duration) {
	if c.inHandlerCallOrLogMisuse("SetTimer") {
		c.core().SetTimer(min(d, forever))
	}
}

// SetDeadline makes the server close the connection with ErrDeadline after the duration closeAfter, at most 10 ms late.
// The server still sends pending output, as it does after CloseWith. A further call of SetDeadline replaces the
// deadline, and SetDeadline(0) removes it.
func (c *Conn) SetDeadline(closeAfter time.Duration) {
	if c.inHandlerCallOrLogMisuse("SetDeadline") {
		c.core().SetDeadline(min(closeAfter, forever))
	}
}

// Relay passes all further input of c to another connection of the same server, and all further input of the other
// connection to c. If one peer reads slowly, the server reads from the other peer more slowly, too. When one peer
// closes its writing side, the server closes the writing side of the other connection. When both peers have done this,
// both connections close. Of the handlers' methods, only Closed is still called.
//
// If one connection closes early, the other connection sends its pending output and closes. If the first connection
// closed because of an error and the other connection uses TLS, the server sends no close_notify, because data may be
// missing.
//
// The server first relays the input that the current handler call leaves unused, and input that either connection
// received during a pause. Call Pause on the other connection before Relay. Otherwise, the handler of the other
// connection may still receive input. Relay resumes both connections.
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
// If the server finds a problem after Relay has returned nil, it closes this connection. The reason is ErrClosed if the
// other connection has closed. The reason is ErrBadUse if the other connection is already relayed to a third one, is
// detached or has closed its writing side.
func (c *Conn) Relay(other Ref) error {
	if !c.core().InHandlerCall() {
		return ErrOutsideCall
	}
	return c.core().RequestRelayWith(other.r)
}

// Ref returns a handle of the connection that can be used on any goroutine and at any time. All calls for the same
// connection return the same Ref.
func (c *Conn) Ref() Ref { return Ref{c.core().Ref()} }

// RemoteAddr returns the peer's address: a *net.TCPAddr, or a *net.UnixAddr without a name. Behind a proxy in
// Server.TrustedProxies, it returns the client's address that the proxy has reported. RemoteAddr may also be called in
// Closed.
func (c *Conn) RemoteAddr() net.Addr { return toTCPOrUnixAddr(c.core().Peer()) }

// LocalAddr returns the connection's local address: a *net.TCPAddr, or a *net.UnixAddr without a name. Behind a proxy,
// it returns the address to which the proxy has connected. If the connection is closing, LocalAddr returns nil. If
// loops have their own descriptor tables (Server.Loops), a call on a worker of Server.Workers waits for the event loop
// of the connection.
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
