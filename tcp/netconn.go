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

// NetConn is a connection of a Server that implements net.Conn, for code that blocks. A [Blocking] handler passes a
// NetConn to its functions, and NetListener.Accept returns a NetConn. It works in all models and over TLS. Do not use
// it in calls of a Handler on an event loop, because Read and Write would block the loop.
//
// Several goroutines may call Read and Write concurrently. After a deadline has passed, Read and Write fail with
// os.ErrDeadlineExceeded. The server stops reading from the peer while 64 KiB or more of input are unread. A NetConn
// therefore buffers less than 128 KiB of input. If more than Limits.HighWater bytes would be unsent, Write blocks until
// at most Limits.LowWater bytes are unsent. On Linux, reading and writing do not block each other. On other systems,
// the server does not read from the peer while the kernel accepts no output.
//
// All limits of the server apply. IdleTimeout counts from the peer's last byte, even while the application works on a
// request. If a limit has closed the connection, Read and Write return the error of the limit, such as ErrWriteTimeout.
type NetConn struct {
	ref      Ref
	server   *Server
	remote   netip.AddrPort
	maxWrite int // limit of a single message, in bytes

	mu       sync.Mutex
	local    net.Addr // cached by LocalAddr
	readable sync.Cond
	writable sync.Cond
	value    any

	in          []byte // received input, unread from readOffset on
	readOffset  int    // number of input bytes that were read
	peerEnded   bool   // the peer has closed its writing side; no more input follows
	paused      bool   // reading is paused because in is full
	progressed  bool   // input was read or has arrived since the callback began; see Blocking
	writing     bool   // a Write is in progress
	cancelWait  func() // unblocks the Write in progress; nil if it does not wait
	writeClosed bool   // CloseWrite was called
	closed      bool   // Close was called
	connClosed  bool   // the connection has closed with closeReason
	closeReason error

	readDeadline, writeDeadline deadline

	// For a Blocking handler:
	busy     bool     // a callback runs or is scheduled
	callback callback // the running or scheduled callback, or the previous one
}

const maxUnreadInput = 64 << 10

// maxWriteSize is the maximum size, in bytes, of a message that Write posts to the mailbox. Write divides longer data.
const maxWriteSize = 64 << 10

func newNetConn(c *Conn) *NetConn {
	l := c.core().Limits()
	n := &NetConn{ref: c.Ref(), server: c.Server(), remote: c.core().Peer()}
	n.maxWrite = min(max(l.HighWater, 4<<10), maxWriteSize, l.MaxUnsent)
	n.readable.L, n.writable.L = &n.mu, &n.mu
	return n
}

func (n *NetConn) retainWithIndependentDirections(c *Conn) {
	c.Retain()
	c.core().SetReadingDespiteUnsentOutput(true)
}

func (n *NetConn) bufferInput(c *Conn, p []byte) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if len(p) == 0 || n.closed {
		return
	}
	if n.readOffset == len(n.in) {
		n.in, n.readOffset = n.in[:0], 0
	}
	n.in = append(n.in, p...)
	n.progressed = true
	if len(n.in)-n.readOffset >= maxUnreadInput {
		n.paused = true
		c.Pause()
	}
	n.readable.Broadcast()
}

func (n *NetConn) markPeerEnded() {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.peerEnded, n.progressed = true, true
	n.readable.Broadcast()
}

func (n *NetConn) markConnClosed(reason error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.connClosed, n.closeReason = true, reason
	n.readDeadline.stopAndClear()
	n.writeDeadline.stopAndClear()
	n.readable.Broadcast()
	n.wakeWritersLocked()
}

// Read implements net.Conn.
func (n *NetConn) Read(p []byte) (int, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	for {
		switch ready, err := n.inputReadyLocked(); {
		case err != nil:
			return 0, err
		case ready:
			return n.readBufferedAndResumeInputLocked(p), nil
		case len(p) == 0:
			return 0, nil
		}
		n.readable.Wait()
	}
}

// WaitReadable blocks until there is input and then returns nil. After the end of the input or after the read deadline,
// it returns the error that Read would return, such as io.EOF. WaitReadable is safe for concurrent use, but a
// concurrent Read may take the input first.
func (n *NetConn) WaitReadable() error {
	n.mu.Lock()
	defer n.mu.Unlock()
	for {
		if ready, err := n.inputReadyLocked(); ready || err != nil {
			return err
		}
		n.in, n.readOffset = nil, 0
		n.readable.Wait()
	}
}

func (n *NetConn) inputReadyLocked() (ready bool, err error) {
	switch {
	case n.closed:
		return false, n.opError("read", net.ErrClosed)
	case n.readDeadline.expired:
		return false, n.opError("read", os.ErrDeadlineExceeded)
	case n.readOffset < len(n.in):
		return true, nil
	case n.peerEnded, n.connClosed && (n.closeReason == nil || n.closeReason == io.EOF):
		return false, io.EOF
	case n.connClosed:
		return false, n.opError("read", n.closeReason)
	}
	return false, nil
}

func (n *NetConn) readBufferedAndResumeInputLocked(p []byte) int {
	m := copy(p, n.in[n.readOffset:])
	n.readOffset += m
	n.progressed = n.progressed || m > 0
	left := len(n.in) - n.readOffset
	if left == 0 && cap(n.in) > 4<<10 {
		n.in, n.readOffset = nil, 0
	}
	if n.paused && left <= maxUnreadInput/2 {
		n.paused = false
		n.postReleasingLockWhileFull((*Conn).Resume, nil)
	}
	return m
}

// Write implements net.Conn. Bytes that Write has accepted are sent unless the connection fails.
func (n *NetConn) Write(p []byte) (written int, err error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	for n.writing && n.writeErrorLocked() == nil {
		n.writable.Wait()
	}
	if err := n.writeErrorLocked(); err != nil || len(p) == 0 {
		return 0, err
	}
	n.writing = true
	defer func() {
		n.writing = false
		n.writable.Broadcast()
	}()
	for {
		if err := n.writeErrorLocked(); err != nil {
			return written, err
		}
		m := min(len(p), n.maxWrite)
		switch err := n.sendReleasingLockWhileFull(p[:m]); {
		case errors.Is(err, context.Canceled):
			continue // writeErrorLocked returns the cause, unless it no longer applies
		case errors.Is(err, ErrClosed):
			return written, n.waitUntilWriteFailsLocked()
		case err != nil:
			return written, n.opError("write", err)
		}
		if p, written = p[m:], written+m; len(p) == 0 {
			return written, nil
		}
	}
}

func (n *NetConn) sendReleasingLockWhileFull(p []byte) error {
	if err := n.ref.r.TrySend(p); !errors.Is(err, ErrFull) {
		return err
	}
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	n.cancelWait = cancel
	n.mu.Unlock()
	err := n.ref.SendWait(ctx, p)
	n.mu.Lock()
	n.cancelWait = nil
	return err
}

func (n *NetConn) wakeWritersLocked() {
	if n.cancelWait != nil {
		n.cancelWait()
	}
	n.writable.Broadcast()
}

const mailboxRetryDelay = time.Millisecond

func (n *NetConn) sleepRetryDelayReleasingLock() {
	n.mu.Unlock()
	defer n.mu.Lock()
	time.Sleep(mailboxRetryDelay)
}

func (n *NetConn) writeErrorLocked() error {
	switch {
	case n.closed:
		return n.opError("write", net.ErrClosed)
	case n.writeDeadline.expired:
		return n.opError("write", os.ErrDeadlineExceeded)
	case n.writeClosed:
		return n.opError("write", syscall.EPIPE)
	case n.connClosed:
		if n.closeReason == nil || n.closeReason == io.EOF {
			return n.opError("write", syscall.EPIPE)
		}
		return n.opError("write", n.closeReason)
	}
	return nil
}

func (n *NetConn) waitUntilWriteFailsLocked() error {
	for n.writeErrorLocked() == nil {
		n.writable.Wait()
	}
	return n.writeErrorLocked()
}

func (n *NetConn) opError(op string, err error) error {
	return &net.OpError{Op: op, Net: "tcp", Addr: n.RemoteAddr(), Err: err}
}

// Close implements net.Conn. Close does not wait until written data has been sent. The server sends the data in the
// background, within Limits.CloseTimeout.
func (n *NetConn) Close() error {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.closed {
		return n.opError("close", net.ErrClosed)
	}
	n.markClosedAndWakeWaitersLocked()
	n.postReleasingLockWhileFull(func(c *Conn) { c.Close() }, nil)
	return nil
}

func (n *NetConn) markClosedAndWakeWaitersLocked() {
	n.closed = true
	n.in, n.readOffset = nil, 0
	n.readable.Broadcast()
	n.wakeWritersLocked()
}

// CloseWrite closes the writing side of the connection, like Conn.CloseWrite. The peer reads all written data and then
// the end of the stream. Read can still be used.
func (n *NetConn) CloseWrite() error {
	n.mu.Lock()
	defer n.mu.Unlock()
	if err := n.writeErrorLocked(); err != nil {
		return err
	}
	n.writeClosed = true
	n.wakeWritersLocked()
	n.postReleasingLockWhileFull(func(c *Conn) { c.CloseWrite() }, nil)
	return nil
}

// postReleasingLockWhileFull makes the connection's event loop or goroutine call run. If the connection closes first,
// onLost is called instead, on any goroutine. If posted is false, neither function is called. While the mailbox is
// full, postReleasingLockWhileFull waits and tries again. The caller must hold n.mu, which is released during such a
// wait.
func (n *NetConn) postReleasingLockWhileFull(run func(*Conn), onLost func()) (posted bool) {
	for {
		err := n.ref.r.DoOrElse(func(c *engine.Conn) { run((*Conn)(c)) }, onLost)
		if !errors.Is(err, ErrFull) {
			return err == nil
		}
		n.sleepRetryDelayReleasingLock()
	}
}

func (n *NetConn) unreadBytes() int {
	n.mu.Lock()
	defer n.mu.Unlock()
	return len(n.in) - n.readOffset
}

// RemoteAddr implements net.Conn. It returns the same address as Conn.RemoteAddr.
func (n *NetConn) RemoteAddr() net.Addr { return toTCPOrUnixAddr(n.remote) }

// LocalAddr implements net.Conn. It returns the same address as Ref.LocalAddr. If the connection has closed before the
// first call, LocalAddr returns the address on which the server listens.
func (n *NetConn) LocalAddr() net.Addr {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.local == nil {
		n.mu.Unlock()
		local, ok := n.ref.LocalAddr()
		n.mu.Lock()
		if ok || !n.remote.IsValid() {
			n.local = toTCPOrUnixAddr(local)
		} else {
			n.local = n.server.listenAddrOrZero()
		}
	}
	return n.local
}

// Ref returns the handle of the connection.
func (n *NetConn) Ref() Ref { return n.ref }

// Value returns the value last set by SetValue, or nil.
func (n *NetConn) Value() any {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.value
}

// SetValue attaches v to the connection. With a Blocking handler, an idle connection then takes about 500 bytes more,
// because the server keeps its NetConn.
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
	return n.setDeadline(&n.readDeadline, n.readable.Broadcast, t)
}

// SetWriteDeadline implements net.Conn.
func (n *NetConn) SetWriteDeadline(t time.Time) error {
	return n.setDeadline(&n.writeDeadline, n.wakeWritersLocked, t)
}

func (n *NetConn) setDeadline(d *deadline, wake func(), t time.Time) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.closed {
		return n.opError("set deadline", net.ErrClosed)
	}
	if n.connClosed {
		return nil // nothing can wait any more
	}
	if d.set(t, func() { n.wakeIfExpiredElseRearm(d, wake) }); d.expired {
		wake()
	}
	return nil
}

func (n *NetConn) wakeIfExpiredElseRearm(d *deadline, wake func()) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if d.markExpiredOrRearm(); d.expired {
		wake()
	}
}

// deadline is the read or write deadline of a NetConn.
type deadline struct {
	at      time.Time // zero if there is no deadline
	timer   *time.Timer
	expired bool
}

func (d *deadline) set(t time.Time, onTimer func()) {
	d.stopAndClear()
	d.at = t
	switch left := time.Until(t); {
	case t.IsZero():
	case left <= 0:
		d.expired = true
	case d.timer == nil:
		d.timer = time.AfterFunc(left, onTimer)
	default:
		d.timer.Reset(left)
	}
}

func (d *deadline) stopAndClear() {
	d.expired, d.at = false, time.Time{}
	if d.timer != nil {
		d.timer.Stop()
	}
}

func (d *deadline) markExpiredOrRearm() {
	if d.at.IsZero() {
		return
	}
	if left := time.Until(d.at); left > 0 { // the deadline has changed just before the timer fired
		d.timer.Reset(left)
		return
	}
	d.expired = true
}
