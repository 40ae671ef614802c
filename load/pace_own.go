package load

import "time"

// This file is the pacing of links that have plans of their own. All of it runs under
// the shard's lock, but for what goes through all links.

// forsake counts what a link was to send and did not before it closed.
func (t *traffic) forsake(s *shard, l *link) {
	if !t.open() {
		return
	}
	for k := range uint64(l.due) {
		if t.counts(t.slab.intended[t.slab.place(l, l.answered+uint64(l.flying)+k)]) {
			s.sum.run[nUnsent]++
		}
	}
	if t.mode != openEach {
		return
	}
	p := &t.slab.plans[l.id]
	if end := min(t.now()+1, time.Duration(t.until.Load())); p.next > 0 && p.next < end {
		given, _ := t.give(l, p, end, ownDraws)
		s.sum.run[nPlanned] += given.window
		s.sum.run[nEarly] += given.early
		s.sum.run[nUnsent] += given.window
	}
	*p = plan{}
}

// beginPlan begins a link's own plan: with the traffic or when the link is
// established, whichever is later, or when its first message has been answered. The
// plans of links are spread evenly.
func (t *traffic) beginPlan(l *link, now time.Duration) {
	const golden = 0.6180339887498949 // its multiples are spread evenly over 0 to 1
	p := &t.slab.plans[l.id]
	since := t.slab.opened[l.id]
	if t.script.first {
		since = now
	}
	*p = plan{x: t.line.upTo(max(since-time.Duration(t.begin.Load()), 0))}
	if t.line.rate.Poisson {
		p.x += exponential(seedOf(t.cfg.Seed, uint64(l.number)), 0)
	} else {
		turn := golden * float64(l.number)
		p.x += turn - float64(int64(turn))
	}
	p.next = t.planned(p.x)
}

// planned is when what is at x on the tempo is to be sent, since the run's
// start.
func (t *traffic) planned(x float64) time.Duration {
	at := t.line.at(x)
	if at == never {
		return never
	}
	return at + time.Duration(t.begin.Load())
}

// fillOwn has a link send what its own plan has waiting, and sets its timer for
// the next.
func (t *traffic) fillOwn(s *shard, l *link, now time.Duration) {
	p := &t.slab.plans[l.id]
	end := time.Duration(t.until.Load())
	for t.room(l) && p.next <= now && p.next < end && int64(now) < t.draining.Load() {
		t.claim(s, l, p.next)
		if t.counts(p.next) {
			s.sum.run[nPlanned]++
		} else {
			s.sum.run[nEarly]++
		}
		t.advance(l, p)
	}
	if p.next > now {
		t.alarm(s, l, now)
	}
}

// alarm sets a link's timer for the next message of its own plan.
func (t *traffic) alarm(s *shard, l *link, now time.Duration) {
	next := t.slab.plans[l.id].next
	if t.room(l) && next > 0 && next < time.Duration(t.until.Load()) && int64(now) < t.draining.Load() && l.state&timed == 0 {
		l.state |= timed
		s.timers.push(timer{at: next, link: l.id, number: l.number, kind: planned})
	}
}

// advance goes on to the next message of a link's plan.
func (t *traffic) advance(l *link, p *plan) {
	p.k++
	if t.line.rate.Poisson {
		p.x += exponential(seedOf(t.cfg.Seed, uint64(l.number)), p.k)
	} else {
		p.x++
	}
	p.next = t.planned(p.x)
}

// ownDraws bounds how many Poisson times of a link's own plan are drawn to give them up.
const ownDraws = 64

// give gives up what a link's own plan has before end, since the run's start, where
// something is due before. It draws at most so many Poisson times, and says how many it
// has drawn; how many are behind them is an estimate.
func (t *traffic) give(l *link, p *plan, end time.Duration, draws int) (given pass, drawn int) {
	begin := time.Duration(t.begin.Load())
	given = pass{
		line: &t.line, seed: seedOf(t.cfg.Seed, uint64(l.number)),
		from: time.Duration(t.from.Load()) - begin, end: end - begin,
		x: p.x, k: p.k,
	}
	if t.line.rate.Poisson {
		drawn = given.walk(draws)
	}
	given.jump()
	p.x, p.k = given.x, given.k
	p.next = t.planned(p.x)
	return given, drawn
}

// leftOwn gives up the messages that links' own plans have not sent, of links that are
// still there, and counts them: of the window, and before it. It is called when nothing
// is sent any more. Of Poisson times it draws the first ownDraws of each link, maxDraws
// in all; how many are behind them is an estimate.
func (t *traffic) leftOwn() (window, early int64) {
	until, draws := time.Duration(t.until.Load()), maxDraws
	t.slab.each(t.shards, func(_ *shard, l *link) bool {
		p := &t.slab.plans[l.id]
		if l.state&gone == 0 && p.next > 0 && p.next < until {
			given, drawn := t.give(l, p, until, min(draws, ownDraws))
			draws -= drawn
			window, early = window+given.window, early+given.early
		}
		return true
	})
	return window, early
}

// waitingOwn estimates how many messages of links' own plans are due and not taken.
func (t *traffic) waitingOwn(now time.Duration) (n int64) {
	until := time.Duration(t.until.Load())
	begin := time.Duration(t.begin.Load())
	t.slab.each(t.shards, func(_ *shard, l *link) bool {
		if p := &t.slab.plans[l.id]; l.state&gone == 0 && p.next > 0 && p.next <= now && p.next < until {
			n += t.line.count(p.x, now-begin, until-begin)
		}
		return true
	})
	return n
}

// waitsOwn says whether links' own plans have something due that has not been sent.
func (t *traffic) waitsOwn() (waits bool) {
	until := time.Duration(t.until.Load())
	t.slab.each(t.shards, func(_ *shard, l *link) bool {
		next := t.slab.plans[l.id].next
		waits = l.state&gone == 0 && next > 0 && next < until
		return !waits
	})
	return waits
}
