package secure

import (
	"container/list"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"runtime/debug"
	"sync"
	"time"
)

const (
	// FullInput is how many bytes of input wait for a handshake before Full
	// asks the owner to stop reading. A ClientHello that is not whole within
	// them is an error.
	FullInput = 64 << 10
	// MaxInput is how many bytes Feed keeps: FullInput, and what was already on its
	// way when reading stopped, which under io_uring is up to 32 pieces of 64 KiB.
	MaxInput = FullInput + 32<<16
	// maxWait is how many bytes of a ClientHello are waited for: clients that
	// offer much send some 2 KiB.
	maxWait = 16 << 10
)

// A handshake is what the owner and the handshake's goroutine share.
type handshake struct {
	// Set when it is made, or before it comes to the gate.
	gate   *Gate
	tls    *tls.Conn
	owner  Owner
	remote net.Addr
	ctx    context.Context
	cancel context.CancelCauseFunc
	more   chan struct{} // there may be a whole record; holds one

	// The owner's.
	hello     hello
	isClient  bool
	isEntered bool // came before the gate

	// The goroutine's.
	hasToken bool

	// The gate's.
	queued, stalled *list.Element // where it waits, nil for not
	isLeaving       bool          // was told to give up its place

	mu        sync.Mutex
	in        []byte
	taken     int // bytes of in that crypto/tls has
	left      int // bytes of the record that crypto/tls is reading and has yet to get
	out       []byte
	isFull    bool // Feed has filled it; the owner wants to know when there is room
	isEnded   bool // no more input will come
	isAborted bool
	isOver    bool
	err       error // once over
}

// feed keeps input. When a server's ClientHello is whole the handshake enters
// the gate.
func (h *handshake) feed(p []byte) error {
	if err := h.append(p); err != nil {
		return err
	}
	if h.isEntered || h.isClient {
		return nil
	}
	// Only the owner is here so far.
	isHello, err := h.hello.scan(h.in)
	switch {
	case err != nil:
		return err
	case isHello:
		h.in = h.hello.cut(h.in)
		h.enter()
	case len(h.in) >= maxWait:
		return fmt.Errorf("secure: no whole ClientHello in %d bytes", len(h.in))
	}
	return nil
}

// append keeps input, and tells the goroutine of a whole record.
func (h *handshake) append(p []byte) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	waiting := len(h.in) - h.taken
	if waiting+len(p) > MaxInput {
		return fmt.Errorf("secure: %d bytes of input wait for the handshake and %d more came, the most is %d", waiting, len(p), MaxInput)
	}
	if h.taken > 0 {
		h.in = h.in[:copy(h.in, h.in[h.taken:])]
		h.taken = 0
	}
	h.in = append(h.in, p...)
	h.isFull = len(h.in) >= FullInput
	if h.isEntered && isWhole(h.in[min(h.left, len(h.in)):]) {
		h.tell()
	}
	return nil
}

// held is Session.Held.
func (h *handshake) held() (memory int, partial bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	return cap(h.in) + cap(h.out), !h.isEntered && len(h.in) > 0
}

// full says whether the owner should stop reading for now.
func (h *handshake) full() bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.isFull
}

// tell lets the goroutine look at its input again.
func (h *handshake) tell() {
	select {
	case h.more <- struct{}{}:
	default:
	}
}

// enter asks the gate for a place.
func (h *handshake) enter() {
	h.ctx, h.cancel = context.WithCancelCause(context.Background())
	h.more = make(chan struct{}, 1)
	h.isEntered = true
	h.gate.enter(h)
}

// end takes note that no more input comes. If the handshake has no goroutine yet
// it can't have an end any more, and the error says so.
func (h *handshake) end() error {
	h.mu.Lock()
	h.isEnded = true
	nothing := len(h.in) == 0
	h.mu.Unlock()
	switch {
	case h.isEntered && !h.gate.remove(h):
		h.tell()
		return nil
	case nothing && !h.isEntered:
		return io.EOF
	}
	h.stop()
	return io.ErrUnexpectedEOF
}

// abort makes the goroutine end soon, if there is one.
func (h *handshake) abort() {
	h.mu.Lock()
	h.isAborted = true
	h.in, h.taken, h.left, h.out = nil, 0, 0, nil
	h.mu.Unlock()
	if h.isEntered {
		h.gate.remove(h)
		h.stop()
	}
}

// stop ends the context.
func (h *handshake) stop() {
	if h.cancel != nil {
		h.cancel(nil)
	}
}

// step takes the output so far, and says whether and how the handshake ended.
func (h *handshake) step() (out []byte, isOver bool, err error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	out, h.out = h.out, nil
	return out, h.isOver, h.err
}

// run is the goroutine.
func (h *handshake) run() {
	defer h.gate.leave(h)
	err := errors.New("secure: a callback of the tls.Config ended the goroutine of the handshake")
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("secure: panic in the handshake: %v\n%s", p, debug.Stack())
		}
		h.release()
		if context.Cause(h.ctx) == errStalled {
			err = errStalled
		}
		h.cancel(nil)
		h.finish(err)
	}()
	if !h.acquire() {
		err = net.ErrClosed
		return
	}
	if err = h.tls.HandshakeContext(h.ctx); err == io.EOF {
		err = io.ErrUnexpectedEOF // something had come
	}
}

// finish leaves the result for the owner.
func (h *handshake) finish(err error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.isOver, h.err = true, err
	h.wake()
}

// wake tells the owner, which must be there; the lock is held.
func (h *handshake) wake() {
	if !h.isAborted {
		h.owner.Wake()
	}
}

func (h *handshake) acquire() bool {
	h.hasToken = h.gate.acquire(h.ctx)
	return h.hasToken
}

func (h *handshake) release() {
	if h.hasToken {
		h.hasToken = false
		h.gate.release()
	}
}

// read is crypto/tls's read: it waits for a record, without the token.
func (h *handshake) read(p []byte) (int, error) {
	for {
		n, err := h.take(p)
		if n > 0 || err != nil {
			return n, err
		}
		h.release()
		if !h.wait() || !h.acquire() {
			return 0, net.ErrClosed
		}
	}
}

// wait waits for input. It is false when the context ended first, or the
// handshake has to give up its place.
func (h *handshake) wait() bool {
	var over <-chan time.Time
	if !h.isClient { // a server may be slow
		t := time.NewTimer(stallTime)
		defer t.Stop()
		over = t.C
	}
	select {
	case <-h.more:
		return true
	case <-h.ctx.Done():
		return false
	case <-over:
	}
	if !h.gate.stall(h) {
		select {
		case <-h.more:
		case <-h.ctx.Done():
		}
		if h.gate.resume(h) {
			return true
		}
	}
	h.cancel(errStalled)
	return false
}

// take gives bytes of one record, once that is whole. It gives 0 bytes when there
// is none.
func (h *handshake) take(p []byte) (int, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	in := h.in[h.taken:]
	switch {
	case h.isAborted:
		return 0, net.ErrClosed
	case h.left > 0:
	case isWhole(in):
		h.left = recordLen(in)
	case h.isEnded && len(in) == 0:
		return 0, io.EOF
	case h.isEnded:
		return 0, io.ErrUnexpectedEOF
	default:
		if h.isFull {
			h.isFull = false
			h.wake()
		}
		return 0, nil
	}
	n := copy(p, in[:h.left])
	h.taken += n
	h.left -= n
	return n, nil
}

// write is crypto/tls's write.
func (h *handshake) write(p []byte) (int, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.isAborted {
		return 0, net.ErrClosed
	}
	h.out = append(h.out, p...)
	h.wake()
	return len(p), nil
}
