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
	// InputPauseSize is the number of input bytes from which IsInputFull asks the owner to stop reading.
	InputPauseSize = 80 << 10
	// MaxHandshakeInput is the maximum number of bytes that FeedHandshake buffers. At InputPauseSize, up to 32 buffers
	// of 64 KiB may be in flight with io_uring.
	MaxHandshakeInput = InputPauseSize + 32<<16
	// maxHelloInput limits the input before a complete ClientHello: maxHello plus record headers.
	maxHelloInput = maxHello + 8<<10
)

// handshake is the state of a TLS handshake. The session's owner and the handshake's goroutine share it.
type handshake struct {
	// Set before the handshake is queued.
	limiter     *HandshakeLimiter
	tls         *tls.Conn
	owner       Owner
	remote      net.Addr
	ctx         context.Context
	cancel      context.CancelCauseFunc
	inputSignal chan struct{} // signals a complete record; has space for one signal

	// Used by the owner only.
	hello            helloScanner
	isClient         bool
	answersHTTP      bool // see NewServerSession
	hasRequestedSlot bool

	// Used by the goroutine only, and by the owner once the goroutine has ended.
	hasCPU  bool
	secrets *trafficSecrets // nil if the configuration has no writer for them

	// Guarded by the limiter's lock.
	queued, stalled *list.Element // elements of h in the limiter's lists; nil if h is not in the list
	isEvicted       bool          // the handshake must give up its slot

	mu         sync.Mutex
	in         []byte
	consumed   int // input bytes that crypto/tls has read
	recordLeft int // bytes of the current record that crypto/tls has not read
	out        []byte
	isFull     bool // the owner must stop reading until the session wakes it
	inputEnded bool // the peer has closed its direction
	isAborted  bool
	isDone     bool
	err        error // the result, once done
}

// appendInputAndStartOnHello appends p to the input of the handshake. When the input of a server contains a complete
// ClientHello, appendInputAndStartOnHello starts or queues the handshake.
func (h *handshake) appendInputAndStartOnHello(p []byte) error {
	if err := h.appendInput(p); err != nil {
		return err
	}
	if h.hasRequestedSlot || h.isClient {
		return nil
	}
	// Nobody else uses h.in yet.
	isHello, err := h.hello.scanHello(h.in)
	switch {
	case err != nil:
		return err
	case isHello:
		h.in = h.hello.splitHelloIntoSmallRecords(h.in)
		h.requestHandshakeSlot()
	case len(h.in) >= maxHelloInput:
		return fmt.Errorf("secure: no complete ClientHello in %d bytes", len(h.in))
	}
	return nil
}

func (h *handshake) appendInput(p []byte) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	waiting := len(h.in) - h.consumed
	if waiting+len(p) > MaxHandshakeInput {
		return fmt.Errorf("secure: %d bytes of input wait for the handshake and %d more arrived; expected at most %d", waiting, len(p), MaxHandshakeInput)
	}
	if h.consumed > 0 {
		h.in = h.in[:copy(h.in, h.in[h.consumed:])]
		h.consumed = 0
	}
	h.in = append(h.in, p...)
	h.isFull = len(h.in) >= InputPauseSize
	if h.hasRequestedSlot && hasWholeRecord(h.in[min(h.recordLeft, len(h.in)):]) {
		h.signalInputAvailable()
	}
	return nil
}

func (h *handshake) bufferMemory() (memoryBytes int, hasPartialHello bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	return cap(h.in) + cap(h.out), !h.hasRequestedSlot && len(h.in) > 0
}

func (h *handshake) isInputFull() bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.isFull
}

func (h *handshake) signalInputAvailable() {
	select {
	case h.inputSignal <- struct{}{}:
	default:
	}
}

func (h *handshake) requestHandshakeSlot() {
	h.ctx, h.cancel = context.WithCancelCause(context.Background())
	h.inputSignal = make(chan struct{}, 1)
	h.hasRequestedSlot = true
	h.limiter.startOrQueueHandshake(h)
}

// markInputEndedFailUnlessRunning records that no more input will arrive. If the handshake is running, it may still
// complete, and markInputEndedFailUnlessRunning returns nil. Otherwise, the handshake fails. If the peer has sent
// nothing, the error is io.EOF. If the peer has sent a part of the handshake, the error is io.ErrUnexpectedEOF.
func (h *handshake) markInputEndedFailUnlessRunning() error {
	h.mu.Lock()
	h.inputEnded = true
	nothing := len(h.in) == 0
	h.mu.Unlock()
	switch {
	case h.hasRequestedSlot && !h.limiter.dequeue(h):
		h.signalInputAvailable()
		return nil
	case nothing && !h.hasRequestedSlot:
		return io.EOF
	}
	h.cancelContext()
	return io.ErrUnexpectedEOF
}

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

func (h *handshake) cancelContext() {
	if h.cancel != nil {
		h.cancel(nil)
	}
}

// takeOutputAndResult returns the output and removes it from h. If isDone is true, err is the result of the handshake.
func (h *handshake) takeOutputAndResult() (out []byte, isDone bool, err error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	out, h.out = h.out, nil
	return out, h.isDone, h.err
}

func (h *handshake) runHandshake() {
	defer h.limiter.releaseSlotAndStartNext(h)
	err := errors.New("secure: a callback of tls.Config called runtime.Goexit during the handshake; expected the callback to return")
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("secure: panic in the handshake: %v\n%s", p, debug.Stack())
		}
		h.releaseCPUToken()
		if context.Cause(h.ctx) == errStalled {
			err = errStalled
		}
		h.cancel(nil)
		h.setResultAndWakeOwner(err)
	}()
	if !h.acquireCPUToken() {
		err = net.ErrClosed
		return
	}
	if err = h.tls.HandshakeContext(h.ctx); err == io.EOF {
		err = io.ErrUnexpectedEOF // some input had arrived
	}
}

func (h *handshake) setResultAndWakeOwner(err error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.isDone, h.err = true, err
	h.wakeOwnerLocked()
}

// wakeOwnerLocked calls the owner's Wake, unless the handshake was aborted. The caller must hold h.mu.
func (h *handshake) wakeOwnerLocked() {
	if !h.isAborted {
		h.owner.Wake()
	}
}

func (h *handshake) acquireCPUToken() bool {
	h.hasCPU = h.limiter.acquireCPUToken(h.ctx)
	return h.hasCPU
}

func (h *handshake) releaseCPUToken() {
	if h.hasCPU {
		h.hasCPU = false
		h.limiter.releaseCPUToken()
	}
}

// readBlocking implements Read for crypto/tls. While readBlocking waits for input, it releases its CPU token, so that
// other handshakes can use the token.
func (h *handshake) readBlocking(p []byte) (int, error) {
	for {
		n, err := h.tryReadFromWholeRecord(p)
		if n > 0 || err != nil {
			return n, err
		}
		h.releaseCPUToken()
		if !h.waitInputUnlessEvicted() || !h.acquireCPUToken() {
			return 0, net.ErrClosed
		}
	}
}

// waitInputUnlessEvicted waits for input. If a client sends nothing for stallTimeout and other handshakes are
// queued, the server evicts the client's handshake. If the handshake is evicted or cancelled, the result is false.
func (h *handshake) waitInputUnlessEvicted() (available bool) {
	var over <-chan time.Time
	if !h.isClient { // a client does not limit the wait for a slow server
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

func (h *handshake) tryReadFromWholeRecord(p []byte) (int, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	in := h.in[h.consumed:]
	switch {
	case h.isAborted:
		return 0, net.ErrClosed
	case h.recordLeft > 0:
	case hasWholeRecord(in):
		h.recordLeft = recordLenOrHeaderLen(in)
	case h.inputEnded && len(in) == 0:
		return 0, io.EOF
	case h.inputEnded:
		return 0, io.ErrUnexpectedEOF
	default:
		if h.isFull {
			h.isFull = false
			h.wakeOwnerLocked()
		}
		return 0, nil
	}
	n := copy(p, in[:h.recordLeft])
	h.consumed += n
	h.recordLeft -= n
	return n, nil
}

func (h *handshake) appendOutputAndWakeOwner(p []byte) (int, error) {
	if h.secrets != nil && !h.isClient {
		h.secrets.countServerEncryptedRecords(p)
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.isAborted {
		return 0, net.ErrClosed
	}
	h.out = append(h.out, p...)
	h.wakeOwnerLocked()
	return len(p), nil
}
