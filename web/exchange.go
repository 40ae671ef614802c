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

	"github.com/myriad-go/myriad"
	"github.com/myriad-go/myriad/pool"
)

// exchange is one request and its response.
//
// One whose handler runs off the event loop is the connection's Value from the end of its
// head to the end of the response, and of the body if that is later: the owner puts what
// arrives into body, and the handler's goroutine has all the rest until it has posted finish,
// which the owner calls. What both use is guarded by mu. Nothing of it is used again
// for another request, because a handler may keep the Request and the ResponseWriter.
//
// One that is answered on the owner is used again: see Quick.
type exchange struct {
	h      *HTTP
	ref    myriad.Ref
	limits *myriad.Limits
	pool   *pool.Pool
	job    *job

	request http.Request // what req is made of
	header  http.Header
	memory  scratch
	head

	req    *http.Request
	res    response
	cancel context.CancelFunc
	handed bool // the connection is not HTTP's any more
	then   func(c *myriad.Conn)

	mu       sync.Mutex
	readable sync.Cond
	body     body
	gone     bool
	ended    chan struct{} // nil if nobody waits for the connection's end
	drains   bool

	// The owner's:
	answered bool // only the rest of the body is still to come
	skipped  int  // bytes of that
	cost     int  // its memory without the body, as Limits.MaxBuffered counts it
	paused   bool // requests behind this one wait
}

// maxSkipped is how much of a body that no handler has read is skipped, so that the
// connection can be used further; as in net/http.
const maxSkipped = 256 << 10

// maxRest is the most time for that.
const maxRest = 30 * time.Second

// quickExchanges are those that are used again.
var quickExchanges = sync.Pool{New: func() any { return &exchange{header: make(http.Header)} }}

// prepare has it take a request of a connection.
func (x *exchange) prepare(h *HTTP, c *myriad.Conn) {
	x.h, x.ref, x.limits = h, c.Ref(), &c.Server().Limits
	x.request = http.Request{Header: x.header}
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
	x.memory.used = 0
	x.res.reset()
	*x = exchange{header: x.header, memory: x.memory, res: x.res}
	quickExchanges.Put(x)
}

// keep10 and the like are of the head; closes says whether nothing may follow this request.
func (x *exchange) closes() bool {
	if x.head.close {
		return true
	}
	x.mu.Lock()
	defer x.mu.Unlock()
	return x.drains
}

// unreadable says whether the client can't be relied on to send the rest of its body: it
// waits for 100 Continue, or there is too much of it.
func (x *exchange) unreadable() bool {
	x.mu.Lock()
	defer x.mu.Unlock()
	b := &x.body
	return !b.complete() && (x.expects && !b.told || b.err != nil || b.by.over || !b.framed.chunked && b.framed.left > maxSkipped)
}

// What a request that a worker handles takes, beside its head, and a goroutine that waits
// for more of its body.
const (
	requestMemory = 2 << 10
	waiterMemory  = 8 << 10
)

// start has the handler called by a worker. The head has so many bytes.
func (x *exchange) start(c *myriad.Conn, head int) {
	x.readable.L = &x.mu
	x.job = new(job)
	x.job.x.Store(x)
	ctx, cancel := context.WithCancel(&connContext{Context: context.Background(), x: x})
	x.cancel = cancel
	x.req = x.request.WithContext(ctx)
	x.body = body{x: x, framed: newFraming(x.length), told: !x.expects}
	x.cost = requestMemory + 2*head // its text, and the map of its fields
	if x.req.Body = http.NoBody; x.length != 0 {
		x.req.Body = &x.body
		x.cost += waiterMemory
	}
	if d := x.h.ReadTimeout; d > 0 && x.length != 0 {
		x.body.by.set(&x.mu, time.Now().Add(d), x.readable.Broadcast)
	}
	if d := x.h.WriteTimeout; d > 0 {
		c.SetDeadline(d)
	}
	x.res.init(x, nil)
	c.SetValue(x)
	c.Retain()
	core(c).Hold(x.cost, false)
	x.h.run(c, x)
}

// job is an exchange that waits for a worker. It is empty when its connection has closed
// before: what waits in the pool's queue then keeps nothing of it.
type job struct{ x atomic.Pointer[exchange] }

// take empties it; nil if it is empty already.
func (j *job) take() *exchange { return j.x.Swap(nil) }

// Run implements pool.Job.
func (j *job) Run(context.Context) {
	if x := j.take(); x != nil {
		defer x.end() // also where the handler ends its goroutine
		x.serve(x.h.handler())
	}
}

// Dropped implements pool.Dropper: the pool is overloaded, or closed.
func (j *job) Dropped(error) {
	if x := j.take(); x != nil {
		x.refuse()
		x.end()
	}
}

// end gives the connection back when the handler has returned.
func (x *exchange) end() {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.stop()
	if !x.handed || x.then != nil {
		x.ask((*exchange).finish)
	}
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

// serve calls a handler.
func (x *exchange) serve(h http.Handler) {
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
		h.ServeHTTP(&x.res, x.req)
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
	if x.handed = false; x.then != nil {
		x.then = nil
	}
}

// ask has f called by the owner. It is called with the lock, which it lets go while the
// mailbox is full.
func (x *exchange) ask(f func(*exchange, *myriad.Conn)) {
	for !x.gone {
		if err := x.ref.Do(func(c *myriad.Conn) { f(x, c) }); !errors.Is(err, myriad.ErrFull) {
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
func (x *exchange) received(c *myriad.Conn, in []byte) (used int) {
	if len(in) == 0 {
		return 0
	}
	x.mu.Lock()
	defer x.mu.Unlock()
	b := &x.body
	used = b.arrived(in)
	if !x.answered {
		core(c).Hold(x.cost+cap(b.buf), false)
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
func (x *exchange) resume(c *myriad.Conn) {
	if !x.paused {
		c.Resume()
	}
}

// finish ends the exchange when the handler has returned.
func (x *exchange) finish(c *myriad.Conn) {
	if w := &x.res; len(w.out) > 0 {
		_, _ = c.Write(w.out)
	}
	x.res.release()
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.h.WriteTimeout > 0 {
		c.SetDeadline(0)
	}
	core(c).Hold(0, false)
	c.Release()
	switch {
	case x.then != nil:
		c.SetValue(nil)
		x.then(c)
		c.Resume()
	case x.res.close || x.body.err != nil && x.body.err != io.EOF:
		c.Close()
	case x.body.complete():
		x.idle(c)
	default:
		x.answered = true
		c.SetDeadline(maxRest)
		c.Resume()
	}
}

// idle has the connection wait for its next request.
func (x *exchange) idle(c *myriad.Conn) {
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
	x.gone = true
	if x.body.err == nil {
		if x.body.err = why; why == nil || why == io.EOF {
			x.body.err = io.ErrUnexpectedEOF
		}
	}
	if x.ended != nil {
		close(x.ended)
	}
	x.readable.Broadcast()
	if x.job.take() != nil {
		x.stop() // nobody else will
	}
	if why != myriad.ErrDetached {
		x.cancel()
	}
}

// connContext is where a request's context begins: it knows what net/http's does.
type connContext struct {
	context.Context
	x *exchange
}

// Value implements context.Context.
func (ctx *connContext) Value(key any) any {
	switch key {
	case http.ServerContextKey:
		return ctx.x.h.asServer()
	case http.LocalAddrContextKey:
		if a, ok := ctx.x.ref.LocalAddr(); ok {
			return net.Addr(net.TCPAddrFromAddrPort(a))
		}
		return nil
	case refKey{}:
		return ctx.x.ref
	}
	return nil
}

// refKey is the key of the connection's Ref in a request's context.
type refKey struct{}
