package goroutine

import (
	"runtime"
	"time"

	"github.com/myriad-go/myriad/internal/engine"
	"github.com/myriad-go/myriad/internal/sock"
)

// This file is how a handler gets to act at times that it plans itself; see
// engine.Pace.

// paceAll is the pacer.
func (g *group) paceAll() {
	for !isClosed(g.idle) {
		now := engine.Since()
		next := g.cfg.Pace(-1, now, touch)
		if next < 0 {
			next = now + engine.PaceRest
		}
		nap(min(max(next-engine.Since(), engine.PaceGrain), engine.PaceRest))
	}
}

// touch has Nudged called by mail, and says whether there was room for it.
func touch(r engine.Ref) (ok bool) { return r.Nudge() != engine.ErrFull }

// nap waits. First it lets those run that have got mail, as the thread may keep
// their turn for a moment.
func nap(d time.Duration) {
	runtime.Gosched()
	sock.Sleep(d)
}

// WakePacers implements engine.Lister: the pacer never rests for long.
func (*group) WakePacers() {}

// Next implements engine.Lister.
func (g *group) Next(_ int, slot uint32) (ref engine.Ref, next uint32, ok bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	for end := uint32(len(g.conns.chunks) * tableChunk); slot < end; slot++ {
		if c := g.conns.get(slot); c != nil {
			return g.conns.ref(slot), slot + 1, true
		}
	}
	return engine.Ref{}, slot, false
}
