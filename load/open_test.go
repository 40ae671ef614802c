package load

import (
	"context"
	"errors"
	"math"
	"net"
	"sync"
	"testing"
	"time"

	"github.com/myriad-go/myriad/internal/engine"
)

// near says whether got is within a share of want.
func near(got, want, share float64) bool { return math.Abs(got-want) <= share*want }

// TestTimeline has at be the inverse of upTo, for every shape of a rate.
func TestTimeline(t *testing.T) {
	for name, line := range map[string]tempo{
		"constant": {rate: Rate{PerSecond: 123}},
		"up":       {rate: Rate{PerSecond: 10, To: 1000}, ramp: 2 * time.Second, over: 10 * time.Second},
		"down":     {rate: Rate{PerSecond: 1000, To: 10}, ramp: time.Second, over: 10 * time.Second},
		"level":    {rate: Rate{PerSecond: 50, To: 50}, over: 10 * time.Second},
		"sine":     {rate: Rate{PerSecond: 200, Swing: 0.5, Period: 3 * time.Second}},
		"to zero":  {rate: Rate{PerSecond: 200, Swing: 1, Period: time.Second}},
	} {
		was := time.Duration(-1)
		for x := range 3000 {
			at := line.at(float64(x))
			if at < was {
				t.Fatalf("%s: message %d is due at %v, the one before at %v", name, x, at, was)
			}
			was = at
			if got := line.upTo(at); math.Abs(got-float64(x)) > 1e-3 {
				t.Fatalf("%s: message %d is due at %v, by when %v are", name, x, at, got)
			}
		}
	}
	up := tempo{rate: Rate{PerSecond: 10, To: 1000}, ramp: 2 * time.Second, over: 10 * time.Second}
	if got := up.upTo(12 * time.Second); math.Abs(got-(20+505*10)) > 1e-6 {
		t.Errorf("a ramp has %v messages, want 5070", got)
	}
}

// TestPoisson draws times whose distances have the mean and the deviation of an
// exponential distribution, the same ones from the same seed.
func TestPoisson(t *testing.T) {
	draw := func(seed uint64) (all []float64) {
		s := newSchedule()
		s.start(tempo{rate: Rate{PerSecond: 1000, Poisson: true}}, seed, 0, 0, never)
		was := time.Duration(0)
		for range 20_000 {
			at, ok := s.take(never - 1)
			if !ok {
				t.Fatal("nothing is due")
			}
			all = append(all, (at - was).Seconds())
			was = at
		}
		return all
	}
	gaps := draw(7)
	sum, squares := 0.0, 0.0
	for _, g := range gaps {
		sum += g
		squares += g * g
	}
	mean := sum / float64(len(gaps))
	deviation := math.Sqrt(squares/float64(len(gaps)) - mean*mean)
	if !near(mean, 0.001, 0.03) || !near(deviation, 0.001, 0.05) {
		t.Errorf("mean %v, deviation %v, want 0.001 both", mean, deviation)
	}
	again, other := draw(7), draw(8)
	if again[100] != gaps[100] || other[100] == gaps[100] {
		t.Error("a seed gives other times, or another one the same")
	}
}

// TestSchedule takes what is due, counts what is left, and ends.
func TestSchedule(t *testing.T) {
	s := newSchedule()
	if _, ok := s.take(never - 1); ok {
		t.Error("something is due without a plan")
	}
	// 10 a second from 1 s on, the window from 2 s to 4 s.
	s.start(tempo{rate: Rate{PerSecond: 10}}, 0, time.Second, 2*time.Second, 4*time.Second)
	for k := range 15 {
		at, ok := s.take(2400 * time.Millisecond)
		if want := time.Second + time.Duration(k)*100*time.Millisecond; !ok || (at-want).Abs() > time.Microsecond {
			t.Fatalf("message %d: %v, %v, want %v", k, at, ok, want)
		}
	}
	if _, ok := s.take(2400 * time.Millisecond); ok {
		t.Error("a message is taken before its time")
	}
	if got := s.waiting(3 * time.Second); got != 6 {
		t.Errorf("%d wait, want 6", got)
	}
	if got := s.windowTaken(); got != 5 {
		t.Errorf("%d of the window taken, want 5", got)
	}
	s.stop(3500 * time.Millisecond)
	if window, early := s.left(never); window != 10 || early != 0 {
		t.Errorf("left %d of the window and %d before, want 10 and 0", window, early)
	}
	if s.due() != never {
		t.Errorf("something is due at %v after the end", s.due())
	}
}

// TestTempoAhead counts as many messages as there are when one goes from one to the
// next.
func TestTempoAhead(t *testing.T) {
	const end = 7*time.Second/3 + 1
	for name, line := range map[string]tempo{
		"constant": {rate: Rate{PerSecond: 123}},
		"a third":  {rate: Rate{PerSecond: 3}},
		"up":       {rate: Rate{PerSecond: 10, To: 1000}, ramp: time.Second, over: 2 * time.Second},
		"sine":     {rate: Rate{PerSecond: 200, Swing: 1, Period: time.Second}},
	} {
		for _, x := range []float64{0, 0.3, 7, 1000} {
			want := int64(0)
			for line.at(x+float64(want)) < end {
				want++
			}
			if got := line.ahead(x, end); got != want {
				t.Errorf("%s: %d messages from %v on, want %d", name, got, x, want)
			}
			if due := line.at(x + 2); due < end { // a moment later it is one more
				if before, then := line.ahead(x, due), line.ahead(x, due+1); before != 2 || then != 3 {
					t.Errorf("%s: from %v on, %d messages before the third and %d with it, want 2 and 3", name, x, before, then)
				}
			}
		}
	}
}

// TestScheduleLeftMany gives up a billion messages by arithmetic: one by one they take
// longer than a test may.
func TestScheduleLeftMany(t *testing.T) {
	s := newSchedule()
	s.start(tempo{rate: Rate{PerSecond: MaxRate}}, 0, time.Second, 3*time.Second, 301*time.Second)
	if window, early := s.left(201 * time.Second); window != 198*MaxRate || early != 2*MaxRate {
		t.Errorf("left %d of the window and %d before, want %d and %d", window, early, int64(198*MaxRate), 2*MaxRate)
	}
	if at, ok := s.take(201 * time.Second); !ok || at != 201*time.Second {
		t.Errorf("the next is due at %v, want 3m21s", at)
	}
	if window, early := s.left(never); window != 100*MaxRate-1 || early != 0 || s.due() != never {
		t.Errorf("left %d and %d, then %v, want %d, 0 and never", window, early, s.due(), int64(100*MaxRate-1))
	}
}

// TestScheduleLeftPoisson draws what is left one by one as long as it is little, and
// no more than maxDraws of it.
func TestScheduleLeftPoisson(t *testing.T) {
	line := tempo{rate: Rate{PerSecond: 1000, Poisson: true}}
	few, same := newSchedule(), newSchedule()
	few.start(line, 5, 0, time.Second, 3*time.Second)
	same.start(line, 5, 0, time.Second, 3*time.Second)
	var want, wantEarly int64
	for at, ok := same.take(never - 1); ok; at, ok = same.take(never - 1) {
		if at < time.Second {
			wantEarly++
		} else {
			want++
		}
	}
	if window, early := few.left(never); window != want || early != wantEarly || window+early < 2*drawBatch {
		t.Errorf("left %d and %d, want %d and %d", window, early, want, wantEarly)
	}
	many := newSchedule()
	line.rate.PerSecond = MaxRate
	many.start(line, 5, 0, time.Second, 100*time.Second)
	window, early := many.left(never)
	if !near(float64(window), 99*MaxRate, 1e-3) || !near(float64(early), MaxRate, 1e-2) || many.due() != never {
		t.Errorf("left %d and %d, then %v, want about %d, %d and never", window, early, many.due(), int64(99*MaxRate), MaxRate)
	}
	if many.drawn != uint64(window+early) {
		t.Errorf("message %d is the next after %d", many.drawn, window+early)
	}
}

// TestUnsentOwn gives up what links' own plans have, a hundred million each, and what a
// link that closes has.
func TestUnsentOwn(t *testing.T) {
	for _, poisson := range []bool{false, true} {
		cfg := Config{Connections: 3000, Rate: Rate{PerSecond: 1e6, Each: true, Poisson: poisson}}.filled()
		tr := newTraffic(&cfg)
		if err := tr.serve(1); err != nil {
			t.Fatal(err)
		}
		tr.line = tempo{rate: cfg.Rate}
		tr.epoch -= time.Hour
		now := tr.now()
		tr.begin.Store(int64(now - 100*time.Second))
		tr.window(now-75*time.Second, now)
		s := tr.shards[0]
		links := make([]*link, cfg.Connections)
		for i := range links {
			links[i] = s.newLink(tr.slab, new(engine.Conn).Ref(), 0, uint32(i), 0)
			tr.slab.settle(links[i], 0)
			tr.beginPlan(links[i], now)
		}
		s.mu.Lock()
		tr.forsake(s, links[0])
		links[0].state |= gone
		s.mu.Unlock()
		const window, early = 75e6, 25e6
		if got := s.sum; got.run[nUnsent] != got.run[nPlanned] || !near(float64(got.run[nPlanned]), window, 0.01) || !near(float64(got.run[nEarly]), early, 0.01) {
			t.Errorf("Poisson %v: a link went down with %d of the window of %d, and %d before; want about %v and %v", poisson, got.run[nUnsent], got.run[nPlanned], got.run[nEarly], window, early)
		}
		n := float64(len(links) - 1)
		if w, e := tr.leftOwn(); !near(float64(w), n*window, 0.01) || !near(float64(e), n*early, 0.01) || !poisson && w != int64(n*window) {
			t.Errorf("Poisson %v: gave up %d and %d, want about %v and %v", poisson, w, e, n*window, n*early)
		}
		if tr.waitsOwn() {
			t.Errorf("Poisson %v: something waits", poisson)
		}
	}
}

// TestOpenLoop sends at a rate, on every model: as many messages as were planned,
// all of them answered.
func TestOpenLoop(t *testing.T) {
	for name, rate := range map[string]Rate{
		"all":          {PerSecond: 2000},
		"all, Poisson": {PerSecond: 2000, Poisson: true},
		"all, ramp":    {PerSecond: 500, To: 3500},
		"each":         {PerSecond: 100, Each: true},
		"each, sine":   {PerSecond: 100, Each: true, Swing: 0.9, Period: 100 * time.Millisecond},
		"each Poisson": {PerSecond: 100, Each: true, Poisson: true},
	} {
		t.Run(name, func(t *testing.T) {
			eachModel(t, func(t *testing.T, model string) {
				s := serve(t, echo)
				r := check(t, Config{Target: s.addr(), Connections: 20, Model: model, Rate: rate, Duration: 500 * time.Millisecond})
				want := int64(1000)
				if rate.Poisson {
					want = r.Intended // random; see TestPoisson
				}
				if d := r.Intended - want; d < -20 || d > 20 {
					t.Errorf("%d messages planned, want %d", r.Intended, want)
				}
				if r.Unsent != 0 || r.Latency.Count != r.Intended || r.Service.Count != r.Intended {
					t.Errorf("of %d planned, %d were not sent, %d measured and %d", r.Intended, r.Unsent, r.Latency.Count, r.Service.Count)
				}
				if !r.Corrected || r.Latency.P50 < r.Service.P50 {
					t.Errorf("from the planned times %v, from the real ones %v", r.Latency.P50, r.Service.P50)
				}
			})
		})
	}
}

// TestOpenLoopBehind has a server that answers nothing for a while: what waited for
// it counts from when it was to be sent, and what was sent late does not show in the
// service time.
func TestOpenLoopBehind(t *testing.T) {
	const messages, wait = 600, 300 // how many there are, and how many wait before there is an answer
	eachModel(t, func(t *testing.T, model string) {
		behind := make(chan struct{})
		var once sync.Once
		catchUp := func() { once.Do(func() { close(behind) }) }
		defer catchUp() // before the server is waited for
		s := serve(t, func(c net.Conn) {
			<-behind
			echo(c)
		})
		begin := time.Now()
		r := check(t, Config{
			Target: s.addr(), Connections: 1, Model: model, Rate: Rate{PerSecond: 1000}, Duration: messages * time.Millisecond,
			Drain: time.Minute, ProgressEvery: 50 * time.Millisecond, // more often costs a slow machine its time
			Observe: func(e Event) {
				if e.Interval != nil && e.Interval.Waiting >= wait {
					catchUp()
				}
			},
		})
		elapsed := time.Since(begin)
		if r.Intended != messages || r.Latency.Count != messages || r.Unsent != 0 {
			t.Errorf("%d planned, %d measured, %d not sent, want %d, all of them and none", r.Intended, r.Latency.Count, r.Unsent, messages)
		}
		// The first quarter waited at least for the second one to be due.
		if want := messages / 4 * time.Millisecond * 99 / 100; r.Latency.P75 < want {
			t.Errorf("75%% of the latencies are up to %v, want at least %v", r.Latency.P75, want)
		}
		// One after the other, services take no longer than the run.
		if sum := r.Service.Mean * messages; sum > elapsed || r.Latency.Mean*messages < 44*time.Second {
			t.Errorf("service times add up to %v in a run of %v, latencies to %v; want 44s or more", sum, elapsed, r.Latency.Mean*messages)
		}
	})
}

// TestUnsent has no room for what is planned.
func TestUnsent(t *testing.T) {
	for _, each := range []bool{false, true} {
		for times := range slower(t) {
			s := serve(t, silent)
			r := check(t, Config{
				Target: s.addr(), Connections: 2, Pipeline: 4, Rate: Rate{PerSecond: 500, Each: each}, Duration: times * 200 * time.Millisecond, Drain: times * 50 * time.Millisecond,
			})
			if r.Sent < 8 {
				continue
			}
			want := int64(times) * 100
			if each {
				want *= 2
			}
			if r.Intended != want || r.Sent != 8 || r.Unsent != want-8 || r.Unanswered != 8 {
				t.Errorf("each %v: %d planned, %d sent, %d not, %d not answered; want %d, 8, %d, 8", each, r.Intended, r.Sent, r.Unsent, r.Unanswered, want, want-8)
			}
			if r.Err() == nil {
				t.Error("no error")
			}
			break
		}
	}
}

// TestOpenLoopEnds when its context does: what was planned until then counts.
func TestOpenLoopEnds(t *testing.T) {
	s := serve(t, echo)
	ctx, cancel := context.WithCancelCause(t.Context())
	why := errors.New("enough")
	cfg := Config{Target: s.addr(), Rate: Rate{PerSecond: 1000}, Duration: time.Hour, ProgressEvery: 50 * time.Millisecond}
	cfg.Observe = func(e Event) {
		if e.Phase == Progress && e.Interval.Answered > 0 {
			cancel(why)
		}
	}
	r, err := Run(ctx, cfg)
	if !errors.Is(err, why) || r.Unsent != 0 || r.Intended == 0 || r.Latency.Count != r.Intended {
		t.Errorf("%v; %d planned, %d measured, %d not sent", err, r.Intended, r.Latency.Count, r.Unsent)
	}
}
