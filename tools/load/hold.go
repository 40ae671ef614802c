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

// held is the value of a connection that is only held. Nothing in it changes.
type held struct {
	shard *shard
	heard bool // it has had the broadcast
}

// asked is a line of a verification in flight. sent is when it was handed to its
// connection; before, it only has its place.
type asked struct {
	of   *verification
	sent time.Duration
}

// Why a connection that is held is closed, but for its end.
var (
	errWrongLine = errors.New("load: the verification was answered with another line")
	errLongLine  = errors.New("a line of more than 4096 bytes")
	errFragment  = errors.New("a WebSocket message in fragments; expected lines in one frame each")
)

func (t *traffic) holdsOnly() bool {
	return t.mode == holding && t.cfg.Lifetime == 0
}

// hold counts a connection that is only held.
func (t *traffic) hold(c *engine.Conn, s *shard, now, began time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.shut {
		c.Abort(errLate)
		return
	}
	s.sum.run[nOpened]++
	s.sum.lastOpened = now
	s.times.connect.record(now-began, 1)
	c.SetValue(&s.unheard)
	if t.cfg.Check > 0 {
		s.held = append(s.held, c.Ref())
	}
}

// receivedElse takes what arrives on a connection that has no connState.
func (t *traffic) receivedElse(c *engine.Conn, in []byte) int {
	switch v := c.Value().(type) {
	case *upgrade:
		return t.upgrade(c, v, in)
	case *member:
		if !t.closing.Load() {
			return t.pubsub.receive(c, v, in)
		}
	case *held:
		if (t.cfg.watchesLines() || t.script.frames != nil) && !t.closing.Load() {
			return t.receiveLines(c, v, in)
		}
		v.shard.mu.Lock()
		defer v.shard.mu.Unlock()
		v.shard.sum.count(nBytesReceived, int64(len(in)), t.measured(t.now()))
	}
	return len(in)
}

// receiveLines takes the lines that have come whole. What is left of in waits for more.
func (t *traffic) receiveLines(c *engine.Conn, h *held, in []byte) (used int) {
	s, now := h.shard, t.now()
	var why error
	s.mu.Lock()
	for why == nil {
		part, n, err := t.nextLine(in[used:])
		if why = err; err != nil || n == 0 {
			break
		}
		used += n
		s.sum.count(nBytesReceived, int64(len(part.Payload)), t.measured(now))
		why = t.receivePart(c, s, part, now)
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

// nextLine takes the first line off in, which has n bytes there, 0 while it is not whole. Of a
// WebSocket it is the next frame: a message is a line without its end.
func (t *traffic) nextLine(in []byte) (part websocket.Part, n int, err error) {
	most := MaxLine
	if t.script.frames == nil {
		n = bytes.IndexByte(in, '\n') + 1
		part = websocket.Part{Kind: websocket.Data, Payload: in[:n], Last: true}
	} else {
		most += 4 // the header of such a frame
		var r websocket.Reader
		if part, n, err = r.Next(in); err == nil && part.Kind == websocket.Data && !part.Last {
			if n = 0; r.Fragmented() {
				err = errFragment
			}
		}
	}
	if err == nil && (n > most || n == 0 && len(in) >= most) {
		err = errLongLine
	}
	return part, n, err
}

// receivePart takes a line, or a frame without one. The caller holds the shard's lock.
func (t *traffic) receivePart(c *engine.Conn, s *shard, part websocket.Part, now time.Duration) error {
	line := part.Payload
	switch part.Kind {
	case websocket.Ping:
		s.sum.run[nHeartbeats]++
		t.script.frames.reply(c, websocket.OpPong, line)
		return nil
	case websocket.Pong:
		return nil
	case websocket.Close:
		t.script.frames.reply(c, websocket.OpClose, line)
		return errClosedFrame
	}
	switch {
	case !t.cfg.watchesLines():
	case t.cfg.Heartbeat != "" && string(line) == t.cfg.Heartbeat:
		s.sum.run[nHeartbeats]++
		_, _ = c.WriteString(t.cfg.HeartbeatAnswer) // an error ends the connection, which Closed gets
	case t.broadcast != "" && string(line) == t.broadcast:
		t.receiveBroadcast(c, s, now)
	default:
		return t.receiveOther(c, s, line, now)
	}
	return nil
}

// receiveBroadcast counts the one line for all. The caller holds the shard's lock.
func (t *traffic) receiveBroadcast(c *engine.Conn, s *shard, now time.Duration) {
	if c.Value() == any(&s.heard) {
		s.sum.run[nHeardAgain]++
		t.faults.unexpected(nil)
		return
	}
	c.SetValue(&s.heard)
	t.firstHeard.CompareAndSwap(0, max(int64(now), 1))
	s.sum.run[nHeard]++
	s.sum.lastHeard = now
	s.times.heard.record(now-time.Duration(t.firstHeard.Load()), 1)
}

// receiveOther takes a line that can only be what a verification has sent. The caller holds
// the shard's lock.
func (t *traffic) receiveOther(c *engine.Conn, s *shard, line []byte, now time.Duration) error {
	ref := c.Ref()
	a, ok := s.asked[ref]
	if !ok || a.sent == 0 {
		s.sum.run[nUnexpected]++
		t.faults.unexpected(line)
		return nil
	}
	var room [verifyLine]byte
	want := a.of.line(room[:0], ref)
	s.remove(ref)
	if !bytes.Equal(line, want) {
		s.sum.run[nVerifyWrong]++
		s.drop(len(want))
		at := firstDifference(line, want)
		_, slot, _ := ref.Location()
		t.faults.wrong(errWrongLine, Mismatch{
			Connection: int64(slot), Message: int64(a.of.number) - 1, Byte: at, Want: quote(want[at:]), Got: quote(line[at:]),
		})
		return errWrongLine
	}
	s.sum.run[nAnswered]++
	s.sum.run[nBytesAnswered] += int64(len(want))
	s.sum.lastAnswer = now
	s.times.outside.record(now-a.sent, 1)
	return nil
}

// drop counts a message that will not be answered, with its bytes.
func (s *shard) drop(size int) {
	s.sum.run[nDropped]++
	s.sum.run[nBytesDropped] += int64(size)
}

// remove takes a connection off those that are asked, if it is one.
func (s *shard) remove(ref engine.Ref) (a asked, ok bool) {
	if a, ok = s.asked[ref]; ok {
		delete(s.asked, ref)
		a.of.inFlight.Add(-1)
	}
	return a, ok
}

// closedElse counts the end of a connection that has no connState.
func (t *traffic) closedElse(c *engine.Conn, why error) {
	switch v := c.Value().(type) {
	case *upgrade:
		t.notUpgraded(v, why)
	case *member:
		t.pubsub.leave(v, why)
	case *held:
		t.release(c.Ref(), v)
		if why != errWrongLine && !t.closing.Load() {
			t.faults.gone(why)
		}
	}
}

// release takes a connection that is not held any more out of the sums.
func (t *traffic) release(ref engine.Ref, h *held) {
	s := h.shard
	s.mu.Lock()
	defer s.mu.Unlock()
	s.sum.run[nClosed]++
	if h.heard {
		s.sum.run[nHeardClosed]++
	}
	if a, ok := s.remove(ref); ok && a.sent > 0 {
		var room [verifyLine]byte
		s.sum.run[nVerifyLost]++
		s.drop(len(a.of.line(room[:0], ref)))
	}
}
