package goroutine

import (
	"context"
	"time"

	"github.com/myriad-go/myriad/internal/engine"
)

// This file is how connections end: so many a second are told, so that their
// clients do not all turn to other servers at the same moment.

func (e *goroutineEngine) Stop(ctx context.Context) error {
	e.startStop()
	return engine.AwaitStop(ctx, e.done, e.admission.OpenConns, func() {
		e.killOnce.Do(func() { close(e.killed) })
	})
}

func (e *goroutineEngine) Wait() { <-e.done }

// startStop lets nothing start any more, and has the connections told.
func (e *goroutineEngine) startStop() {
	e.broadcastTracker.Close()
	e.cancel()
	engine.CloseListeners(e.listeners)
	e.mu.Lock()
	first := !e.closed
	e.closed = true
	conns := e.conns.allConns()
	e.mu.Unlock()
	if !first {
		return
	}
	requested := make(chan struct{})
	go func() {
		defer close(requested)
		e.drainConns(conns)
		select {
		case <-e.killed:
			requestAllAndWake(conns, requestKill)
		case <-e.workDone:
		}
	}()
	go func() {
		e.running.Wait()
		e.readLimiter.barrier.close()
		e.pipePool.closeIdlePipes()
		close(e.workDone)
		<-requested
		e.pacerDone.Wait()
		close(e.done)
	}()
}

// drainConns tells the connections to drain, as many at a time as may be, while there
// are any.
func (e *goroutineEngine) drainConns(conns []*conn) {
	tick := time.NewTicker(engine.DrainInterval)
	defer tick.Stop()
	start, drained := engine.MonotonicNow(), 0
	for {
		allowed := min(engine.DrainAllowance(e.cfg.Limits.ShutdownRate, engine.MonotonicNow()-start), len(conns))
		requestAllAndWake(conns[drained:allowed], requestDrain)
		if drained = allowed; drained == len(conns) {
			return
		}
		select {
		case <-tick.C:
		case <-e.killed:
			return
		case <-e.workDone:
			return
		}
	}
}

// requestAllAndWake asks something of connections.
func requestAllAndWake(conns []*conn, request uint32) {
	for _, c := range conns {
		c.requestAndWake(request)
	}
}
