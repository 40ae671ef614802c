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

// exchange is one request and its response. Its states are described in state.go.
//
// The owner of a connection is its event loop or its goroutine. A Quick handler runs on the owner, and its exchange is
// reused. Any other handler runs on a worker. Its exchange is not reused, because the handler may keep the Request and
// the ResponseWriter. Until the response and the request's body are complete, this exchange is the connection's Value.
// Until the handler has returned, the fields before mu belong to the worker. The owner puts input into body.
//
// Pipelined requests that arrive together form a list, which does not change after dispatch. One worker runs the
// handlers of a list in order. The connection's Value is the first exchange of the list that is not done. The owner
// finishes this exchange, and then the following exchanges whose responses are already complete in memory.
type exchange struct {
	h       *HTTP
	handler http.Handler
	ref     tcp.Ref
	limits  *tcp.Limits
	job     *exchangeJob // nil except for the first request of a list

	header     http.Header
	headMemory headBuffer
	head

	next          *exchange     // the next pipelined request that arrived with it
	req           *http.Request // a blank one until initRequestAndResponse
	res           response
	cancelCtx     context.CancelFunc
	fileSlots     int8              // files that the connection accepts, for this response and the following ones
	switchHandler func(c *tcp.Conn) // passes the connection to another handler, after responseSwitching

	mu       sync.Mutex
	readable sync.Cond
	body     requestBody
	closed   chan struct{} // closed with the connection; nil if nobody waits for that
	draining bool          // the server drains: no further request is accepted
	state    exchangeState

	// Fields of the owner:
	inputPaused bool // reading is paused because another request waits
	discarded   int  // bytes of the body in stateDiscarding
	memoryCost  int  // bytes for Limits.MaxBuffered: without the body, with the requests after it
}

// To reuse a connection, at most maxDiscardedBody unread bytes of a body are discarded, as in net/http.
const maxDiscardedBody = 256 << 10

const discardTimeout = 30 * time.Second

var quickExchanges = sync.Pool{New: func() any { return &exchange{header: make(http.Header)} }}

var blankRequests = sync.Pool{New: func() any { return new(http.Request) }}

func (h *HTTP) newExchange(c *tcp.Conn) *exchange {
	x := quickExchanges.Get().(*exchange)
	x.h, x.handler, x.ref, x.limits = h, h.handlerOrDefaultMux(), c.Ref(), &c.Server().Limits
	if x.req == nil {
		x.req = blankRequests.Get().(*http.Request)
	}
	*x.req = http.Request{Header: x.header}
	return x
}

// maxKeptFields is the maximum number of fields of a header map that is reused. A larger map never shrinks, and
// clearing it takes long.
const maxKeptFields = 64

// recycleExchange makes x available for another request. x must not have been passed to a worker.
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

// mustCloseAfterResponse reports whether the connection must close after this response. There are four reasons: no
// further request may follow, the server drains, the rest of the body may never arrive, or this rest is too long.
func (x *exchange) mustCloseAfterResponse() bool {
	if x.head.closeAfter || x.res.conn != nil {
		return x.head.closeAfter
	}
	x.mu.Lock()
	defer x.mu.Unlock()
	b := &x.body
	return x.draining || !b.isComplete() && (x.expectsContinue && !b.continueSent || b.err != nil || b.readDeadline.expired || !b.framing.chunked && b.framing.remaining > maxDiscardedBody)
}

// submitToPoolOrReject passes x and the requests after x to the pool. If the pool is full, these requests get a 503.
func (x *exchange) submitToPoolOrReject(c *tcp.Conn) {
	state := stateActive
	for y := x; y != nil; y = y.next {
		y.initRequestAndResponse()
		x.memoryCost += y.estimateOwnMemory()
		y.setState(state)
		state = statePipelined
	}
	x.job = new(exchangeJob)
	x.job.x.Store(x)
	x.fileSlots = int8(fileCapacity(c))
	x.makeCurrentExchange(c)
	c.Retain()
	if x.h.poolOrDefault().TrySubmitTask(pool.Task{Job: x.job}) == nil {
		return
	}
	for y := x.job.takeExchange(); y != nil; y = y.next {
		y.writeServiceUnavailable()
		y.mu.Lock()
		y.cancelRequestAndMarkReady()
		y.mu.Unlock()
	}
	x.sendReadyResponses(c)
}

// makeCurrentExchange makes x the connection's Value. If the whole response is in memory, responseBuffered is true.
func (x *exchange) makeCurrentExchange(c *tcp.Conn) (responseBuffered bool) {
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

const (
	requestMemory = 2 << 10 // estimated bytes of a request on a worker; the head is not included
	waiterMemory  = 8 << 10 // estimated bytes of a goroutine that waits for the body of its request
)

// estimateOwnMemory returns the memory that x adds to memoryCost.
func (x *exchange) estimateOwnMemory() int {
	n := requestMemory + 2*len(x.headMemory.text) // twice, for the map of its fields
	if x.length != 0 {
		n += waiterMemory
	}
	return n
}

func (x *exchange) initRequestAndResponse() {
	x.readable.L = &x.mu
	ctx, cancel := context.WithCancel((*connContext)(x))
	x.cancelCtx = cancel
	blank := x.req
	x.req = blank.WithContext(ctx)
	*blank = http.Request{}
	blankRequests.Put(blank)
	x.body = requestBody{x: x, framing: newBodyDecoder(x.length), continueSent: !x.expectsContinue}
	if x.req.Body = http.NoBody; x.length != 0 {
		x.req.Body = &x.body
	}
	if d := x.h.ReadTimeout; d > 0 && x.length != 0 {
		x.body.readDeadline.set(&x.mu, time.Now().Add(d), x.readable.Broadcast)
	}
	x.res.init(x, nil)
}

// exchangeJob runs a list of exchanges in the pool. If the connection closes before the job runs, the list is removed
// from the job, so that the queue of the pool does not keep the exchanges in memory.
type exchangeJob struct{ x atomic.Pointer[exchange] }

func (j *exchangeJob) takeExchange() *exchange { return j.x.Swap(nil) }

func (j *exchangeJob) Run(context.Context) {
	x := j.takeExchange()
	for buffered := 0; x != nil; {
		x, buffered = x.runHandler(buffered)
	}
}

// runHandler runs the handler and returns the next exchange to run. bufferedBytes is the number of response bytes that
// wait in memory for the owner, including bufferedBytesBefore from earlier responses.
func (x *exchange) runHandler(bufferedBytesBefore int) (next *exchange, bufferedBytes int) {
	defer func() { next = x.markReadyAndPostResponses() }() // also after runtime.Goexit
	x.serveAndFinishRecoveringPanic()
	if bufferedBytes = bufferedBytesBefore + len(x.res.out); x.next != nil && x.res.state == responseComplete {
		if x.next.fileSlots = x.fileSlots; bufferedBytes > flushSize {
			x.res.flushPendingOutput()
			bufferedBytes = 0
		}
	}
	return nil, bufferedBytes
}

// Dropped implements pool.Dropper. It answers the requests of the job with 503.
func (j *exchangeJob) Dropped(error) {
	for x := j.takeExchange(); x != nil; x = x.markReadyAndPostResponses() {
		x.writeServiceUnavailable()
	}
}

// markReadyAndPostResponses passes the response to the owner and returns the next exchange to run. If the connection
// ends with this response, it cancels the requests after x and returns nil.
func (x *exchange) markReadyAndPostResponses() (next *exchange) {
	x.mu.Lock()
	defer x.mu.Unlock()
	last := x.res.state == responseSwitching || x.res.closeAfter
	if x.cancelRequestAndMarkReady() {
		x.postToConnOwner(x.sendReadyResponses)
	}
	if last || x.state == stateDone {
		x.next.cancelThisAndFollowing()
		return nil
	}
	return x.next
}

// cancelRequestAndMarkReady is called when the handler has returned or will not run. If the owner must now send the
// response, ownerMustSend is true. The caller holds x.mu.
func (x *exchange) cancelRequestAndMarkReady() (ownerMustSend bool) {
	x.cancelRequestAndCloseBody()
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

func (x *exchange) cancelThisAndFollowing() {
	for ; x != nil; x = x.next {
		x.mu.Lock()
		x.cancelRequestAndCloseBody()
		x.setState(stateDone)
		x.mu.Unlock()
	}
}

// cancelRequestAndCloseBody also stops the deadlines of the request. The caller holds x.mu.
func (x *exchange) cancelRequestAndCloseBody() {
	x.body.readDeadline.stopTimerAndCancelContext()
	x.res.writeDeadline.stopTimerAndCancelContext()
	x.body.closeAndDiscardUnread()
	x.cancelCtx()
}

func (x *exchange) writeServiceUnavailable() {
	x.res.Header().Set("Retry-After", "1")
	http.Error(&x.res, "503 Service Unavailable", http.StatusServiceUnavailable)
	x.res.finishResponse()
}

func (x *exchange) serveAndFinishRecoveringPanic() {
	returned := false
	defer func() {
		if v := recover(); v != nil {
			x.logPanicAndAbortResponse(v)
		} else if !returned {
			x.logPanicAndAbortResponse("the handler has called runtime.Goexit")
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

// logPanicAndAbortResponse logs a panic and discards the unsent output. The connection then closes, as in net/http.
func (x *exchange) logPanicAndAbortResponse(v any) {
	if v != http.ErrAbortHandler {
		x.h.logf("web: panic serving %s: %v\n%s", x.req.RemoteAddr, v, debug.Stack())
	}
	if x.res.state == responseHijacked {
		_ = x.ref.Close() // no effect if the connection was detached
		return
	}
	x.res.out, x.res.closeAfter = x.res.out[:0], true
	x.res.trailing.close()
	x.switchHandler = nil
	x.res.setState(responseAborted)
}

// markActiveIfPipelined prevents the owner from finishing the response of a pipelined request while its handler sends.
func (x *exchange) markActiveIfPipelined() {
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.state == statePipelined {
		x.setState(stateActive)
	}
}

func (x *exchange) postToConnOwner(f func(*tcp.Conn)) {
	x.retryWhileMailboxFull(func() error { return x.ref.Do(f) })
}

// retryWhileMailboxFull repeats send while the connection's mailbox is full. Between two calls, it releases x.mu.
func (x *exchange) retryWhileMailboxFull(send func() error) {
	for x.state < stateAborted && errors.Is(send(), tcp.ErrFull) {
		x.mu.Unlock()
		time.Sleep(time.Millisecond)
		x.mu.Lock()
	}
}

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

func (x *exchange) bufferOrDiscardBodyInput(c *tcp.Conn, in []byte) (used int) {
	if len(in) == 0 {
		return 0
	}
	x.mu.Lock()
	defer x.mu.Unlock()
	b := &x.body
	used = b.decodeBodyIntoBuffer(in)
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

func (x *exchange) resumeUnlessInputPaused(c *tcp.Conn) {
	if !x.inputPaused {
		c.Resume()
	}
}

func (x *exchange) sendReadyResponses(c *tcp.Conn) {
	for x.sendResponseAndFinishExchange(c) {
		if x = x.next; !x.makeCurrentExchange(c) {
			return
		}
	}
}

func (x *exchange) sendResponseAndFinishExchange(c *tcp.Conn) (hasNextExchange bool) {
	x.res.writeOnConnOwner(c)
	if l := &x.res.trailing; l.f != nil {
		if err := c.SendFile(l.f, l.offset, l.n); err != nil {
			x.res.closeAfter = true // tells the client that the response is truncated
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
		x.next.inputPaused, x.next.memoryCost = x.inputPaused, x.memoryCost-x.estimateOwnMemory()
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

func (x *exchange) failBodyReadAndCancelContext() {
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.body.err == nil {
		x.body.err = io.ErrUnexpectedEOF
	}
	x.readable.Broadcast()
	x.cancelCtx()
}

func (x *exchange) abortOnConnClosed(why error) {
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

// connContext is the parent of a request's context. It never ends. It contains the same values as in net/http.
type connContext exchange

func (*connContext) Deadline() (t time.Time, ok bool) { return }

func (*connContext) Done() <-chan struct{} { return nil }

func (*connContext) Err() error { return nil }

func (ctx *connContext) Value(key any) any {
	switch key {
	case http.ServerContextKey:
		return ctx.h.httpServerForContext()
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

type refKey struct{}
