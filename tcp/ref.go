package tcp

import (
	"context"
	"net/netip"
	"strconv"

	"github.com/myriad-go/myriad/internal/engine"
)

// Ref names a connection from anywhere and safely outlives it. It is a small
// value that can be copied, compared and used as a key. After the connection
// has closed, its methods answer ErrClosed, even when everything that made up
// the connection serves another one by then. The zero Ref names no connection.
//
// The methods are safe for concurrent use, and none but SendWait, and LocalAddr where it
// says so, blocks. Those that ask something of the connection reach it through a mailbox
// with a bound (Limits.MaxMail), which wakes its loop or goroutine; those that tell
// something of it look at once, and allocate nothing.
type Ref struct{ r engine.Ref }

// ID numbers the connection, from 1 on: no other connection of this Server has had the
// same number, nor will have before 2³² have come in its place. It is conn in the log, and
// stays known when the connection has closed; 0 is that of the zero Ref. Worker processes
// (Server.Processes) number theirs each.
func (r Ref) ID() uint64 { return r.r.ID() }

// String is ID in decimal.
func (r Ref) String() string { return strconv.FormatUint(r.ID(), 10) }

// RemoteAddr is the peer's address as Conn.RemoteAddr has it; the zero AddrPort for a
// unix socket. ok is false when the connection is closing or closed.
func (r Ref) RemoteAddr() (addr netip.AddrPort, ok bool) { return r.r.Peer() }

// LocalAddr is this side's address as Conn.LocalAddr has it; the zero AddrPort for a unix
// socket. ok is false when the connection is closing or closed. It asks the kernel. Where
// loops have descriptor tables of their own (Server.Loops) it waits for the connection's
// loop, so ok is false on another one.
func (r Ref) LocalAddr() (addr netip.AddrPort, ok bool) { return r.r.LocalAddr() }

// Value is what Conn.SetValue was last given for the connection, nil at first. ok is false
// when the connection is closing or closed. What v points to is for the caller to guard.
func (r Ref) Value() (v any, ok bool) { return r.r.Value() }

// Send posts a copy of p to be sent to the peer, and returns at once. Messages from one
// goroutine to one connection are sent in order. Send takes all of p or nothing: it fails with
// ErrClosed when the connection is closing or closed, with ErrFull when there is no room, and
// with ErrTooLarge when p is larger than Limits.MaxUnsent. A nil error means that p is sent
// unless the connection ends first. A handler that sends to many connections of its own loop
// in one call fills the mailbox, because the loop empties it only afterwards: Limits.MaxMail
// and Limits.MaxMailBytes say how many fit.
func (r Ref) Send(p []byte) error { return r.r.Send(p) }

// SendWait is Send with backpressure: where more than Limits.HighWater bytes that Refs have
// sent would be unsent with p, it blocks until no more than Limits.LowWater are before it, or
// fewer if p fills Limits.MaxUnsent; and while the mailbox is full. So a goroutine that has
// much to send is as fast as the peer reads, and the connection holds little. Those that wait
// for a loop's mailbox get room in order. When ctx ends first, it fails with
// context.Cause(ctx), and p is not sent.
//
// It fails with ErrClosed when the connection is closing or closed, or begins to close
// meanwhile; with ErrTooLarge as Send does; with ErrFull when 256 goroutines wait for
// this connection already; and with ErrWriteTimeout when the mailbox has had no room for
// Limits.WriteTimeout. It must not be called by a handler, which would wait for
// itself: on an event loop it fails with ErrBadUse where it would have to wait.
func (r Ref) SendWait(ctx context.Context, p []byte) error {
	err := r.r.SendWait(ctx, p)
	if err == engine.ErrOnLoop {
		return errWaitOnLoop
	}
	return err
}

var errWaitOnLoop = badUse("SendWait would wait on an event loop; expected a goroutine that may wait, or Send")

// Do has f called for the connection as its handler is: not at the same time as another
// call for it, after what was sent before by the same goroutine, and on its event loop,
// also with Server.Workers, so that it must be quick. f may use everything of its Conn.
// It is called once, or never if the connection begins to close before. Do fails with
// ErrClosed when the connection is closing or closed, and with ErrFull when the mailbox
// is full.
func (r Ref) Do(f func(*Conn)) error {
	return r.r.Do(func(c *engine.Conn) { f((*Conn)(c)) })
}

// Release is Conn.Release from anywhere, after the messages sent before. It fails as
// Close does; with ErrClosed there is nothing to release any more.
func (r Ref) Release() error { return r.r.Do((*engine.Conn).Release) }

// Sendv is Send for all of pieces, one behind the other, as if they were joined: nothing
// is sent between them.
func (r Ref) Sendv(pieces ...[]byte) error { return r.r.Sendv(pieces) }

// Close posts a request to close the connection as Conn.Close does, after the
// messages sent before. It fails with ErrClosed when the connection is closing
// or closed, and with ErrFull when the mailbox is full.
func (r Ref) Close() error { return r.r.Close() }
