package loop

import (
	"slices"
	"time"

	"github.com/myriad-go/myriad/internal/engine"
)

// This file is how a message goes to all connections. It is kept once; each loop
// has a reference to it in posted, which the loop's lock guards, and walks through
// its connections with all those that wait, some connections in a turn, so that others
// do not wait. A connection with nothing unsent is sent to without a copy; what a connection
// can't take at once is copied to its own output; one that is with a worker gets it
// when it is back.

// The bounds of what a turn does of it: connections, and bytes, but for one message.
const (
	broadcastConnsPerTurn = 256
	broadcastBytesPerTurn = 1 << 20
	broadcastClockCheck   = 8 // after so many it looks at the clock
	// maxJoinedBytes is the most bytes of those that walk together, but for one message.
	maxJoinedBytes = 64 << 10
)

func (e *loopEngine) Broadcast(payload []byte) error {
	b, err := e.broadcastTracker.Begin(payload, len(e.loops), &e.cfg.Limits)
	if err != nil {
		return err
	}
	e.loops[0].counters.Add(engine.Broadcasts, 1)
	for _, l := range e.loops {
		l.enqueueBroadcast(b)
	}
	return nil
}

// enqueueBroadcast leaves a broadcast for the loop. One that has ended has nobody to give
// it to.
func (l *Loop) enqueueBroadcast(broadcast *engine.Broadcast) {
	l.mu.Lock()
	ended := l.closed
	if !ended {
		l.newBroadcasts = append(l.newBroadcasts, broadcast)
		l.hasRemoteRequests.Store(true)
	}
	l.mu.Unlock()
	if ended {
		broadcast.Done()
		return
	}
	l.wake()
}

// broadcastPass is how a loop gives broadcasts to its connections: round and round, as long as
// there are any. One that comes joins in where the walk is, behind those that are
// under way, and has reached all when it comes there again. So a connection gets in one
// send all that have come since the walk was there before, in order, and the longer a
// round takes, the more that is.
type broadcastPass struct {
	nextSlot   uint32           // the slot that is next
	messages   []*engine.Shared // those under way, which are the loop's first casts
	payload    []byte           // of all of them
	joinBuffer []byte           // the room for that, where they are several
}

// broadcastSender are a loop's broadcasts that are under way.
type broadcastSender struct {
	loop   *Loop
	active []activeBroadcast // in order
	pass   broadcastPass

	finishedCount uint64 // how many have reached all
}

// activeBroadcast is a broadcast of a loop's.
type activeBroadcast struct {
	*engine.Broadcast
	startSlot uint32 // the slot where it has joined
	wrapped   bool   // the walk has come to its end since
}

// updateActive goes on from the last slot to the first, lets go of broadcasts that have reached
// all, and lets others join.
func (c *broadcastSender) updateActive() {
	pass := &c.pass
	if pass.nextSlot >= c.loop.conns.slotCount {
		pass.nextSlot = 0
		for i := range pass.messages {
			c.active[i].wrapped = true
		}
	}
	finished := 0
	for finished < len(pass.messages) && c.active[finished].wrapped && pass.nextSlot >= c.active[finished].startSlot {
		c.active[finished].Done()
		finished++
	}
	c.active = slices.Delete(c.active, 0, finished)
	c.finishedCount += uint64(finished)
	pass.messages = slices.Delete(pass.messages, 0, finished)
	size := 0
	for _, m := range pass.messages {
		size += len(m.Bytes)
	}
	joined := finished
	for i := len(pass.messages); i < len(c.active); i++ {
		one := &c.active[i]
		if size += len(one.Bytes); i > 0 && size > maxJoinedBytes {
			break
		}
		one.startSlot = pass.nextSlot
		pass.messages = append(pass.messages, &one.Shared)
		joined++
	}
	if joined > 0 {
		pass.joinMessages()
	}
}

// joinMessages makes one piece of those under way.
func (w *broadcastPass) joinMessages() {
	switch len(w.messages) {
	case 0:
		w.payload = nil
	case 1:
		w.payload = w.messages[0].Bytes
	default:
		w.joinBuffer = w.joinBuffer[:0]
		for _, m := range w.messages {
			w.joinBuffer = append(w.joinBuffer, m.Bytes...)
		}
		w.payload = w.joinBuffer
	}
}

func (c *broadcastSender) nextDue() (at time.Duration, ok bool) { return 0, len(c.active) > 0 }

// runIfDue goes on with the walk, until the slice is over.
func (c *broadcastSender) runIfDue(time.Duration) {
	if len(c.active) == 0 {
		return
	}
	l := c.loop
	l.phase.Store(phaseBroadcasts)
	defer l.phase.Store(phaseTasks)
	pass, end := &c.pass, engine.Since()+maxTaskTime
	for n, size, joined := 0, 0, false; n < broadcastConnsPerTurn && size < broadcastBytesPerTurn; {
		if oldest := c.active[0]; !joined || pass.nextSlot >= l.conns.slotCount || oldest.wrapped && pass.nextSlot >= oldest.startSlot {
			if c.updateActive(); len(c.active) == 0 {
				return
			}
			joined = true
		}
		look := pass.nextSlot%chunkSize == 0
		if pass.nextSlot < l.conns.slotCount {
			if conn := l.conns.conn(pass.nextSlot); conn.FD() >= 0 && conn.Armed()&Connecting == 0 {
				l.sendBroadcastsTo(conn)
				n++
				size += len(pass.payload)
				look = look || n%broadcastClockCheck == 0
			}
		}
		if pass.nextSlot++; look && engine.Since() >= end {
			return
		}
	}
}

func (l *Loop) sendBroadcastsTo(c *engine.Conn) {
	switch armed := c.Armed(); {
	case armed&ClosePending != 0:
	case armed&Busy != 0:
		for _, m := range l.broadcasts.pass.messages {
			l.deferBroadcast(c, m)
		}
	case c.Cast(l.broadcasts.pass.payload, l.broadcasts.pass.messages):
		l.driver.PerformActions(c)
	}
}

// deferBroadcast keeps a broadcast for a connection that is with a worker, where it
// counts as if it had been posted. One that has no room for it loses it, or is
// closed when it is back.
func (l *Loop) deferBroadcast(c *engine.Conn, message *engine.Shared) {
	m, err := c.ReserveBroadcast(message)
	switch {
	case err == nil:
		l.deferMail(m, nil)
	case err != engine.ErrFull:
	case l.host.DropMessages:
		l.counters.Add(engine.Dropped, 1)
		if l.missedBroadcasts == nil {
			l.missedBroadcasts = make(map[*engine.Conn]int64)
		}
		l.missedBroadcasts[c]++
	default:
		l.closeWhenReturned(c, engine.ErrSlowConsumer)
	}
}
