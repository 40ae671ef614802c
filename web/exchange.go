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

	"github.com/myriad-go/myriad/tcp"
)

// exchange is one request and its response.
//
// One whose handler runs off the event loop is the connection's Value from the end of its
// head to the end of the response, and of the body if that is later: the owner puts what
// arrives into body, and the handler's goroutine has all the rest until it has posted finish,
// which the owner calls. What both use is guarded by mu. Nothing of it is used again
// for another request, because a handler may keep the Request and the ResponseWriter.
//
// Pipelined requests that have come at once are a list, which doesn't change any more when
// it is started. One worker runs them in turn. The first that is not finished yet is the
// connection's Value; a worker posts finish for that alone, and it ends those behind it
// whose handlers have returned by then.
//
// One that is answered on the owner is used again: see Quick.
type exchange struct {
	h       *HTTP
	handler http.Handler
	ref     tcp.Ref
	limits  *tcp.Limits
	job     *job // nil for the requests behind the first

	header http.Header
	memory scratch
	head

	next   *exchange     // the pipelined request behind it, if that came with it
	req    *http.Request // a blank one until the handler gets its own
	res    response
	cancel context.CancelFunc
	handed bool // the connection is not HTTP's any more
	files  int8 // how many the connection takes, of this response and those behind it
	then   func(c *tcp.Conn)

	mu       sync.Mutex
	readable sync.Cond
	body     body
	gone     bool
	ended    chan struct{} // nil if nobody waits for the connection's end
	drains   bool
	current  bool // the connection's Value
	over     bool // its handler has returned
	returned bool // and finish need not be posted for it

	// The owner's:
	answered bool // only the rest of the body is still to come
	paused   bool // requests behind this one wait
	skipped  int  // bytes of that rest
	cost     int  // in memory, without the body but with the requests behind it: see Limits.MaxBuffered
}

// maxSkipped is how much of a body that no handler has read is skipped, so that the
// connection can be used further; as in net/http.
const maxSkipped = 256 << 10

// maxRest is the most time for that.
const maxRest = 30 * time.Second

// quickExchanges are those that are used again.
var quickExchanges = sync.Pool{New: func() any { return &exchange{header: make(http.Header)} }}

// blankRequests are what heads are read into.
var blankRequests = sync.Pool{New: func() any { return new(http.Request) }}

// prepare has it take a request of a connection.
func (x *exchange) prepare(h *HTTP, c *tcp.Conn) {
	x.h, x.handler, x.ref, x.limits = h, h.handler(), c.Ref(), &c.Server().Limits
	if x.req == nil {
		x.req = blankRequests.Get().(*http.Request)
	}
	*x.req = http.Request{Header: x.header}
}

// maxKeptFields is the most fields of a header that is used again: a map stays as large as it
// was, and clearing it takes as long.
const maxKeptFields = 64

// recycle makes it ready for another one.
func (x *exchange) recycle() {
	if len(x.header) > maxKeptFields {
		x.header = make(http.Header)
	}
	clear(x.header)
	clear(x.memory.values[:x.memory.used])
	x.memory.used, x.memory.text = 0, ""
	x.res.reset()
	x.handed, x.then = false, nil
	quickExchanges.Put(x)
}

// ends says whether nothing may follow this request, or the client can't be relied on to send
// the rest of its body: it waits for 100 Continue, or there is too much of it.
func (x *exchange) ends() bool {
	if x.head.close || x.res.conn != nil {
		return x.head.close
	}
	x.mu.Lock()
	defer x.mu.Unlock()
	b := &x.body
	return x.drains || !b.complete() && (x.expects && !b.told || b.err != nil || b.by.over || !b.framed.chunked && b.framed.left > maxSkipped)
}

// start has the handler called by a worker, and those of the requests behind it.
func (x *exchange) start(c *tcp.Conn) {
	for y := x; y != nil; y = y.next {
		y.begin()
		x.cost += y.ownCost()
	}
	x.job = new(job)
	x.job.x.Store(x)
	x.files = int8(fileCapacity(c))
	x.become(c)
	c.Retain()
	x.h.run(c, x)
}

// become makes it the connection's Value. It says whether its handler has returned already.
func (x *exchange) become(c *tcp.Conn) (returned bool) {
	c.SetValue(x)
	if d := x.h.WriteTimeout; d > 0 {
		c.SetDeadline(d)
	}
	reserve(c, x.cost, false)
	x.mu.Lock()
	defer x.mu.Unlock()
	x.current = true
	return x.returned
}

// What a request that a worker handles takes, beside its head, and a goroutine that waits
// for more of its body.
const (
	requestMemory = 2 << 10
	waiterMemory  = 8 << 10
)

// ownCost is the part of cost that is not of the requests behind it.
func (x *exchange) ownCost() int {
	n := requestMemory + 2*len(x.memory.text) // the map of its fields, too
	if x.length != 0 {
		n += waiterMemory
	}
	return n
}

// begin makes what its handler uses.
func (x *exchange) begin() {
	x.readable.L = &x.mu
	ctx, cancel := context.WithCancel((*connContext)(x))
	x.cancel = cancel
	blank := x.req
	x.req = blank.WithContext(ctx)
	*blank = http.Request{}
	blankRequests.Put(blank)
	x.body = body{x: x, framed: newFraming(x.length), told: !x.expects}
	if x.req.Body = http.NoBody; x.length != 0 {
		x.req.Body = &x.body
	}
	if d := x.h.ReadTimeout; d > 0 && x.length != 0 {
		x.body.by.set(&x.mu, time.Now().Add(d), x.readable.Broadcast)
	}
	x.res.init(x, nil)
}

// job is an exchange that waits for a worker, with those behind it. It is empty when their
// connection has closed before: what waits in the pool's queue then keeps nothing of them.
type job struct{ x atomic.Pointer[exchange] }

// take empties it; nil if it is empty already.
func (j *job) take() *exchange { return j.x.Swap(nil) }

// Run implements pool.Job.
func (j *job) Run(context.Context) {
	x := j.take()
	for waiting := 0; x != nil; {
		x, waiting = x.runOne(waiting)
	}
}

// runOne calls the handler, and says which request is next, and how many bytes of responses
// wait for the owner.
func (x *exchange) runOne(before int) (next *exchange, waiting int) {
	defer func() { next = x.end() }() // also where the handler ends its goroutine
	x.serve()
	if waiting = before + len(x.res.out); x.next != nil && !x.handed {
		if x.next.files = x.files; waiting > maxOut {
			x.res.flush()
			waiting = 0
		}
	}
	return nil, waiting
}

// Dropped implements pool.Dropper: the pool is overloaded, or closed.
func (j *job) Dropped(error) {
	for x := j.take(); x != nil; x = x.end() {
		x.refuse()
	}
}

// end gives the connection back when the handler has returned. It says which request is next.
func (x *exchange) end() (next *exchange) {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.stop()
	if x.over = true; x.gone {
		x.res.last.close()
	}
	if x.handed && x.then == nil {
		return nil
	}
	if x.returned = !x.res.sent; x.current || x.res.sent {
		x.ask((*exchange).finish) // behind what it has sent itself
	}
	if x.handed || x.gone || x.res.close {
		return nil
	}
	return x.next
}

// stop ends what the handler could still use. It is called with the lock.
func (x *exchange) stop() {
	x.body.by.end()
	x.res.by.end()
	x.body.drop()
	x.cancel()
}

// refuse makes the response that there is no worker.
func (x *exchange) refuse() {
	x.res.Header().Set("Retry-After", "1")
	http.Error(&x.res, "503 Service Unavailable", http.StatusServiceUnavailable)
	x.res.finish()
}

// serve calls the handler.
func (x *exchange) serve() {
	returned := false
	defer func() {
		if v := recover(); v != nil {
			x.panicked(v)
		} else if !returned {
			x.panicked("the handler has called runtime.Goexit")
		}
	}()
	switch {
	case x.unknown:
		x.res.Header().Set("Connection", "close")
		x.res.WriteHeader(http.StatusExpectationFailed)
	case x.req.RequestURI == "*" && x.req.Method == http.MethodOptions:
		x.res.Header().Set("Content-Length", "0")
	default:
		x.handler.ServeHTTP(&x.res, x.req)
	}
	if !x.handed {
		x.res.finish()
	}
	returned = true
}

// panicked ends the connection, as net/http does: what was sent stays as it is.
func (x *exchange) panicked(v any) {
	if v != http.ErrAbortHandler {
		x.h.logf("web: panic serving %s: %v\n%s", x.req.RemoteAddr, v, debug.Stack())
	}
	x.res.out, x.res.close = x.res.out[:0], true
	x.res.last.close()
	if x.handed = false; x.then != nil {
		x.then = nil
	}
}

// ask has f called by the owner. It is called with the lock, which it lets go while the
// mailbox is full.
func (x *exchange) ask(f func(*exchange, *tcp.Conn)) {
	for !x.gone {
		if err := x.ref.Do(func(c *tcp.Conn) { f(x, c) }); !errors.Is(err, tcp.ErrFull) {
			return
		}
		x.mu.Unlock()
		time.Sleep(time.Millisecond)
		x.mu.Lock()
	}
}

// closing is closed when the connection has.
func (x *exchange) closing() <-chan struct{} {
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.ended == nil {
		if x.ended = make(chan struct{}); x.gone {
			close(x.ended)
		}
	}
	return x.ended
}

// What the connection's owner calls.

// received takes input behind the request's head, and says how much of it was its body.
func (x *exchange) received(c *tcp.Conn, in []byte) (used int) {
	if len(in) == 0 {
		return 0
	}
	x.mu.Lock()
	defer x.mu.Unlock()
	b := &x.body
	used = b.arrived(in)
	if !x.answered {
		reserve(c, x.cost+cap(b.buf), false)
	}
	x.readable.Broadcast()
	switch {
	case x.answered:
		if x.skipped += used; b.complete() {
			x.idle(c)
		} else if b.err != nil || x.skipped > maxSkipped {
			c.Close()
		}
	case b.full():
		b.paused = true
		c.Pause()
	case b.err != nil && used < len(in):
		x.paused = true
		c.Pause()
	}
	return used
}

// resume has more of the body read.
func (x *exchange) resume(c *tcp.Conn) {
	if !x.paused {
		c.Resume()
	}
}

// finish ends the exchange when the handler has returned, and those behind it whose handlers
// have returned, too.
func (x *exchange) finish(c *tcp.Conn) {
	for x.conclude(c) {
		if x = x.next; !x.become(c) {
			return
		}
	}
}

// conclude sends the response, and says whether the next request behind it goes on.
func (x *exchange) conclude(c *tcp.Conn) (more bool) {
	if w := &x.res; len(w.out) > 0 {
		_, _ = c.Write(w.out)
	}
	if l := &x.res.last; l.f != nil {
		if err := c.SendFile(l.f, l.offset, l.n); err != nil {
			x.res.close = true // the client hears that it is cut off
		}
		l.close()
	}
	x.res.release()
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.h.WriteTimeout > 0 {
		c.SetDeadline(0)
	}
	ends := x.then != nil || x.res.close || x.body.err != nil && x.body.err != io.EOF
	if x.next != nil && !ends {
		x.next.paused, x.next.cost = x.paused, x.cost-x.ownCost()
		return true
	}
	reserve(c, 0, false)
	c.Release()
	switch {
	case x.then != nil:
		c.SetValue(nil)
		x.then(c)
		c.Resume()
	case ends && errors.Is(x.res.err, tcp.ErrWriteTimeout):
		c.CloseWith(x.res.err)
	case ends:
		c.Close()
	case x.body.complete():
		x.idle(c)
	default:
		x.answered = true
		c.SetDeadline(maxRest)
		c.Resume()
	}
	return false
}

// idle has the connection wait for its next request.
func (x *exchange) idle(c *tcp.Conn) {
	c.SetValue(nil)
	if x.answered {
		c.SetDeadline(0)
	}
	if x.paused {
		c.Resume()
	}
	x.h.idle(c)
}

// peerEnded notes that nothing more will come.
func (x *exchange) peerEnded() {
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.body.err == nil {
		x.body.err = io.ErrUnexpectedEOF
	}
	x.readable.Broadcast()
	x.cancel()
}

// connClosed notes that the connection has closed.
func (x *exchange) connClosed(why error) {
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.gone = true; x.over {
		x.res.last.close()
	}
	if x.body.err == nil {
		if x.body.err = why; why == nil || why == io.EOF {
			x.body.err = io.ErrUnexpectedEOF
		}
	}
	if x.ended != nil {
		close(x.ended)
	}
	x.readable.Broadcast()
	if x.job != nil && x.job.take() != nil {
		x.stop() // nobody else will
	}
	if why != tcp.ErrDetached {
		x.cancel()
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
		return ctx.h.asServer()
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
