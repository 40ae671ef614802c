package lab

import (
	"context"
	"errors"
	"runtime"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/myriad-go/myriad/internal/procfs"
	"github.com/myriad-go/myriad/load"
)

func TestSizes(t *testing.T) {
	for to, want := range map[int][]int{
		5: {5}, 10_000: {10_000}, 10_001: {10_000, 10_001}, 100_000: {10_000, 23_000, 100_000},
		1_000_000: {10_000, 23_000, 100_000, 1_000_000}, 3_000_000: {10_000, 23_000, 100_000, 1_000_000, 2_000_000, 3_000_000},
	} {
		if got := sizesTo(idleSizes, to); !slices.Equal(got, want) {
			t.Errorf("up to %d: got %v, want %v", to, got, want)
		}
	}
}

func TestIdleCosts(t *testing.T) {
	s := IdleCosts([]string{"goroutine", "epoll"}, 23_000, 50_000)
	if err := s.check(); err != nil {
		t.Fatal(err)
	}
	steps, err := s.plan(nil)
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, s := range steps {
		got = append(got, s.workload.Name+"/"+s.subject.Name)
	}
	want := []string{
		"parked-10000/goroutines", "parked-50000/goroutines",
		"idle-10000/net", "idle-10000/goroutine", "idle-10000/epoll",
		"idle-23000/net", "idle-23000/goroutine", "idle-23000/epoll",
	}
	if !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
	whole := IdleCosts([]string{"goroutine", "epoll", "uring"}, IdleConnections, IdleGoroutines)
	if takes := whole.Takes(); takes > 5*time.Minute {
		t.Errorf("it says that it takes %v; expected 5 minutes at most", takes)
	}
	none := IdleCosts(nil, 0, 1)
	if err := none.check(); err == nil || !strings.Contains(err.Error(), "0 connections; expected at least 1") {
		t.Errorf("no connections: got %v", err)
	}
	none = IdleCosts(nil, 1, 0)
	if err := none.check(); err == nil || !strings.Contains(err.Error(), "0 goroutines; expected 1 to") {
		t.Errorf("no goroutines: got %v", err)
	}
}

// TestProcesses has as many as each is to hold its share.
func TestProcesses(t *testing.T) {
	s := Subject{PerProcess: 100}
	for n, want := range map[int]int{1: 1, 100: 1, 101: 2, 1000: 10} {
		if got := s.processes(Workload{Connections: n}); got != want {
			t.Errorf("%d connections: got %d processes, want %d", n, got, want)
		}
	}
	if got := (Subject{}).processes(Workload{Connections: 1000}); got != 1 {
		t.Errorf("got %d processes, want 1", got)
	}
}

func fullStep(n int) step {
	return step{subject: Subject{Name: "a"}, workload: Workload{Name: "idle", Kind: Idle, Full: true, Connections: n}, round: 1}
}

// fullRun is a run of n connections, each of which took as many bytes of memory,
// idle and after an exchange, two thirds of them the kernel's.
func fullRun(subject string, n int, idle, exchanged float64) RunRecord {
	of := func(each float64) Footprint { return Footprint{RSS: each / 3, Kernel: each * 2 / 3} }
	return RunRecord{Subject: subject, Result: &load.Result{Connected: n}, Idle: &IdleFigures{
		Full: &FullFigures{Idle: of(idle), Exchanged: of(exchanged)},
	}}
}

// among is a run that saw as many sockets for each connection.
func among(sockets float64, r RunRecord) RunRecord {
	r.Idle.Full.Sockets = sockets
	return r
}

const gib = 1 << 30

func free(bytes int64) func() (memoryRoom, error) {
	return func() (memoryRoom, error) { return memoryRoom{total: 20 * gib, free: bytes}, nil }
}

// TestWall has a machine of 20 GiB, of which 1 is kept.
func TestWall(t *testing.T) {
	small := fullStep(100)
	small.subject.MaxConns, small.subject.Wall = 99, "it is small"
	fits := small
	fits.subject.MaxConns = 100
	parked := step{workload: Workload{Kind: Parking, Connections: 1 << 20}}
	quick := fullStep(100 << 20)
	quick.workload.Full = false
	most := gib/firstGuess - 1
	for name, test := range map[string]struct {
		step   step
		free   int64
		before []RunRecord
		want   string
	}{
		"fewer":            {small, 20 * gib, nil, "100 connections are more than the 99 that it can hold: it is small"},
		"as many":          {fits, 20 * gib, nil, ""},
		"a guess":          {fullStep(most), 2 * gib, nil, ""},
		"more":             {fullStep(most + 2), 2 * gib, nil, "a cautious guess, need 1.00 GiB; 2.00 GiB are free, of which 1.00 GiB are kept"},
		"measured":         {fullStep(1 << 20), 3 * gib, []RunRecord{fullRun("a", 1000, 1024, 1860)}, ""},
		"too much":         {fullStep(1 << 20), 3 * gib, []RunRecord{fullRun("a", 1000, 1024, 1863)}, "1,048,576 of 2,049 bytes each, by the run with 1,000, need 2.00 GiB"},
		"the largest":      {fullStep(1 << 20), 3 * gib, []RunRecord{fullRun("a", 1000, 1, 1), fullRun("a", 10, 1e6, 1e6)}, ""},
		"another's":        {fullStep(1 << 20), 3 * gib, []RunRecord{fullRun("b", 1000, 1, 1)}, "a cautious guess"},
		"others came":      {fullStep(1 << 20), 3 * gib, []RunRecord{among(8, fullRun("a", 1000, 3000, 3000))}, ""},
		"others went":      {fullStep(1 << 20), 3 * gib, []RunRecord{among(1, fullRun("a", 1000, 1500, 1500))}, "1,048,576 of 2,750"},
		"noise":            {fullStep(1 << 20), 3 * gib, []RunRecord{fullRun("a", 1000, -5, -6)}, "a cautious guess"},
		"failed":           {fullStep(1 << 20), 3 * gib, []RunRecord{{Subject: "a", Error: "failed"}}, "a cautious guess"},
		"goroutines":       {parked, 5 * gib, nil, ""},
		"more goroutines":  {parked, 5*gib - 1, nil, "memory: 1,048,576 of 4,096 bytes each"},
		"not asked for":    {quick, 1, nil, ""},
		"nothing is there": {fullStep(1), 0, nil, "memory: "},
	} {
		r := &runner{room: free(test.free)}
		got := r.wall(test.step, test.before)
		if (got == "") != (test.want == "") || !strings.Contains(got, test.want) {
			t.Errorf("%s: got %q, want %q", name, got, test.want)
		}
	}
	unknown := &runner{room: func() (memoryRoom, error) { return memoryRoom{}, procfs.ErrNotAvailable }}
	if got := unknown.wall(fullStep(100), nil); got != "" {
		t.Errorf("where nobody knows what is free: got %q, want a run", got)
	}
}

// TestWatchFree has memory run low when the first look has been taken.
func TestWatchFree(t *testing.T) {
	var looks atomic.Int32
	r := &runner{room: func() (memoryRoom, error) {
		if looks.Add(1) < 3 {
			return free(gib / 2)()
		}
		return free(gib/2 - 1)()
	}}
	m := &measurement{runner: r, workload: fullStep(1000).workload}
	m.open.Store(777)
	ctx, stop := m.watchFree(t.Context())
	<-ctx.Done()
	stop()
	const want = "memory: only 537 MB are free, less than half of the 1,074 MB that are to stay free; 777 of 1,000 connections were open"
	if got := context.Cause(ctx); got == nil || got.Error() != want {
		t.Errorf("got %v, want %s", got, want)
	}
	m.workload.Full = false
	if same, stop := m.watchFree(t.Context()); same != t.Context() {
		t.Errorf("a workload that isn't full is watched")
	} else {
		stop()
	}
}

// fullScenario has a server that shows its figures, one that does not, and one that
// can't hold as many.
func fullScenario() Scenario {
	shows := acting("shows", "plain")
	shows.Command = append(shows.Command, "", "", "", "{admin}")
	small := acting("small", "plain")
	small.MaxConns, small.Wall = 49, "it is small"
	return Scenario{
		Name: "full", Question: "?", Baseline: "shows", Rounds: 1,
		Subjects: []Subject{shows, acting("mute", "plain"), small},
		Workloads: []Workload{{
			Name: "idle", Kind: Idle, Full: true, App: Echo, Connections: 50, Size: 16, Pipeline: 1, Hold: 2 * time.Second,
		}},
	}
}

// TestRunFull holds connections, and has each server's counted.
func TestRunFull(t *testing.T) {
	if runtime.GOOS != "linux" {
		t.Skip("needs /proc")
	}
	report, err := Run(t.Context(), fullScenario(), children(t))
	if err != nil {
		t.Fatal(err)
	}
	for i, name := range []string{"shows", "mute"} {
		r := &report.Runs[i]
		if r.Subject != name || r.Error != "" || r.Idle == nil || r.Idle.Full == nil {
			t.Fatalf("%s: got %q, %+v", name, r.Error, r.Idle)
		}
		if r.Idle.Memory.Connections != 50 || r.Idle.Full.Processes != 1 {
			t.Errorf("%s: got %+v, want 50 connections of one process", name, r.Idle)
		}
		for _, m := range []Moment{Touched, Held, Exchanged} {
			s := r.sample(m)
			if s == nil || s.Anonymous == 0 || s.Slab == 0 || (s.Go != nil) != (name == "shows") {
				t.Errorf("%s, %s: got %+v", name, m, s)
			}
			if s != nil && s.Go != nil && (s.Go.StackInuse == 0 || s.Go.Sys < s.Go.HeapInuse) {
				t.Errorf("%s, %s: got %+v", name, m, s.Go)
			}
		}
	}
	small := report.Runs[2]
	if small.Error != "" || small.Command != nil || !strings.Contains(small.Skipped, "more than the 49 that it can hold: it is small") {
		t.Errorf("small: got %+v, want it left out", small)
	}
	if report.Failed() != 0 {
		t.Errorf("%d runs failed, want none: one was left out", report.Failed())
	}
}

// TestRunStopsBeforeMemory has memory run out when connections are open.
func TestRunStopsBeforeMemory(t *testing.T) {
	if runtime.GOOS != "linux" {
		t.Skip("needs /proc")
	}
	o := children(t)
	r := &runner{self: o.Self, launcher: newLauncher(), sampled: true}
	defer r.launcher.close()
	var looks atomic.Int32
	r.room = func() (memoryRoom, error) {
		if looks.Add(1) < 6 {
			return free(10 * gib)()
		}
		return free(0)()
	}
	s := fullScenario()
	got := r.run(t.Context(), step{workload: s.Workloads[0], subject: s.Subjects[0], round: 1}, nil)
	if !strings.Contains(got.Error, "connections were open") || got.Idle != nil || got.Skipped != "" {
		t.Errorf("got %+v, want it stopped", got)
	}
}

func TestReadValues(t *testing.T) {
	const text = "# HELP a x\n# TYPE a gauge\na 1.5e+06\nab 3\nb{of=\"x y\"} 2\nb{of=\"z\"} 0.5\n\n"
	got, err := readValues(strings.NewReader(text), []string{"a", "b"})
	if err != nil || len(got) != 2 || got["a"] != 1.5e6 || got["b"] != 2.5 {
		t.Errorf("got %v, %v", got, err)
	}
	for text, want := range map[string]string{
		"a 1\n":                        "no b; expected a server that shows it",
		"a 1\nb much\n":                `"b much"; expected a line such as b 12`,
		strings.Repeat("x", 100_000):   "too long",
		"a{x=\"1\"} 1\nb{x=\"2\"}\n\n": "expected a line such as b 12",
	} {
		if _, err := readValues(strings.NewReader(text), []string{"a", "b"}); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%.20q: got %v, want %q", text, err, want)
		}
	}
	if _, err := (MetricsSource{Addr: "127.0.0.1:1"}).Values(t.Context(), "a"); err == nil || errors.Is(err, context.Canceled) {
		t.Errorf("nobody there: got %v", err)
	}
}
