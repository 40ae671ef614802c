package web

import (
	"context"
	"net"
	"net/http"
	"time"

	"github.com/myriad-go/myriad/tcp"
)

// requestContext is the context of a request. It ends when the connection closes or the handler has returned.
type requestContext struct {
	x          *exchange // after the request, only its field mu may be used
	h          *HTTP
	ref        tcp.Ref
	ended      bool            // guarded by x.mu
	cancelable context.Context // guarded by x.mu; nil until it is needed
	cancelFunc context.CancelFunc
}

func (*requestContext) Deadline() (t time.Time, ok bool) { return }

func (ctx *requestContext) Done() <-chan struct{} { return ctx.getOrMakeCancelable().Done() }

func (ctx *requestContext) Err() error {
	ctx.x.mu.Lock()
	defer ctx.x.mu.Unlock()
	if ctx.ended {
		return context.Canceled
	}
	return nil
}

// Value returns the values of net/http's context keys, and the connection's Ref. It also supports the internal key of
// package context, so that a context derived from ctx needs no goroutine.
func (ctx *requestContext) Value(key any) any {
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
	if _, internal := key.(*int); internal {
		return ctx.getOrMakeCancelable().Value(key)
	}
	return nil
}

func (ctx *requestContext) getOrMakeCancelable() context.Context {
	ctx.x.mu.Lock()
	defer ctx.x.mu.Unlock()
	if ctx.cancelable == nil {
		ctx.cancelable, ctx.cancelFunc = context.WithCancel(context.Background())
		if ctx.ended {
			ctx.cancelFunc()
		}
	}
	return ctx.cancelable
}

// cancelLocked ends the context. The caller holds ctx.x.mu.
func (ctx *requestContext) cancelLocked() {
	ctx.ended = true
	if ctx.cancelFunc != nil {
		ctx.cancelFunc()
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

type refKey struct{}
