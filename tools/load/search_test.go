package load

import (
	"bytes"
	"cmp"
	"encoding/json"
	"math"
	"net"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/myriad-go/myriad/internal/testkit"
)

// echoLinesEvery returns a handler that echoes one line per interval, on all connections together.
func echoLinesEvery(each time.Duration) handler {
	tick := time.Tick(each)
	return serveLines(func(c net.Conn, line string, _, _ int) error {
		<-tick
		return writeText(c, line)
	})
}

// TestSearch checks that no found rate exceeds the server's capacity, and that several were tried.
// How close it gets depends on the machine.
func TestSearch(t *testing.T) {
	t.Parallel()
	const (
		most  = 1000 // that the server answers in a second
		under = 20 * time.Millisecond
		step  = 200 * time.Millisecond
		links = 5
	)
	s := startTestServer(t, echoLinesEvery(time.Second/most))
	var told eventLog
	var stream bytes.Buffer
	cfg := Config{Target: s.addr(), Rate: Rate{Goal: Goal{Percentile: 90, Under: under}}, Duration: step, Connections: links, Drain: under, ProgressEvery: under}
	cfg.Observe = func(e Event) {
		told.events = append(told.events, e)
		testkit.ExpectNoError(t, json.NewEncoder(&stream).Encode(e))
	}
	result := testkit.Must(Run(t.Context(), cfg))(t)
	if read, err := ReadStream(&stream); err != nil || read.Result.Answered != result.Answered {
		t.Errorf("read again: %v", err)
	}
	planned := int64(0)
	for _, e := range told.eventsOf(Progress) {
		planned += e.Interval.Intended
	}
	found := result.Search
	if steps := len(told.eventsOf(Tried)); steps != len(found.Steps) || steps < 2 {
		t.Errorf("%d steps, told of %d", len(found.Steps), steps)
	}
	// The capacity of a window and the tolerance; see Step.Kept.
	window := (step - step/5).Seconds()
	answers := most*window + links + 1
	if n := found.Rate * window; n-3*math.Sqrt(n) > answers {
		t.Errorf("found %v/s of %d/s: %v messages in a window that has room for %v", found.Rate, most, n, answers)
	}
	want := 0.0
	for _, tried := range found.Steps {
		want += tried.Rate * step.Seconds()
		if tried.Kept && (tried.Latency <= 0 || tried.Latency > under || tried.Rate > found.Rate) {
			t.Errorf("found %v, and %+v", found.Rate, tried)
		}
	}
	if !isNear(float64(planned), want, 0.05) {
		t.Errorf("intervals have %d messages planned, the steps %v", planned, want)
	}
	if of := cmp.Or(found.Rate, firstRate); result.Schedule.PerSecond != of || !reflect.DeepEqual(told.eventsOf(Done)[0].Result, result) {
		t.Errorf("the result is of %v/s, want %v, and that of the event", result.Schedule.PerSecond, of)
	}
}

// TestJudge checks whether steps keep their goal.
func TestJudge(t *testing.T) {
	goal := Goal{Percentile: 99, Under: 100 * time.Millisecond}
	const ms = time.Millisecond
	for name, test := range map[string]struct {
		planned, answered, measured int64
		latency, late               time.Duration
		open                        int64
		kept, limited               bool
	}{
		"kept":                    {100_000, 100_000, 100_000, 90 * ms, 0, 1, true, false},
		"slow":                    {100_000, 100_000, 100_000, 101 * ms, 0, 1, false, false},
		"late and slow":           {100_000, 100_000, 100_000, 101 * ms, 50 * ms, 1, false, true},
		"a bit late":              {100_000, 100_000, 100_000, 101 * ms, 49 * ms, 1, false, false},
		"late and kept":           {100_000, 100_000, 100_000, 90 * ms, 60 * ms, 1, true, false},
		"a queue grows":           {100_000, 98_900, 100_000, 90 * ms, 0, 1, false, false},
		"within a hundredth":      {100_000, 99_100, 100_000, 90 * ms, 0, 1, true, false},
		"a queue grows, of few":   {100, 69, 100, 90 * ms, 0, 1, false, false},
		"within the noise of few": {100, 71, 100, 90 * ms, 0, 1, true, false},
		"unsent":                  {100_000, 100_000, 98_900, 90 * ms, 0, 1, false, false},
		"nothing":                 {0, 0, 0, 0, 0, 1, false, false},
		"nobody left":             {100_000, 100_000, 100_000, 90 * ms, 60 * ms, 0, false, false},
	} {
		r := &Result{Counts: Counts{Intended: test.planned, Answered: test.answered}, Latency: Latency{Count: test.measured}, Window: time.Second}
		got := goal.evaluateStepFromResult(r, Step{Latency: test.latency, Late: test.late, open: test.open})
		if got.Kept != test.kept || got.Limited != test.limited || got.Answered != float64(test.answered) || got.Unsent != test.planned-test.measured {
			t.Errorf("%s: %+v", name, got)
		}
	}
}

// TestSearchAgain checks that a rate is tried again if the generator was late, and that the result
// has the limits and faults of all steps that count.
func TestSearchAgain(t *testing.T) {
	s := &Search{window: time.Second, found: &Found{}}
	tries := map[float64]int{}
	err := s.tryRatesUntilDone(func(rate float64) (Step, *Result, error) {
		tries[rate]++
		step, r := Step{Rate: rate, open: 1, Kept: rate < 3000}, &Result{Schedule: &Rate{PerSecond: rate}}
		switch {
		case rate == firstRate && tries[rate] == 1: // a hitch
			step.Kept, step.Limited = false, true
			r.Limits = []Limit{{Wall: "cpu", Evidence: "a hitch"}}
		case !step.Kept:
			step.Limited = true
			r.Limits = []Limit{{Wall: "late sends", Evidence: "late"}, {Wall: "ports", Evidence: "none"}}
		}
		return step, r, nil
	})
	if err != nil || len(s.found.Steps) >= maxSteps {
		t.Fatalf("%v, %d steps", err, len(s.found.Steps))
	}
	for rate, n := range tries {
		if twice := rate == firstRate || rate >= 3000; twice != (n == 2) || n > 2 {
			t.Errorf("%v tried %d times, want it twice: %v", rate, n, twice)
		}
	}
	if s.found.Rate >= 3000 || s.found.Rate < 3000/rateTolerance {
		t.Errorf("found %v, want a bit less than 3000", s.found.Rate)
	}
	end := &Result{Lost: map[string]int64{"x": 1}, ConnectErrors: map[string]int64{"y": 1}, BadStatus: map[string]int64{"z": 1}, Mismatched: 1, FirstMismatch: &Mismatch{}}
	got := s.BestStepOrWholeRunResult(end)
	want := *end
	want.Schedule, want.Search = &Rate{PerSecond: s.found.Rate}, s.found
	want.Limits = []Limit{{Wall: "ports", Evidence: "none"}, {Wall: "late sends", Evidence: "late, at 4,000/s"}}
	if !reflect.DeepEqual(*got, want) {
		t.Errorf("got %+v, want %+v", *got, want)
	}
}

func TestSearchNext(t *testing.T) {
	for _, most := range []float64{3, 170, 1000, 35_123, MaxRate * 2} {
		s := &Search{window: time.Second, found: &Found{}}
		rate, steps := float64(firstRate), 0
		for ; rate > 0 && steps < maxSteps; steps++ {
			if rate <= most {
				s.low = rate
			} else {
				s.high = rate
			}
			rate = s.nextRateOrZero()
		}
		switch {
		case steps == maxSteps:
			t.Errorf("up to %v: no end", most)
		case most < minStepMessages:
			if s.low != 0 {
				t.Errorf("found %v of %v", s.low, most)
			}
		case most > MaxRate:
			if !s.found.Most || s.low < MaxRate/rateGrowth {
				t.Errorf("found %v, most %v", s.low, s.found.Most)
			}
		case s.low > most || s.low*rateTolerance < most:
			t.Errorf("found %v of %v", s.low, most)
		}
	}
}

// TestSearchNobody searches without a server, and with one that soon closes all connections.
func TestSearchNobody(t *testing.T) {
	short := startTestServer(t, func(c net.Conn, _ int) { echoMessages(c, 1) })
	for target, says := range map[string]string{unusedAddr(t): "connection refused", short.addr(): "connections lost"} {
		r, err := Run(t.Context(), Config{Target: target, Connections: 2, Rate: Rate{Goal: Goal{Under: time.Second}}})
		if err != nil || r.Search.Rate != 0 || r.Err() == nil || !strings.Contains(r.Err().Error(), says) {
			t.Errorf("%v, %+v; want %q", err, r, says)
		}
	}
}
