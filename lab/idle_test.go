package lab

import (
	"context"
	"errors"
	"runtime"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/myriad-go/myriad/load"
)

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
	cpus := runtime.NumCPU()
	for n, want := range map[int]int{1: cpus, 100 * cpus: cpus, 100*cpus + 1: cpus + 1} {
		if got := (Subject{PerProcess: 100, PerCPU: true}).processes(Workload{Connections: n}); got != want {
			t.Errorf("%d connections: got %d processes, want %d for %d CPUs", n, got, want, cpus)
		}
	}
	if got := (Subject{PerCPU: true}).processes(Workload{Connections: 1}); got != cpus {
		t.Errorf("got %d processes, want %d", got, cpus)
	}
}

// TestPrefork has our prefork of scenario models use all CPUs where one table of descriptors
// holds all connections, as net-prefork does; a goroutine for each connection needs no more
// than one process.
func TestPrefork(t *testing.T) {
	s, err := BuiltIn("models")
	if err != nil {
		t.Fatal(err)
	}
	want := map[string]int{"prefork": runtime.NumCPU(), "goroutine": 1}
	for _, x := range s.expanded(ideal).Subjects {
		n, ok := want[x.Name]
		if got := x.processes(Workload{Connections: 100_000}); ok && got != n {
			t.Errorf("%s: got %d processes, want %d", x.Name, got, n)
		}
		delete(want, x.Name)
	}
	if len(want) > 0 {
		t.Errorf("not there: %v", want)
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
