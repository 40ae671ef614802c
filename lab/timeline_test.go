package lab

import (
	"context"
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"runtime"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/myriad-go/myriad/load"
)

// faked is a time line whose looks take no time, and how often it looked.
func faked(ctx context.Context, stops context.CancelFunc) (*timeline, *RunRecord) {
	rec := &RunRecord{Started: time.Now()}
	t := &timeline{every: tickEvery, rec: rec, stops: stops}
	t.look = func() (Tick, bool) { return Tick{At: time.Since(rec.Started)}, true }
	t.add()
	t.wait.Go(func() { t.run(ctx) })
	return t, rec
}

// TestTimeline has a tick at once, one a second, and one at the end.
func TestTimeline(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		tl, rec := faked(context.WithCancel(t.Context()))
		time.Sleep(3500 * time.Millisecond)
		tl.stop()
		tl.stop()
		want := []time.Duration{0, time.Second, 2 * time.Second, 3 * time.Second, 3500 * time.Millisecond}
		if len(rec.Timeline) != len(want) {
			t.Fatalf("got %d ticks, want %d", len(rec.Timeline), len(want))
		}
		for i, tick := range rec.Timeline {
			if tick.At != want[i] {
				t.Errorf("tick %d at %v, want %v", i, tick.At, want[i])
			}
		}
	})
}

// TestTimelineOfALongRun has its bound: a day has no more ticks than an hour, evenly far
// apart.
func TestTimelineOfALongRun(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		tl, rec := faked(context.WithCancel(t.Context()))
		time.Sleep(24*time.Hour + time.Second/2)
		tl.stop()
		n := len(rec.Timeline)
		if n > maxTicks || n < maxTicks/2 {
			t.Fatalf("got %d ticks, want %d to %d", n, maxTicks/2, maxTicks)
		}
		for i := 2; i < n-1; i++ {
			if step := rec.Timeline[i].At - rec.Timeline[i-1].At; step != 32*time.Second {
				t.Fatalf("%v between ticks %d and %d, want 32s", step, i-1, i)
			}
		}
		if rec.Timeline[0].At != 0 || rec.Timeline[n-1].At < 24*time.Hour {
			t.Errorf("from %v to %v, want all of the run", rec.Timeline[0].At, rec.Timeline[n-1].At)
		}
	})
}

// TestTimelineWithoutAServer takes no tick of a server that has ended.
func TestTimelineWithoutAServer(t *testing.T) {
	tl := &timeline{look: func() (Tick, bool) { return Tick{}, false }}
	tl.add()
	if len(tl.ticks) != 0 {
		t.Errorf("got %d ticks, want none", len(tl.ticks))
	}
	var none *timeline // without /proc
	none.generator(1)
	none.hear(load.Event{})
	none.stop()
}

// TestPatience leaves out looks that are slow, for a while.
func TestPatience(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var p patience
		looks := func(takes time.Duration) (n int) {
			for range 10 {
				p.try(func() { n++; time.Sleep(takes) })
				time.Sleep(time.Second - takes*time.Duration(min(n, 1)))
			}
			return n
		}
		if n := looks(slowLook); n != 10 {
			t.Errorf("%d looks of %v in ten seconds, want 10", n, slowLook)
		}
		if n := looks(slowLook + 1); n > 3 {
			t.Errorf("%d slow looks in ten seconds, want one each %v", n, slowEvery)
		}
	})
}

// TestAsker asks once at a time, does not wait for a slow answer, takes it where there is
// no other, and needs one connection.
func TestAsker(t *testing.T) {
	asked := make(chan string, 10)
	answer := make(chan string)
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		asked <- r.RemoteAddr
		w.Write([]byte(<-answer))
	}))
	defer srv.Close()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	addr := strings.TrimPrefix(srv.URL, "http://")
	go func() { answer <- "" }()
	a := newAsker(ctx, addr, 1)
	defer func() { cancel(); a.close() }()
	opened := <-asked
	const text = `# TYPE
go_goroutines 12
go_gc_duration_seconds{quantile="0"} 1
go_gc_duration_seconds_sum 0.25
go_gc_duration_seconds_count 7
`
	a.bound = time.Millisecond
	var none TickSide
	a.ask(ctx, &none)
	a.ask(ctx, &none) // which does not ask again
	if none != (TickSide{}) {
		t.Errorf("no answer: got %+v", none)
	}
	first := <-asked
	if first != opened {
		t.Errorf("asked over %s and %s", opened, first)
	}
	answer <- strings.ReplaceAll(text, "12", "11")
	for len(a.answers) == 0 {
		runtime.Gosched()
	}
	var late TickSide
	a.ask(ctx, &late) // asks again
	if late.Goroutines != 11 {
		t.Errorf("a late answer, and none in time: got %+v", late)
	}
	// The one under way has its answer, and nothing is left of it: else the next tick
	// would take that and ask once more, or not, as the scheduler has it.
	answer <- ""
	<-a.answers
	a.asking = false
	if second := <-asked; second != first {
		t.Errorf("asked over %s and %s", first, second)
	}
	go func() { answer <- text }()
	a.bound = time.Minute
	var got TickSide
	a.ask(ctx, &got)
	if want := (TickSide{Goroutines: 12, GCs: 7, GCPause: 250 * time.Millisecond}); got != want {
		t.Errorf("got %+v, want %+v", got, want)
	}
	if third := <-asked; third != first || len(asked) > 0 {
		t.Errorf("asked over %s and %s, and %d more", first, third, len(asked))
	}
}

// TestAskerOfNobody has nothing to ask, where nobody answers after a bound.
func TestAskerOfNobody(t *testing.T) {
	if newAsker(t.Context(), "", 1) != nil {
		t.Error("no address: got something to ask")
	}
	synctest.Test(t, func(t *testing.T) {
		began := time.Now()
		a := newAsker(t.Context(), "127.0.0.1:1", 1)
		if took := time.Since(began); a != nil || took < firstAskBound || took > 2*firstAskBound {
			t.Errorf("nobody there: got %v after %v, want nothing after %v", a, took, firstAskBound)
		}
	})
}

// TestAskerOfProcesses takes what a supervisor says of all its workers, and nothing that it
// says of itself, where the lab knows of several processes or not.
func TestAskerOfProcesses(t *testing.T) {
	const own = `go_goroutines 12
go_gc_duration_seconds_sum 0.25
go_gc_duration_seconds_count 7
myriad_loop_lag_seconds_bucket{le="1e-06"} 99
myriad_loop_lag_seconds_sum 3
myriad_loop_lag_seconds_count 100
`
	const none = own + `myriad_worker_goroutines 0
myriad_worker_gc_cycles_total 0
`
	const workers = own + `myriad_worker_goroutines 34
myriad_worker_gc_cycles_total 8
myriad_worker_gc_pause_seconds_total 0.5
`
	ofOwn := TickSide{Goroutines: 12, GCs: 7, GCPause: 250 * time.Millisecond, Turns: 100, Lag: 3 * time.Second}
	ofWorkers := TickSide{Goroutines: 34, GCs: 8, GCPause: 500 * time.Millisecond, Turns: 100, Lag: 3 * time.Second}
	ofLoops := TickSide{Turns: 100, Lag: 3 * time.Second}
	for _, c := range []struct {
		text      string
		processes int
		want      TickSide
	}{
		{own, 1, ofOwn}, {none, 1, ofOwn}, {workers, 1, ofWorkers}, {workers, 2, ofWorkers},
		{none, 2, ofLoops}, {own, 2, ofLoops}, // one of several, that knows nothing of the others
	} {
		srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { w.Write([]byte(c.text)) }))
		ctx, cancel := context.WithCancel(t.Context())
		a := newAsker(ctx, strings.TrimPrefix(srv.URL, "http://"), c.processes)
		a.bound = time.Minute
		var got TickSide
		if a.ask(ctx, &got); got != c.want {
			t.Errorf("%d processes, %q: got %+v, want %+v", c.processes, c.text, got, c.want)
		}
		cancel()
		a.close()
		srv.Close()
	}
}

// TestRunTimeline has the time line of a run, with what a plain server says of itself,
// and the connection over which it does is not counted.
func TestRunTimeline(t *testing.T) {
	if runtime.GOOS != "linux" {
		t.Skip("no /proc")
	}
	o := children(t)
	o.Rounds = 1
	s := testScenario()
	s.Subjects = []Subject{{Name: "a", Command: []string{"{self}", "plain", "{addr}", "{app}", "", "", "", "{admin}"}}}
	s.Workloads = s.Workloads[:1]
	s.Workloads[0].Duration = 2 * time.Second
	report, err := Run(t.Context(), s, o)
	if err != nil {
		t.Fatal(err)
	}
	r := report.Runs[0]
	if r.Error != "" || len(r.Timeline) < 2 {
		t.Fatalf("error %q, %d ticks", r.Error, len(r.Timeline))
	}
	if n := r.Throughput.Server.Connections; n != 5 {
		t.Errorf("%d connections, want 5", n)
	}
	if first := r.Timeline[0]; first.Server.RSS == 0 {
		t.Errorf("first tick: %+v", first)
	}
	// A slow answer is the next tick's.
	if !slices.ContainsFunc(r.Timeline, func(tick Tick) bool { return tick.Server.Goroutines > 0 }) {
		t.Errorf("no tick has what the server says: %+v", r.Timeline)
	}
	text, err := json.Marshal(r.Timeline[0])
	if err != nil || strings.Contains(string(text), `"load":{"user"`) {
		t.Errorf("first tick: %s, %v", text, err)
	}
}
