package tcp

import (
	"context"
	"net/netip"
	"strconv"

	"github.com/myriad-go/myriad/internal/engine"
)

// Ref identifies a connection, for use on any goroutine and at any time. It can be copied, compared and used as a map
// key. A Ref remains valid after the connection has closed. Its methods then fail, with ErrClosed if they return an
// error. The zero Ref identifies no connection.
//
// The methods are safe for concurrent use. Only SendWait and LocalAddr may block. Methods that change the connection
// use a mailbox of limited size (Limits.MaxMail).
type Ref struct{ r engine.Ref }

// ID returns the number of the connection, even after the connection has closed. In log messages, the number is the
// value of the key "conn". In each process, numbers start at 1 and are hardly ever reused. The ID of the zero Ref is 0.
func (r Ref) ID() uint64 { return r.r.ID() }

// String returns the ID in decimal.
func (r Ref) String() string { return strconv.FormatUint(r.ID(), 10) }

// RemoteAddr returns the peer's address like Conn.RemoteAddr, or the zero AddrPort for a unix socket. ok is false if
// the connection is closing or closed.
func (r Ref) RemoteAddr() (addr netip.AddrPort, ok bool) { return r.r.Peer() }

// LocalAddr returns the local address like Conn.LocalAddr, or the zero AddrPort for a unix socket. ok is false if the
// connection is closing or closed. If loops have their own descriptor tables (Server.Loops), LocalAddr waits for the
// connection's loop. In this case, a call on another event loop does not wait, but returns with ok false.
func (r Ref) LocalAddr() (addr netip.AddrPort, ok bool) { return r.r.LocalAddr() }

// Value returns the value last set by Conn.SetValue, or nil. ok is false if the connection is closing or closed. If the
// value is a pointer, callers must synchronize access to its target.
func (r Ref) Value() (v any, ok bool) { return r.r.Value() }

// Send posts a copy of p to the peer and returns immediately. It accepts all of p or nothing. Messages from one
// goroutine to one connection are sent in order. After a nil error, p is sent unless the connection ends first. Errors:
//   - ErrClosed if the connection is closing or closed
//   - ErrFull if the mailbox is full, or if Limits.MaxUnsent bytes already wait for the connection
//   - ErrTooLarge if p exceeds Limits.MaxUnsent
//
// A loop empties its mailbox only between handler calls. A single call that sends to many connections of its own loop
// can therefore fill the mailbox.
func (r Ref) Send(p []byte) error { return r.r.Send(p) }

// SendWait is like Send, but waits for a slow peer: a goroutine with much to send proceeds at the peer's speed.
// SendWait blocks if the unsent bytes from Refs, including p, would exceed Limits.HighWater. It continues when at most
// Limits.LowWater bytes wait before p, and these bytes and p together do not exceed Limits.MaxUnsent. SendWait also
// blocks while the mailbox is full. If ctx ends first, p is not sent.
//
// A handler must not call SendWait, because SendWait would wait for this handler. The errors are:
//   - context.Cause(ctx) if ctx ends first
//   - ErrClosed if the connection is closing or begins to close
//   - ErrTooLarge if p exceeds Limits.MaxUnsent
//   - ErrFull if 256 goroutines already wait for this connection
//   - ErrWriteTimeout if the mailbox has been full for Limits.WriteTimeout
//   - ErrBadUse in a Handler's call on an event loop
func (r Ref) SendWait(ctx context.Context, p []byte) error {
	err := r.r.SendWait(ctx, p)
	if err == engine.ErrOnLoop {
		return errWaitOnLoop
	}
	return err
}

var errWaitOnLoop = badUse("SendWait would block an event loop; expected a call on another goroutine, or Send")

// Do makes the server call f for the connection, as if f were a method of the connection's handler. f may call all
// methods of its Conn. f never runs concurrently with another call for the connection. It runs after messages that the
// calling goroutine has sent to the connection earlier. f runs on the event loop, even with Server.Workers, and must
// not block.
//
// f is called at most once. It is never called if the connection begins to close first. Do fails with ErrClosed if the
// connection is closing or closed, and with ErrFull if the mailbox is full.
func (r Ref) Do(f func(*Conn)) error {
	return r.r.Do(func(c *engine.Conn) { f((*Conn)(c)) })
}

// Release is like Conn.Release, but takes effect after earlier messages of Refs have been handled. It fails with the
// errors of Ref.Close.
func (r Ref) Release() error { return r.r.Do((*engine.Conn).Release) }

// Sendv is like Send for the concatenation of pieces.
func (r Ref) Sendv(pieces ...[]byte) error { return r.r.Sendv(pieces) }

// Close closes the connection like Conn.Close, after sending earlier messages. It fails with ErrClosed if the
// connection is closing or closed, and with ErrFull if the mailbox is full.
func (r Ref) Close() error { return r.r.Close() }
