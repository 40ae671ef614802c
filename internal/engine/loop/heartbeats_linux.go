package loop

import (
	"time"

	"github.com/myriad-go/myriad/internal/engine"
)

// heartbeatTask sends the heartbeats of a loop's connections.
type heartbeatTask struct {
	loop        *Loop
	sweep       engine.HeartbeatSweep
	nextAt      time.Duration // when the next slice is due
	unfinished  bool          // the last turn has not finished its slice
	turnsPaused int           // turns since the last chunk
	submit      func()        // submits the heartbeats of a chunk; nil if they are sent one by one
}

// QueueHeartbeats makes the loop send heartbeats in groups. The loop calls queue for each connection with a due
// heartbeat. queue adds the message to the current group and returns the number of bytes that it has accepted. The loop
// then calls submit, which sends the whole group.
func (l *Loop) QueueHeartbeats(queue func(c *engine.Conn, message []byte) (accepted int), submit func()) {
	l.heartbeats.sweep.Send, l.heartbeats.submit = queue, submit
}

func (h *heartbeatTask) nextDue() (at time.Duration, ok bool) {
	return h.nextAt, h.sweep.IsActive() && h.loop.conns.used > 0
}

func (h *heartbeatTask) runIfDue(now time.Duration) {
	if at, ok := h.nextDue(); !ok || now < at {
		return
	}
	if h.turnsPaused++; h.unfinished && h.loop.eventsLeft && h.turnsPaused < maxSweepPause {
		return
	}
	h.turnsPaused = 0
	chunks := len(h.loop.conns.chunks)
	if !h.unfinished {
		h.sweep.StartSlice(now, chunks)
	}
	for actions := 0; actions < maxSweepActions; {
		chunk, ok := h.sweep.NextChunk(chunks)
		if !ok {
			h.unfinished, h.nextAt = false, h.sweep.NextDueTime(chunks)
			return
		}
		actions += h.sendDueHeartbeatsOfChunk(uint32(chunk))
	}
	h.unfinished, h.nextAt = true, now
}

func (h *heartbeatTask) sendDueHeartbeatsOfChunk(chunk uint32) (actions int) {
	from := chunk * chunkSize
	h.loop.conns.forEachConnInUse(from, from+chunkSize, func(c *engine.Conn) {
		if c.DriverFlags()&(Connecting|Busy) != 0 {
			return
		}
		switch step := h.sweep.SendIfDue(c); step {
		case engine.HeartbeatDone:
			return
		case engine.HeartbeatOwed:
			c.SendHeartbeatOrScheduleClose()
			fallthrough
		case engine.HeartbeatUnsent:
			h.loop.driver.PerformActions(c)
		}
		actions++
	})
	if h.submit != nil && actions > 0 {
		h.submit()
	}
	return actions
}
