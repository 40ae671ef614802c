package tcp

import (
	"context"
	"net/netip"
	"strconv"

	"github.com/myriad-go/myriad/internal/engine"
)

// Ref identifies a connection. It may be used anywhere and outlives the connection. It is a small
// value that can be copied, compared and used as a map key. After the connection has closed,
// methods return ErrClosed, even if its memory is reused for another connection. The zero Ref
// identifies no connection.
//
// Methods are safe for concurrent use. Only SendWait and, as documented, LocalAddr may block.
// Methods that change the connection use a mailbox of limited size (Limits.MaxMail), which wakes
// its loop or goroutine; methods that read properties do so directly and do not allocate.
type Ref struct{ r engine.Ref }

// ID returns the number of the connection, starting at 1. A number is reused only after 2³²
// further connections have used the same slot. The log has it as conn. It remains valid after the
// connection has closed; the zero Ref has 0. Worker processes (Server.Processes) number their
// connections separately.
func (r Ref) ID() uint64 { return r.r.ID() }

// String returns ID in decimal.
func (r Ref) String() string { return strconv.FormatUint(r.ID(), 10) }

// RemoteAddr returns the peer's address as in Conn.RemoteAddr, or the zero AddrPort for a unix
// socket. ok is false if the connection is closing or closed.
func (r Ref) RemoteAddr() (addr netip.AddrPort, ok bool) { return r.r.Peer() }

// LocalAddr returns the local address as in Conn.LocalAddr, or the zero AddrPort for a unix
// socket. ok is false if the connection is closing or closed. It makes a system call. If loops
// have their own descriptor tables (Server.Loops), it waits for the connection's loop, and ok is
// false when it is called on another loop.
func (r Ref) LocalAddr() (addr netip.AddrPort, ok bool) { return r.r.LocalAddr() }

// Value returns the value last set by Conn.SetValue, initially nil. ok is false if the connection
// is closing or closed. The caller must synchronize access to what v points to.
func (r Ref) Value() (v any, ok bool) { return r.r.Value() }

// Send posts a copy of p to be sent to the peer, and returns at once. Messages from one goroutine
// to one connection are sent in order. Send accepts all of p or nothing. It fails with ErrClosed
// if the connection is closing or closed, with ErrFull if a buffer is full, and with ErrTooLarge
// if p exceeds Limits.MaxUnsent. After a nil error, p is sent unless the connection ends first. A
// handler that sends to many connections of its own loop in one call fills the mailbox, because
// the loop empties it only afterwards; Limits.MaxMail and Limits.MaxMailBytes limit such a burst.
func (r Ref) Send(p []byte) error { return r.r.Send(p) }

// SendWait is Send with backpressure. While more than Limits.HighWater bytes sent by Refs would
// be unsent with p, it blocks until at most Limits.LowWater are queued before p, or fewer if p
// fills Limits.MaxUnsent. It also blocks while the mailbox is full. So a goroutine with much to
// send proceeds at the peer's speed. Goroutines that wait for a loop's mailbox are served in
// order.
//
// If ctx ends first, SendWait fails with context.Cause(ctx) and p is not sent. It fails with
// ErrClosed if the connection is or begins closing; with ErrTooLarge like Send; with ErrFull if
// 256 goroutines already wait for this connection; and with ErrWriteTimeout if the mailbox has
// been full for Limits.WriteTimeout. A handler must not call it, because it would wait for
// itself: on an event loop it fails with ErrBadUse when it would have to wait.
func (r Ref) SendWait(ctx context.Context, p []byte) error {
	err := r.r.SendWait(ctx, p)
	if err == engine.ErrOnLoop {
		return errWaitOnLoop
	}
	return err
}

var errWaitOnLoop = badUse("SendWait would block an event loop; expected a call on another goroutine, or Send")

// Do calls f for the connection like its handler: not at the same time as another call for it,
// and after messages that the same goroutine sent before. f runs on the event loop, also with
// Server.Workers, so it must not block. It may use all of its Conn. It is called once, or never
// if the connection begins to close first. Do fails with ErrClosed if the connection is closing
// or closed, and with ErrFull if the mailbox is full.
func (r Ref) Do(f func(*Conn)) error {
	return r.r.Do(func(c *engine.Conn) { f((*Conn)(c)) })
}

// Release is like Conn.Release, after messages sent before. It fails like Close; after ErrClosed
// there is nothing to release.
func (r Ref) Release() error { return r.r.Do((*engine.Conn).Release) }

// Sendv sends the concatenation of pieces like Send.
func (r Ref) Sendv(pieces ...[]byte) error { return r.r.Sendv(pieces) }

// Close requests to close the connection as by Conn.Close, after messages sent before. It fails
// with ErrClosed if the connection is closing or closed, and with ErrFull if the mailbox is full.
func (r Ref) Close() error { return r.r.Close() }
