package lab

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"
)

// children makes this test's child processes play their parts.
func children(t *testing.T) Options {
	t.Helper()
	t.Setenv(envChild, "1")
	t.Setenv("GORACE", "atexit_sleep_ms=0") // else each child ends a second later
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	return Options{Self: self, Command: "myriad bench test", Repeats: -1}
}

func acting(name, part string) Subject {
	return Subject{Name: name, Command: []string{"{self}", part, "{addr}", "{app}"}}
}

func small(name string) Workload {
	return Workload{Name: name, Kind: Throughput, App: Echo, Connections: 5, Size: 16, Pipeline: 1, Duration: time.Second}
}

func testScenario() Scenario {
	return Scenario{
		Name: "test", Question: "Does it work?", Baseline: "a", Rounds: 2,
		Subjects:  []Subject{acting("a", "plain"), acting("b", "plain"), acting("broken", "fail")},
		Workloads: []Workload{small("one"), small("two")},
	}
}

// TestRun runs everything once and looks at order, failures and figures.
func TestRun(t *testing.T) {
	o := children(t)
	o.Dir = filepath.Join(t.TempDir(), "out")
	var progress strings.Builder
	o.Progress = &progress
	s := testScenario()
	s.Workloads[1].App = Lines
	report, err := Run(t.Context(), s, o)
	if err != nil {
		t.Fatal(err)
	}
	var order []string
	for _, r := range report.Runs {
		order = append(order, fmt.Sprint(r.Workload, r.Round, " ", r.Subject))
	}
	want := []string{
		"one1 a", "one1 b", "one1 broken", "one2 b", "one2 broken", "one2 a",
		"two1 a", "two1 b", "two1 broken", "two2 b", "two2 broken", "two2 a",
	}
	if !slices.Equal(order, want) {
		t.Errorf("order: got %q, want %q", order, want)
	}
	for _, r := range report.Runs {
		checkRun(t, report, &r)
	}
	if n := report.Failed(); n != 4 {
		t.Errorf("failed: got %d, want 4", n)
	}
	if got := progress.String(); strings.Count(got, "\n") != 3 || !strings.HasPrefix(got, "report in "+o.Dir+"\none: run 1 of 12") || !strings.Contains(got, "\ntwo: run 7 of 12") {
		t.Errorf("progress: got %q, want where the report is and a line for each workload", got)
	}
	checkOut(t, o.Dir, report)
}

func checkRun(t *testing.T, report *Report, r *RunRecord) {
	t.Helper()
	if r.Subject == "broken" {
		if !strings.Contains(r.Error, "exit status 3") || !strings.Contains(r.Error, "this server fails") {
			t.Errorf("broken: got error %q, want status and last words", r.Error)
		}
		want := fmt.Sprintf("with %d CPUs", width(report.Pinning.Server))
		if !strings.Contains(r.Error, want) {
			t.Errorf("pinning %v: the server said %q, want %q", report.Pinning, r.Error, want)
		}
		return
	}
	if r.Error != "" || r.Throughput == nil {
		t.Fatalf("%s: got error %q", r.Subject, r.Error)
	}
	f := r.Throughput
	if f.TPS != 1000 || f.P99 != 2*time.Millisecond || f.InFlight != 5 || f.Expected != 5 {
		t.Errorf("%s: got %+v", r.Subject, f)
	}
	if runtime.GOOS == "linux" && (f.Server == nil || f.Server.Connections != 5) {
		t.Errorf("%s: got %+v, want 5 connections counted in the server", r.Subject, f.Server)
	}
}

// checkOut reads the written report back.
func checkOut(t *testing.T, dir string, report *Report) {
	t.Helper()
	book := bookIn(t, dir)
	if len(book.Reports) != 1 || book.Format != BookFormat || book.Took <= 0 || book.Machine != report.Machine {
		t.Fatalf("read back: got %+v", book)
	}
	read := book.Reports[0]
	if len(read.Runs) != len(report.Runs) || read.Runs[0].Result.Answered != 1000 || read.Command != "myriad bench test" {
		t.Errorf("read back: got %d runs, command %q", len(read.Runs), read.Command)
	}
}

// readBook reads the book of a directory back, which has nothing else in it than its
// journal.
func bookIn(t *testing.T, dir string) *Book {
	t.Helper()
	b, err := os.ReadFile(filepath.Join(dir, "report.json"))
	if err != nil {
		t.Fatal(err)
	}
	book := new(Book)
	if err := json.Unmarshal(b, book); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(filepath.Join(dir, unfinished)); err == nil {
		t.Errorf("%s is left in %s", unfinished, dir)
	}
	return book
}

// TestRunUnpinned has pinned and unpinned runs in turn: what is not pinned has
// all CPUs, whatever was started before it.
func TestRunUnpinned(t *testing.T) {
	o := children(t)
	s := testScenario()
	s.Subjects = s.Subjects[2:]
	s.Rounds, s.Workloads[1].Unpinned = 1, true
	report, err := Run(t.Context(), s, o)
	if err != nil {
		t.Fatal(err)
	}
	for i, cpus := range []int{width(report.Pinning.Server), runtime.NumCPU()} {
		if got, want := report.Runs[i].Error, fmt.Sprintf("with %d CPUs", cpus); !strings.Contains(got, want) {
			t.Errorf("run %d: got %q, want %q", i, got, want)
		}
	}
}

// TestRunHTTP asks a server for HTTP.
func TestRunHTTP(t *testing.T) {
	o := children(t)
	s := testScenario()
	s.Rounds, s.Workloads = 1, s.Workloads[:1]
	s.Workloads[0].App, s.Workloads[0].Size = HTTP, 0
	s.Subjects = s.Subjects[:1]
	report, err := Run(t.Context(), s, o)
	if err != nil {
		t.Fatal(err)
	}
	if r := report.Runs[0]; r.Error != "" || r.Throughput == nil || !slices.Contains(r.Load, "--http") {
		t.Errorf("got error %q, load %q", r.Error, r.Load)
	}
}

// TestRunIdle runs an idle workload.
func TestRunIdle(t *testing.T) {
	o := children(t)
	o.Rounds = 1
	s := testScenario()
	s.Subjects = s.Subjects[:1]
	s.Workloads = []Workload{{Name: "idle", Kind: Idle, App: Echo, Connections: 50, Size: 16, Pipeline: 1, Hold: time.Second}}
	report, err := Run(t.Context(), s, o)
	if err != nil {
		t.Fatal(err)
	}
	r := report.Runs[0]
	if r.Error != "" || r.Idle == nil || r.Idle.DialRate != 5000 {
		t.Fatalf("got %q, %+v", r.Error, r.Idle)
	}
	if runtime.GOOS != "linux" {
		return
	}
	if r.Idle.Memory == nil || r.Idle.Memory.Connections != 50 {
		t.Fatalf("got %+v, want 50 connections", r.Idle.Memory)
	}
	var moments []Moment
	for _, s := range r.Samples {
		moments = append(moments, s.Moment)
	}
	if want := []Moment{Ready, Touched, Held, Exchanged}; !slices.Equal(moments, want) {
		t.Errorf("samples: got %v, want %v", moments, want)
	}
	// What else the machine does is not the run's.
	if broken := slices.DeleteFunc(r.Marks, func(m Mark) bool { return m.Rule == RuleNoise || m.Rule == RuleOthers }); len(broken) > 0 {
		t.Errorf("marks: got %v, want none", broken)
	}
}

// TestRunCancel ends the context while server and load are at work.
func TestRunCancel(t *testing.T) {
	o := children(t)
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close()
	t.Setenv(envReport, ln.Addr().String())
	s := testScenario()
	s.Workloads[0].Duration = 2 * time.Hour // the load blocks
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	type answer struct {
		report *Report
		err    error
	}
	done := make(chan answer, 1)
	go func() {
		report, err := Run(ctx, s, o)
		done <- answer{report, err}
	}()
	pids := []int{reported(t, ln, "plain"), reported(t, ln, "load")}
	cancel()
	a := <-done
	if !errors.Is(a.err, context.Canceled) {
		t.Errorf("got error %v, want context canceled", a.err)
	}
	if len(a.report.Runs) != 0 || !slices.Contains(a.report.Notes, "Interrupted in run 1 of 12.") {
		t.Errorf("got %d runs, notes %q; want none, and a note", len(a.report.Runs), a.report.Notes)
	}
	for _, pid := range pids {
		p, err := os.FindProcess(pid)
		if err == nil && p.Signal(syscall.Signal(0)) == nil {
			t.Errorf("process %d is still there", pid)
		}
	}
}

// reported waits for a child to report its part, and returns its number.
func reported(t *testing.T, ln net.Listener, part string) int {
	t.Helper()
	conn, err := ln.Accept()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	line, err := bufio.NewReader(conn).ReadString('\n')
	if err != nil {
		t.Fatal(err)
	}
	var got string
	var pid int
	if _, err := fmt.Sscan(line, &got, &pid); err != nil || got != part {
		t.Fatalf("got report %q, want one of %s", line, part)
	}
	return pid
}

func TestRunServerEnds(t *testing.T) {
	o := children(t)
	s := testScenario()
	s.Rounds, s.Workloads = 1, s.Workloads[:1]
	s.Subjects = []Subject{acting("mute", "mute"), {Name: "missing", Command: []string{"/does/not/exist", "{port}"}}}
	report, err := Run(t.Context(), s, o)
	if err != nil {
		t.Fatal(err)
	}
	for i, want := range []string{"the server ended: exit status 0", "cannot start /does/not/exist"} {
		if got := report.Runs[i].Error; !strings.Contains(got, want) {
			t.Errorf("got %q, want %q", got, want)
		}
	}
}

func TestRunLoadFails(t *testing.T) {
	s := testScenario()
	s.Subjects[0].Command[0] = children(t).Self
	r := &runner{self: "/does/not/exist", launcher: newLauncher(), room: readRoom}
	defer r.launcher.close()
	got := r.run(t.Context(), step{workload: s.Workloads[0], subject: s.Subjects[0], round: 1}, nil)
	if !strings.Contains(got.Error, "cannot start /does/not/exist") {
		t.Errorf("got %q", got.Error)
	}
}

func TestRunRefuses(t *testing.T) {
	var wrong ScenarioError
	for name, o := range map[string]Options{
		"rounds":   {Rounds: -1},
		"duration": {Duration: time.Millisecond},
		"only":     {Only: regexp.MustCompile("nothing")},
		"subject":  {Subjects: []Subject{acting("a", "plain")}},
		"repeats":  {Repeats: MaxRepeats + 1},
		"trace":    {Trace: regexp.MustCompile("."), Dir: "x"},
		"nowhere":  {Profile: regexp.MustCompile(".")},
	} {
		if report, err := Run(t.Context(), testScenario(), o); report != nil || !errors.As(err, &wrong) {
			t.Errorf("%s: got %v, %v, want a ScenarioError", name, report, err)
		}
	}
	o := children(t)
	o.Dir = filepath.Join(o.Self, "out") // below a file
	if report, err := Run(t.Context(), testScenario(), o); report != nil || err == nil {
		t.Errorf("directory: got %v, %v, want an error before the first run", report, err)
	}
}
