package stall

import (
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/myriad-go/myriad/internal/testkit"
)

const ms = time.Millisecond

func millis(inMs ...float64) (list []time.Duration) {
	for _, x := range inMs {
		list = append(list, time.Duration(x*float64(ms)))
	}
	return list
}

// TestTruth has cases computed by hand, in milliseconds. With stalls of 20 every 100, the server
// works in 20 to 100, 120 to 200 and so on.
func TestTruth(t *testing.T) {
	stalls := StallPlan{Stall: 20 * ms, Every: 100 * ms}
	with := func(capacity float64) StallPlan { p := stalls; p.Capacity = capacity; return p }
	for name, c := range map[string]struct {
		plan           StallPlan
		arrivals, want []time.Duration
	}{
		"nothing":                      {StallPlan{}, nil, nil},
		"no bound, no stalls":          {StallPlan{}, millis(0, 0, 7), millis(0, 0, 0)},
		"a queue":                      {StallPlan{Capacity: 100}, millis(0, 0, 5, 50, 55), millis(10, 20, 25, 10, 15)},
		"no bound, in a stall":         {stalls, millis(0, 5, 19, 20, 99, 100, 119, 120), millis(20, 15, 1, 0, 0, 20, 1, 0)},
		"begins in a stall":            {with(100), millis(0, 5, 10), millis(30, 35, 40)},
		"the stall's first moment":     {with(100), millis(100), millis(30)},
		"the stall's last moment":      {with(100), millis(119), millis(11)},
		"ends as a stall begins":       {with(100), millis(90), millis(10)},
		"begins as another has, there": {with(100), millis(90, 90), millis(10, 40)},
		"interrupted":                  {with(100), millis(95, 95), millis(30, 40)},
		"interrupted again and again":  {with(4), millis(20), millis(310)}, // 80 and 80 and 80 and 10
		"all of three times":           {with(1000. / 240), millis(20), millis(280)},
		"and a little":                 {with(1000. / 241), millis(20), millis(301)},
		"a queue over a stall":         {with(100), millis(80, 81, 82, 83, 200), millis(10, 19, 48, 57, 30)},
	} {
		if got := c.plan.PredictLatencies(c.arrivals); !slices.Equal(got, c.want) {
			t.Errorf("%s: %+v: lines that arrive at %v take %v, want %v", name, c.plan, c.arrivals, got, c.want)
		}
	}
}

func TestCheck(t *testing.T) {
	for _, good := range []StallPlan{
		{}, {Capacity: MinCapacity}, {Capacity: MaxCapacity}, {Stall: 1, Every: 2}, {Every: -1}, {Stall: MaxTime - 1, Every: MaxTime},
	} {
		if err := good.Check(); err != nil {
			t.Errorf("%+v: %v, want none", good, err)
		}
	}
	nan := 0.0
	for _, c := range []struct {
		plan StallPlan
		says string
	}{
		{StallPlan{Capacity: -1}, "capacity is -1 lines"},
		{StallPlan{Capacity: nan / nan}, "NaN"},
		{StallPlan{Capacity: MinCapacity / 2}, "expected 0"},
		{StallPlan{Capacity: MaxCapacity + 1}, "to 1000000 a second"},
		{StallPlan{Stall: -1}, "length is -1ns"},
		{StallPlan{Stall: MaxTime + 1, Every: 2 * MaxTime}, "expected 0s to 1h"},
		{StallPlan{Stall: 1}, "interval is 0s"},
		{StallPlan{Stall: ms, Every: ms}, "interval is 1ms with stalls of 1ms"},
		{StallPlan{Stall: ms, Every: MaxTime + 1}, "at most 1h"},
	} {
		testkit.ExpectError(t, c.plan, c.plan.Check(), c.says)
	}
}

// newIdleStation returns a station at a given time that never serves.
func newIdleStation(p StallPlan, now *time.Duration) *LineStation {
	return &LineStation{plan: p, since: func() time.Duration { return *now }, serving: true}
}

// TestServeTruth checks the planned ends of services against Latencies.
func TestServeTruth(t *testing.T) {
	plan := StallPlan{Capacity: 1000, Stall: 20 * ms, Every: 100 * ms}
	var now time.Duration
	s := newIdleStation(plan, &now)
	var arrivals []time.Duration
	for i := range 1000 {
		now = time.Duration(i) * 1111 * time.Microsecond
		arrivals = append(arrivals, now)
		testkit.RequireNoError(t, s.Enqueue(nil, nil))
	}
	for i, want := range plan.PredictLatencies(arrivals) {
		if got := s.queue[i].end - arrivals[i]; got != want {
			t.Fatalf("line %d takes %v, want %v", i, got, want)
		}
	}
}

// TestServeFull checks the limits of lines and bytes, and that there is space again after a service.
func TestServeFull(t *testing.T) {
	for name, c := range map[string]struct{ lines, bytes int }{"lines": {MaxLines, 1}, "bytes": {MaxBytes / (64 << 10), 64 << 10}} {
		var now time.Duration
		s, line := newIdleStation(StallPlan{}, &now), make([]byte, c.bytes)
		for i := range c.lines {
			if err := s.Enqueue(line, nil); err != nil {
				t.Fatalf("%s: line %d of %d: %v", name, i, c.lines, err)
			}
		}
		for range 2 {
			if err := s.Enqueue(line, nil); err != ErrFull {
				t.Errorf("%s: one more than %d: got %v", name, c.lines, err)
			}
			s.dequeueOrEndServing()
			if err := s.Enqueue(line, nil); err != nil {
				t.Errorf("%s: one more when one is served: %v", name, err)
			}
		}
	}
}

// TestQueue checks the order, and that served lines do not use memory.
func TestQueue(t *testing.T) {
	const waiting, n = 10, 10_000
	var now time.Duration
	s := newIdleStation(StallPlan{}, &now)
	for i := range n {
		testkit.RequireNoError(t, s.Enqueue(fmt.Append(nil, i), nil))
		if i < waiting {
			continue
		}
		if got, some := s.dequeueOrEndServing(); !some || string(got.line) != fmt.Sprint(i-waiting) {
			t.Fatalf("got %q, %v; want line %d", got.line, some, i-waiting)
		}
	}
	if cap(s.queue) > 10*waiting {
		t.Errorf("a queue of %d lines has room for %d", waiting, cap(s.queue))
	}
	for range waiting {
		s.dequeueOrEndServing()
	}
	if _, some := s.dequeueOrEndServing(); some || s.queue != nil || s.bytes != 0 || s.serving {
		t.Errorf("an empty queue has some %v, room for %d, %d bytes, a server %v", some, cap(s.queue), s.bytes, s.serving)
	}
}

// TestWait checks that a long wait mostly sleeps, and does not end early.
func TestWait(t *testing.T) {
	for until, most := range map[time.Duration]int{0: 1, spinTime: 110, time.Hour: 120} {
		var now time.Duration
		looks := 0
		s := &LineStation{
			since: func() time.Duration { now += time.Microsecond; looks++; return now },
			sleep: func(d time.Duration) { now += d },
		}
		if s.sleepAndSpinUntil(until); now < until || now > until+2*time.Microsecond || looks > most {
			t.Errorf("until %v: waited until %v, and looked %d times at the clock; want at most %d", until, now, looks, most)
		}
	}
}

// TestServe checks that lines of concurrent callers are served one at a time, in order, none before
// its time, and that serving resumes after an idle period.
func TestServe(t *testing.T) {
	const n = 20
	plan := StallPlan{Capacity: 2000, Stall: 5 * ms, Every: 20 * ms}
	epoch := time.Now()
	s := NewStation(plan, epoch)
	for range 3 {
		var ends []time.Duration // the server's: it is one
		begin := time.Since(epoch)
		var served, called sync.WaitGroup
		served.Add(2 * n)
		for range n {
			called.Go(func() {
				first := false
				for _, is := range []bool{true, false} {
					err := s.Enqueue(nil, func([]byte) {
						ends = append(ends, time.Since(epoch))
						if first = !first; first != is {
							t.Error("the second line of a caller is served before the first")
						}
						served.Done()
					})
					testkit.ExpectNoError(t, err)
				}
			})
		}
		called.Wait()
		served.Wait()
		free := begin
		for i, end := range ends {
			if free = plan.EndOfServiceFrom(free); end < free {
				t.Errorf("line %d was served at %v, want not before %v", i, end, free)
			}
		}
	}
}
