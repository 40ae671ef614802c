package tcp

import (
	"context"
	"errors"
	"io"
	"net"
	"net/netip"
	"os"
	"sync"
	"syscall"
	"time"

	"github.com/myriad-go/myriad/internal/engine"
)

// NetConn is a connection as a net.Conn, for code that blocks: a [Blocking] handler gives
// it to its functions, and a [Listener] accepts it. It works under every model, and over
// TLS if the server has that.
//
// Read and Write block, and are safe for concurrent use, each by several goroutines; a
// deadline that has passed ends them with os.ErrDeadlineExceeded. Input that nobody has
// read yet is kept, up to 64 KiB and one read (64 KiB) more; beyond it nothing is read
// from the peer. Write copies, and blocks as Ref.SendWait does: where more than
// Limits.HighWater bytes would be unsent, until no more than Limits.LowWater are. Neither direction waits for the other.
// All limits of the server hold, IdleTimeout also while the connection's code works: it
// counts from the peer's last word. When a limit has closed the connection, both Read and
// Write return its error, such as ErrWriteTimeout.
//
// Elsewhere than on Linux nothing is read while the kernel takes no output.
//
// They must not be called on an event loop, as in a Handler: they would hold it up.
type NetConn struct {
	ref    Ref
	server *Server
	remote netip.AddrPort
	most   int // the most bytes of one message

	mu       sync.Mutex
	local    net.Addr // nil until it was asked for
	readable sync.Cond
	writable sync.Cond
	value    any

	in      []byte // unread input
	off     int    // of which so much has been read
	ended   bool   // behind it the peer has ended
	paused  bool   // there is much of it
	taken   bool   // some was read since the call began, or has come: see Blocking
	writing bool   // somebody writes
	unblock func() // ends a wait of that one for room; nil if it does not wait
	shut    bool   // CloseWrite was called
	closed  bool   // Close was called
	gone    bool   // the connection has closed, with why
	why     error

	readBy, writeBy deadline

	// Of a Blocking handler:
	busy bool // a function is called, or waits for a goroutine
	next call // which, or was the last
}

// maxUnread is how much unread input pauses a connection.
const maxUnread = 64 << 10

// maxChunk is the most that one message of Write has.
const maxChunk = 64 << 10

func newNetConn(c *Conn) *NetConn {
	l := c.core().Limits()
	n := &NetConn{ref: c.Ref(), server: c.Server(), remote: c.core().Peer()}
	n.most = min(max(l.HighWater, 4<<10), maxChunk, l.MaxUnsent)
	n.readable.L, n.writable.L = &n.mu, &n.mu
	return n
}

// attach has the connection kept open, and read from, for n.
func (n *NetConn) attach(c *Conn) {
	c.Retain()
	c.core().SetIndependentDirections(true)
}

// What the connection's owner calls.

// arrived takes input.
func (n *NetConn) arrived(c *Conn, p []byte) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if len(p) == 0 || n.closed {
		return
	}
	if n.off == len(n.in) {
		n.in, n.off = n.in[:0], 0
	}
	n.in = append(n.in, p...)
	n.taken = true
	if len(n.in)-n.off >= maxUnread {
		n.paused = true
		c.Pause()
	}
	n.readable.Broadcast()
}

// end takes the peer's end.
func (n *NetConn) end() {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.ended, n.taken = true, true
	n.readable.Broadcast()
}

// finish takes the end of the connection.
func (n *NetConn) finish(why error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.gone, n.why = true, why
	n.readBy.stop()
	n.writeBy.stop()
	n.readable.Broadcast()
	n.wakeWriters()
}

// What everybody calls.

// Read implements net.Conn.
func (n *NetConn) Read(p []byte) (int, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	for {
		switch ready, err := n.input(); {
		case err != nil:
			return 0, err
		case ready:
			return n.take(p), nil
		case len(p) == 0:
			return 0, nil
		}
		n.readable.Wait()
	}
}

// WaitReadable blocks until there is input, and returns nil then; where there will be none, or
// the read deadline has passed, it returns the error that Read has, such as io.EOF. While it
// waits the connection holds no buffer, and neither need the caller, who gets one for the Read
// that follows. It is safe for concurrent use, but input that it has found may have been taken
// by another goroutine's Read.
func (n *NetConn) WaitReadable() error {
	n.mu.Lock()
	defer n.mu.Unlock()
	for {
		if ready, err := n.input(); ready || err != nil {
			return err
		}
		n.in, n.off = nil, 0
		n.readable.Wait()
	}
}

// input reports whether there is unread input, or why there will be none.
func (n *NetConn) input() (ready bool, err error) {
	switch {
	case n.closed:
		return false, n.failed("read", net.ErrClosed)
	case n.readBy.over:
		return false, n.failed("read", os.ErrDeadlineExceeded)
	case n.off < len(n.in):
		return true, nil
	case n.ended, n.gone && (n.why == nil || n.why == io.EOF):
		return false, io.EOF
	case n.gone:
		return false, n.failed("read", n.why)
	}
	return false, nil
}

// take gives unread input.
func (n *NetConn) take(p []byte) int {
	m := copy(p, n.in[n.off:])
	n.off += m
	n.taken = n.taken || m > 0
	left := len(n.in) - n.off
	if left == 0 && cap(n.in) > 4<<10 {
		n.in, n.off = nil, 0
	}
	if n.paused && left <= maxUnread/2 {
		n.paused = false
		n.ask((*Conn).Resume, nil)
	}
	return m
}

// Write implements net.Conn. What it has taken is sent, unless the connection breaks.
func (n *NetConn) Write(p []byte) (written int, err error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	for n.writing && n.writeError() == nil {
		n.writable.Wait()
	}
	if err := n.writeError(); err != nil || len(p) == 0 {
		return 0, err
	}
	n.writing = true
	defer func() {
		n.writing = false
		n.writable.Broadcast()
	}()
	for {
		if err := n.writeError(); err != nil {
			return written, err
		}
		m := min(len(p), n.most)
		switch err := n.send(p[:m]); {
		case errors.Is(err, context.Canceled):
			continue // what has unblocked it tells, unless it is over
		case errors.Is(err, ErrClosed):
			return written, n.awaitEnd()
		case err != nil:
			return written, n.failed("write", err)
		}
		if p, written = p[m:], written+m; len(p) == 0 {
			return written, nil
		}
	}
}

// send sends when there is room. While it waits for that the lock is let go, and what ends
// a Write unblocks it.
func (n *NetConn) send(p []byte) error {
	if err := n.ref.r.TrySend(p); !errors.Is(err, ErrFull) {
		return err
	}
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	n.unblock = cancel
	n.mu.Unlock()
	err := n.ref.SendWait(ctx, p)
	n.mu.Lock()
	n.unblock = nil
	return err
}

// wakeWriters has those in Write look whether it has ended.
func (n *NetConn) wakeWriters() {
	if n.unblock != nil {
		n.unblock()
	}
	n.writable.Broadcast()
}

// fullRest is how long to wait where a mailbox is full, before it is tried again.
const fullRest = time.Millisecond

// rest waits where a mailbox is full, with the lock let go.
func (n *NetConn) rest() {
	n.mu.Unlock()
	defer n.mu.Lock()
	time.Sleep(fullRest)
}

func (n *NetConn) writeError() error {
	switch {
	case n.closed:
		return n.failed("write", net.ErrClosed)
	case n.writeBy.over:
		return n.failed("write", os.ErrDeadlineExceeded)
	case n.shut:
		return n.failed("write", syscall.EPIPE)
	case n.gone:
		if n.why == nil || n.why == io.EOF {
			return n.failed("write", syscall.EPIPE)
		}
		return n.failed("write", n.why)
	}
	return nil
}

// awaitEnd waits for the reason of a connection that has begun to close, and returns it.
func (n *NetConn) awaitEnd() error {
	for n.writeError() == nil {
		n.writable.Wait()
	}
	return n.writeError()
}

func (n *NetConn) failed(op string, err error) error {
	return &net.OpError{Op: op, Net: "tcp", Addr: n.RemoteAddr(), Err: err}
}

// Close implements net.Conn: what was written is sent, within Limits.CloseTimeout. It
// does not wait for that.
func (n *NetConn) Close() error {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.closed {
		return n.failed("close", net.ErrClosed)
	}
	n.leave()
	n.ask(func(c *Conn) { c.Close() }, nil)
	return nil
}

// leave ends Read and Write.
func (n *NetConn) leave() {
	n.closed = true
	n.in, n.off = nil, 0
	n.readable.Broadcast()
	n.wakeWriters()
}

// CloseWrite is Conn.CloseWrite: the peer reads the end behind what was written. Reading
// goes on.
func (n *NetConn) CloseWrite() error {
	n.mu.Lock()
	defer n.mu.Unlock()
	if err := n.writeError(); err != nil {
		return err
	}
	n.shut = true
	n.wakeWriters()
	n.ask(func(c *Conn) { c.CloseWrite() }, nil)
	return nil
}

// ask has f called on the owner, or lost when the connection begins to close before. It
// is called with the lock, which it lets go while a mailbox is full. Neither is called
// where it answers false, because the connection closes.
func (n *NetConn) ask(f func(*Conn), lost func()) (posted bool) {
	for {
		err := n.ref.r.DoOrElse(func(c *engine.Conn) { f((*Conn)(c)) }, lost)
		if !errors.Is(err, ErrFull) {
			return err == nil
		}
		n.rest()
	}
}

// unread is how much input nobody has read.
func (n *NetConn) unread() int {
	n.mu.Lock()
	defer n.mu.Unlock()
	return len(n.in) - n.off
}

// RemoteAddr implements net.Conn. It is Conn.RemoteAddr.
func (n *NetConn) RemoteAddr() net.Addr { return netAddr(n.remote) }

// LocalAddr implements net.Conn. It is Ref.LocalAddr; where the connection has closed
// before the first call, it is what the server listens on.
func (n *NetConn) LocalAddr() net.Addr {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.local == nil {
		n.mu.Unlock()
		local, ok := n.ref.LocalAddr()
		n.mu.Lock()
		if ok || !n.remote.IsValid() {
			n.local = netAddr(local)
		} else {
			n.local = n.server.listensOn()
		}
	}
	return n.local
}

// Ref names the connection.
func (n *NetConn) Ref() Ref { return n.ref }

// Value is what SetValue was last given for this connection, nil at first.
func (n *NetConn) Value() any {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.value
}

// SetValue keeps v with the connection. A connection of a Blocking handler that has one
// costs some 500 bytes more while it is idle.
func (n *NetConn) SetValue(v any) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.value = v
}

// SetDeadline implements net.Conn.
func (n *NetConn) SetDeadline(t time.Time) error {
	return errors.Join(n.SetReadDeadline(t), n.SetWriteDeadline(t))
}

// SetReadDeadline implements net.Conn.
func (n *NetConn) SetReadDeadline(t time.Time) error {
	return n.setDeadline(&n.readBy, n.readable.Broadcast, t)
}

// SetWriteDeadline implements net.Conn.
func (n *NetConn) SetWriteDeadline(t time.Time) error {
	return n.setDeadline(&n.writeBy, n.wakeWriters, t)
}

func (n *NetConn) setDeadline(d *deadline, wake func(), t time.Time) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.closed {
		return n.failed("set deadline", net.ErrClosed)
	}
	if n.gone {
		return nil // there is nothing that could wait
	}
	if d.set(t, func() { n.expire(d, wake) }); d.over {
		wake()
	}
	return nil
}

// expire is called by a deadline's timer.
func (n *NetConn) expire(d *deadline, wake func()) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if d.due(); d.over {
		wake()
	}
}

// deadline ends waits. Its timer may run out for a time that is not the deadline any more,
// so it looks at that.
type deadline struct {
	at    time.Time // zero for never
	timer *time.Timer
	over  bool
}

func (d *deadline) set(t time.Time, expire func()) {
	d.stop()
	d.at = t
	switch left := time.Until(t); {
	case t.IsZero():
	case left <= 0:
		d.over = true
	case d.timer == nil:
		d.timer = time.AfterFunc(left, expire)
	default:
		d.timer.Reset(left)
	}
}

func (d *deadline) stop() {
	d.over, d.at = false, time.Time{}
	if d.timer != nil {
		d.timer.Stop()
	}
}

func (d *deadline) due() {
	if d.at.IsZero() {
		return
	}
	if left := time.Until(d.at); left > 0 {
		d.timer.Reset(left)
		return
	}
	d.over = true
}
