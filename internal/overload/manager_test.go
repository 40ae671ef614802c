package overload

import (
	"net/netip"
	"slices"
	"testing"
	"time"
)

func newTestManager() (m *Manager, now *time.Duration) {
	now = new(time.Duration)
	*now = time.Hour
	return NewManager(func() time.Duration { return *now }), now
}

func (m *Manager) activeActions() (all []Action) {
	for a := range NumActions {
		if m.IsActive(a) {
			all = append(all, a)
		}
	}
	return all
}

// updateFor gives m the same sample ten times a second.
func (m *Manager) updateFor(now *time.Duration, d time.Duration, s Sample) {
	for end := *now + d; *now < end; *now += 100 * time.Millisecond {
		m.Update(*now, &s)
	}
}

func TestActionsBeginInOrderOfMemoryAndEndInReverse(t *testing.T) {
	m, now := newTestManager()
	steps := []struct {
		memory float64
		want   []Action
	}{
		{0.80, nil},
		{0.86, []Action{ShortenIdle, PauseLargest}},
		{0.93, []Action{ShortenIdle, PauseLargest, EndKeepAlive}},
		{0.96, []Action{ShortenIdle, PauseLargest, EndKeepAlive, PauseAccepts}},
		{0.98, []Action{ShortenIdle, PauseLargest, EndKeepAlive, PauseAccepts, ShedRequests, CloseSlowest}},
		{0.90, []Action{ShortenIdle, PauseLargest, EndKeepAlive, PauseAccepts, RefuseConns, ShedRequests, CloseSlowest}},
		{0.86, []Action{ShortenIdle, PauseLargest, EndKeepAlive, PauseAccepts, RefuseConns}},
		{0.83, []Action{ShortenIdle, PauseLargest, EndKeepAlive}},
		{0.70, nil},
	}
	for _, step := range steps {
		m.updateFor(now, 2500*time.Millisecond, Sample{Memory: step.memory, CPUPressure: -1})
		if got := m.activeActions(); !slices.Equal(got, step.want) {
			t.Errorf("at %v of the memory: %v; expected %v", step.memory, got, step.want)
		}
	}
}

// TestActionsOfOtherSignals has too many connections for the descriptors, and a handler that blocks its loop while the
// CPUs are idle.
func TestActionsOfOtherSignals(t *testing.T) {
	for _, c := range []struct {
		sample Sample
		want   []Action
	}{
		{Sample{Conns: 0.96, CPUPressure: -1}, []Action{ShortenIdle}},
		{Sample{Lag: time.Second, CPUPressure: 0.01}, nil},
	} {
		m, now := newTestManager()
		m.updateFor(now, 10*time.Second, c.sample)
		if got := m.activeActions(); !slices.Equal(got, c.want) {
			t.Errorf("%+v: %v; expected %v", c.sample, got, c.want)
		}
	}
}

func TestActionsLastForEndTime(t *testing.T) {
	m, now := newTestManager()
	changes := 0
	for i := range 40 { // the signal alternates from sample to sample
		memory := 0.96
		if i%2 == 1 {
			memory = 0.5
		}
		*now += 100 * time.Millisecond
		if m.Update(*now, &Sample{Memory: memory, CPUPressure: -1}) {
			changes++
		}
	}
	if changes != 1 {
		t.Errorf("the actions have changed %d times; expected once", changes)
	}
}

func TestLagPausesAcceptsThenRefuses(t *testing.T) {
	m, now := newTestManager()
	lagging := Sample{Lag: 150 * time.Millisecond, CPUPressure: 0.9}
	m.updateFor(now, 200*time.Millisecond, lagging)
	m.updateFor(now, 300*time.Millisecond, Sample{CPUPressure: 0.9})
	if got := m.activeActions(); got != nil {
		t.Errorf("after a lag of 200 ms: %v; expected no action", got)
	}
	m.updateFor(now, 500*time.Millisecond, lagging)
	if got := m.activeActions(); !slices.Equal(got, []Action{PauseAccepts}) || !m.AdmitConn(netip.Addr{}) {
		t.Errorf("while lagging: %v; expected pause_accepts", got)
	}
	m.updateFor(now, refuseAfter, lagging)
	admitted := 0
	for range 1000 {
		if m.AdmitConn(netip.Addr{}) {
			admitted++
		}
	}
	if admitted > 200 {
		t.Error("accepting was paused for 5 s, and connections are still not refused")
	}
	m.updateFor(now, 2500*time.Millisecond, Sample{CPUPressure: 0.9})
	if got := m.activeActions(); got != nil {
		t.Errorf("after the lag has ended: %v; expected no action", got)
	}
}

func TestPauseLargestLowersHighWater(t *testing.T) {
	m, now := newTestManager()
	if got := m.UnsentHighWater(65536); got != 65536 {
		t.Errorf("without pressure, the high water is %d; expected 65536", got)
	}
	for _, c := range []struct{ conns, want int64 }{{1000, 64 << 10}, {10_000, 8192 - 1}, {100_000, 4096}} {
		m.updateFor(now, time.Second, Sample{Buffers: 0.7, NumConns: c.conns, MaxBuffered: 163_830_000, CPUPressure: -1})
		if got := m.UnsentHighWater(65536); got < int(c.want) || got > int(c.want)+1 {
			t.Errorf("with %d connections, the high water is %d; expected %d", c.conns, got, c.want)
		}
	}
}

// TestLagRatioSettles models loops whose lag is that of the work which is not shed.
func TestLagRatioSettles(t *testing.T) {
	m, now := newTestManager()
	shedCost := 0.1 // of a request that is shed, relative to one that is not
	lag := 0.
	for i := range 600 {
		load := 0.5
		if i >= 20 && i < 400 {
			load = 3 // times what keeps the lag at 100 ms
		}
		ratio := 0.
		if m.Gate.mode.Load()&dicing != 0 {
			ratio = float64(m.Gate.ratio.Load()) / (1 << 16)
		}
		lag = load * 100e6 * (1 - ratio + ratio*shedCost)
		*now += 100 * time.Millisecond
		m.Update(*now, &Sample{Lag: time.Duration(lag), CPUPressure: 0.9})
		if i == 399 && (lag < 80e6 || lag > 130e6) {
			t.Errorf("under load, the lag is %v; expected about 100 ms", time.Duration(lag))
		}
	}
	if m.IsShedding() || m.IsActive(ShedRequests) {
		t.Error("requests are still shed after the load has ended")
	}
}

func TestMemoryShedsAllButCritical(t *testing.T) {
	m, now := newTestManager()
	m.updateFor(now, time.Second, Sample{Memory: 0.98, CPUPressure: -1})
	for range 100 {
		if m.Admit(nil, netip.Addr{}, Normal) {
			t.Fatal("a request is admitted at 98 % of the memory")
		}
	}
	if !m.Admit(nil, netip.Addr{}, Critical) {
		t.Error("a critical request is shed")
	}
	if n := m.Shed(ByMemory); n != 100 {
		t.Errorf("%d are counted as shed because of memory; expected 100", n)
	}
}
