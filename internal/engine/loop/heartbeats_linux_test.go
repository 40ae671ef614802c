package loop

import (
	"testing"
	"time"

	"github.com/myriad-go/myriad/internal/engine"
)

// heartbeatRecord is a loop with silent connections, and what they received in virtual time.
type heartbeatRecord struct {
	*Loop
	now          time.Duration
	last         map[*engine.Conn]time.Duration
	intervals    []time.Duration
	sent         []*engine.Conn // in this turn
	afterSilence time.Duration  // intervals are recorded from then on
}

func newHeartbeatRecord(conns int, every time.Duration) *heartbeatRecord {
	l, _, _ := newLoopWithConns(conns)
	r := &heartbeatRecord{Loop: l, now: l.host.Clock(), last: make(map[*engine.Conn]time.Duration)}
	l.host.Heartbeat = engine.Heartbeat{Every: every, MaxMissed: 2, Message: []byte("ping\n")}
	l.host.Now = func() time.Duration { return r.now }
	l.host.SendDirect = func(c *engine.Conn, p []byte, _ [][]byte) int {
		if at, ok := r.last[c]; ok && at >= r.afterSilence {
			r.intervals = append(r.intervals, r.now-at)
		}
		r.last[c] = r.now
		r.sent = append(r.sent, c)
		return len(p)
	}
	l.heartbeats.sweep.EnableFor(&l.host)
	return r
}

// turn runs the task when it is next due. Peers then answer at once.
func (r *heartbeatRecord) turn() (sent int) {
	r.now = max(r.now+time.Millisecond, r.heartbeats.nextAt)
	r.host.SetClock(r.now)
	r.sent = r.sent[:0]
	r.heartbeats.runIfDue(r.now)
	for _, c := range r.sent {
		c.OnRead([]byte("pong\n"))
	}
	return len(r.sent)
}

// Connections that were opened together are all due at once. Their heartbeats spread over the interval, and then come
// at exact intervals.
func TestHeartbeatsAreExactAndSpread(t *testing.T) {
	const conns = 10*chunkSize + 100
	for _, every := range []time.Duration{100 * time.Millisecond, time.Second, 2 * time.Second, 7 * time.Second, time.Minute} {
		r := newHeartbeatRecord(conns, every)
		start := r.now
		r.afterSilence = start + 3*every
		visits := max(min(int(every/engine.MinSliceInterval), 8), 1)
		slices := min(int(every/engine.MinSliceInterval)/visits, 11)
		maxSent := (11+slices-1)/slices*chunkSize/visits + 1
		for r.now < start+13*every {
			if n := r.turn(); n > maxSent {
				t.Fatalf("%v: %d heartbeats in a slice, want at most %d", every, n, maxSent)
			}
		}
		sum := time.Duration(0)
		for _, d := range r.intervals {
			sum += d
		}
		if n := len(r.intervals); n < 8*conns {
			t.Errorf("%v: %d heartbeats in ten intervals", every, n)
		} else if average := sum / time.Duration(n); average < every*95/100 || average > every*105/100 {
			t.Errorf("%v: the average interval is %v", every, average)
		}
	}
}

func TestTrafficReplacesHeartbeats(t *testing.T) {
	const every = time.Second
	r := newHeartbeatRecord(100, every)
	talking := r.conns.conn(7)
	for start := r.now; r.now < start+10*every; r.turn() {
		talking.OnRead([]byte("news\n"))
	}
	if _, ok := r.last[talking]; ok || len(r.last) != 99 {
		t.Errorf("a connection with traffic got a heartbeat: %v; %d connections got some, want the 99 others", ok, len(r.last))
	}
}

// If the kernel accepts a part of a heartbeat, the rest is sent in order. Without an answer, the connection closes
// after MaxMissed intervals and one more, and not earlier.
func TestHeartbeatUnsentAndUnanswered(t *testing.T) {
	const every = time.Second
	r := newHeartbeatRecord(1, every)
	r.host.SendDirect = func(*engine.Conn, []byte, [][]byte) int { return 2 }
	driver, c, start := r.driver.(*acceptAllDriver), r.conns.conn(0), r.now
	for len(driver.sends[c]) < 2 {
		r.turn()
	}
	if got := driver.sends[c]; got[0] != "ng\n" || got[1] != "ng\n" {
		t.Errorf("the driver sent %q, want the rest of each heartbeat", got)
	}
	for !c.IsAborted() && r.now < start+10*every {
		r.turn()
		c.CloseIfTimedOutAfterEmptyRead()
	}
	if took := r.now - start; took < 3*every || took > 3*every+every/4 {
		t.Errorf("closed after %v, want 3 intervals", took)
	}
}

// If many heartbeats are due, a turn sends them to some chunks. While the driver has events left, the next chunks wait
// for at most maxSweepPause turns.
func TestHeartbeatsPauseWhileEventsLeft(t *testing.T) {
	r := newHeartbeatRecord(16*chunkSize, 100*time.Millisecond)
	r.now += time.Minute // the first slice visits all chunks
	if n := r.turn(); n != maxSweepActions {
		t.Fatalf("the first turn sent %d heartbeats, want %d", n, maxSweepActions)
	}
	r.eventsLeft = true
	for i := 1; i < maxSweepPause; i++ {
		if n := r.turn(); n != 0 {
			t.Fatalf("turn %d sent %d heartbeats while events were left, want none before turn %d", i, n, maxSweepPause)
		}
	}
	if n := r.turn(); n != maxSweepActions {
		t.Errorf("after %d turns with events left, %d heartbeats were sent, want %d", maxSweepPause, n, maxSweepActions)
	}
}
