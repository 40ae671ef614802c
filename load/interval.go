package load

import (
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"
)

// ledger is what has been taken from the shards so far. It belongs to Run's
// goroutine.
type ledger struct {
	total *times // of the whole run
	now   *times // of the interval
	spare *times // to be left with a shard
	usage *usage // nil where nobody wants to know

	at       time.Duration
	sum      sum
	causes   causes
	failed   int64
	lost     int64
	wrong    int64
	intended int64
}

func newLedger(held bool) *ledger {
	return &ledger{total: newTimes(held), now: newTimes(held), spare: newTimes(held)}
}

// collect takes what shards have recorded since the last time into now, and adds
// it to total.
func (g *ledger) collect(shards []*shard) {
	g.now.reset()
	for _, s := range shards {
		taken := s.takeTimes(g.spare)
		g.now.add(taken)
		taken.reset()
		g.spare = taken
	}
	g.total.add(g.now)
}

// interval closes an interval.
func (r *run) interval() *Interval {
	g, t := r.ledger, r.traffic
	g.collect(t.shards)
	s, now := r.sum(), t.now()
	failed, lost, wrong := t.faults.totals()
	causes := t.faults.all()
	i := &Interval{
		From: g.at, To: now, Stage: r.stage,
		Open:          s.open(),
		Opened:        s.opened - g.sum.opened,
		Failed:        failed - g.failed,
		Lost:          lost + wrong - g.lost - g.wrong,
		Closed:        s.outlived - g.sum.outlived,
		Errors:        causes.since(g.causes),
		Sent:          s.whole.sent - g.sum.whole.sent,
		Answered:      s.whole.answered - g.sum.whole.answered,
		BytesSent:     s.whole.bytesOut - g.sum.whole.bytesOut,
		BytesReceived: s.whole.bytesIn - g.sum.whole.bytesIn,
		Heartbeats:    s.heartbeats - g.sum.heartbeats,
		Heard:         s.heard - g.sum.heard,
		Strange:       s.strange + s.again - g.sum.strange - g.sum.again,
		Latency:       latencyOf(&g.now.window, &g.now.outside),
		Connect:       latencyOf(&g.now.connect),
	}
	if !r.script().mute || r.cfg.Check > 0 {
		i.Flying = s.flying()
	}
	if t.open() {
		intended, waiting := r.planned(s, now)
		i.Intended, i.Waiting = max(intended-g.intended, 0), waiting
		g.intended += i.Intended
	}
	if g.usage != nil {
		i.Generator, i.Server = g.usage.sample()
	}
	g.at, g.sum, g.causes, g.failed, g.lost, g.wrong = now, s, causes, failed, lost, wrong
	return i
}

// planned is how many messages of an open loop's plan had come by a time since the
// run's start, and how many of them had not been sent. The latter is an estimate for a
// plan with random times.
func (r *run) planned(s sum, now time.Duration) (intended, waiting int64) {
	t := r.traffic
	intended = r.unsent + r.early
	if t.mode == openEach {
		waiting = t.waitingOwn(now)
		return intended + s.planned + s.early + waiting, waiting
	}
	intended += t.schedule.allTaken()
	waiting = t.schedule.waiting(now) // later: what is taken in between comes in the next interval
	return intended + waiting, waiting
}

// since is what has been counted since a time at which that was counted before.
func (c causes) since(before causes) map[string]int64 {
	var more map[string]int64
	for cause, n := range c {
		if n -= before[cause]; n > 0 {
			if more == nil {
				more = map[string]int64{}
			}
			more[cause] = n
		}
	}
	return more
}

// encode is a distribution in the form that HdrHistogram's libraries share, "" for an
// empty one.
func encode(d *distribution) string {
	if d.count() == 0 {
		return ""
	}
	b, err := d.counts.Encode(hdrhistogram.V2CompressedEncodingCookieBase)
	if err != nil {
		return "" // only what the library can't write, and newHistogram's it can
	}
	return string(b)
}
