package engine

import (
	"testing"
	"time"
)

func TestWatches(t *testing.T) {
	const gone = 3 * time.Minute
	for _, test := range []struct {
		name        string
		idle, beats time.Duration
		want        bool
	}{
		{"nothing", 0, 0, false},
		{"a short idle time", gone, 0, true},
		{"a long idle time", gone + 1, 0, false},
		{"heartbeats", 0, time.Minute, true},
		{"slow heartbeats", 0, time.Minute + 1, false},
	} {
		c := Config{Limits: Limits{IdleTimeout: test.idle}, Heartbeat: Heartbeat{Every: test.beats, MaxMissed: 2}}
		if got := c.DetectsDeadPeersWithin(gone); got != test.want {
			t.Errorf("%s: %v", test.name, got)
		}
	}
}

// TestHeartbeatAnswered has a peer that answers all heartbeats except the last two.
func TestHeartbeatAnswered(t *testing.T) {
	d := newManualConn(t, &recordingHandler{})
	d.host.Heartbeat = Heartbeat{Every: time.Minute, MaxMissed: 2, Send: func(c *Conn) { c.Write([]byte("?")) }}
	minute := func() {
		d.now += time.Minute + time.Second
		d.host.SetClock(d.now)
		d.CheckTimeouts(d.now)
		if d.hasOutput() {
			d.OnSent(len(d.Output()))
		}
	}
	for range 5 {
		minute()
		sent := d.unansweredHeartbeats()
		d.OnRead([]byte("x"))
		if left := d.unansweredHeartbeats(); sent != 1 || left != 0 {
			t.Fatalf("%d heartbeats are unanswered after one, %d after an answer", sent, left)
		}
	}
	minute()
	minute()
	minute()
	d.CloseIfTimedOutAfterEmptyRead() // the last read has found nothing
	d.wantClosed(ErrHeartbeatTimeout)
}
