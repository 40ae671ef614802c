package load

import (
	"net"
	"strings"
	"testing"
	"time"
)

// A window continues while the rate varies, for at most three times Duration. Agents test one that ends earlier.
func TestSteady(t *testing.T) {
	t.Parallel()
	growing := func(conn net.Conn, _ int) { // at whatever times it is looked
		tick := time.NewTicker(10 * time.Millisecond)
		defer tick.Stop()
		for n := 16.0; writeText(conn, strings.Repeat("x", int(n))) == nil; n *= 1.5 {
			<-tick.C
		}
	}
	cfg := Config{Target: startTestServer(t, growing).addr(), Connections: 1, Flood: true, Steady: true, Duration: 100 * time.Millisecond}
	r, err := Run(t.Context(), cfg)
	if err != nil || r.Window != 3*cfg.Duration || r.Variation <= SteadyVariation {
		t.Errorf("a rate that grows: %v, a window of %v, varied by %.2f; want %v and more than %v", err, r.Window, r.Variation, 3*cfg.Duration, SteadyVariation)
	}
}

// The variation is that of the last Duration, and unknown with fewer than two parts.
func TestVariation(t *testing.T) {
	p := rateSampler{interval: time.Second}
	at, bytes := time.Duration(0), int64(0)
	add := func(more int64) {
		at, bytes = at+time.Second, bytes+more
		p.addRateIfIntervalPassed(at, bytes)
	}
	add(100)
	p.addRateIfIntervalPassed(at+time.Millisecond, 5000) // within a part
	if v := p.Variation(); v != 0 || p.Steady() {
		t.Errorf("one part varies by %v", v)
	}
	for range steadyParts - 1 {
		add(300)
	}
	if v := p.Variation(); v < 0.22 || v > 0.23 || !p.Steady() { // 63.2 of 280
		t.Errorf("one part of 100 and nine of 300 vary by %v, want 0.226", v)
	}
	add(900)
	if v := p.Variation(); v <= SteadyVariation || p.Steady() {
		t.Errorf("nine parts of 300 and one of 900 vary by %v", v)
	}
	for range steadyParts {
		add(500)
	}
	if v := p.Variation(); v > 1e-9 || !p.Steady() {
		t.Errorf("ten equal parts vary by %v", v)
	}
}
