package load

import (
	"context"
	"errors"
	"math"
	"net"
	"sync"
	"testing"
	"time"
)

// near says whether got is within a share of want.
func near(got, want, share float64) bool { return math.Abs(got-want) <= share*want }

// TestOpenLoop sends at a rate, on every model: as many messages as were planned,
// all of them answered.
func TestOpenLoop(t *testing.T) {
	t.Parallel()
	for name, rate := range map[string]Rate{
		"all":          {PerSecond: 2000},
		"all, Poisson": {PerSecond: 2000, Poisson: true},
		"all, ramp":    {PerSecond: 500, To: 3500},
		"each":         {PerSecond: 100, Each: true},
		"each Poisson": {PerSecond: 100, Each: true, Poisson: true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			eachModel(t, func(t *testing.T, model string) {
				s := serve(t, echo)
				r := check(t, Config{Target: s.addr(), Connections: 20, Model: model, Rate: rate, Duration: 250 * time.Millisecond})
				want := int64(500)
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
	const messages, wait = 400, 200 // how many there are, and how many wait before there is an answer
	t.Parallel()
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
		if sum := r.Service.Mean * messages; sum > elapsed || r.Latency.Mean*messages < 19*time.Second {
			t.Errorf("service times add up to %v in a run of %v, latencies to %v; want 19s or more", sum, elapsed, r.Latency.Mean*messages)
		}
	})
}

// TestUnsent has no room for what is planned.
func TestUnsent(t *testing.T) {
	t.Parallel()
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
	t.Parallel()
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
