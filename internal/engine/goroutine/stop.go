package goroutine

import (
	"context"
	"math"
	"time"

	"github.com/myriad-go/myriad/internal/engine"
)

// This file is how connections end: so many a second are told, so that their
// clients do not all turn to other servers at the same moment.

// drainEvery is how often some more are told.
const drainEvery = 10 * time.Millisecond

// Stop implements engine.Engine.
func (g *group) Stop(ctx context.Context) error {
	g.beginStop()
	select {
	case <-g.done:
		return nil
	case <-ctx.Done():
	}
	cut := g.admission.Open()
	g.kill.Do(func() { close(g.quick) })
	return engine.CutOff(ctx, cut, engine.AwaitKilled(g.done, g.admission.Open))
}

func (g *group) Wait() { <-g.done }

// beginStop lets nothing start any more, and has the connections told.
func (g *group) beginStop() {
	g.halt()
	engine.CloseAll(g.lns)
	g.mu.Lock()
	first := !g.ended
	g.ended = true
	conns := g.conns.all()
	g.mu.Unlock()
	if !first {
		return
	}
	g.casts.end()
	told := make(chan struct{})
	go func() {
		defer close(told)
		g.drain(conns)
		select {
		case <-g.quick:
			order(conns, killing)
		case <-g.gone:
		}
	}()
	go func() {
		g.running.Wait()
		g.turns.network.close()
		g.pipes.close()
		close(g.gone)
		<-told
		g.pacing.Wait()
		close(g.done)
	}()
}

// drain tells the connections to drain, as many at a time as may be, while there
// are any.
func (g *group) drain(conns []*conn) {
	tick := time.NewTicker(drainEvery)
	defer tick.Stop()
	start, told := engine.Since(), 0
	for {
		may := min(g.mayDrain(engine.Since()-start), len(conns))
		order(conns[told:may], draining)
		if told = may; told == len(conns) {
			return
		}
		select {
		case <-tick.C:
		case <-g.quick:
			return
		case <-g.gone:
			return
		}
	}
}

// mayDrain is how many may have been told so long after the start.
func (g *group) mayDrain(passed time.Duration) int {
	rate := g.cfg.Limits.ShutdownRate
	if rate == 0 {
		return math.MaxInt
	}
	return int(float64(rate)*(passed+drainEvery).Seconds()) + 1
}

// order tells connections something.
func order(conns []*conn, what uint32) {
	for _, c := range conns {
		c.order(what)
	}
}
