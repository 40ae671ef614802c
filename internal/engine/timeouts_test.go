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
		if got := c.Watches(gone); got != test.want {
			t.Errorf("%s: %v", test.name, got)
		}
	}
}
