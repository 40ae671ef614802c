package engine

import "time"

type Heartbeat struct {
	// Every is the time without input after which a heartbeat is sent. 0 means never.
	Every time.Duration
	// Send sends a heartbeat to c. The connection's owner calls Send, which must not block.
	Send func(c *Conn)
	// Message, if set, is the heartbeat that Send writes to every connection without a ConnHandler. The engine may then
	// send Message itself instead of calling Send.
	Message []byte
	// MaxMissed is the number of unanswered heartbeats after which the connection is closed. The largest valid number
	// is 255.
	MaxMissed int
}

// DetectsDeadPeersWithin reports whether the connection of a dead peer is closed within the given time, either because
// of unanswered heartbeats or because of Limits.IdleTimeout.
func (c *Config) DetectsDeadPeersWithin(limit time.Duration) bool {
	idle, beats := c.Limits.IdleTimeout, c.Heartbeat.Every*time.Duration(c.Heartbeat.MaxMissed+1)
	return beats > 0 && beats <= limit || idle > 0 && idle <= limit
}

func (c *Conn) unansweredHeartbeats() int { return int(c.state / oneUnanswered) }

func (c *Conn) callHeartbeatSend() {
	c.state += oneUnanswered
	c.runtime.Counters.Add(Heartbeats, 1)
	c.callHandler(c.callbacks().Heartbeat.Send)
	c.startPendingLayerAndUpdatePause()
}

// ResetHeartbeat resets the heartbeat state, as if the peer had just sent something. Call it in
// Heartbeat.Send if the peer does not answer the heartbeat.
func (c *Conn) ResetHeartbeat() {
	c.state &^= unansweredMask
	c.lastHeard = c.runtime.coarseNow()
}

// HeartbeatSweep sends the heartbeats of all connections of a Runtime. It visits each connection several times per
// heartbeat interval. It does not visit all connections at once, but a few chunks of connections at a time. The time
// between two heartbeats may be a little shorter or longer than the interval, but the average is exact. If too many
// heartbeats are due at once, the sweep spreads them over the interval.
type HeartbeatSweep struct {
	// Send sends or queues a message without blocking, and returns how many bytes were accepted. The default is
	// Runtime.SendDirect. A driver that queues messages sets its own function. If a queued message is later not sent
	// completely, the driver must call OnHeartbeatUnsent.
	Send        func(c *Conn, message []byte) (accepted int)
	runtime     *Runtime
	period      time.Duration // between two visits; 0 without heartbeats
	cycleStart  time.Duration // when the visits of the current period began
	nextChunk   int
	perInterval int // visits of each connection per heartbeat interval; fewer than planned if the owner is late
	visited     int // connections visited in this slice
	sent        int // heartbeats sent in this slice
	now         time.Duration
	silentSince coarseTime // a heartbeat is due if the peer last sent something before this time
}

const maxHeartbeatVisits = 8

// EnableFor prepares the sweep for the connections of rt. From then on, the sweep sends the heartbeats of these
// connections, and Conn.CheckTimeouts does not. If Heartbeat.Every is 0, EnableFor has no effect.
func (s *HeartbeatSweep) EnableFor(rt *Runtime) {
	if every := rt.Heartbeat.Every; every > 0 {
		s.runtime, s.period, rt.SweepsHeartbeats = rt, every/max(1, min(every/MinSliceInterval, maxHeartbeatVisits)), true
		if rt.SendDirect != nil {
			s.Send = func(c *Conn, message []byte) int {
				if rt.SendDirect == nil { // the handlers have moved to workers since EnableFor
					return 0
				}
				return rt.SendDirect(c, message, nil)
			}
		}
	}
}

func (s *HeartbeatSweep) IsActive() bool { return s.period > 0 }

// NextDueTime returns the time at which the owner must next visit connections. numChunks is the number of chunks in
// which the owner stores its connections.
func (s *HeartbeatSweep) NextDueTime(numChunks int) time.Duration {
	slices := max(min(int(s.period/MinSliceInterval), numChunks), 1)
	slice := s.nextChunk * slices / max(numChunks, 1)
	return s.cycleStart + s.period*time.Duration(slice+1)/time.Duration(slices)
}

func (s *HeartbeatSweep) StartSlice(now time.Duration, numChunks int) {
	behind := max(now-s.NextDueTime(numChunks)-s.period, 0)
	s.cycleStart += behind
	s.perInterval = int(max(s.runtime.Heartbeat.Every/(s.period+behind), 1))
	s.visited, s.sent, s.now = 0, 0, now
	s.silentSince = toCoarseTime(now + s.maxHeartbeatEarliness() - s.runtime.Heartbeat.Every)
}

func (s *HeartbeatSweep) maxHeartbeatEarliness() time.Duration { return s.period/2 + 1<<24 }

// NextChunk returns the index of the next chunk of connections to visit. If no further chunk is due now, due is false.
func (s *HeartbeatSweep) NextChunk(numChunks int) (chunk int, due bool) {
	if numChunks == 0 || s.NextDueTime(numChunks) > s.now {
		return 0, false
	}
	chunk = min(s.nextChunk, numChunks-1)
	if s.nextChunk = chunk + 1; s.nextChunk == numChunks {
		s.nextChunk = 0
		s.cycleStart += s.period
	}
	return chunk, true
}

// HeartbeatStep is what the owner of a connection must do after HeartbeatSweep.SendIfDue.
type HeartbeatStep uint8

const (
	HeartbeatDone   HeartbeatStep = iota // nothing
	HeartbeatSent                        // nothing; the kernel has accepted a heartbeat
	HeartbeatOwed                        // the owner must call SendHeartbeatOrScheduleClose and perform actions
	HeartbeatUnsent                      // the owner must perform actions to send output
)

// SendIfDue sends a heartbeat to c if one is due and the kernel accepts it at once. It may also leave the heartbeat to
// a later visit. It does not call the handler. The result tells the owner what to do next.
func (s *HeartbeatSweep) SendIfDue(c *Conn) HeartbeatStep {
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
		c.lastHeard += toCoarseTime(late) // makes the next heartbeat due one interval after this one
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

// OnHeartbeatUnsent records that only the first sentBytes bytes of a heartbeat were sent. It appends the other bytes to
// the output.
func (c *Conn) OnHeartbeatUnsent(sentBytes int) {
	rest := c.callbacks().Heartbeat.Message[sentBytes:]
	c.runtime.Counters.Add(BytesOut, -int64(len(rest)))
	c.AppendToTransport(rest)
}

// Skip counts a connection as visited. The owner calls Skip instead of SendIfDue for a connection whose heartbeat is
// not due; see Horizon.
func (s *HeartbeatSweep) Skip() { s.visited++ }

// Horizon returns the latest due time of the heartbeats that are sent in the current slice. If a connection's
// NextTimeout is later than Horizon, no heartbeat is due, and the owner calls Skip instead of SendIfDue.
func (s *HeartbeatSweep) Horizon() time.Duration { return s.now + s.maxHeartbeatEarliness() + 2<<24 }

// IsOnlyHeartbeatDue reports whether the only due timeout of the connection is a heartbeat that a HeartbeatSweep sends.
func (c *Conn) IsOnlyHeartbeatDue(now time.Duration) bool {
	if _, ok := c.NextTimerDeadlineOrExpiry(); ok || !c.runtime.SweepsHeartbeats {
		return false
	}
	reason, heartbeatDue := c.exceededTimeLimit(now)
	return heartbeatDue && reason == nil
}

func (c *Conn) mayGetHeartbeat() bool {
	const not = failed | closing | handshaking | relayed | peerEOF | inputHeld | openPending | overHighWater | readPaused
	return c.state&(open|not) == open && (c.extra == nil || !c.isExporting() && !c.isReadRateExceeded())
}

// SendHeartbeatOrScheduleClose sends the heartbeat that is due when SendIfDue has returned HeartbeatOwed. If the peer
// has sent something in the meantime, no heartbeat is sent. If the peer has left too many heartbeats unanswered, no
// heartbeat is sent either. Instead, the driver must read once more, and the connection is closed if this read finds no
// input.
func (c *Conn) SendHeartbeatOrScheduleClose() {
	h := &c.runtime.Heartbeat
	switch missed := c.unansweredHeartbeats(); {
	case !c.mayGetHeartbeat() || c.lastHeard.elapsed(c.runtime.Clock()) < time.Duration(missed)*h.Every+h.Every/4:
	case missed >= h.MaxMissed:
		c.state |= finalReadPending
	default:
		c.callHeartbeatSend()
	}
}
