package goroutine

import (
	"cmp"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/myriad-go/myriad/internal/engine"
)

// This file finds connections whose time has come, and the ones to close when all
// buffers together hold too much.

// standstill is how late the sweeper is when the process has stood still, rather
// than had much to do.
const standstill = time.Second

// sweepAll sweeps until the group has ended: while there are connections, one
// slice every engine.MinSlice, which also keeps the clock.
func (g *group) sweepAll() {
	period := g.host.SweepPeriod()
	timer := time.NewTimer(0)
	defer timer.Stop()
	<-timer.C
	for g.awaitSlice(timer) {
		now := g.clock.look(engine.MonotonicNow())
		g.host.SetClock(now)
		for _, c := range g.slice(period) {
			if due := c.wakeAt.Load(); due != 0 && int32(instant(now)-due) >= 0 {
				c.wake()
			}
		}
		g.shedBuffers()
		g.wakeSenders()
	}
}

// awaitSlice waits for the next slice, and as long as there are no connections. It
// fails when the group stops and there are none.
func (g *group) awaitSlice(timer *time.Timer) bool {
	if g.admission.Open() == 0 {
		g.clock.rest()
		select {
		case <-g.added:
		case <-g.stop.Done():
		}
		if g.admission.Open() == 0 && g.stop.Err() != nil {
			return false
		}
	}
	g.clock.look(engine.MonotonicNow())
	timer.Reset(engine.MinSliceInterval)
	select {
	case <-timer.C:
	case <-g.emptied:
	}
	return true
}

// clock is the clock of all limits. It stands still when the process does, so that no peer is blamed
// for that. The sweeper finds out how long that was; a connection that goes on before the sweeper
// must not see a later time meanwhile, because what it has heard would count as heard in the
// future. So the clock has a limit until the sweeper has woken.
type clock struct {
	stopped atomic.Int64  // for how long the process has stood still
	limit   atomic.Int64  // what the clock does not pass; 0 while there are no connections
	looked  time.Duration // when the sweeper last looked, which alone uses it; 0 after a rest
}

// at is the time when Since is now.
func (k *clock) at(now time.Duration) time.Duration {
	now -= time.Duration(k.stopped.Load())
	if limit := time.Duration(k.limit.Load()); limit > 0 {
		return min(now, limit)
	}
	return now
}

// look reads the clock for the sweeper, which looks before and after each wait of engine.MinSlice, so that a stop
// at any time is found. The limit allows for a sweeper that is late without a stop: a clock that stood still then
// would end limits early. After a stop, a peer that is heard before the sweeper wakes has up to standstill more.
func (k *clock) look(now time.Duration) time.Duration {
	if late := now - k.looked - engine.MinSliceInterval; k.looked > 0 && late >= standstill {
		k.stopped.Add(int64(late))
	}
	k.looked = now
	now -= time.Duration(k.stopped.Load())
	k.limit.Store(int64(now + 2*engine.MinSliceInterval + standstill))
	return now
}

// rest lets the clock go on without the sweeper: there are no connections.
func (k *clock) rest() {
	k.limit.Store(0)
	k.looked = 0
}

// slice is the connections of the next chunks of the table, as many as it takes to
// see all once in a period: a short one while some are about to end.
func (g *group) slice(period time.Duration) []*conn {
	if g.urgent.Load() > 0 || period == 0 {
		period = engine.FastSweepPeriod
	}
	slices := int(period / engine.MinSliceInterval)
	g.mu.Lock()
	defer g.mu.Unlock()
	chunks := len(g.conns.chunks)
	from, to := g.swept, min(g.swept+(chunks+slices-1)/slices, chunks)
	if g.swept = to; to >= chunks {
		g.swept = 0
	}
	return g.conns.some(make([]*conn, 0, min(g.conns.used, (to-from)*tableChunk)), from, to)
}

// overBudget says whether all buffers together hold too much, with so much more.
func (g *group) overBudget(more int64) bool {
	most := int64(g.cfg.Limits.MaxBuffered)
	return most > 0 && g.counters.Get(engine.Buffered)+more > most
}

// shedBuffers has the connections with the largest buffers closed, if all buffers together
// hold too much, until an eighth of what they may hold is free. None goes that holds
// less than the average: what large ones hold may not be known yet. One goroutine at a
// time looks for them.
func (g *group) shedBuffers() {
	if !g.overBudget(0) || !g.shedding.TryLock() {
		return
	}
	defer g.shedding.Unlock()
	excess := g.counters.Get(engine.Buffered) - int64(g.cfg.Limits.MaxBuffered)*7/8
	g.mu.Lock()
	all := g.conns.all()
	g.mu.Unlock()
	type debtor struct {
		*conn
		holds int64
	}
	var largest []debtor
	for _, c := range all {
		if n := c.holds(); n > 0 {
			largest = append(largest, debtor{c, n})
		}
	}
	slices.SortFunc(largest, func(a, b debtor) int { return cmp.Compare(b.holds, a.holds) })
	average := g.counters.Get(engine.Buffered) / max(g.admission.Open(), 1)
	for _, d := range largest {
		if d.holds < average || excess <= 0 {
			return
		}
		excess -= d.holds
		d.request(overBudget)
	}
}

// holds is how many bytes of memory the connection's buffers held when it last waited, and
// its mailbox holds. Anyone may ask.
func (c *conn) holds() int64 {
	n := int64(c.buffered.Load())
	if box := c.box.Load(); box != nil {
		n += int64(box.CountedMemory())
	}
	return n
}

// senders are those who wait until all buffers together hold no more than they may.
type senders struct {
	waiting atomic.Bool // some do
	mu      sync.Mutex
	freed   chan struct{} // closed when they may go on; nil if none waits
}

// refuses reports whether mail has no room because all buffers together hold too much: by a
// quarter, unless the sender can wait. One that can waits until they hold less.
func (g *group) refuses(r *engine.Request) bool {
	most := int64(g.cfg.Limits.MaxBuffered)
	switch {
	case !r.CanWait():
		return g.overBudget(-most / 4)
	case !g.overBudget(0):
		return false
	}
	s := &g.senders
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.freed == nil {
		s.freed = make(chan struct{})
	}
	s.waiting.Store(true)
	r.SetSpaceWait(s.freed)
	return g.overBudget(0)
}

// wakeSenders wakes those who wait, if there is room. The sweeper calls it, and a connection
// that has closed.
func (g *group) wakeSenders() {
	s := &g.senders
	if !s.waiting.Load() || g.overBudget(0) {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.freed != nil {
		close(s.freed)
		s.freed = nil
	}
	s.waiting.Store(false)
}

// instant is a time as due has it: in units of 2^24 ns, rounded up, never 0.
func instant(d time.Duration) uint32 { return uint32(d>>24) + 1 }
