package main

import (
	"context"
	"net"
	"sync"

	"github.com/panjf2000/gnet/v2"
)

// serveGnet serves with gnet: an event loop per CPU reads and calls the handler. gnet listens itself, on the
// address of ln.
func serveGnet(a replyFunc) serveFunc {
	return func(ctx context.Context, ln net.Listener, ready func()) error {
		if err := ln.Close(); err != nil {
			return err
		}
		h := &gnetHandler{ctx: ctx, ready: ready, reply: a, booted: make(chan gnet.Engine, 1)}
		h.buffers.New = func() any { return new([maxPending]byte) }
		return serveUntilDone(ctx, func() error {
			return gnet.Run(h, "tcp://"+ln.Addr().String(), gnet.WithMulticore(true))
		}, h.stopEngine)
	}
}

type gnetHandler struct {
	gnet.BuiltinEventEngine
	ctx     context.Context
	ready   func()
	reply   replyFunc
	booted  chan gnet.Engine
	buffers sync.Pool // of *[maxPending]byte
}

func (h *gnetHandler) OnBoot(engine gnet.Engine) gnet.Action {
	h.booted <- engine
	if h.ctx.Err() != nil { // and stopEngine has missed the engine
		return gnet.Shutdown
	}
	h.ready()
	return gnet.None
}

func (h *gnetHandler) OnTraffic(c gnet.Conn) gnet.Action {
	have, err := c.Peek(-1)
	if err != nil {
		return gnet.Close
	}
	room := h.buffers.Get().(*[maxPending]byte)
	defer h.buffers.Put(room)
	out, used := h.reply(have, room[:0])
	if len(have)-used > maxPending {
		return gnet.Close
	}
	if used == 0 {
		return gnet.None
	}
	_, err = c.Write(out)
	if err == nil {
		_, err = c.Discard(used)
	}
	if err != nil {
		return gnet.Close
	}
	return gnet.None
}

func (h *gnetHandler) stopEngine() error {
	select {
	case engine := <-h.booted:
		bound, cancel := context.WithTimeout(context.Background(), shutdownTimeout)
		defer cancel()
		return engine.Stop(bound)
	default:
		return nil
	}
}
