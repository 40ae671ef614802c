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
	// InputPauseSize is how many bytes of input wait for a handshake before Full
	// asks the owner to stop reading. A ClientHello that is not whole within
	// them is an error.
	InputPauseSize = 64 << 10
	// MaxHandshakeInput is how many bytes Feed keeps: InputPauseSize, and what was already on its
	// way when reading stopped, which under io_uring is up to 32 pieces of 64 KiB.
	MaxHandshakeInput = InputPauseSize + 32<<16
	// maxHelloInput is how many bytes of a ClientHello are waited for: clients that
	// offer much send some 2 KiB.
	maxHelloInput = 16 << 10
)

// A handshake is what the owner and the handshake's goroutine share.
type handshake struct {
	// Set when it is made, or before it comes to the gate.
	limiter     *HandshakeLimiter
	tls         *tls.Conn
	owner       Owner
	remote      net.Addr
	ctx         context.Context
	cancel      context.CancelCauseFunc
	inputSignal chan struct{} // there may be a whole record; holds one

	// The owner's.
	hello            helloScanner
	isClient         bool
	hasRequestedSlot bool // came before the gate

	// The goroutine's.
	hasCPU bool

	// The gate's.
	queued, stalled *list.Element // where it waits, nil for not
	isEvicted       bool          // was told to give up its place

	mu         sync.Mutex
	in         []byte
	consumed   int // bytes of in that crypto/tls has
	recordLeft int // bytes of the record that crypto/tls is reading and has yet to get
	out        []byte
	isFull     bool // Feed has filled it; the owner wants to know when there is room
	inputEnded bool // no more input will come
	isAborted  bool
	isDone     bool
	err        error // once over
}

// feedInput keeps input. When a server's ClientHello is whole the handshake enters
// the gate.
func (h *handshake) feedInput(p []byte) error {
	if err := h.appendInput(p); err != nil {
		return err
	}
	if h.hasRequestedSlot || h.isClient {
		return nil
	}
	// Only the owner is here so far.
	isHello, err := h.hello.scan(h.in)
	switch {
	case err != nil:
		return err
	case isHello:
		h.in = h.hello.splitRecords(h.in)
		h.requestSlot()
	case len(h.in) >= maxHelloInput:
		return fmt.Errorf("secure: no whole ClientHello in %d bytes", len(h.in))
	}
	return nil
}

// appendInput keeps input, and tells the goroutine of a whole record.
func (h *handshake) appendInput(p []byte) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	waiting := len(h.in) - h.consumed
	if waiting+len(p) > MaxHandshakeInput {
		return fmt.Errorf("secure: %d bytes of input wait for the handshake and %d more came, the most is %d", waiting, len(p), MaxHandshakeInput)
	}
	if h.consumed > 0 {
		h.in = h.in[:copy(h.in, h.in[h.consumed:])]
		h.consumed = 0
	}
	h.in = append(h.in, p...)
	h.isFull = len(h.in) >= InputPauseSize
	if h.hasRequestedSlot && hasWholeRecord(h.in[min(h.recordLeft, len(h.in)):]) {
		h.signalInput()
	}
	return nil
}

// inputMemory is Session.Held.
func (h *handshake) inputMemory() (memory int, partial bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	return cap(h.in) + cap(h.out), !h.hasRequestedSlot && len(h.in) > 0
}

// isInputFull says whether the owner should stop reading for now.
func (h *handshake) isInputFull() bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.isFull
}

// signalInput lets the goroutine look at its input again.
func (h *handshake) signalInput() {
	select {
	case h.inputSignal <- struct{}{}:
	default:
	}
}

// requestSlot asks the gate for a place.
func (h *handshake) requestSlot() {
	h.ctx, h.cancel = context.WithCancelCause(context.Background())
	h.inputSignal = make(chan struct{}, 1)
	h.hasRequestedSlot = true
	h.limiter.startOrQueue(h)
}

// endInput takes note that no more input comes. If the handshake has no goroutine yet
// it can't have an end any more, and the error says so.
func (h *handshake) endInput() error {
	h.mu.Lock()
	h.inputEnded = true
	nothing := len(h.in) == 0
	h.mu.Unlock()
	switch {
	case h.hasRequestedSlot && !h.limiter.dequeue(h):
		h.signalInput()
		return nil
	case nothing && !h.hasRequestedSlot:
		return io.EOF
	}
	h.cancelContext()
	return io.ErrUnexpectedEOF
}

// abort makes the goroutine end soon, if there is one.
func (h *handshake) abort() {
	h.mu.Lock()
	h.isAborted = true
	h.in, h.consumed, h.recordLeft, h.out = nil, 0, 0, nil
	h.mu.Unlock()
	if h.hasRequestedSlot {
		h.limiter.dequeue(h)
		h.cancelContext()
	}
}

// cancelContext ends the context.
func (h *handshake) cancelContext() {
	if h.cancel != nil {
		h.cancel(nil)
	}
}

// takeOutput takes the output so far, and says whether and how the handshake ended.
func (h *handshake) takeOutput() (out []byte, isDone bool, err error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	out, h.out = h.out, nil
	return out, h.isDone, h.err
}

// runHandshake is the goroutine.
func (h *handshake) runHandshake() {
	defer h.limiter.releaseSlot(h)
	err := errors.New("secure: a callback of the tls.Config ended the goroutine of the handshake")
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("secure: panic in the handshake: %v\n%s", p, debug.Stack())
		}
		h.releaseCPU()
		if context.Cause(h.ctx) == errStalled {
			err = errStalled
		}
		h.cancel(nil)
		h.setResult(err)
	}()
	if !h.acquireCPU() {
		err = net.ErrClosed
		return
	}
	if err = h.tls.HandshakeContext(h.ctx); err == io.EOF {
		err = io.ErrUnexpectedEOF // something had come
	}
}

// setResult leaves the result for the owner.
func (h *handshake) setResult(err error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.isDone, h.err = true, err
	h.wakeOwner()
}

// wakeOwner tells the owner, which must be there; the lock is held.
func (h *handshake) wakeOwner() {
	if !h.isAborted {
		h.owner.Wake()
	}
}

func (h *handshake) acquireCPU() bool {
	h.hasCPU = h.limiter.acquireCPU(h.ctx)
	return h.hasCPU
}

func (h *handshake) releaseCPU() {
	if h.hasCPU {
		h.hasCPU = false
		h.limiter.releaseCPU()
	}
}

// readBlocking is crypto/tls's read: it waits for a record, without the token.
func (h *handshake) readBlocking(p []byte) (int, error) {
	for {
		n, err := h.takeRecordBytes(p)
		if n > 0 || err != nil {
			return n, err
		}
		h.releaseCPU()
		if !h.waitInput() || !h.acquireCPU() {
			return 0, net.ErrClosed
		}
	}
}

// waitInput waits for input. It is false when the context ended first, or the
// handshake has to give up its place.
func (h *handshake) waitInput() bool {
	var over <-chan time.Time
	if !h.isClient { // a server may be slow
		t := time.NewTimer(stallTimeout)
		defer t.Stop()
		over = t.C
	}
	select {
	case <-h.inputSignal:
		return true
	case <-h.ctx.Done():
		return false
	case <-over:
	}
	if !h.limiter.evictOrMarkStalled(h) {
		select {
		case <-h.inputSignal:
		case <-h.ctx.Done():
		}
		if h.limiter.unmarkStalled(h) {
			return true
		}
	}
	h.cancel(errStalled)
	return false
}

// takeRecordBytes gives bytes of one record, once that is whole. It gives 0 bytes when there
// is none.
func (h *handshake) takeRecordBytes(p []byte) (int, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	in := h.in[h.consumed:]
	switch {
	case h.isAborted:
		return 0, net.ErrClosed
	case h.recordLeft > 0:
	case hasWholeRecord(in):
		h.recordLeft = recordLen(in)
	case h.inputEnded && len(in) == 0:
		return 0, io.EOF
	case h.inputEnded:
		return 0, io.ErrUnexpectedEOF
	default:
		if h.isFull {
			h.isFull = false
			h.wakeOwner()
		}
		return 0, nil
	}
	n := copy(p, in[:h.recordLeft])
	h.consumed += n
	h.recordLeft -= n
	return n, nil
}

// appendOutput is crypto/tls's write.
func (h *handshake) appendOutput(p []byte) (int, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.isAborted {
		return 0, net.ErrClosed
	}
	h.out = append(h.out, p...)
	h.wakeOwner()
	return len(p), nil
}
