package load

import (
	"bytes"
	"errors"
	"time"

	"github.com/myriad-go/myriad/internal/engine"
	"github.com/myriad-go/myriad/tools/internal/websocket"
)

// This file handles connections that are only held. Such a connection has no connState, so it needs only the engine's
// memory, and 16 bytes if it is verified. All connections of a shard share two values (Conn.Value): shard.unheard until
// a connection receives the broadcast, and shard.heard after that. The shard also contains the verification lines in
// flight.

// heldConn is the value that the engine stores for a held connection. Many connections share one heldConn, which is
// immutable.
type heldConn struct {
	shard *shard
	heard bool // the connection has received the broadcast
}

// pendingLine is the state of a verification line. The line is reserved for a connection but not yet sent, or it is
// sent but not yet answered. sentAt is 0 until the line is sent.
type pendingLine struct {
	verification *lineVerification
	sentAt       time.Duration
}

var (
	errWrongLine = errors.New("load: the server answered the verification with a different line")
	errLongLine  = errors.New("line longer than 4096 bytes")
	errFragment  = errors.New("fragmented WebSocket message; expected one frame per line")
)

// isHoldOnly reports whether the run holds all connections until its end. The result is false with a Lifetime, because
// connections are then closed and replaced during the run.
func (g *generator) isHoldOnly() bool {
	return g.mode == holding && g.cfg.Lifetime == 0
}

func (g *generator) registerHeldConnOrAbortLate(c *engine.Conn, s *shard, now, dialedAt time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closedToNew {
		c.Abort(errEstablishedLate)
		return
	}
	s.totals.run[nOpened]++
	s.totals.lastOpened = now
	s.times.connect.record(now-dialedAt, 1)
	c.SetValue(&s.unheard)
	if g.cfg.Check > 0 {
		s.heldConns = append(s.heldConns, c.Ref())
	}
}

func (g *generator) dispatchHandshakePubsubOrHeldInput(c *engine.Conn, in []byte) (used int) {
	switch v := c.Value().(type) {
	case *wsHandshake:
		return g.finishWSHandshakeOrAbort(c, v, in)
	case *pubsubMember:
		if !g.closing.Load() {
			return g.pubsub.handleJoinThenDeliveries(c, v, in)
		}
	case *heldConn:
		if (g.cfg.checksHeldConnLines() || g.script.frames != nil) && !g.closing.Load() {
			return g.checkHeldLinesOrClose(c, v, in)
		}
		v.shard.mu.Lock()
		defer v.shard.mu.Unlock()
		v.shard.totals.addToRunAndWindow(nBytesReceived, int64(len(in)), g.isInWindow(g.now()))
	}
	return len(in)
}

func (g *generator) checkHeldLinesOrClose(c *engine.Conn, h *heldConn, in []byte) (used int) {
	s, now := h.shard, g.now()
	var reason error
	s.mu.Lock()
	for reason == nil {
		frame, n, err := g.parseLineOrFrame(in[used:])
		if reason = err; err != nil || n == 0 {
			break
		}
		used += n
		s.totals.addToRunAndWindow(nBytesReceived, int64(len(frame.Payload)), g.isInWindow(now))
		reason = g.handleHeldLineOrFrameLocked(c, s, frame, now)
	}
	s.mu.Unlock()
	switch reason {
	case nil:
		return used
	case errClosedFrame:
		c.CloseWith(reason)
	default:
		c.Abort(reason)
	}
	return len(in)
}

// parseLineOrFrame returns the first line of the input, or the first frame on a WebSocket. n is the size of the line or
// frame in bytes, or 0 if it is incomplete.
func (g *generator) parseLineOrFrame(in []byte) (frame websocket.Part, n int, err error) {
	maxBytes := MaxLine
	if g.script.frames == nil {
		n = bytes.IndexByte(in, '\n') + 1
		frame = websocket.Part{Kind: websocket.Data, Payload: in[:n], Last: true}
	} else {
		maxBytes += 4 // length of the frame's header
		var r websocket.FrameReader
		if frame, n, err = r.Next(in); err == nil && frame.Kind == websocket.Data && !frame.Last {
			if n = 0; r.IsFragmentOfMessage() {
				err = errFragment
			}
		}
	}
	if err == nil && (n > maxBytes || n == 0 && len(in) >= maxBytes) {
		err = errLongLine
	}
	return frame, n, err
}

func (g *generator) handleHeldLineOrFrameLocked(c *engine.Conn, s *shard, frame websocket.Part, now time.Duration) error {
	line := frame.Payload
	switch frame.Kind {
	case websocket.Ping:
		s.totals.run[nHeartbeats]++
		g.script.frames.sendControlFrame(c, websocket.OpPong, line)
		return nil
	case websocket.Pong:
		return nil
	case websocket.Close:
		g.script.frames.sendControlFrame(c, websocket.OpClose, line)
		return errClosedFrame
	}
	switch {
	case !g.cfg.checksHeldConnLines():
	case g.cfg.Heartbeat != "" && string(line) == g.cfg.Heartbeat:
		s.totals.run[nHeartbeats]++
		_, _ = c.WriteString(g.cfg.HeartbeatAnswer) // an error reaches Closed
	case g.broadcast != "" && string(line) == g.broadcast:
		g.recordBroadcastOrRepeatLocked(c, s, now)
	default:
		return g.checkOrCountUnexpectedLineLocked(c, s, line, now)
	}
	return nil
}

// recordBroadcastOrRepeatLocked counts a broadcast that a connection has received. If the connection has received the
// same broadcast before, the broadcast counts as repeated. The caller holds the shard's lock.
func (g *generator) recordBroadcastOrRepeatLocked(c *engine.Conn, s *shard, now time.Duration) {
	if c.Value() == any(&s.heard) {
		s.totals.run[nHeardAgain]++
		g.faults.recordUnexpectedOrRepeatedLine(nil)
		return
	}
	c.SetValue(&s.heard)
	g.firstHeard.CompareAndSwap(0, max(int64(now), 1))
	s.totals.run[nHeard]++
	s.totals.lastHeard = now
	s.times.heard.record(now-time.Duration(g.firstHeard.Load()), 1)
}

// checkOrCountUnexpectedLineLocked compares a received line with the verification line that the connection expects. It
// returns errWrongLine if the two lines differ. If the connection expects no line, it counts the received line as
// unexpected and returns nil. The caller holds s.mu.
func (g *generator) checkOrCountUnexpectedLineLocked(c *engine.Conn, s *shard, line []byte, now time.Duration) error {
	ref := c.Ref()
	a, ok := s.pendingLines[ref]
	if !ok || a.sentAt == 0 {
		s.totals.run[nUnexpected]++
		g.faults.recordUnexpectedOrRepeatedLine(line)
		return nil
	}
	var room [maxVerifyLine]byte
	want := a.verification.appendUniqueConnLine(room[:0], ref)
	s.removePendingLineLocked(ref)
	if !bytes.Equal(line, want) {
		s.totals.run[nVerifyWrong]++
		s.countUnansweredMessage(len(want))
		at := commonPrefixLen(line, want)
		_, slot, _ := ref.Location()
		g.faults.countMismatchAndKeepFirst(errWrongLine, Mismatch{
			Connection: int64(slot), Message: int64(a.verification.number) - 1, Byte: at, Want: quoteTruncated(want[at:]), Got: quoteTruncated(line[at:]),
		})
		return errWrongLine
	}
	s.totals.run[nAnswered]++
	s.totals.run[nBytesAnswered] += int64(len(want))
	s.totals.lastAnswer = now
	s.times.outside.record(now-a.sentAt, 1)
	return nil
}

func (s *shard) countUnansweredMessage(size int) {
	s.totals.run[nDropped]++
	s.totals.run[nBytesDropped] += int64(size)
}

func (s *shard) removePendingLineLocked(ref engine.Ref) (a pendingLine, found bool) {
	if a, found = s.pendingLines[ref]; found {
		delete(s.pendingLines, ref)
		a.verification.inFlight.Add(-1)
	}
	return a, found
}

func (g *generator) recordHandshakePubsubOrHeldClose(c *engine.Conn, reason error) {
	switch v := c.Value().(type) {
	case *wsHandshake:
		g.countFailedHandshakeUnlessClosing(v, reason)
	case *pubsubMember:
		g.pubsub.recordLostOrUnjoinedMember(v, reason)
	case *heldConn:
		g.countClosedConnAndLostLine(c.Ref(), v)
		if reason != errWrongLine && !g.closing.Load() {
			g.faults.recordLostConn(reason)
		}
	}
}

func (g *generator) countClosedConnAndLostLine(ref engine.Ref, h *heldConn) {
	s := h.shard
	s.mu.Lock()
	defer s.mu.Unlock()
	s.totals.run[nClosed]++
	if h.heard {
		s.totals.run[nHeardClosed]++
	}
	if a, ok := s.removePendingLineLocked(ref); ok && a.sentAt > 0 {
		var room [maxVerifyLine]byte
		s.totals.run[nVerifyLost]++
		s.countUnansweredMessage(len(a.verification.appendUniqueConnLine(room[:0], ref)))
	}
}
