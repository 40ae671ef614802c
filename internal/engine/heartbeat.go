package engine

import "time"

type Heartbeat struct {
	// Every is the silence after which a heartbeat is sent; 0 means never.
	Every time.Duration
	// Send sends a heartbeat. The connection's owner calls it. It must not block.
	Send func(c *Conn)
	// Message, if set, is what Send writes to connections without a ConnHandler. A sweep then sends it without Send.
	Message []byte
	// MaxMissed is the number of unanswered heartbeats after which the connection is closed. The maximum is 255.
	MaxMissed int
}

// DetectsDeadPeersWithin reports whether heartbeats or IdleTimeout close the connection of a dead peer within limit.
func (c *Config) DetectsDeadPeersWithin(limit time.Duration) bool {
	idle, beats := c.Limits.IdleTimeout, c.Heartbeat.Every*time.Duration(c.Heartbeat.MaxMissed+1)
	return beats > 0 && beats <= limit || idle > 0 && idle <= limit
}

func (c *Conn) unansweredHeartbeats() int { return int(c.state / oneUnanswered) }

// AwaitsHeartbeatAnswer reports whether the peer has been silent since a heartbeat.
func (c *Conn) AwaitsHeartbeatAnswer() bool { return c.is(unansweredMask) }

func (c *Conn) sendHeartbeat() {
	c.state += oneUnanswered
	c.runtime.Counters.Add(Heartbeats, 1)
	c.callHandler(c.callbacks().Heartbeat.Send)
	c.startPendingLayerAndUpdatePause()
}

// ResetHeartbeat restarts the period of silence. It is for a Heartbeat.Send whose heartbeat expects no answer.
func (c *Conn) ResetHeartbeat() {
	c.state &^= unansweredMask
	c.lastHeard = c.runtime.coarseNow()
}

// HeartbeatSweep sends the heartbeats of connections in a table of chunks. It visits each connection up to
// maxHeartbeatVisits times per interval, always at the same times, in slices of some chunks. The visit nearest to the
// due time sends the heartbeat, so that intervals are exact on average. If many heartbeats are due in a slice, it sends
// only a part of them. Later visits send the others, which spreads them over the interval from then on.
type HeartbeatSweep struct {
	// Send sends or queues a message without blocking and returns how many bytes were accepted. The default is
	// Runtime.SendDirect. A driver that queues calls OnHeartbeatUnsent if the message was not sent.
	Send        func(c *Conn, message []byte) (accepted int)
	runtime     *Runtime
	period      time.Duration // between two visits; 0 without heartbeats
	cycleStart  time.Duration // when the visits of the current period began
	nextChunk   int
	perInterval int // visits in an interval; fewer than planned if the owner is late
	visited     int // connections in this slice
	sent        int // heartbeats in this slice
	now         time.Duration
	silentSince coarseTime // a connection is due if its peer was last heard before
}

const maxHeartbeatVisits = 8

// Init prepares the sweep for the connections of rt, whose CheckTimeouts then sends no heartbeats.
func (s *HeartbeatSweep) Init(rt *Runtime) {
	if every := rt.Heartbeat.Every; every > 0 {
		s.runtime, s.period, rt.SweepsHeartbeats = rt, every/max(1, min(every/MinSliceInterval, maxHeartbeatVisits)), true
		if rt.SendDirect != nil {
			s.Send = func(c *Conn, message []byte) int { return rt.SendDirect(c, message, nil) }
		}
	}
}

func (s *HeartbeatSweep) IsActive() bool { return s.period > 0 }

// NextDue returns the time of the next slice. All chunks of a slice are due at the same time.
func (s *HeartbeatSweep) NextDue(numChunks int) time.Duration {
	slices := max(min(int(s.period/MinSliceInterval), numChunks), 1)
	slice := s.nextChunk * slices / max(numChunks, 1)
	return s.cycleStart + s.period*time.Duration(slice+1)/time.Duration(slices)
}

func (s *HeartbeatSweep) StartSlice(now time.Duration, numChunks int) {
	behind := max(now-s.NextDue(numChunks)-s.period, 0)
	s.cycleStart += behind
	s.perInterval = int(max(s.runtime.Heartbeat.Every/(s.period+behind), 1))
	s.visited, s.sent, s.now = 0, 0, now
	s.silentSince = toCoarseTime(now + s.maxHeartbeatEarliness() - s.runtime.Heartbeat.Every)
}

// maxHeartbeatEarliness returns the time by which a heartbeat may be early, plus the average error of a coarse time.
func (s *HeartbeatSweep) maxHeartbeatEarliness() time.Duration { return s.period/2 + 1<<24 }

// NextChunk returns the next chunk to visit in this slice. If there is none, ok is false.
func (s *HeartbeatSweep) NextChunk(numChunks int) (chunk int, ok bool) {
	if numChunks == 0 || s.NextDue(numChunks) > s.now {
		return 0, false
	}
	chunk = min(s.nextChunk, numChunks-1)
	if s.nextChunk = chunk + 1; s.nextChunk == numChunks {
		s.nextChunk = 0
		s.cycleStart += s.period
	}
	return chunk, true
}

// HeartbeatStep is what remains to be done after a visit.
type HeartbeatStep uint8

const (
	HeartbeatDone   HeartbeatStep = iota // nothing
	HeartbeatSent                        // nothing; the kernel has accepted a heartbeat
	HeartbeatOwed                        // the owner must call SendOwedHeartbeat and perform actions
	HeartbeatUnsent                      // the owner must perform actions to send output
)

// Visit sends c a heartbeat if one is due, the slice may send more, and the kernel accepts it at once. It does not call
// the handler. The result is what the owner must do next.
func (s *HeartbeatSweep) Visit(c *Conn) HeartbeatStep {
	s.visited++
	if int32(s.silentSince-c.lastHeard) < 0 || !c.mayGetHeartbeat() {
		return HeartbeatDone
	}
	late := c.lastHeard.elapsed(s.now) - time.Duration(c.unansweredHeartbeats()+1)*c.runtime.Heartbeat.Every
	switch {
	case c.unansweredHeartbeats() >= c.runtime.Heartbeat.MaxMissed:
		if late < 0 {
			return HeartbeatDone
		}
		return HeartbeatOwed
	case late+s.maxHeartbeatEarliness() < 0 || s.sent*s.perInterval > s.visited:
		return HeartbeatDone
	case late > s.period/2:
		c.lastHeard += toCoarseTime(late) // the next one is due an interval after this one
	}
	s.sent++
	message := c.callbacks().Heartbeat.Message
	if len(message) == 0 || c.out != nil || c.extra != nil || c.is(ownHandler) || s.Send == nil {
		return HeartbeatOwed
	}
	c.state += oneUnanswered
	counters := c.runtime.Counters
	counters.Add(Heartbeats, 1)
	counters.Add(Writes, 1)
	counters.Add(BytesOut, int64(len(message)))
	if n := s.Send(c, message); n < len(message) {
		c.OnHeartbeatUnsent(n)
		return HeartbeatUnsent
	}
	return HeartbeatSent
}

// OnHeartbeatUnsent records that only sentBytes of a heartbeat were sent. The rest becomes output.
func (c *Conn) OnHeartbeatUnsent(sentBytes int) {
	rest := c.callbacks().Heartbeat.Message[sentBytes:]
	c.runtime.Counters.Add(BytesOut, -int64(len(rest)))
	c.AppendToTransport(rest)
}

// Skip is called instead of Visit for a connection that is not due.
func (s *HeartbeatSweep) Skip() { s.visited++ }

// Horizon returns the time that Conn.NextTimeout must precede for a connection to be due in this slice.
func (s *HeartbeatSweep) Horizon() time.Duration { return s.now + s.maxHeartbeatEarliness() + 2<<24 }

// IsOnlyHeartbeatDue reports whether a heartbeat of a HeartbeatSweep, and nothing else, is due.
func (c *Conn) IsOnlyHeartbeatDue(now time.Duration) bool {
	if _, ok := c.NextExpiryOrTimer(); ok || !c.runtime.SweepsHeartbeats {
		return false
	}
	why, heartbeatDue := c.exceededTimeLimit(now)
	return heartbeatDue && why == nil
}

// mayGetHeartbeat reports whether the connection is in a state in which silence of the peer calls for a heartbeat.
func (c *Conn) mayGetHeartbeat() bool {
	const not = failed | closing | handshaking | relayed | peerEOF | inputHeld | openPending | overHighWater | readPaused
	return c.state&(open|not) == open && (c.extra == nil || !c.isExporting() && !c.isReadRateExceeded())
}

// SendOwedHeartbeat calls Heartbeat.Send, unless the peer has sent something since the visit. If the peer has missed
// too many heartbeats, the connection is closed after one more read.
func (c *Conn) SendOwedHeartbeat() {
	h := &c.runtime.Heartbeat
	switch missed := c.unansweredHeartbeats(); {
	case !c.mayGetHeartbeat() || c.lastHeard.elapsed(c.runtime.Clock()) < time.Duration(missed)*h.Every+h.Every/4:
	case missed >= h.MaxMissed:
		c.state |= readBeforeClose
	default:
		c.sendHeartbeat()
	}
}
