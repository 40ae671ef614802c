package tcp

import (
	"context"
	"log/slog"
	"net"
	"time"

	"github.com/myriad-go/myriad/internal/engine"
)

// Conn is a connection as its handler sees it. A Conn is valid only during the call that received it, and its methods
// need no lock. No method blocks. Use [Ref] from other goroutines and after the call.
//
// After that call, the methods do nothing. They return ErrOutsideCall or, without an error result, log the misuse. On
// another goroutine such a use is a data race, which the methods do not always detect.
type Conn engine.Conn

func (c *Conn) core() *engine.Conn { return (*engine.Conn)(c) }

// inHandlerCallOrLogMisuse reports whether a handler call for the connection is in progress. Otherwise it logs, once
// for each method and server, that method was used after the call.
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

// Write appends a copy of p to the output. After the handler has processed all available input, the server sends the
// output in one system call. If p has 16 KiB or more, the server sends it immediately if possible, without a copy.
//
// Write accepts all of p or nothing. It fails with ErrOutsideCall outside of a call for this connection, with ErrClosed
// once the connection is closing, and with ErrTooLarge if p alone exceeds Limits.MaxUnsent. If the unsent output would
// exceed Limits.MaxUnsent, Server.SlowConsumer decides: Write either fails with ErrFull, or closes the connection and
// fails with ErrSlowConsumer. Check Paused before writing large output.
func (c *Conn) Write(p []byte) (int, error) {
	if !c.core().InHandlerCall() {
		return 0, ErrOutsideCall
	}
	return c.core().Write(p)
}

// Writev is like Write for the concatenation of pieces; the limits apply to the total size. With a net.Buffers, call
// c.Writev(buffers...).
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

// Close starts to close the connection. The handler receives no more input, the server sends pending output, and Closed
// is called with a nil reason. Limits.CloseTimeout limits the sending. The server then waits at most Limits.Linger for
// the peer to end its direction. Further calls do nothing. The only error is ErrOutsideCall.
func (c *Conn) Close() error {
	if !c.core().InHandlerCall() {
		return ErrOutsideCall
	}
	c.core().CloseWith(nil)
	return nil
}

// CloseWith is like Close, but the server passes why to Closed as the reason.
func (c *Conn) CloseWith(why error) {
	if c.inHandlerCallOrLogMisuse("CloseWith") {
		c.core().CloseWith(why)
	}
}

// Loop returns the index of the connection's event loop, from 0 to Stats.Loops-1. In the goroutine model it is 0.
func (c *Conn) Loop() int { return c.core().LoopIndex() }

// Pending returns the number of output bytes that the kernel has not yet accepted, including bytes of files (SendFile).
// In Closed it returns the number of dropped bytes.
func (c *Conn) Pending() int { return c.core().UnsentOrDroppedBytes() }

// Dropped returns the number of messages that the connection missed because its peer reads too slowly. It counts writes
// and broadcasts that SlowConsumer DropMessage dropped, and replaced values of Group.SendLatest. A MissedHandler is
// called when the peer has caught up.
func (c *Conn) Dropped() int64 { return c.core().MissedMessages() }

// Paused reports whether the connection accepts no more input for now. A pause begins when more than Limits.HighWater
// bytes of output are unsent, and ends when at most Limits.LowWater are. A closing connection counts as paused. During
// a pause, a handler should return and leave further input unused. The server passes it again after sending output.
func (c *Conn) Paused() bool { return c.core().IsPaused() }

// CloseWrite ends the server's direction after all output, including earlier messages from Refs, has been sent. The
// peer reads the end and may continue to send. Later writes fail with ErrClosed; later messages from Refs are dropped.
// The connection closes when the peer ends its direction, too. The only error is ErrOutsideCall.
func (c *Conn) CloseWrite() error {
	if !c.core().InHandlerCall() {
		return ErrOutsideCall
	}
	c.core().CloseWrite()
	return nil
}

// Pause stops reading: the server does not call Received and Ended until Resume. After Resume, the server passes unused
// input again, even if nothing new has arrived. While the connection is paused, the kernel's buffers fill and the peer
// has to wait; that wait does not count as silence of the peer. Writing is not affected. Pause and Resume have no
// effect once the connection is relayed or Relay was called for it.
func (c *Conn) Pause() {
	if c.inHandlerCallOrLogMisuse("Pause") {
		c.core().SetReading(false)
	}
}

// Resume ends the effect of Pause.
func (c *Conn) Resume() {
	if c.inHandlerCallOrLogMisuse("Resume") {
		c.core().SetReading(true)
	}
}

// Retain keeps the connection open for later output, such as an answer computed by another goroutine. It stays open
// after the peer has ended its direction and during a drain, until Release or Ref.Release has been called as often as
// Retain. After the peer has ended its direction, it stays open for at most Limits.IdleTimeout or, with pending output,
// Limits.WriteTimeout. Close, all limits and the end of a drain's time still close the connection.
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

// SetReadRate replaces Limits.ReadRate and Limits.MessageRate for this connection, which may then use the allowance of
// a second at once. Values of 0 or less mean no limit. The maximum is 1,000,000,000; higher values mean the same. An
// Upgrade does not preserve these rates: set them again, for example in Migrator.Restore.
func (c *Conn) SetReadRate(bytesPerSecond, messagesPerSecond int) {
	if c.inHandlerCallOrLogMisuse("SetReadRate") {
		c.core().SetReadRate(min(max(bytesPerSecond, 0), maxRate), min(max(messagesPerSecond, 0), maxRate))
	}
}

// SetTimer makes the server call Timer of a TimerHandler once, after d. The call is at most 10 ms late if the event
// loop or goroutine is not busy. A connection has one timer: a further call of SetTimer replaces it, and a d of 0 stops
// it.
func (c *Conn) SetTimer(d time.Duration) {
	if c.inHandlerCallOrLogMisuse("SetTimer") {
		c.core().SetTimer(min(d, forever))
	}
}

// SetDeadline closes the connection with ErrDeadline after d. The close is at most 10 ms late. The server first sends
// the output written so far. A further call replaces the deadline, and a d of 0 removes it.
func (c *Conn) SetDeadline(d time.Duration) {
	if c.inHandlerCallOrLogMisuse("SetDeadline") {
		c.core().SetDeadline(min(d, forever))
	}
}

// Relay connects this connection with another one of the same server. From now on, the server sends the input of each
// connection to the other one, with backpressure. If a peer ends its direction, the end is passed on (half-close). Both
// connections close after both directions have ended. If one connection closes for any reason, the other sends its
// pending output and closes. If the reason is an error, the other's TLS sends no close_notify, because data may be
// missing. Of the handlers' methods, only Closed is still called.
//
// The relay first passes on input that the current call leaves unused, and input that has arrived at a paused
// connection. Pause the other connection before calling Relay; otherwise its handler may still receive input. Relay
// resumes both connections. A direction buffers at most Limits.HighWater plus one read (64 KiB), or twice that in the
// goroutine model and between two loops. Neither connection receives heartbeats or broadcasts. Input of either
// connection restarts IdleTimeout. A drain waits for relays to end, within its limit.
//
// Relay fails with ErrClosed if either connection is closing or CloseWrite was called for this connection. It fails
// with ErrBadUse if this connection is already relayed, is starting TLS or is being detached, or if the argument to is
// the Ref of this connection. It fails with ErrFull if the other connection's mailbox is full. Problems found later
// close this connection: with ErrBadUse if the other connection is already relayed to a third one, is detached or has
// closed its sending side; with ErrClosed if the other connection has closed.
func (c *Conn) Relay(to Ref) error {
	if !c.core().InHandlerCall() {
		return ErrOutsideCall
	}
	return c.core().RequestRelayWith(to.r)
}

// Ref returns a handle that any goroutine may use at any time. The handle stays the same until Closed has returned.
func (c *Conn) Ref() Ref { return Ref{c.core().Ref()} }

// RemoteAddr returns the peer's address: a *net.TCPAddr, or a *net.UnixAddr without a name. Behind a proxy in
// Server.TrustedProxies it returns the client's address as reported by the proxy. It also works in Closed.
func (c *Conn) RemoteAddr() net.Addr { return toTCPOrUnixAddr(c.core().Peer()) }

// LocalAddr returns the local address of the connection: a *net.TCPAddr, or a *net.UnixAddr without a name. Behind a
// proxy, it is the address to which the proxy connected. LocalAddr returns nil once the connection is closing. It makes
// a system call. If loops have their own descriptor tables (Server.Loops), a call on a worker waits for the loop.
func (c *Conn) LocalAddr() net.Addr {
	addr, ok := c.core().Ref().LocalAddr()
	if !ok {
		return nil
	}
	return toTCPOrUnixAddr(addr)
}

// Value returns the value last set by SetValue, initially nil.
func (c *Conn) Value() any { return c.core().Value() }

// SetValue attaches v to the connection until Closed has returned. Other goroutines read it with Ref.Value.
func (c *Conn) SetValue(v any) {
	if c.inHandlerCallOrLogMisuse("SetValue") {
		c.core().SetValue(v)
	}
}
