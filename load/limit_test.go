package load

import (
	"slices"
	"testing"
	"time"
)

// quietRun is one that nothing has happened in.
func quietRun() *run {
	cfg := Config{}.filled()
	return &run{cfg: cfg, traffic: newTraffic(&cfg)}
}

// limitsOf are the walls of a result on a machine on which programs stalled.
func limitsOf(t *testing.T, of *Result, stalled time.Duration) (walls []string) {
	t.Helper()
	r := quietRun()
	r.window, r.stalled = of.Window, stalled
	for _, l := range r.limits(of) {
		if l.Evidence == "" || l.Advice == "" {
			t.Errorf("a limit without evidence or advice: %+v", l)
		}
		walls = append(walls, l.Wall)
	}
	return walls
}

// TestLimitsOf finds walls from where they begin, and not in what is too little to
// tell.
func TestLimitsOf(t *testing.T) {
	late := func(count int64, p99 time.Duration) *Result {
		return &Result{Window: time.Second, Late: &Latency{Count: count, P99: p99}}
	}
	busy := func(window, used time.Duration) *Result {
		return &Result{Window: window, CPUs: 1, UserCPU: used}
	}
	for _, test := range []struct {
		name    string
		of      *Result
		stalled time.Duration
		want    []string
	}{
		{"nothing", &Result{Window: time.Second}, 0, nil},
		{"busy", busy(shortest, shortest), 0, []string{"cpu"}},
		{"busy in a short window", busy(shortest-1, 9*time.Second), 0, nil},
		{"starved", &Result{Window: time.Second}, 201 * time.Millisecond, []string{"cpu pressure"}},
		{"not quite starved", &Result{Window: time.Second}, 200 * time.Millisecond, nil},
		{"starved in a short window", &Result{Window: shortest - 1}, shortest, nil},
		{"the kernel tells at the beginning only", &Result{Window: time.Second}, -time.Hour, nil},
		{"late", late(leastLate, veryLateSend), 0, []string{"late sends"}},
		{"few late", late(leastLate-1, time.Second), 0, nil},
		{"all of them", &Result{Window: time.Second, CPUs: 1, SystemCPU: time.Second, Late: &Latency{Count: 1000, P99: time.Second}}, time.Second,
			[]string{"cpu", "cpu pressure", "late sends"}},
	} {
		if got := limitsOf(t, test.of, test.stalled); !slices.Equal(got, test.want) {
			t.Errorf("%s: limits %q, want %q", test.name, got, test.want)
		}
	}
}

// TestPressure is no more than all of the window.
func TestPressure(t *testing.T) {
	r := quietRun()
	r.window, r.stalled = time.Second, time.Minute
	if got := r.pressure(); got != 1 {
		t.Errorf("a share of %v, want 1", got)
	}
}
