package pool

import (
	"fmt"
	"math"
	"testing"
	"time"
)

const (
	ms    = 1e-3
	seeds = 3
)

// drive runs a climber on a model for some seconds more, and checks its bounds.
// It returns the throughput and the mean limit.
func drive(t testing.TB, c *climber, m *model, seconds float64) (rate, mean float64) {
	t.Helper()
	const tick = 0.01
	before, start, ticks := m.saw.finished, m.now, int(math.Round(seconds/tick))
	for i := range ticks {
		m.limit = c.observe(m.run(start + float64(i+1)*tick))
		if m.limit < c.minWorkers || m.limit > c.maxWorkers {
			t.Fatalf("at %.2f s the limit is %d, out of %d to %d", m.now, m.limit, c.minWorkers, c.maxWorkers)
		}
		mean += float64(m.limit) / float64(ticks)
	}
	return float64(m.saw.finished-before) / (m.now - start), mean
}

// TestClimberSettles offers more work of each kind than can be run, and looks
// where the limit goes and what throughput is, compared with what no fixed limit
// could surpass.
func TestClimberSettles(t *testing.T) {
	for _, k := range []struct {
		name   string
		cores  int
		least  int
		most   int
		kind   kind
		best   float64 // jobs a second
		lo, hi float64 // of the mean limit
		peak   int     // the most workers at any time
	}{
		{"computes, 1 core", 1, 1, 1000, kind{cpu: ms, dist: even}, 1000, 1, 3, 16},
		{"computes, 8 cores", 8, 1, 1000, kind{cpu: 2 * ms, dist: exponential}, 4000, 7, 16, 64},
		{"computes, 64 cores", 64, 1, 1000, kind{cpu: 10 * ms, dist: exponential}, 6400, 56, 256, 512},
		{"computes for long", 2, 1, 1000, kind{cpu: 20 * ms, dist: exponential}, 100, 2, 12, 64},
		{"computes at random", 2, 1, 1000, kind{cpu: ms, dist: exponential}, 2000, 2, 4, 32},
		{"computes in turns", 2, 1, 1000, kind{cpu: 5 * ms, dist: exponential, turns: true}, 400, 2, 12, 48},
		{"computes, heavy tail", 2, 1, 1000, kind{cpu: ms, dist: heavy}, 2000, 2, 100, 512},
		{"computes, many cost", 4, 1, 1000, kind{cpu: ms, dist: exponential, thrash: 0.02}, 4000, 3.5, 8, 32},
		{"a microsecond", 2, 1, 1000, kind{cpu: ms / 1000, fluid: true}, 2e6, 2, 4, 32},
		{"waits at random", 2, 1, 128, kind{wait: 20 * ms, dist: exponential}, 6400, 127.5, 128, 128},
		{"mixed, at random", 2, 1, 1000, kind{cpu: ms, wait: 20 * ms, dist: exponential}, 2000, 42, 110, 512},
		{"mixed, heavy tail", 2, 1, 1000, kind{cpu: ms, wait: 20 * ms, dist: heavy}, 2000, 42, 400, 1000},
		{"computes beside many", 2, 1, 1000, kind{cpu: ms, hogs: 6, dist: exponential}, 600, 1, 10, 32},
		{"waits beside many that compute", 2, 1, 128, kind{wait: 20 * ms, hogs: 6}, 6400, 127.5, 128, 128},
		{"fixed", 2, 10, 10, kind{wait: 20 * ms}, 500, 10, 10, 10},
		{"waits, as published", 2, 1, 5000, kind{cpu: 0.045 * ms, wait: 20 * ms, dist: even}, 2e3 / 0.045, 900, 1200, 1400},
		{"at least", 2, 50, 1000, kind{cpu: ms, dist: even}, 2000, 50, 100, 400},
	} {
		for seed := range uint64(seeds) {
			t.Run(fmt.Sprintf("%s/%d", k.name, seed), func(t *testing.T) {
				t.Parallel()
				m := newModel(seed, k.cores, phase{kind: k.kind})
				c := newClimber(k.least, k.most, 2)
				drive(t, &c, m, 4)
				seconds := max(4, 2000/k.best) // for enough jobs to count
				rate, mean := drive(t, &c, m, seconds)
				t.Logf("limit %.1f (%d), at most %d workers, throughput %.1f %%", mean, c.limit, m.most, 100*rate/k.best)
				if mean < k.lo-0.1 || mean > k.hi+0.1 {
					t.Errorf("the limit is %.1f in the mean, not %v to %v", mean, k.lo, k.hi)
				}
				if m.most > k.peak {
					t.Errorf("there were %d workers once, more than %d", m.most, k.peak)
				}
				if rate < 0.9*k.best {
					t.Errorf("%.0f jobs a second ended, less than 90 %% of %.0f", rate, k.best)
				}
			})
		}
	}
}

// TestClimberFollows changes the kind of the work and back.
func TestClimberFollows(t *testing.T) {
	t.Parallel()
	waits, computes := kind{wait: 20 * ms, dist: even}, kind{cpu: ms, dist: even}
	mixed := kind{cpu: ms, wait: 20 * ms, dist: even}
	for seed := range uint64(5) {
		m := newModel(seed, 2, phase{kind: waits, until: 3}, phase{kind: computes, until: 10}, phase{kind: waits, until: 13}, phase{kind: mixed, until: 20}, phase{kind: computes, until: 35})
		c := newClimber(1, 128, 2)
		for _, p := range []struct{ settle, seconds, best, lo, hi float64 }{
			{1, 2, 6400, 100, 128},
			{5, 2, 2000, 1.9, 24},
			{1, 2, 6400, 100, 128},
			{5, 2, 2000, 42, 128},
			{13, 2, 2000, 1.9, 8},
		} {
			drive(t, &c, m, p.settle)
			rate, mean := drive(t, &c, m, p.seconds)
			t.Logf("seed %d, at %.0f s: limit %.1f, throughput %.1f %%", seed, m.now, mean, 100*rate/p.best)
			if mean < p.lo || mean > p.hi+0.1 || rate < 0.8*p.best {
				t.Errorf("seed %d, at %.0f s: the limit is %.1f in the mean, not %v to %v, or throughput %.0f less than 80 %% of %.0f",
					seed, m.now, mean, p.lo, p.hi, rate, p.best)
			}
		}
	}
}

// TestClimberSlowerJobs has jobs wait for longer, which is not for being many: more workers
// are needed.
func TestClimberSlowerJobs(t *testing.T) {
	t.Parallel()
	const most, cpu = 2000, 0.05 * ms
	for seed := range uint64(seeds) {
		m := newModel(seed, 2, phase{kind: kind{cpu: cpu, wait: 8 * ms, dist: even}, until: 5}, phase{kind: kind{cpu: cpu, wait: 14 * ms, dist: even}})
		c := newClimber(1, most, 2)
		_, before := drive(t, &c, m, 5)
		drive(t, &c, m, 6)
		rate, mean := drive(t, &c, m, 3)
		if best := 2 / cpu; rate < 0.85*best {
			t.Errorf("seed %d: %.0f jobs a second ended, less than 85 %% of %.0f; the limit is %.1f in the mean, and was %.1f", seed, rate, best, mean, before)
		}
	}
}

// TestClimberLeastTooLow has the least service time be lower by chance than jobs can take:
// that is found out.
func TestClimberLeastTooLow(t *testing.T) {
	t.Parallel()
	const most, wait = 400, 40 * ms
	m := newModel(1, 2, phase{kind: kind{wait: wait}})
	c := newClimber(1, most, most/2)
	for c.least = wait / 1.18; m.now < 60; {
		m.limit = c.observe(m.run(m.now + 0.01))
	}
	if c.limit != most {
		t.Errorf("the limit is %d after a minute, not %d", c.limit, most)
	}
}

// TestClimberOffered offers less than can be run: no more workers than keep up
// with it.
func TestClimberOffered(t *testing.T) {
	t.Parallel()
	for _, k := range []struct {
		name   string
		kind   kind
		rate   float64
		burst  int
		lo, hi int // of the limit
		peak   int
	}{
		{"seldom", kind{wait: 20 * ms}, 10, 1, 2, 8, 8},
		{"waits", kind{wait: 20 * ms, dist: even}, 1000, 1, 20, 256, 128},
		{"computes, half", kind{cpu: ms, dist: exponential}, 1000, 1, 1, 8, 16},
		{"computes, nearly all", kind{cpu: ms, dist: exponential}, 1700, 1, 2, 16, 64},
		{"mixed", kind{cpu: ms, wait: 20 * ms, dist: even}, 1000, 1, 20, 128, 128},
		{"bursts that compute", kind{cpu: ms, dist: even}, 2, 100, 1, 128, 128},
		{"bursts that wait", kind{wait: 20 * ms, dist: even}, 2, 100, 16, 256, 128},
	} {
		for seed := range uint64(seeds) {
			m := newModel(seed, 2, phase{kind: k.kind, until: 1e9, rate: k.rate, burst: k.burst})
			c := newClimber(1, 1000, 2)
			drive(t, &c, m, 4)
			rate, mean := drive(t, &c, m, 6)
			t.Logf("%s/%d: limit %.1f (%d), at most %d workers, throughput %.0f, %d wait", k.name, seed, mean, c.limit, m.most, rate, len(m.queue))
			if c.limit < k.lo || c.limit > k.hi || m.most > k.peak || len(m.queue) > 100 {
				t.Errorf("%s/%d: the limit is %d, not %d to %d; or there were %d workers, more than %d; or %d jobs wait",
					k.name, seed, c.limit, k.lo, k.hi, m.most, k.peak, len(m.queue))
			}
		}
	}
}

// TestClimberUnused leaves a limit unused: it stays for a while, and then decays
// toward what is used.
func TestClimberUnused(t *testing.T) {
	for _, busy := range []int{0, 20} {
		c := newClimber(1, 1000, 4)
		c.setLimit(800)
		c.rebase()
		r := reading{workers: 30}
		for ; r.at < 5*time.Minute; r.at += 10 * time.Millisecond {
			if r.busy = 0; r.at%time.Second == 0 {
				r.busy = busy
			}
			if limit := c.observe(r); r.at < 10*time.Second && limit != 800 {
				t.Fatalf("the limit is %d after %v", limit, r.at)
			}
		}
		if want := max(4, 2*busy); c.limit != want {
			t.Errorf("with %d busy workers the limit is %d after 5 minutes, not %d", busy, c.limit, want)
		}
	}
	c := newClimber(1, 1000, 4)
	c.setLimit(800)
	c.rebase()
	c.observe(reading{at: time.Second, waits: 1})
	if limit := c.observe(reading{at: time.Hour, waits: 1}); limit != 4 {
		t.Errorf("the limit is %d after an idle hour, not 4", limit)
	}
}

// FuzzClimber feeds readings that may make no sense: the limit is always within
// the bounds.
func FuzzClimber(f *testing.F) {
	f.Add(1, 100, 2, []byte("\x00\x10\xff\x01\x02\x03\x80\x40\x20abcdefghijklmnopqrstuvwxyz"))
	f.Add(math.MaxInt/2, math.MaxInt, math.MaxInt/2, []byte("\x09\x00\xff\x01\x09\x03"))
	f.Add(0, -5, math.MaxInt/2, []byte{255, 255, 0, 0, 255, 127, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16})
	f.Fuzz(func(t *testing.T, least, most, start int, data []byte) {
		c := newClimber(least, most, start)
		var r reading
		data = data[:min(len(data), 1000)]
		next := func() int64 {
			if len(data) < 2 {
				data = nil
				return 0
			}
			v, shift := int64(int8(data[0])), data[1]%64
			data = data[2:]
			return v << shift
		}
		for len(data) > 0 {
			switch op := next(); op & 15 {
			case 0, 1:
				c.setCeiling(int(next()))
			case 2:
				r.at = time.Duration(next())
			case 3:
				r.finished, r.timed, r.refused = uint64(next()), uint64(next()), uint64(next())
			case 4:
				r.service = time.Duration(next())
			case 5, 6:
				r.workers, r.busy = int(next()), int(next())
			case 7, 8:
				r.waits = time.Duration(next())
			default: // some readings that make more sense
				for range 1 + op>>4&63 {
					r.at += 10 * time.Millisecond
					r.finished += uint64(op & 63)
					r.workers = c.limit
					check(t, &c, r)
				}
			}
			check(t, &c, r)
		}
	})
}

// check makes a step and looks at what it left.
func check(t *testing.T, c *climber, r reading) {
	t.Helper()
	limit := c.observe(r)
	if limit < c.minWorkers || limit > c.maxWorkers || limit < 1 || c.baseline < c.minWorkers || c.baseline > c.maxWorkers || c.maxWorkers > maxLimit {
		t.Fatalf("the limit is %d and its base %d, out of %d to %d, after %+v", limit, c.baseline, c.minWorkers, c.maxWorkers, r)
	}
	if limit2 := c.observe(r); limit2 != limit {
		t.Fatalf("the limit is %d and then %d, for the same reading %+v", limit, limit2, r)
	}
	for _, v := range []float64{c.meanService, c.baseSample.rate(), c.trial.rate(), c.deviation.rate(), c.baseSample.variance(), c.trial.variance(), c.trial.rounds} {
		if math.IsNaN(v) || math.IsInf(v, 0) {
			t.Fatalf("%v in %+v after %+v", v, c, r)
		}
	}
	if c.rest < minRest || c.rest > maxRest || c.patience < minPatience || c.patience > maxPatience || c.step < 0 || c.step >= len(steps) {
		t.Fatalf("out of bounds: %+v after %+v", c, r)
	}
}
