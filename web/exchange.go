package web

import (
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"runtime/debug"
	"sync"
	"sync/atomic"
	"time"

	"github.com/myriad-go/myriad/pool"
	"github.com/myriad-go/myriad/tcp"
)

// exchange is one request and its response; state.go describes its states.
//
// One whose handler runs off the event loop is the connection's Value from the end of its
// head to the end of the response, and of the body if that is later: the owner puts what
// arrives into body, and the handler's goroutine has all the rest until its handler has
// returned. Nothing of it is used for another request, because a handler may keep the Request
// and the ResponseWriter. The exchange of a Quick handler is used again.
//
// Pipelined requests that arrive together are a list, which does not change after dispatch. One
// worker runs their handlers in turn. The first that is not done is the connection's Value. The
// owner finishes it, and those behind it whose responses are complete in memory.
type exchange struct {
	h       *HTTP
	handler http.Handler
	ref     tcp.Ref
	limits  *tcp.Limits
	job     *job // nil for the requests behind the first

	header     http.Header
	headMemory headBuffer
	head

	next          *exchange     // the pipelined request behind it, if that came with it
	req           *http.Request // a blank one until the handler gets its own
	res           response
	cancelCtx     context.CancelFunc
	fileSlots     int8              // how many the connection takes, of this response and those behind it
	switchHandler func(c *tcp.Conn) // gives the connection to another handler, after responseSwitching

	mu       sync.Mutex
	readable sync.Cond
	body     body
	closed   chan struct{} // closed with the connection; nil if nobody waits for that
	draining bool          // the server is: no further request is accepted
	state    exchangeState

	// The owner's:
	inputPaused bool // input is paused, because another request waits behind this one
	discarded   int  // bytes of the body in stateDiscarding
	memoryCost  int  // in memory, without the body but with the requests behind it: see Limits.MaxBuffered
}

// maxDiscardedBody is how much of a body that no handler has read is skipped, so that the
// connection can be used further; as in net/http.
const maxDiscardedBody = 256 << 10

// discardTimeout is the most time for that.
const discardTimeout = 30 * time.Second

// quickExchanges are those that are used again.
var quickExchanges = sync.Pool{New: func() any { return &exchange{header: make(http.Header)} }}

// blankRequests are what heads are read into.
var blankRequests = sync.Pool{New: func() any { return new(http.Request) }}

// newExchange returns an exchange for the next request of c.
func (h *HTTP) newExchange(c *tcp.Conn) *exchange {
	x := quickExchanges.Get().(*exchange)
	x.h, x.handler, x.ref, x.limits = h, h.handler(), c.Ref(), &c.Server().Limits
	if x.req == nil {
		x.req = blankRequests.Get().(*http.Request)
	}
	*x.req = http.Request{Header: x.header}
	return x
}

// maxKeptFields is the most fields of a header that is used again: a map stays as large as it
// was, and clearing it takes as long.
const maxKeptFields = 64

// recycleExchange makes x, which no worker has seen, available for another request.
func recycleExchange(x *exchange) {
	if len(x.header) > maxKeptFields {
		x.header = make(http.Header)
	}
	clear(x.header)
	clear(x.headMemory.values[:x.headMemory.used])
	x.headMemory.used, x.headMemory.text = 0, ""
	x.res.reset()
	x.switchHandler = nil
	quickExchanges.Put(x)
}

// mustClose reports whether nothing may follow this request, or the client can't be relied on to
// send the rest of its body: it waits for 100 Continue, or there is too much of it.
func (x *exchange) mustClose() bool {
	if x.head.closeAfter || x.res.conn != nil {
		return x.head.closeAfter
	}
	x.mu.Lock()
	defer x.mu.Unlock()
	b := &x.body
	return x.draining || !b.isComplete() && (x.expectsContinue && !b.continueSent || b.err != nil || b.readDeadline.expired || !b.framing.chunked && b.framing.remaining > maxDiscardedBody)
}

// dispatch has a worker run the handler, and those of the requests behind it.
func (x *exchange) dispatch(c *tcp.Conn) {
	state := stateActive
	for y := x; y != nil; y = y.next {
		y.initRequest()
		x.memoryCost += y.ownMemoryCost()
		y.setState(state)
		state = statePipelined
	}
	x.job = new(job)
	x.job.x.Store(x)
	x.fileSlots = int8(fileCapacity(c))
	x.makeCurrent(c)
	c.Retain()
	if x.h.pool().TrySubmitTask(pool.Task{Job: x.job}) == nil {
		return
	}
	for y := x.job.takeExchange(); y != nil; y = y.next {
		y.writeUnavailable()
		y.mu.Lock()
		y.markResponseReady()
		y.mu.Unlock()
	}
	x.sendResponses(c)
}

// makeCurrent makes x the connection's Value. It reports whether the response is complete in memory.
func (x *exchange) makeCurrent(c *tcp.Conn) (complete bool) {
	c.SetValue(x)
	if d := x.h.WriteTimeout; d > 0 {
		c.SetDeadline(d)
	}
	reserve(c, x.memoryCost, false)
	x.mu.Lock()
	defer x.mu.Unlock()
	switch x.state {
	case statePipelined:
		x.setState(stateActive)
	case stateBuffered:
		x.setState(stateReturned)
		return true
	}
	return false
}

// What a request that a worker handles takes, beside its head, and a goroutine that waits
// for more of its body.
const (
	requestMemory = 2 << 10
	waiterMemory  = 8 << 10
)

// ownMemoryCost is the part of cost that is not of the requests behind it.
func (x *exchange) ownMemoryCost() int {
	n := requestMemory + 2*len(x.headMemory.text) // the map of its fields, too
	if x.length != 0 {
		n += waiterMemory
	}
	return n
}

// initRequest makes what the handler uses.
func (x *exchange) initRequest() {
	x.readable.L = &x.mu
	ctx, cancel := context.WithCancel((*connContext)(x))
	x.cancelCtx = cancel
	blank := x.req
	x.req = blank.WithContext(ctx)
	*blank = http.Request{}
	blankRequests.Put(blank)
	x.body = body{x: x, framing: newBodyFraming(x.length), continueSent: !x.expectsContinue}
	if x.req.Body = http.NoBody; x.length != 0 {
		x.req.Body = &x.body
	}
	if d := x.h.ReadTimeout; d > 0 && x.length != 0 {
		x.body.readDeadline.set(&x.mu, time.Now().Add(d), x.readable.Broadcast)
	}
	x.res.init(x, nil)
}

// job is an exchange that waits for a worker, with those behind it. It is empty when their
// connection has closed before: what waits in the pool's queue then keeps nothing of them.
type job struct{ x atomic.Pointer[exchange] }

// takeExchange empties it; nil if it is empty already.
func (j *job) takeExchange() *exchange { return j.x.Swap(nil) }

// Run implements pool.Job.
func (j *job) Run(context.Context) {
	x := j.takeExchange()
	for buffered := 0; x != nil; {
		x, buffered = x.runHandler(buffered)
	}
}

// runHandler calls the handler. It returns the request that is next, and how many bytes of
// responses wait for the owner.
func (x *exchange) runHandler(bufferedBefore int) (next *exchange, buffered int) {
	defer func() { next = x.finishHandler() }() // also where the handler ends its goroutine
	x.callHandler()
	if buffered = bufferedBefore + len(x.res.out); x.next != nil && x.res.state == responseComplete {
		if x.next.fileSlots = x.fileSlots; buffered > flushSize {
			x.res.flush()
			buffered = 0
		}
	}
	return nil, buffered
}

// Dropped implements pool.Dropper: the pool is overloaded, or closed.
func (j *job) Dropped(error) {
	for x := j.takeExchange(); x != nil; x = x.finishHandler() {
		x.writeUnavailable()
	}
}

// finishHandler leaves the response to the owner. It returns the request that is next; if
// there is none because the connection ends, it releases those behind x.
func (x *exchange) finishHandler() (next *exchange) {
	x.mu.Lock()
	defer x.mu.Unlock()
	last := x.res.state == responseSwitching || x.res.closeAfter
	if x.markResponseReady() {
		x.postToOwner(x.sendResponses)
	}
	if last || x.state == stateDone {
		x.next.abandonAll()
		return nil
	}
	return x.next
}

// markResponseReady notes that the handler has returned, or will not run. It reports whether the
// owner is to finish the response now. It is called with the lock.
func (x *exchange) markResponseReady() (finish bool) {
	x.cancelRequest()
	switch {
	case x.state == stateAborted || x.res.state == responseHijacked:
		x.res.trailing.close()
		x.setState(stateDone)
	case x.state == statePipelined:
		x.setState(stateBuffered)
	default:
		x.setState(stateReturned)
		return true
	}
	return false
}

// abandonAll releases x and the requests behind it, whose handlers will not run.
func (x *exchange) abandonAll() {
	for ; x != nil; x = x.next {
		x.mu.Lock()
		x.cancelRequest()
		x.setState(stateDone)
		x.mu.Unlock()
	}
}

// cancelRequest ends what the handler could still use. It is called with the lock.
func (x *exchange) cancelRequest() {
	x.body.readDeadline.stopTimer()
	x.res.writeDeadline.stopTimer()
	x.body.discard()
	x.cancelCtx()
}

// writeUnavailable makes the response that there is no worker.
func (x *exchange) writeUnavailable() {
	x.res.Header().Set("Retry-After", "1")
	http.Error(&x.res, "503 Service Unavailable", http.StatusServiceUnavailable)
	x.res.finishResponse()
}

// callHandler calls the handler.
func (x *exchange) callHandler() {
	returned := false
	defer func() {
		if v := recover(); v != nil {
			x.handlePanic(v)
		} else if !returned {
			x.handlePanic("the handler has called runtime.Goexit")
		}
	}()
	switch {
	case x.unknownExpectation:
		x.res.Header().Set("Connection", "close")
		x.res.WriteHeader(http.StatusExpectationFailed)
	case x.req.RequestURI == "*" && x.req.Method == http.MethodOptions:
		x.res.Header().Set("Content-Length", "0")
	default:
		x.handler.ServeHTTP(&x.res, x.req)
	}
	if x.res.state < responseSwitching {
		x.res.finishResponse()
	}
	returned = true
}

// handlePanic ends the connection, as net/http does: what was sent stays as it is.
func (x *exchange) handlePanic(v any) {
	if v != http.ErrAbortHandler {
		x.h.logf("web: panic serving %s: %v\n%s", x.req.RemoteAddr, v, debug.Stack())
	}
	if x.res.state == responseHijacked {
		_ = x.ref.Close() // does nothing if the server has forgotten the connection
		return
	}
	x.res.out, x.res.closeAfter = x.res.out[:0], true
	x.res.trailing.close()
	x.switchHandler = nil
	x.res.setState(responseAborted)
}

// markSentFromHandler notes that the handler's goroutine sends a part of the response, so that the
// owner must not finish it before what has been sent.
func (x *exchange) markSentFromHandler() {
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.state == statePipelined {
		x.setState(stateActive)
	}
}

// postToOwner has the owner call f.
func (x *exchange) postToOwner(f func(*tcp.Conn)) {
	x.retryWhileFull(func() error { return x.ref.Do(f) })
}

// retryWhileFull calls send until the mailbox is not full any more. It is called with the lock, which it
// releases while it waits.
func (x *exchange) retryWhileFull(send func() error) {
	for x.state < stateAborted && errors.Is(send(), tcp.ErrFull) {
		x.mu.Unlock()
		time.Sleep(time.Millisecond)
		x.mu.Lock()
	}
}

// connDone returns a channel that is closed when the connection has closed.
func (x *exchange) connDone() <-chan struct{} {
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.closed == nil {
		if x.closed = make(chan struct{}); x.state >= stateAborted {
			close(x.closed)
		}
	}
	return x.closed
}

// What the connection's owner calls.

// readBody takes input behind the request's head, and returns how much of it was its body.
func (x *exchange) readBody(c *tcp.Conn, in []byte) (used int) {
	if len(in) == 0 {
		return 0
	}
	x.mu.Lock()
	defer x.mu.Unlock()
	b := &x.body
	used = b.bufferInput(in)
	if x.state != stateDiscarding {
		reserve(c, x.memoryCost+cap(b.buf), false)
	}
	x.readable.Broadcast()
	switch {
	case x.state == stateDiscarding:
		if x.discarded += used; b.isComplete() {
			x.awaitNextRequest(c)
		} else if b.err != nil || x.discarded > maxDiscardedBody {
			c.Close()
		}
	case b.isFull():
		b.paused = true
		c.Pause()
	case b.err != nil && used < len(in):
		x.inputPaused = true
		c.Pause()
	}
	return used
}

// resumeReading has more of the body read.
func (x *exchange) resumeReading(c *tcp.Conn) {
	if !x.inputPaused {
		c.Resume()
	}
}

// sendResponses sends the response, and those behind it that are complete in memory.
func (x *exchange) sendResponses(c *tcp.Conn) {
	for x.sendResponse(c) {
		if x = x.next; !x.makeCurrent(c) {
			return
		}
	}
}

// sendResponse sends the response, and reports whether the next request behind it goes on.
func (x *exchange) sendResponse(c *tcp.Conn) (more bool) {
	if w := &x.res; len(w.out) > 0 {
		_, _ = c.Write(w.out)
	}
	if l := &x.res.trailing; l.f != nil {
		if err := c.SendFile(l.f, l.offset, l.n); err != nil {
			x.res.closeAfter = true // the client hears that it is cut off
		}
		l.close()
	}
	x.res.recycleBuffers()
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.h.WriteTimeout > 0 {
		c.SetDeadline(0)
	}
	closes := x.res.closeAfter || x.body.err != nil && x.body.err != io.EOF
	if x.next != nil && x.switchHandler == nil && !closes {
		x.next.inputPaused, x.next.memoryCost = x.inputPaused, x.memoryCost-x.ownMemoryCost()
		x.setState(stateDone)
		return true
	}
	reserve(c, 0, false)
	c.Release()
	switch {
	case x.switchHandler != nil:
		x.setState(stateDone)
		c.SetValue(nil)
		x.switchHandler(c)
		c.Resume()
	case closes:
		x.setState(stateDone)
		if errors.Is(x.res.err, tcp.ErrWriteTimeout) {
			c.CloseWith(x.res.err)
		} else {
			c.Close()
		}
	case x.body.isComplete():
		x.awaitNextRequest(c)
	default:
		x.setState(stateDiscarding)
		c.SetDeadline(discardTimeout)
		c.Resume()
	}
	return false
}

// awaitNextRequest ends the exchange: the connection waits for its next request.
func (x *exchange) awaitNextRequest(c *tcp.Conn) {
	c.SetValue(nil)
	if x.state == stateDiscarding {
		c.SetDeadline(0)
	}
	if x.inputPaused {
		c.Resume()
	}
	x.setState(stateDone)
	x.h.startIdleTimer(c)
}

// handlePeerEnd notes that nothing more will come.
func (x *exchange) handlePeerEnd() {
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.body.err == nil {
		x.body.err = io.ErrUnexpectedEOF
	}
	x.readable.Broadcast()
	x.cancelCtx()
}

// handleConnClosed notes that the connection has closed.
func (x *exchange) handleConnClosed(why error) {
	x.mu.Lock()
	defer x.mu.Unlock()
	switch x.state {
	case statePipelined, stateActive:
		x.setState(stateAborted)
	case stateBuffered, stateReturned, stateDiscarding:
		x.res.trailing.close()
		x.setState(stateDone)
	}
	if x.body.err == nil {
		if x.body.err = why; why == nil || why == io.EOF {
			x.body.err = io.ErrUnexpectedEOF
		}
	}
	if x.closed != nil {
		close(x.closed)
	}
	x.readable.Broadcast()
	if why != tcp.ErrDetached {
		x.cancelCtx()
	}
}

// connContext is an exchange as the context in which its request's begins: it never ends, and
// knows what net/http's does.
type connContext exchange

// Deadline implements context.Context.
func (*connContext) Deadline() (t time.Time, ok bool) { return }

// Done implements context.Context.
func (*connContext) Done() <-chan struct{} { return nil }

// Err implements context.Context.
func (*connContext) Err() error { return nil }

// Value implements context.Context.
func (ctx *connContext) Value(key any) any {
	switch key {
	case http.ServerContextKey:
		return ctx.h.httpServer()
	case http.LocalAddrContextKey:
		if a, ok := ctx.ref.LocalAddr(); ok {
			return net.Addr(net.TCPAddrFromAddrPort(a))
		}
		return nil
	case refKey{}:
		return ctx.ref
	}
	return nil
}

// refKey is the key of the connection's Ref in a request's context.
type refKey struct{}
