package load

import (
	"bytes"
	"errors"
	"time"

	"github.com/myriad-go/myriad/internal/engine"
	"github.com/myriad-go/myriad/tools/internal/websocket"
)

// This file is what happens on connections that are only held. They have no connState:
// the value of each is one of two that its shard has for all, and says whether it has
// had the broadcast. So a million of them costs the generator no more than the
// engine's entries, and 16 bytes for each where they are verified. What only a few need at a time, the lines of a verification that are
// in flight, their shards know by the connections' Refs.

// heldConn is the value of a connection that is only held. Nothing in it changes.
type heldConn struct {
	shard *shard
	heard bool // it has had the broadcast
}

// pendingLine is a line of a verification in flight. sent is when it was handed to its
// connection; before, it only has its place.
type pendingLine struct {
	verification *verification
	sentAt       time.Duration
}

// Why a connection that is held is closed, but for its end.
var (
	errWrongLine = errors.New("load: the verification was answered with another line")
	errLongLine  = errors.New("a line of more than 4096 bytes")
	errFragment  = errors.New("a WebSocket message in fragments; expected lines in one frame each")
)

func (g *generator) isHoldOnly() bool {
	return g.mode == holding && g.cfg.Lifetime == 0
}

// registerHeldConn counts a connection that is only held.
func (g *generator) registerHeldConn(c *engine.Conn, s *shard, now, dialedAt time.Duration) {
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

// receiveWithoutState takes what arrives on a connection that has no connState.
func (g *generator) receiveWithoutState(c *engine.Conn, in []byte) int {
	switch v := c.Value().(type) {
	case *wsHandshake:
		return g.receiveHandshakeResponse(c, v, in)
	case *pubsubConn:
		if !g.closing.Load() {
			return g.pubsub.receiveInput(c, v, in)
		}
	case *heldConn:
		if (g.cfg.checksLines() || g.script.frames != nil) && !g.closing.Load() {
			return g.receiveHeldLines(c, v, in)
		}
		v.shard.mu.Lock()
		defer v.shard.mu.Unlock()
		v.shard.totals.addCount(nBytesReceived, int64(len(in)), g.isInWindow(g.now()))
	}
	return len(in)
}

// receiveHeldLines takes the lines that have come whole. What is left of in waits for more.
func (g *generator) receiveHeldLines(c *engine.Conn, h *heldConn, in []byte) (used int) {
	s, now := h.shard, g.now()
	var why error
	s.mu.Lock()
	for why == nil {
		frame, n, err := g.parseLineOrFrame(in[used:])
		if why = err; err != nil || n == 0 {
			break
		}
		used += n
		s.totals.addCount(nBytesReceived, int64(len(frame.Payload)), g.isInWindow(now))
		why = g.handleLineOrFrame(c, s, frame, now)
	}
	s.mu.Unlock()
	switch why {
	case nil:
		return used
	case errClosedFrame:
		c.CloseWith(why)
	default:
		c.Abort(why)
	}
	return len(in)
}

// parseLineOrFrame takes the first line off in, which has n bytes there, 0 while it is not whole. Of a
// WebSocket it is the next frame: a message is a line without its end.
func (g *generator) parseLineOrFrame(in []byte) (frame websocket.Part, n int, err error) {
	maxBytes := MaxLine
	if g.script.frames == nil {
		n = bytes.IndexByte(in, '\n') + 1
		frame = websocket.Part{Kind: websocket.Data, Payload: in[:n], Last: true}
	} else {
		maxBytes += 4 // the header of such a frame
		var r websocket.Reader
		if frame, n, err = r.Next(in); err == nil && frame.Kind == websocket.Data && !frame.Last {
			if n = 0; r.Fragmented() {
				err = errFragment
			}
		}
	}
	if err == nil && (n > maxBytes || n == 0 && len(in) >= maxBytes) {
		err = errLongLine
	}
	return frame, n, err
}

// handleLineOrFrame takes a line, or a frame without one. The caller holds the shard's lock.
func (g *generator) handleLineOrFrame(c *engine.Conn, s *shard, frame websocket.Part, now time.Duration) error {
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
	case !g.cfg.checksLines():
	case g.cfg.Heartbeat != "" && string(line) == g.cfg.Heartbeat:
		s.totals.run[nHeartbeats]++
		_, _ = c.WriteString(g.cfg.HeartbeatAnswer) // an error ends the connection, which Closed gets
	case g.broadcast != "" && string(line) == g.broadcast:
		g.countBroadcastLine(c, s, now)
	default:
		return g.checkVerificationLine(c, s, line, now)
	}
	return nil
}

// countBroadcastLine counts the one line for all. The caller holds the shard's lock.
func (g *generator) countBroadcastLine(c *engine.Conn, s *shard, now time.Duration) {
	if c.Value() == any(&s.heard) {
		s.totals.run[nHeardAgain]++
		g.faults.recordUnexpectedLine(nil)
		return
	}
	c.SetValue(&s.heard)
	g.firstHeard.CompareAndSwap(0, max(int64(now), 1))
	s.totals.run[nHeard]++
	s.totals.lastHeard = now
	s.times.heard.record(now-time.Duration(g.firstHeard.Load()), 1)
}

// checkVerificationLine takes a line that can only be what a verification has sent. The caller holds
// the shard's lock.
func (g *generator) checkVerificationLine(c *engine.Conn, s *shard, line []byte, now time.Duration) error {
	ref := c.Ref()
	a, ok := s.pendingLines[ref]
	if !ok || a.sentAt == 0 {
		s.totals.run[nUnexpected]++
		g.faults.recordUnexpectedLine(line)
		return nil
	}
	var room [maxVerifyLine]byte
	want := a.verification.appendLine(room[:0], ref)
	s.removePendingLine(ref)
	if !bytes.Equal(line, want) {
		s.totals.run[nVerifyWrong]++
		s.countDroppedMessage(len(want))
		at := firstDifference(line, want)
		_, slot, _ := ref.Slot()
		g.faults.recordMismatch(errWrongLine, Mismatch{
			Connection: int64(slot), Message: int64(a.verification.number) - 1, Byte: at, Want: quoteBytes(want[at:]), Got: quoteBytes(line[at:]),
		})
		return errWrongLine
	}
	s.totals.run[nAnswered]++
	s.totals.run[nBytesAnswered] += int64(len(want))
	s.totals.lastAnswer = now
	s.times.outside.record(now-a.sentAt, 1)
	return nil
}

// countDroppedMessage counts a message that will not be answered, with its bytes.
func (s *shard) countDroppedMessage(size int) {
	s.totals.run[nDropped]++
	s.totals.run[nBytesDropped] += int64(size)
}

// removePendingLine takes a connection off those that are asked, if it is one.
func (s *shard) removePendingLine(ref engine.Ref) (a pendingLine, ok bool) {
	if a, ok = s.pendingLines[ref]; ok {
		delete(s.pendingLines, ref)
		a.verification.inFlight.Add(-1)
	}
	return a, ok
}

// closedWithoutState counts the end of a connection that has no connState.
func (g *generator) closedWithoutState(c *engine.Conn, reason error) {
	switch v := c.Value().(type) {
	case *wsHandshake:
		g.countFailedHandshake(v, reason)
	case *pubsubConn:
		g.pubsub.countClosedMember(v, reason)
	case *heldConn:
		g.releaseHeldConn(c.Ref(), v)
		if reason != errWrongLine && !g.closing.Load() {
			g.faults.recordLostConn(reason)
		}
	}
}

// releaseHeldConn takes a connection that is not held any more out of the sums.
func (g *generator) releaseHeldConn(ref engine.Ref, h *heldConn) {
	s := h.shard
	s.mu.Lock()
	defer s.mu.Unlock()
	s.totals.run[nClosed]++
	if h.heard {
		s.totals.run[nHeardClosed]++
	}
	if a, ok := s.removePendingLine(ref); ok && a.sentAt > 0 {
		var room [maxVerifyLine]byte
		s.totals.run[nVerifyLost]++
		s.countDroppedMessage(len(a.verification.appendLine(room[:0], ref)))
	}
}
