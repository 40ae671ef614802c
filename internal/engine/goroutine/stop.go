package goroutine

import (
	"context"
	"time"

	"github.com/myriad-go/myriad/internal/engine"
)

// This file is how connections end: so many a second are told, so that their
// clients do not all turn to other servers at the same moment.

func (g *group) Stop(ctx context.Context) error {
	g.beginStop()
	return engine.AwaitStop(ctx, g.done, g.admission.Open, func() {
		g.kill.Do(func() { close(g.killed) })
	})
}

func (g *group) Wait() { <-g.done }

// beginStop lets nothing start any more, and has the connections told.
func (g *group) beginStop() {
	g.broadcasts.Close()
	g.cancel()
	engine.CloseListeners(g.lns)
	g.mu.Lock()
	first := !g.ended
	g.ended = true
	conns := g.conns.all()
	g.mu.Unlock()
	if !first {
		return
	}
	told := make(chan struct{})
	go func() {
		defer close(told)
		g.drain(conns)
		select {
		case <-g.killed:
			requestAll(conns, killing)
		case <-g.idle:
		}
	}()
	go func() {
		g.running.Wait()
		g.turns.barrier.close()
		g.pipes.close()
		close(g.idle)
		<-told
		g.pacing.Wait()
		close(g.done)
	}()
}

// drain tells the connections to drain, as many at a time as may be, while there
// are any.
func (g *group) drain(conns []*conn) {
	tick := time.NewTicker(engine.DrainInterval)
	defer tick.Stop()
	start, told := engine.MonotonicNow(), 0
	for {
		may := min(engine.DrainAllowance(g.cfg.Limits.ShutdownRate, engine.MonotonicNow()-start), len(conns))
		requestAll(conns[told:may], draining)
		if told = may; told == len(conns) {
			return
		}
		select {
		case <-tick.C:
		case <-g.killed:
			return
		case <-g.idle:
			return
		}
	}
}

// requestAll asks something of connections.
func requestAll(conns []*conn, what uint32) {
	for _, c := range conns {
		c.request(what)
	}
}
