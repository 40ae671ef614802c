package result

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
)

// A run of the version before has its figures where they are now.
func TestReadOld(t *testing.T) {
	const text = `{"format": "myriad-bench-1", "reports": [{"scenario": {"name": "quick", "workloads": [{"name": "w", "kind": "throughput", "app": "echo", "connections": 5, "pipeline": 1, "duration": 1000}]}, "runs": [
		{"workload": "w", "subject": "net", "round": 1, "throughput": {"tps": 200, "p50": 1000000, "p99": 2000000, "in_flight": 10, "expected": 5, "load_busy": 0.5,
			"server": {"user_cpu": 1.5, "system_cpu": 2.5, "busy": 0.25}}, "result": {"histogram": "x", "answered": 7}},
		{"workload": "w", "subject": "net", "round": 2, "idle": {"dial_rate": 9, "memory": {"idle": 97, "exchanged": 98, "kernel_idle": 99}},
			"samples": [{"moment": "held", "rss": 5, "go": {"sys": 6}}, {"moment": "exchanged", "rss": 7, "pss": 8}]},
		{"workload": "w", "subject": "net", "round": 3, "samples": [{"moment": "parked", "rss": 5, "go": {"stack_inuse": 6}}], "parked": {"stack": 2048}},
		{"workload": "w", "subject": "net", "round": 4, "overload": {"rate": 100, "window": 2000000000, "deadline": 1000000000, "capacity": 50, "peak_rss": 77,
			"result": {"warmup": 1, "elapsed": 2000000000, "steady": 90, "good": 10, "p99": 3000000}}}
	]}]}`
	s, err := Read(strings.NewReader(text))
	if err != nil {
		t.Fatal(err)
	}
	for i, want := range []map[string]float64{
		{"tps": 200, "p50": 0.001, "p99": 0.002, "mean": 0.05, "cpu": 4, "server-busy": 0.25, "load-busy": 0.5},
		{"dial-rate": 9, "bytes-idle": 97, "bytes-exchanged": 98, "kernel-idle": 99, "rss-idle": 5, "sys-idle": 6, "rss": 7, "pss": 8},
		{"parked-rss": 5, "parked-stack": 6, "goroutine-stack": 2048},
		{"goodput": 45, "p99": 0.003, "peak-memory": 77},
	} {
		run := &s.Reports[0].Runs[i]
		for name, v := range want {
			if got := run.Figures[name]; got < v*0.999 || got > v*1.001 {
				t.Errorf("run %d: %s is %v, want %v", i, name, got, v)
			}
		}
	}
	if r := s.Reports[0].Runs[0].Result(); r == nil || r.Histogram != "x" {
		t.Error("the distribution of latencies is gone")
	}
}

func TestReadAndWrite(t *testing.T) {
	s := &Set{Format: Format, Reports: []*Report{{Runs: []Run{
		{Workload: "w", Figures: map[string]float64{"tps": 1}, Error: "first\nsecond"},
		{Workload: "w", Figures: map[string]float64{}, Superseded: true, Error: "x"},
	}, Verdicts: []Verdict{{Failed: true}}}}}
	var b bytes.Buffer
	if err := s.WriteJSON(&b); err != nil {
		t.Fatal(err)
	}
	if !IsSet(b.Bytes()[:20]) || IsSet([]byte(`{"phase": "began"}`)) {
		t.Error("a set is not told from a load")
	}
	got, err := Read(bytes.NewReader(b.Bytes()))
	if err != nil || !reflect.DeepEqual(got, s) {
		t.Errorf("got %+v, %v, want %+v", got, err, s)
	}
	if runs, claims := s.Failed(); runs != 1 || claims != 1 || s.Runs() != 2 || s.Reports[0].Runs[0].Failure() != "first" {
		t.Errorf("%d runs and %d claims failed, of %d", runs, claims, s.Runs())
	}
	for text, says := range map[string]string{
		"x": "expected the report.json of a bench", `{"format": "y"}`: `format "y"; expected`, `{"format": "` + Format + `"} 1`: "something follows",
		`{"format": "` + Format + `", "reports": [null]}`: "a report is null",
	} {
		if _, err := Read(strings.NewReader(text)); err == nil || !strings.Contains(err.Error(), says) {
			t.Errorf("%q: %v, want %q", text, err, says)
		}
	}
	if m := (Machine{OS: "linux", CPUs: 2, Memory: 3 << 30, Go: "go1"}); m.String() != "2 CPUs; 3.0 GiB; linux; go1" {
		t.Errorf("the machine is %q", m)
	}
	if p := (Pinning{Server: []int{0, 1}, Load: []int{2}}); p.String() != "server on CPU 0,1, load on CPU 2" {
		t.Errorf("the pinning is %q", p)
	}
	if _, err := json.Marshal(ThisMachine()); err != nil {
		t.Error(err)
	}
}

// A file is written at once, or not at all.
func TestWriteFile(t *testing.T) {
	dir := t.TempDir()
	write := func(text string, err error) error {
		return WriteFile(dir, "f", func(w io.Writer) error { io.WriteString(w, text); return err })
	}
	if err := write("one", nil); err != nil {
		t.Fatal(err)
	}
	if err := write("two", errors.New("broken")); err == nil || !strings.Contains(err.Error(), "broken") {
		t.Errorf("got %v, want what was broken", err)
	}
	text, _ := os.ReadFile(filepath.Join(dir, "f"))
	names, _ := os.ReadDir(dir)
	if string(text) != "one" || len(names) != 1 {
		t.Errorf("got %q and %d files, want the first one only", text, len(names))
	}
}
