package goroutine

import (
	"context"
	"time"

	"github.com/myriad-go/myriad/internal/engine"
)

// This file stops the engine. Connections are drained at a limited rate, so that not all clients reconnect to other
// servers at once.

func (e *goroutineEngine) Stop(ctx context.Context) error {
	e.closeListenersAndStartDrain()
	return engine.AwaitStop(ctx, e.done, e.admission.OpenConns, func() {
		e.killOnce.Do(func() { close(e.killed) })
	})
}

func (e *goroutineEngine) Wait() { <-e.done }

func (e *goroutineEngine) closeListenersAndStartDrain() {
	e.broadcastTracker.RejectNewBroadcasts()
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
		e.drainConnsAtLimitedRate(conns)
		select {
		case <-e.killed:
			requestAndWakeAll(conns, requestKill)
		case <-e.workDone:
		}
	}()
	go func() {
		e.running.Wait()
		e.readLimiter.barrier.close()
		e.pipePool.closeWithIdlePipes()
		close(e.workDone)
		<-requested
		e.schedulerDone.Wait()
		close(e.done)
	}()
}

func (e *goroutineEngine) drainConnsAtLimitedRate(conns []*conn) {
	tick := time.NewTicker(engine.DrainInterval)
	defer tick.Stop()
	start, drained := engine.MonotonicNow(), 0
	for {
		allowed := min(engine.MaxDrainedAfter(e.cfg.Limits.ShutdownRate, engine.MonotonicNow()-start), len(conns))
		requestAndWakeAll(conns[drained:allowed], requestDrain)
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

func requestAndWakeAll(conns []*conn, requestBits uint32) {
	for _, c := range conns {
		c.requestAndWake(requestBits)
	}
}
