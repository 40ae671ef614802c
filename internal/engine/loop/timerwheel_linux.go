package loop

import (
	"math/bits"
	"slices"
	"time"

	"github.com/myriad-go/myriad/internal/engine"
)

// timerWheel checks the timers of connections at the time when they are due. It contains only timers that are due soon.
// A sweep adds each of the other timers when its time is near.
type timerWheel struct {
	loop     *Loop
	buckets  [timerBuckets][]uint32 // slots; tick t is in bucket t%timerBuckets; Conn.TimerBucket is the index plus 1
	nonEmpty uint64                 // bit i is set if buckets[i] may contain slots
	doneTick int64                  // all ticks up to this one have been handled
}

const (
	timerBuckets  = 64
	keptBucketCap = 1 << 10 // a larger bucket is freed when it becomes empty
)

func (w *timerWheel) nextDue() (at time.Duration, ok bool) {
	if w.nonEmpty == 0 {
		return 0, false
	}
	first := w.doneTick + 1
	skipped := bits.TrailingZeros64(bits.RotateLeft64(w.nonEmpty, -int(first%timerBuckets)))
	return time.Duration(first+int64(skipped)) * engine.TimerTick, true
}

// runIfDue checks the connections whose timers are due. At most maxSweepActions timers act in one call.
func (w *timerWheel) runIfDue(now time.Duration) {
	tick := int64(now / engine.TimerTick)
	for fired := 0; w.doneTick < tick && w.nonEmpty != 0 && fired < maxSweepActions; {
		index := uint8((w.doneTick + 1) % timerBuckets)
		slots := w.buckets[index]
		n := len(slots) - 1
		if n < 0 {
			if cap(slots) > keptBucketCap {
				w.buckets[index] = nil
			}
			w.nonEmpty &^= 1 << index
			w.doneTick++
			continue
		}
		w.buckets[index] = slots[:n] // before a handler, which may call runtime.Goexit
		if w.checkTimerWhenNotBusy(w.loop.conns.conn(slots[n]), index+1, now) {
			fired++
		}
	}
}

// checkTimerWhenNotBusy checks the timeouts of c. If a worker uses c, the check waits until the worker returns c. If c
// is no longer in the given bucket, there is no check. acted reports whether a timeout was due.
func (w *timerWheel) checkTimerWhenNotBusy(c *engine.Conn, bucket uint8, now time.Duration) (acted bool) {
	switch {
	case c.FD() < 0 || c.DriverFlags()&(Connecting|ClosePending) != 0:
		return false
	case c.DriverFlags()&Busy != 0:
		w.loop.DeferUntilWorkerReturns(c, func() {
			if c.TimerBucket() == bucket {
				c.SetTimerBucket(0)
				c.CheckTimeouts(engine.MonotonicNow())
			}
		})
		return false
	case c.TimerBucket() != bucket:
		return false
	}
	c.SetTimerBucket(0)
	if acted = c.CheckTimeouts(now); acted {
		w.loop.driver.PerformActions(c)
	} else {
		w.addTimerIfSoon(c)
	}
	return acted
}

func (w *timerWheel) addTimerIfSoon(c *engine.Conn) {
	at, ok := c.NextTimerOrDeadline()
	if !ok {
		return
	}
	nowTick := int64(w.loop.host.Clock() / engine.TimerTick)
	if w.nonEmpty == 0 {
		w.doneTick = nowTick
	}
	tick := max(int64((at+engine.TimerTick-1)/engine.TimerTick), nowTick+1)
	if tick-w.doneTick >= timerBuckets {
		return
	}
	if old := c.TimerBucket(); old != 0 {
		ticksLeft := (int64(old-1) - w.doneTick - 1) & (timerBuckets - 1)
		if w.doneTick+1+ticksLeft <= tick {
			return
		}
		if i := slices.Index(w.buckets[old-1], c.Slot()); i >= 0 {
			w.buckets[old-1][i] = w.buckets[old-1][len(w.buckets[old-1])-1]
			w.buckets[old-1] = w.buckets[old-1][:len(w.buckets[old-1])-1]
		}
	}
	index := uint8(tick % timerBuckets)
	w.buckets[index] = append(w.buckets[index], c.Slot())
	w.nonEmpty |= 1 << index
	c.SetTimerBucket(index + 1)
}
