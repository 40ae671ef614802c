package pool

import (
	"context"
	"testing"
	"testing/synctest"
	"time"
)

// The room is what the busy workers take within three quarters of the target, while jobs
// find none, and all of the capacity once there is slack.
func TestAdmission(t *testing.T) {
	const capacity = 1000
	begin := func() (*overload, *admission, func(refused bool, queued int)) {
		o := &overload{interval: int64(100 * time.Millisecond), shedding: true}
		o.target.Store(int64(20 * time.Millisecond))
		o.until.Store(int64(50 * time.Millisecond))
		a := &admission{room: capacity}
		r := reading{busy: 40}
		return o, a, func(refused bool, queued int) {
			if r.at += tick; refused {
				r.refused++
			}
			a.observe(o, r, queued, capacity, 10*time.Millisecond)
		}
	}
	o, a, step := begin()
	for i := range 100 {
		step(true, 50)
		if want := 60; a.room != want { // 40 workers, 100 jobs a second each, 15 ms
			t.Fatalf("after %d ticks with refusals there is room for %d, want %d", i+1, a.room, want)
		}
	}
	for range 100 * time.Millisecond / tick {
		step(false, 50)
	}
	if a.room != capacity || o.active(int64(1110*time.Millisecond)) {
		t.Errorf("nothing was refused for an interval: room for %d, want %d, and no overload", a.room, capacity)
	}

	// Bursts that the workers have done with soon: one tick in five refuses something.
	_, a, step = begin()
	for i := 0; a.room < capacity || i == 0; i++ {
		if i == 20 {
			t.Fatalf("after %d ticks with bursts there is room for %d, want %d", i, a.room, capacity)
		}
		step(i%5 == 0, 0)
	}

	// What is not known, and one that may not shed, bounds nothing.
	o, a, _ = begin()
	a.observe(o, reading{at: tick, busy: 40, refused: 1}, 50, capacity, 0)
	o.shedding = false
	a.observe(o, reading{at: 2 * tick, busy: 40, refused: 2}, 50, capacity, 10*time.Millisecond)
	if a.room != capacity {
		t.Errorf("room for %d, want %d", a.room, capacity)
	}
}

// The default target follows the jobs, from 5 ms to the interval; one that was set stays.
func TestTargetFollows(t *testing.T) {
	for _, c := range []struct{ set, service, want time.Duration }{
		{0, time.Millisecond, 5 * time.Millisecond},
		{0, 30 * time.Millisecond, 30 * time.Millisecond},
		{0, time.Second, 100 * time.Millisecond},
		{5 * time.Millisecond, 30 * time.Millisecond, 5 * time.Millisecond},
	} {
		synctest.Test(t, func(t *testing.T) {
			p, err := NewWithBacklog(Config{Max: 4, Target: c.set}, 0)
			if err != nil {
				t.Fatal(err)
			}
			for range 100 {
				if err := p.TrySubmit(func(context.Context) { time.Sleep(c.service) }); err != nil {
					t.Fatal(err)
				}
			}
			time.Sleep(20 * c.service)
			synctest.Wait()
			if got := time.Duration(p.overload.target.Load()); got != c.want {
				t.Errorf("Target %v, jobs of %v: %v, want %v", c.set, c.service, got, c.want)
			}
			if _, err := p.Close(t.Context()); err != nil {
				t.Error(err)
			}
		})
	}
}

// A reading that took long is not for the climber, but for each eleventh in a row.
func TestSlowReadings(t *testing.T) {
	var c controller
	for i := range 3 * (maxSlowReads + 1) {
		if got, want := c.trusts(maxRead+1), i%(maxSlowReads+1) == maxSlowReads; got != want {
			t.Errorf("slow reading %d: %v, want %v", i, got, want)
		}
	}
	c.trusts(maxRead + 1)
	if !c.trusts(maxRead) || c.slowReads != 0 {
		t.Errorf("a quick reading: %d slow ones in a row are counted, want 0", c.slowReads)
	}
}
