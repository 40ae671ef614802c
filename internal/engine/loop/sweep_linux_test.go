package loop

import (
	"testing"
	"time"

	"github.com/myriad-go/myriad/internal/engine"
)

// CancelReceiveIfSilent counts the visits of a sweep by chunk.
func (d *acceptAllDriver) CancelReceiveIfSilent(c *engine.Conn) {
	if d.visits == nil {
		d.visits = make(map[uint32]int)
	}
	d.visits[c.Slot()/chunkSize]++
}

// While connections of one chunk are about to expire, sweeps visit the other chunks once per period only.
func TestSweepSkipsChunks(t *testing.T) {
	for _, period := range []time.Duration{0, 8 * time.Second} {
		l, driver, _ := newLoopWithConns(3 * chunkSize)
		l.sweeper.period = period
		c := l.conns.conn(chunkSize)
		c.SetDeadline(time.Hour)
		l.UpdateExpiryTracking(c)
		start := l.host.Clock()
		for now := start; now < start+16*time.Second; now += engine.MinSliceInterval {
			l.host.SetClock(now)
			l.sweeper.runIfDue(now)
		}
		perPeriod := 0
		if period > 0 {
			perPeriod = int(16 * time.Second / period)
		}
		for chunk, most := range []int{perPeriod + 1, 108, perPeriod + 1} {
			visits := driver.visits[uint32(chunk)] / chunkSize
			if least := map[bool]int{true: 38, false: perPeriod}[chunk == 1]; visits < least || visits > most {
				t.Errorf("period %v: chunk %d was visited %d times in 16 s; want %d to %d", period, chunk, visits, least, most)
			}
		}
	}
}
