package loop

import (
	"slices"
	"time"

	"github.com/myriad-go/myriad/internal/engine"
)

// This file sends broadcasts to all connections. A broadcast is stored once; newBroadcasts of each loop refers to it. A
// loop passes over its connections with all active broadcasts, a limited number of connections per turn. If a
// connection has no unsent output, the broadcast is sent without a copy, and only the rest is copied to the output. A
// connection that a worker is using gets the broadcast when the worker returns it.

// Limits of the broadcasts that a loop sends in one iteration. A single message may exceed the byte limit.
const (
	broadcastConnsPerTurn = 256
	broadcastBytesPerTurn = 1 << 20
	broadcastClockCheck   = 8        // connections between two looks at the clock
	maxJoinedBytes        = 64 << 10 // total size of the broadcasts in one send
)

func (e *loopEngine) BroadcastToAllConns(payload []byte) error {
	b, err := e.broadcastTracker.RegisterBroadcast(payload, len(e.loops), &e.cfg.Limits)
	if err != nil {
		return err
	}
	e.loops[0].counters.Add(engine.Broadcasts, 1)
	for _, l := range e.loops {
		l.enqueueBroadcast(b)
	}
	return nil
}

func (l *Loop) enqueueBroadcast(broadcast *engine.Broadcast) {
	l.mu.Lock()
	ended := l.closed
	if !ended {
		l.newBroadcasts = append(l.newBroadcasts, broadcast)
		l.hasRemoteRequests.Store(true)
	}
	l.mu.Unlock()
	if ended {
		broadcast.MarkOneOwnerDone()
		return
	}
	l.wake()
}

// broadcastPass records how far a loop has sent the current broadcasts to its connections.
type broadcastPass struct {
	nextSlot   uint32
	messages   []*engine.Shared // the messages of the first broadcasts in broadcastSender.active
	payload    []byte           // all messages joined
	joinBuffer []byte           // the memory of payload, if there are several messages
}

type broadcastSender struct {
	loop   *Loop
	active []activeBroadcast // the oldest first
	pass   broadcastPass
	passAt time.Duration // when the next pass may begin, because of Config.WriteDelay

	finishedCount uint64 // broadcasts that have reached all connections
}

type activeBroadcast struct {
	*engine.Broadcast
	startSlot uint32 // where the broadcast joined the pass; it has reached all connections when the pass is back there
	wrapped   bool   // the pass has since reached the last slot
}

// removeFinishedAndAddNewBroadcasts removes broadcasts that have reached all connections from c.active and c.pass. It
// then adds broadcasts of c.active that are not yet in the pass, up to a total size of maxJoinedBytes.
func (c *broadcastSender) removeFinishedAndAddNewBroadcasts() {
	pass := &c.pass
	if pass.nextSlot >= c.loop.conns.slotCount {
		pass.nextSlot = 0
		for i := range pass.messages {
			c.active[i].wrapped = true
		}
	}
	finished := 0
	for finished < len(pass.messages) && c.active[finished].wrapped && pass.nextSlot >= c.active[finished].startSlot {
		c.active[finished].MarkOneOwnerDone()
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
		added := &c.active[i]
		if size += len(added.Bytes); i > 0 && size > maxJoinedBytes {
			break
		}
		added.startSlot = pass.nextSlot
		pass.messages = append(pass.messages, &added.Shared)
		joined++
	}
	if joined > 0 {
		pass.concatMessages()
	}
}

func (w *broadcastPass) concatMessages() {
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

// add queues a broadcast. The first broadcast in the queue normally waits for Config.WriteDelay. If a broadcast is
// large or the queue is long, the loop sends all queued broadcasts without further delay.
func (c *broadcastSender) add(b *engine.Broadcast) {
	if len(c.active) == 0 {
		c.passAt = c.loop.host.Clock() + c.loop.host.WriteDelay
	}
	c.active = append(c.active, activeBroadcast{Broadcast: b})
	if len(b.Bytes) >= c.loop.host.MinDirectSend || len(c.active) >= engine.MaxBroadcasts/4 {
		c.passAt = 0
	}
}

func (c *broadcastSender) nextDue() (at time.Duration, ok bool) {
	if len(c.pass.messages) > 0 || !c.loop.delaysWrites() {
		return 0, len(c.active) > 0
	}
	return c.passAt, len(c.active) > 0
}

// runIfDue sends the active broadcasts to the next connections of the pass, within the limits of one iteration.
func (c *broadcastSender) runIfDue(now time.Duration) {
	if at, ok := c.nextDue(); !ok || now < at {
		return
	}
	l := c.loop
	l.phase.Store(phaseBroadcasts)
	defer l.phase.Store(phaseTasks)
	pass, end := &c.pass, engine.MonotonicNow()+maxTaskTime
	for n, size, joined := 0, 0, false; n < broadcastConnsPerTurn && size < broadcastBytesPerTurn; {
		if oldest := c.active[0]; !joined || pass.nextSlot >= l.conns.slotCount || oldest.wrapped && pass.nextSlot >= oldest.startSlot {
			if c.removeFinishedAndAddNewBroadcasts(); len(c.active) == 0 {
				return
			}
			joined = true
		}
		checkClock := pass.nextSlot%chunkSize == 0
		if pass.nextSlot < l.conns.slotCount {
			if conn := l.conns.conn(pass.nextSlot); conn.FD() >= 0 && conn.DriverFlags()&Connecting == 0 {
				l.sendOrDeferBroadcastsTo(conn)
				n++
				size += len(pass.payload)
				checkClock = checkClock || n%broadcastClockCheck == 0
			}
		}
		if pass.nextSlot++; checkClock && engine.MonotonicNow() >= end {
			return
		}
	}
}

func (l *Loop) sendOrDeferBroadcastsTo(c *engine.Conn) {
	switch armed := c.DriverFlags(); {
	case armed&ClosePending != 0:
	case armed&Busy != 0:
		for _, m := range l.broadcasts.pass.messages {
			l.deferBroadcastUntilWorkerReturns(c, m)
		}
	case c.WriteBroadcasts(l.broadcasts.pass.payload, l.broadcasts.pass.messages):
		l.driver.PerformActions(c)
	}
}

func (l *Loop) deferBroadcastUntilWorkerReturns(c *engine.Conn, message *engine.Shared) {
	m, err := c.ReserveDeferredBroadcast(message)
	switch {
	case err == nil:
		l.deferMailUntilWorkerReturns(m, nil)
	case err != engine.ErrFull:
	case l.host.DropMessages:
		l.counters.Add(engine.Dropped, 1)
		if l.missedBroadcasts == nil {
			l.missedBroadcasts = make(map[*engine.Conn]int64)
		}
		l.missedBroadcasts[c]++
	default:
		l.abortWhenWorkerReturns(c, engine.ErrSlowConsumer)
	}
}
