package web

import (
	"errors"
	"io"
	"net/http"
	"net/url"
	"runtime/debug"
	"sync"
	"sync/atomic"
	"time"

	"github.com/myriad-go/myriad/internal/overload"
	"github.com/myriad-go/myriad/pool"
	"github.com/myriad-go/myriad/tcp"
)

// exchange is an HTTP request and its response. state.go describes its states. During the request, the exchange is the
// Value of the connection.
//
// The owner of a connection is its event loop or its goroutine. A Quick handler runs on the owner. Any other handler
// runs in a job of the event loop or on a worker. Until the handler has returned, the fields before mu belong to the
// handler's goroutine.
//
// The owner reuses an exchange if nothing else refers to it. Objects that a handler may keep, such as the Request, are
// reused only after Quick handlers.
//
// Pipelined requests that arrive together form a list. The list does not change after dispatch. One job runs the
// handlers of a list in order, and the owner sends the responses in order.
type exchange struct {
	h       *HTTP
	handler http.Handler
	ref     tcp.Ref
	reads   int64 // result of readCount when the head was parsed
	limits  *tcp.Limits
	job     *exchangeJob // nil except for the first request of a list

	header     http.Header
	headMemory headBuffer
	head

	*handlerObjects
	next          *exchange     // the next pipelined request of the list; see above
	req           *http.Request // &request, or &quickRequest in an exchange that has run a Quick handler
	quickRequest  http.Request  // without a context
	route         *route
	priority      overload.Priority
	loop          loopHold
	waited        atomic.Int64      // nanoseconds for which the handler has waited for the client
	fileSlots     int8              // number of files that this response and the following ones may send
	switchHandler func(c *tcp.Conn) // passes the connection to another handler, after responseSwitching

	mu        sync.Mutex
	readable  sync.Cond
	body      *requestBody // &ownBody if the request has no body or its handler is Quick
	ownBody   requestBody
	closed    chan struct{} // closed when the connection closes; nil if nobody waits for that
	sendReady sharedCall    // calls sendReadyResponses
	draining  bool          // the server drains: no further request is accepted
	state     exchangeState

	// Fields of the owner:
	bodyArrived bool // the whole body had arrived before dispatch
	inputPaused bool // reading is paused because another request waits
	discarded   int  // body bytes that were discarded in stateDiscarding
	memoryCost  int  // bytes counted in Limits.MaxBuffered for x and the requests after it, without the body
}

// handlerObjects contains the objects of a request that the handler may keep after returning.
type handlerObjects struct {
	res     response
	ctx     requestContext
	url     url.URL
	request http.Request // its context is ctx
}

// maxDiscardedBody is the maximum number of unread body bytes that the server discards to keep a connection open, as in
// net/http. If more bytes are unread, the connection closes.
const maxDiscardedBody = 256 << 10

const discardTimeout = 30 * time.Second

var freeExchanges = sync.Pool{New: func() any { return new(exchange) }}

func (h *HTTP) newExchange(c *tcp.Conn) *exchange {
	x := freeExchanges.Get().(*exchange)
	if x.handlerObjects == nil {
		x.handlerObjects, x.header = new(handlerObjects), make(http.Header)
		x.request = *new(http.Request).WithContext(&x.ctx)
		x.headMemory.url, x.req = &x.url, &x.request
	} else {
		x.quickRequest = http.Request{}
		x.req = &x.quickRequest
	}
	x.h, x.handler, x.ref, x.reads, x.limits = h, h.handlerOrDefaultMux(), c.Ref(), readCount(c), &c.Server().Limits
	x.body, x.route = &x.ownBody, nil
	x.req.Header = x.header
	return x
}

// maxKeptFields is the number of fields up to which a header map is reused. A larger map is replaced by a new one,
// because clearing it would take long.
const maxKeptFields = 64

func recycleExchange(x *exchange) {
	if len(x.header) > maxKeptFields {
		x.header = make(http.Header)
	}
	clear(x.header)
	x.headMemory.recycle()
	x.res.reset()
	x.switchHandler = nil
	freeExchanges.Put(x)
}

// isReusable reports whether no other goroutine can refer to x. x must be in stateDone. The caller holds x.mu.
func (x *exchange) isReusable() bool {
	return x.bodyArrived && x.closed == nil && x.body.readDeadline.timer == nil && x.switchHandler == nil
}

// recycleAfterHandler makes x available for another request. It does not reuse objects that the handler may have kept.
func (x *exchange) recycleAfterHandler() {
	x.headMemory.recycleWithoutObjects()
	x.mu.Lock() // orders this before calls of methods of the request's context
	x.res.x = x.h.sharedExchangeForLateCalls()
	x.mu.Unlock()
	x.handlerObjects, x.header, x.req, x.body, x.next, x.job = nil, nil, nil, nil, nil, nil
	x.ownBody = requestBody{}
	x.loop, x.fileSlots, x.draining, x.inputPaused, x.discarded, x.memoryCost = loopHold{}, 0, false, false, 0, 0
	x.waited.Store(0)
	x.setState(stateReading)
	freeExchanges.Put(x)
}

// sharedExchangeForLateCalls returns an exchange that belongs to no request. A response uses it after the handler has
// returned, because the handler may still call the response.
func (h *HTTP) sharedExchangeForLateCalls() *exchange {
	h.initOnce()
	return h.afterReturn
}

// mustCloseAfterResponse reports whether the connection must close after this response. It must close if no further
// request may follow, or if the server drains. It must also close if the missing part of the request body is too long
// to discard or may never arrive.
func (x *exchange) mustCloseAfterResponse() bool {
	if x.head.closeAfter || x.res.conn != nil {
		return x.head.closeAfter
	}
	x.mu.Lock()
	defer x.mu.Unlock()
	b := x.body
	return x.draining || b.abandoned || !b.isComplete() && (x.expectsContinue && !b.continueSent || b.err != nil || b.readDeadline.expired || b.isTooLongToDiscard())
}

// dispatchOrReject passes x and the pipelined requests after x to the event loop or to the pool. If admitted is false
// or the pool rejects the requests, it answers them with the status 503. body is the part of x's body that has arrived,
// and isWhole means that the whole body has arrived. usedBytes is the number of bytes of body that were used. t is the
// overload manager's ticket for the requests.
func (x *exchange) dispatchOrReject(c *tcp.Conn, body []byte, isWhole, admitted bool, t overload.Ticket) (usedBytes int) {
	x.job = &exchangeJob{route: x.route, overload: overloadManager(c), ticket: t}
	x.job.x.Store(x)
	state, onLoop := stateActive, admitted && isWhole && x.isOnLoop() && x.queueOnLoopIfItRunsJobs(c)
	for y := x; y != nil; y = y.next {
		y.initRequestAndResponse()
		y.loop, y.bodyArrived = loopHold{ref: connRef(c)}, y != x || isWhole
		if !onLoop {
			x.memoryCost += y.estimateOwnMemory()
		}
		y.setState(state)
		state = statePipelined
	}
	x.fileSlots = int8(fileCapacity(c))
	x.loop.workerMaySend = !onLoop && x.next == nil && isWhole && core(c).CanSendFromOthers()
	x.makeCurrentExchange(c)
	c.Retain()
	if usedBytes = x.body.decodeBodyIntoBuffer(body); usedBytes > 0 {
		setHandlerMemory(c, x.memoryCost+cap(x.body.buf), false)
	}
	if onLoop || admitted && x.h.poolOrDefault().TrySubmitTask(pool.Task{Job: x.job}) == nil {
		return usedBytes
	}
	x.job.overload.Abandon(&x.job.ticket)
	for y := x.job.takeExchange(); y != nil; y = y.next {
		y.writeServiceUnavailable()
		y.mu.Lock()
		y.cancelRequestAndMarkReadyLocked()
		y.mu.Unlock()
	}
	x.sendReadyResponses(c)
	return usedBytes
}

// makeCurrentExchange makes x the connection's Value, and starts the WriteTimeout of x. If the handler has already
// returned, responseBuffered is true, and the caller must send the response of x.
func (x *exchange) makeCurrentExchange(c *tcp.Conn) (responseBuffered bool) {
	c.SetValue(x)
	if d := x.h.WriteTimeout; d > 0 {
		c.SetDeadline(d)
	}
	setHandlerMemory(c, x.memoryCost, false)
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

func (x *exchange) estimateOwnMemory() int {
	n := requestMemory + 2*len(x.headMemory.text) // twice, for the map of its fields
	if x.length != 0 {
		n += waiterMemory
	}
	return n
}

func (x *exchange) initRequestAndResponse() {
	x.initSendReadyResponsesCall()
	x.readable.L, x.ctx = &x.mu, requestContext{x: x, h: x.h, ref: x.ref}
	if x.req == &x.quickRequest {
		x.request = *x.req.WithContext(&x.ctx)
		x.req = &x.request
		x.quickRequest = http.Request{}
	}
	if x.req.Body = http.NoBody; x.length != 0 {
		x.body = new(requestBody)
		x.req.Body = x.body
	}
	*x.body = requestBody{x: x, framing: newBodyDecoder(x.length), continueSent: !x.expectsContinue}
	if d := x.h.ReadTimeout; d > 0 && x.length != 0 {
		x.body.readDeadline.set(&x.mu, time.Now().Add(d), x.readable.Broadcast)
	}
	x.res.init(x, nil)
}

// runHandler runs the handler of x. It returns the exchange whose handler must run next, or nil if there is none.
// bufferedBytesBefore is the size of the earlier responses that are still in memory. bufferedBytes also includes the
// response of x.
func (x *exchange) runHandler(bufferedBytesBefore int) (next *exchange, bufferedBytes int) {
	defer func() { next = x.markReadyAndPostResponses() }() // also after runtime.Goexit
	if x.route == nil {
		x.serveAndFinishOrAbort()
	} else {
		x.route.serveAndRecordOrMove(x)
	}
	if bufferedBytes = bufferedBytesBefore + len(x.res.out); x.next != nil && x.res.state == responseComplete {
		if x.next.fileSlots = x.fileSlots; bufferedBytes > flushSize {
			x.res.flushPendingOutput()
			bufferedBytes = 0
		}
	}
	return nil, bufferedBytes
}

// markReadyAndPostResponses sends the response of x on this worker if possible. Otherwise, it marks the response as
// ready and wakes the connection's owner, which sends the responses in order. It returns the exchange after x, or nil
// if x is the last one. If the connection must not serve further requests, it cancels the exchanges after x and returns
// nil.
func (x *exchange) markReadyAndPostResponses() (next *exchange) {
	if x.loop.workerMaySend && x.res.state == responseComplete && !x.sendsBetterInBatches() {
		w := &x.res
		w.out = append(w.out[:0], w.out[x.loop.trySendOnWorker(w.out, nil):]...)
	}
	x.mu.Lock()
	next = x.next
	last := x.res.state == responseSwitching || x.res.closeAfter
	if x.cancelRequestAndMarkReadyLocked() {
		x.mu.Unlock()
		if !x.sendReadyResponsesOnLoop() {
			x.mu.Lock()
			x.retryWhileMailboxFullLocked(x.postSendReadyResponses)
			x.mu.Unlock()
		}
	} else {
		last = last || x.state == stateDone
		x.mu.Unlock()
	}
	// The owner may have reused x.
	if last {
		next.cancelThisAndFollowing()
		return nil
	}
	return next
}

// sendsBetterInBatches reports whether the connection's owner should send the response instead of this worker. While
// many handlers compute, the owner runs rarely and then sends several responses together. The clients are therefore
// woken less often.
func (x *exchange) sendsBetterInBatches() bool {
	return x.job.overload.IsQueueDelayHigh() && !x.h.poolOrDefault().MostJobsWait()
}

// cancelRequestAndMarkReadyLocked ends the request. It is called when the handler has returned, or when it is certain
// that the handler will not run. If ownerMustSend is true, the connection's owner must now send the response. The
// caller holds x.mu.
func (x *exchange) cancelRequestAndMarkReadyLocked() (ownerMustSend bool) {
	x.cancelRequestAndCloseBodyLocked()
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
		x.cancelRequestAndCloseBodyLocked()
		x.setState(stateDone)
		x.mu.Unlock()
	}
}

// cancelRequestAndCloseBodyLocked cancels the context, closes the body and stops the deadlines. The caller holds x.mu.
func (x *exchange) cancelRequestAndCloseBodyLocked() {
	x.body.readDeadline.stopTimerAndCancelContextLocked()
	x.res.writeDeadline.stopTimerAndCancelContextLocked()
	x.body.closeAndDiscardUnreadLocked()
	x.ctx.cancelLocked()
}

const serviceUnavailable = "503 Service Unavailable"

func (x *exchange) writeServiceUnavailable() {
	x.res.Header().Set("Retry-After", "1")
	http.Error(&x.res, serviceUnavailable, http.StatusServiceUnavailable)
	x.res.finishResponse()
}

func (x *exchange) serveAndFinishOrAbort() {
	returned := false
	defer func() {
		if v := recover(); v != nil {
			x.logPanicAndAbortResponse(v)
		} else if !returned {
			x.logPanicAndAbortResponse("the handler called runtime.Goexit")
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

// logPanicAndAbortResponse discards the unsent output and logs the panic value v. It does not log http.ErrAbortHandler.
// The connection closes afterwards, as in net/http.
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

// activateIfPipelined sets the state of a pipelined exchange to stateActive. It must be called before the handler sends
// output. In stateActive, the end of the response is posted to the connection's owner after that output. In
// statePipelined, the owner could send the end of the response before that output.
func (x *exchange) activateIfPipelined() {
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.state == statePipelined {
		x.setState(stateActive)
	}
}

func (x *exchange) postToConnOwner(f func(*tcp.Conn)) {
	x.retryWhileMailboxFullLocked(func() error { return x.ref.Do(f) })
}

// retryWhileMailboxFullLocked calls the function send until the connection's mailbox accepts the call or the connection
// has closed. The caller holds x.mu. While retryWhileMailboxFullLocked waits before the next try, it releases x.mu.
func (x *exchange) retryWhileMailboxFullLocked(send func() error) {
	for x.state < stateAborted && errors.Is(send(), tcp.ErrFull) {
		x.mu.Unlock()
		x.letOtherGoroutineContinueLoop()
		time.Sleep(time.Millisecond)
		x.mu.Lock()
	}
}

// letOtherGoroutineContinueLoop must be called before a handler waits. If the handler runs on an event loop, another
// goroutine continues the loop, and the route moves to workers.
func (x *exchange) letOtherGoroutineContinueLoop() {
	if x.loop.hold != nil && x.loop.hold.Leave() {
		x.route.moveToWorkers(x.route.name + " waits for its client")
	}
}

// waitOutsidePool calls f, which waits for the client, and adds the duration of the call to x.waited. While f runs, the
// handler does not count as a worker of the pool.
func (x *exchange) waitOutsidePool(f func()) {
	start := monotonicNow()
	if x.letOtherGoroutineContinueLoop(); x.loop.hold != nil {
		f()
	} else {
		x.h.poolOrDefault().Block(f)
	}
	x.waited.Add(int64(monotonicNow() - start))
}

// bufferOrDiscardBodyInput buffers the part of the input that belongs to the body of x. After the response, it discards
// this part instead. The caller must pass all available input. bufferOrDiscardBodyInput stops reading from the
// connection if the buffer is full, if Read can receive from the socket itself, or if the input continues after the end
// of the body.
func (x *exchange) bufferOrDiscardBodyInput(c *tcp.Conn, in []byte) (used int) {
	if len(in) == 0 {
		return 0
	}
	x.mu.Lock()
	defer x.mu.Unlock()
	b := x.body
	used = b.decodeBodyIntoBuffer(in)
	if x.state != stateDiscarding {
		setHandlerMemory(c, x.memoryCost+cap(b.buf), false)
	}
	x.readable.Broadcast()
	switch {
	case x.state == stateDiscarding:
		if x.discarded += used; b.isComplete() {
			x.markDoneAndStartIdleTimer(c)
		} else if b.err != nil || x.discarded > maxDiscardedBody {
			c.Close()
		}
	case b.isFull(), b.framing.remaining >= minDirectReceive:
		b.direct = !b.framing.chunked && used == len(in) && canReceiveDirectly(c)
		if b.paused = b.direct || b.isFull(); b.paused {
			c.Pause()
		}
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
	for x != nil {
		next := x.next
		hasNext, reusable := x.sendResponseAndFinishExchange(c)
		if reusable {
			x.recycleAfterHandler()
		}
		if x = next; !hasNext || !x.makeCurrentExchange(c) {
			return
		}
	}
}

// sendResponseAndFinishExchange sends the remaining output of the response. If hasNext is true, the connection
// continues with the next exchange of the list. If reusable is true, x can be reused.
func (x *exchange) sendResponseAndFinishExchange(c *tcp.Conn) (hasNext, reusable bool) {
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
		x.next.inputPaused, x.next.memoryCost = x.inputPaused, max(x.memoryCost-x.estimateOwnMemory(), 0)
		x.setState(stateDone)
		return true, x.isReusable()
	}
	setHandlerMemory(c, 0, false)
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
		x.markDoneAndStartIdleTimer(c)
		return false, x.isReusable()
	default:
		x.setState(stateDiscarding)
		c.SetDeadline(discardTimeout)
		c.Resume()
	}
	return false, false
}

func (x *exchange) markDoneAndStartIdleTimer(c *tcp.Conn) {
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
	x.ctx.cancelLocked()
}

func (x *exchange) abortOnConnClosed(reason error) {
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
		if x.body.err = reason; reason == nil || reason == io.EOF {
			x.body.err = io.ErrUnexpectedEOF
		}
	}
	if x.closed != nil {
		close(x.closed)
	}
	x.readable.Broadcast()
	if reason != tcp.ErrDetached {
		x.ctx.cancelLocked()
	}
}
