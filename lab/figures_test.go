package lab

import (
	"math"
	"testing"
	"time"

	"github.com/myriad-go/myriad/internal/offer"
	"github.com/myriad-go/myriad/internal/page"
	"github.com/myriad-go/myriad/load"
)

// figureRuns has a run of each kind that has all of its figures.
func figureRuns() []*RunRecord {
	busy, beats, silent, full := goodRun(), goodBeats(), goodIdle(), goodFull(1000)
	busy.judge(Workload{Kind: Throughput, Connections: 100, Pipeline: 1}, twoCPUs)
	beats.judge(beatsAs100(), twoCPUs)
	silent.judge(Workload{Kind: Idle, Connections: 100}, twoCPUs)
	full.judge(Workload{Kind: Idle, Full: true, Connections: 1000}, twoCPUs)
	parking := &RunRecord{Samples: []Sample{
		{Moment: Ready, Anonymous: 1 << 20, Go: &GoMemory{StackInuse: 1 << 18}},
		{Moment: Parked, RSS: 30 << 20, PSS: 25 << 20, Anonymous: 2 << 20, Go: &GoMemory{StackInuse: 1 << 20, Sys: 40 << 20}},
	}}
	parking.judge(Workload{Kind: Parking, Connections: 100}, twoCPUs)
	return []*RunRecord{
		busy, beats, silent, full, parking,
		{Result: &load.Result{Connected: 10}, Flood: &FloodFigures{Lines: 100, Server: &ServerFigures{UserCPU: 2}, Sent: 10 << 20, Received: 5 << 20, Window: 10, PerConnection: 1000, Down: 4e6, Up: 8e6, PacketsDown: 300, PacketsUp: 200, Unanswered: 7}},
		{Overload: &OverloadRun{PeakRSS: 1e9, Window: time.Second, Result: &offer.Result{
			Offered: 10, Finished: 6, Good: 5, Rejected: 4, Mean: time.Millisecond, P50: time.Millisecond, P99: time.Second,
			PeakGoroutines: 9, PeakWorkers: 8, CPUUser: time.Second, Elapsed: time.Second,
		}}},
		{Million: &MillionRun{Phases: []MillionPhase{
			{Name: phaseConnect, Rate: 1000, End: MillionSample{Counts: MillionCounts{Open: 100}}},
			{Name: phaseCheck, Rate: 2000},
			{Name: phaseIdle, End: MillionSample{Counts: MillionCounts{Open: 100}, Slab: 800, Server: MillionSide{Anonymous: 500}}},
		}}},
		{Soak: &SoakFigures{Answers: 10, Errors: 1, P99: 0.5}},
	}
}

// TestFigures has each figure named once, read off some run, and off no run that has
// nothing.
func TestFigures(t *testing.T) {
	runs := figureRuns()
	names := make(map[string]bool)
	for _, f := range figures {
		if f.Name == "" || f.Heading == "" || names[f.Name] {
			t.Errorf("%q, %q: without a name, or named twice", f.Name, f.Heading)
		}
		names[f.Name] = true
		if found, ok := figureNamed(f.Name); !ok || found.Heading != f.Heading {
			t.Errorf("%s is not found", f.Name)
		}
		read := false
		for _, r := range runs {
			v, ok := f.of(r)
			read = read || ok
			if ok && (f.Text(v) == "" || math.IsNaN(v)) {
				t.Errorf("%s: %v is written %q", f.Name, v, f.Text(v))
			}
		}
		if !read {
			t.Errorf("%s: no run has it", f.Name)
		}
		if v, ok := f.of(&RunRecord{}); ok {
			t.Errorf("%s: %v of nothing", f.Name, v)
		}
	}
	if f, ok := figureNamed("speed"); ok {
		t.Errorf("got %+v of a name that there is not", f)
	}
}

func TestFigureValues(t *testing.T) {
	runs := figureRuns()
	for name, want := range map[string]struct {
		run   int
		value float64
		text  string
	}{
		"tps": {0, 100_000, "100,000"}, "mean": {0, 0.001, "1.00 ms"}, "p99": {0, 0.003, "3.00 ms"}, "server-busy": {0, 0.99, "99 %"},
		"bytes-idle": {2, 100, "100"}, "rss": {3, 8<<20 + 5<<20 + 150_000, "13.1"}, "parked-sys": {4, 40 << 20, "40.0"},
		"received-minute": {5, 30 << 20, "30.0"}, "packets-down": {5, 300, "300"}, "down": {5, 4e6, "4.00"}, "per-connection": {5, 1000, "1.0"},
		"goodput": {6, 5, "5"}, "peak-memory": {6, 1e9, "1,000 MB"}, "held-connects": {7, 1000, "1,000"},
		"held-server": {7, 5, "5"}, "errors": {8, 1, "1"},
	} {
		f, _ := figureNamed(name)
		if got, ok := f.of(runs[want.run]); !ok || !near(got, want.value) || f.Text(got) != want.text {
			t.Errorf("%s: got %v (%s), %v; want %v (%s)", name, got, f.Text(got), ok, want.value, want.text)
		}
	}
	if p99, _ := figureNamed("p99"); p99.Text(never) != none || p99.Unit != page.Seconds || p99.Better != Lower {
		t.Errorf("of no job: %q", p99.Text(never))
	}
	for i, want := range map[int]float64{6: 1, 8: 0.5} {
		if got, ok := p99.of(runs[i]); !ok || !near(got, want) {
			t.Errorf("p99 of run %d: got %v, want %v", i, got, want)
		}
	}
}

// TestFigureRow takes what counts: neither failed runs nor such as were made again.
func TestFigureRow(t *testing.T) {
	w, base := row{subject: "w"}, row{subject: "base"}
	for round, v := range []float64{100, 200, 400} {
		w.runs = append(w.runs, &RunRecord{Round: round + 1, Throughput: &ThroughputFigures{TPS: v}})
		base.runs = append(base.runs, &RunRecord{Round: round + 1, Throughput: &ThroughputFigures{TPS: v / 2}})
	}
	w.runs = append(w.runs,
		&RunRecord{Round: 3, Superseded: true, Throughput: &ThroughputFigures{TPS: 9999}},
		&RunRecord{Round: 4, Error: "no", Throughput: &ThroughputFigures{TPS: 9999}},
		&RunRecord{Round: 5, Skipped: "no", Throughput: &ThroughputFigures{TPS: 9999}})
	if v, ok := tps.median(w); !ok || v != 200 {
		t.Errorf("median %v, %v", v, ok)
	}
	if v, ok := tps.ratio(w, base); !ok || v != 2 {
		t.Errorf("ratio %v, %v", v, ok)
	}
	if _, ok := p50.median(row{}); ok {
		t.Error("a median of no runs")
	}
}
