package offer

import (
	"testing"
	"testing/synctest"
	"time"
)

// TestShapes has the work of each shape, and of what flags make of it.
func TestShapes(t *testing.T) {
	const iterations = 1000
	for _, c := range []struct {
		plan Plan
		want task
	}{
		{Plan{Work: Published, Wait: -1, CPU: -1, Bytes: -1}, task{20 * time.Millisecond, 0, 500_000}},
		{Plan{Work: Published, Wait: 0, CPU: time.Second, Bytes: 7}, task{0, 1000 * iterations, 7}},
		{Plan{Work: CPU, Wait: -1, CPU: -1, Bytes: -1}, task{0, iterations, 0}},
		{Plan{Work: CPU, Wait: time.Second, CPU: 0, Bytes: 0}, task{time.Second, 0, 0}},
		{Plan{Work: CPU, Wait: -1, CPU: 1, Bytes: -1}, task{0, 1, 0}},
		{Plan{Work: CPU, Wait: -1, CPU: maxTime, Bytes: -1}, task{0, 3600 * 1000 * iterations, 0}},
	} {
		if got := c.plan.tasks(iterations).of(5); got != c.want {
			t.Errorf("%+v: got %+v, want %+v", c.plan, got, c.want)
		}
	}
	greatest := Plan{Work: CPU, CPU: maxTime}
	greatest.tasks(maxIterate) // does not overflow
}

// TestMixed has each kind of job in its share, the same for the same seed.
func TestMixed(t *testing.T) {
	const jobs = 100_000
	p := Plan{Work: Mixed, Wait: -1, CPU: -1, Bytes: -1, Seed: 1}
	one, again := p.tasks(1000), p.tasks(1000)
	p.Seed = 2
	two := p.tasks(1000)
	counts := map[task]int{}
	same := 0
	for i := range uint64(jobs) {
		kind := one.of(i)
		counts[kind]++
		if kind != again.of(i) {
			t.Fatalf("job %d: the same seed, but other work", i)
		}
		if kind == two.of(i) {
			same++
		}
	}
	for kind, share := range map[task]float64{
		{rounds: 200}: 0.80,
		{wait: 5 * time.Millisecond, rounds: 100}:     0.19,
		{wait: 50 * time.Millisecond, bytes: 100_000}: 0.01,
	} {
		if got := float64(counts[kind]) / jobs; got < share*0.93 || got > share*1.07 {
			t.Errorf("%+v: a share of %v, want %v", kind, got, share)
		}
	}
	if len(counts) != 3 || same > jobs*3/4 {
		t.Errorf("%d kinds, want 3; %d of %d the same with another seed", len(counts), same, jobs)
	}
}

// TestTask waits as long as it is to, and computes.
func TestTask(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		begin := time.Now()
		if result := (task{wait: time.Second, rounds: 10, bytes: 3 * page}).do(); result != spin(10) {
			t.Errorf("computed %d, want %d", result, spin(10))
		}
		if took := time.Since(begin); took != time.Second {
			t.Errorf("it took %v, want 1s", took)
		}
	})
	if spin(10) == spin(11) {
		t.Error("a round more changes nothing")
	}
}

// TestIterations has so many rounds take about a millisecond. The machine may be
// busy now and then.
func TestIterations(t *testing.T) {
	n := Iterations()
	best := time.Hour
	for range 100 {
		begin := time.Now()
		keep(spin(n))
		best = min(best, time.Since(begin))
	}
	if best < time.Millisecond/4 || best > 4*time.Millisecond {
		t.Errorf("%d rounds took %v at best, want about 1ms", n, best)
	}
}
