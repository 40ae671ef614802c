package overload

import (
	"net/netip"
	"testing"
	"time"
	"unsafe"
)

func testSource(n int) netip.Addr {
	return netip.AddrFrom4([4]byte{10, byte(n >> 16), byte(n >> 8), byte(n)})
}

// startClosedLoop starts clients that send a request, wait for its end, and send the next one. After a rejection, they
// wait for 100 to 300 ms. finished counts the finished requests of each source.
func (s *server) startClosedLoop(source netip.Addr, clients int, finished map[netip.Addr]int) {
	send := func(source netip.Addr) { s.arrive(&request{source: source}, Normal) }
	wait := func(source netip.Addr) {
		s.after(100*time.Millisecond+time.Duration(s.random.Int64N(int64(200*time.Millisecond))), func() { send(source) })
	}
	for range clients {
		wait(source)
	}
	s.finished = func(r *request) {
		finished[r.source]++
		send(r.source)
	}
	s.shed = func(r *request) { wait(r.source) }
}

// TestHeavySourceGetsOnlyItsShare has a source with 10,000 clients beside 100 sources with 10 clients each.
func TestHeavySourceGetsOnlyItsShare(t *testing.T) {
	const lights = 100
	heavy := testSource(0)
	for _, c := range []struct{ weight, minShares, maxShares, seconds float64 }{{1, 0.5, 3, 10}, {50, 40, 60, 3}, {0, 95, 101, 3}} {
		s := newServer(2, time.Millisecond, 11)
		s.gate.shares.weights = newSourceWeights(map[netip.Prefix]int{netip.PrefixFrom(heavy, 24): int(c.weight)})
		finished := make(map[netip.Addr]int)
		s.startClosedLoop(heavy, 10_000, finished)
		for i := range lights {
			s.startClosedLoop(testSource(1000+i), 10, finished)
		}
		s.runUntil(2 * time.Second)
		clear(finished)
		s.runUntil(s.now + time.Duration(c.seconds*float64(time.Second)))
		all, poor := 0, 0
		for _, n := range finished {
			all += n
		}
		if float64(all) < 0.95*2000*c.seconds {
			t.Errorf("weight %v: %d requests finish; expected at least 0.95 of the capacity", c.weight, all)
		}
		share := float64(all) / (lights + max(c.weight, 1))
		if got := float64(finished[heavy]) / share; got < c.minShares || got > c.maxShares {
			t.Errorf("weight %v: the heavy source gets %.2f shares; expected %v to %v", c.weight, got, c.minShares, c.maxShares)
		}
		for i := range lights {
			if float64(finished[testSource(1000+i)]) < 0.8*share {
				poor++
			}
		}
		if c.weight == 1 && poor > 1 { // one may collide with another light source in each row
			t.Errorf("%d light sources get less than 0.8 of their share; expected at most one", poor)
		}
	}
}

// TestLagShedsHeavySourceOnly has a source with as many requests as 50 others together.
func TestLagShedsHeavySourceOnly(t *testing.T) {
	m, now := newTestManager()
	m.setShedRatio(0.45, ByLoopLag)
	heavy, light := 0, 0
	for i := range 100 {
		m.Tick(*now)
		*now += shareInterval
		if i == 50 {
			heavy, light = 0, 0
		}
		for n := range 1000 {
			if m.Admit(nil, testSource(0), Normal) {
				heavy++
			}
			if m.Admit(nil, testSource(1+n%50), Normal) {
				light++
			}
		}
	}
	if light < 49_000 || heavy < 3000 || heavy > 7000 {
		t.Errorf("admitted: %d of 50,000 from 50 light sources, %d of 50,000 from a heavy one; expected all, and about 5,000", light, heavy)
	}
	m.setShedRatio(0, ByLoopLag)
	m.Tick(*now)
	if m.shares.current.Load() != nil || m.shares.next.Load() != nil {
		t.Error("a sketch is kept after the overload")
	}
}

// TestFairConnections has a storm of connections from one source while the event loops lag.
func TestFairConnections(t *testing.T) {
	m, now := newTestManager()
	lagging := Sample{Lag: 150 * time.Millisecond, CPUPressure: 0.9}
	m.updateFor(now, 2*refuseAfter, lagging)
	storm, honest := 0, 0
	for range 100 {
		m.updateFor(now, shareInterval, lagging)
		for n := range 1000 {
			if m.AdmitConn(testSource(0)) {
				storm++
			}
			if n%100 == 0 && m.AdmitConn(testSource(1+n/100)) {
				honest++
			}
		}
	}
	if honest < 950 || storm < 2500 || storm > 6500 || !m.AdmitProxy() {
		t.Errorf("admitted: %d of 1,000 from ten honest sources, %d of 100,000 from a storm, a proxy: %v; expected 950, about 4,000, true", honest, storm, m.AdmitProxy())
	}
	m.updateFor(now, time.Second, Sample{Memory: 0.96, CPUPressure: -1})
	if m.AdmitConn(testSource(1)) || m.AdmitProxy() {
		t.Error("a connection is admitted while the memory is short; expected none")
	}
}

// TestCollisionsEnd has so many heavy sources that some light sources collide with one in each row.
func TestCollisionsEnd(t *testing.T) {
	var f fairShares
	now := time.Hour
	run := func(d time.Duration) {
		for end := now + d; now < end; now += shareInterval {
			for n := range 3000 {
				f.countAndAdmitByChance(testSource(1000+n), fullProbability/10)
			}
			for n := range 40_000 {
				f.countAndAdmitByChance(testSource(n%400), fullProbability/10)
			}
			f.updateIfDue(now, fullProbability/10, false)
		}
	}
	victims := func() (all []netip.Addr) {
		s := f.current.Load()
		for n := range 3000 {
			source := testSource(1000 + n)
			key := pickOneOfSourceKeys(source, 1)
			if s.countAndGetProbability(&key) < fullProbability*8/10 {
				all = append(all, source)
			}
		}
		return all
	}
	run(sketchLifetime / 2)
	first := victims()
	if len(first) == 0 || len(first) > 300 {
		t.Fatalf("%d of 3,000 light sources collide; expected some, and at most 300", len(first))
	}
	run(2 * sketchLifetime)
	still := 0
	for _, a := range victims() {
		for _, b := range first {
			if a == b {
				still++
			}
		}
	}
	if still > len(first)/3 {
		t.Errorf("%d of %d collisions last for two lifetimes; expected at most a third", still, len(first))
	}
}

func TestFairSharesMemoryIsBounded(t *testing.T) {
	var f fairShares
	f.updateIfDue(time.Hour, fullProbability/2, false)
	f.updateIfDue(2*time.Hour, fullProbability/2, false)
	n := 0
	if allocs := testing.AllocsPerRun(100_000, func() { f.countAndAdmitByChance(testSource(n), fullProbability/2); n++ }); allocs > 0 {
		t.Errorf("%v allocations per arrival of a new source; expected 0", allocs)
	}
	if size := unsafe.Sizeof(sourceSketch{}); size > 64<<10+64 {
		t.Errorf("a sketch has %d bytes; expected at most 64 KiB", size)
	}
}

func TestSourceKeyAndWeight(t *testing.T) {
	weights := newSourceWeights(map[netip.Prefix]int{
		netip.MustParsePrefix("10.0.0.0/8"): 3, netip.MustParsePrefix("::ffff:10.1.0.0/112"): 0, netip.MustParsePrefix("2001:db8::/32"): 7,
	})
	for source, want := range map[string]uint32{
		"10.2.3.4": 3, "10.1.2.3": 0, "::ffff:10.1.2.3": 0, "9.9.9.9": 1, "2001:db8::1%eth0": 7, "2001:db9::1": 1,
	} {
		if got := weights.weightOf(netip.MustParseAddr(source)); got != want {
			t.Errorf("the weight of %s is %d; expected %d", source, got, want)
		}
	}
	for _, c := range []struct {
		a, b string
		same bool
	}{
		{"2001:db9::1", "2001:db9::ffff:2", true}, {"2001:db9::1", "2001:db9:0:1::1", false},
		{"10.0.0.1", "::ffff:10.0.0.1", true}, {"10.0.0.1", "10.0.0.2", false},
	} {
		if same := pickOneOfSourceKeys(netip.MustParseAddr(c.a), 1) == pickOneOfSourceKeys(netip.MustParseAddr(c.b), 1); same != c.same {
			t.Errorf("%s and %s are one source: %v; expected %v", c.a, c.b, same, c.same)
		}
	}
}
