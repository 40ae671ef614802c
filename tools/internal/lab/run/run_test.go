package run

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/myriad-go/myriad/internal/sock"
	"github.com/myriad-go/myriad/internal/testkit"
	"github.com/myriad-go/myriad/tools/internal/lab/probe"
	"github.com/myriad-go/myriad/tools/internal/lab/result"
	"github.com/myriad-go/myriad/tools/internal/lab/scenario"
)

// asChild makes the test binary a child process: what its arguments say.
const asChild = "MYRIAD_LAB_TEST_CHILD"

func TestMain(m *testing.M) {
	if os.Getenv(asChild) == "" {
		testkit.Main(m)
		return
	}
	switch os.Args[1] {
	case "lines":
		fmt.Print("one\ntwo\n")
	case "fail":
		fmt.Fprint(os.Stderr, "its last words")
		os.Exit(3)
	case "stubborn":
		signal.Ignore(syscall.SIGTERM)
		fmt.Println("stubborn")
		time.Sleep(time.Hour) // until it is killed
	case "park":
		for _, checkpoint := range []string{"ready", "parked"} {
			fmt.Printf(`{"checkpoint": %q, "server": {"anonymous": %d, "stack_inuse": %d}}`+"\n", checkpoint, len(checkpoint), 100*len(checkpoint))
		}
	case "progress":
		fmt.Println(`{"progress": {"finished": 7, "elapsed": 750000000}}`)
		time.Sleep(time.Hour) // until it is ended
	case "hang":
		time.Sleep(time.Hour) // until it is ended
	}
	os.Exit(0)
}

func startLauncher(t *testing.T) *launcher {
	t.Helper()
	t.Setenv(asChild, "1")
	l := newLauncher()
	t.Cleanup(l.close)
	return l
}

func TestProcesses(t *testing.T) {
	l, self := startLauncher(t), os.Args[0]
	var got []string
	keep := func(line []byte) error { got = append(got, string(line)); return nil }
	if _, err := l.runAndReadLines(t.Context(), command{args: []string{self, "lines"}, killDelay: time.Minute}, nil, keep); err != nil || !slices.Equal(got, []string{"one", "two"}) {
		t.Errorf("got %q, %v", got, err)
	}
	p, err := l.runAndReadLines(t.Context(), command{args: []string{self, "fail"}, killDelay: time.Minute}, nil, keep)
	if err != nil || p.newUnexpectedExitError("it").Error() != "it ended: exit status 3: its last words" {
		t.Errorf("got %v, %v", p.newUnexpectedExitError("it"), err)
	}
	broken := errors.New("broken")
	if _, err := l.runAndReadLines(t.Context(), command{args: []string{self, "lines"}, killDelay: time.Minute}, nil, func([]byte) error { return broken }); !errors.Is(err, broken) {
		t.Errorf("got %v, want what the line's function said", err)
	}
	ctx, cancel := context.WithCancelCause(t.Context())
	p, err = l.runAndReadLines(ctx, command{args: []string{self, "stubborn"}, killDelay: time.Millisecond}, nil, func([]byte) error { cancel(broken); return nil })
	if !errors.Is(err, broken) || p.err == nil {
		t.Errorf("got %v, %v, want that it was killed", err, p.err)
	}
	if _, err := l.startPinnedProcess(t.Context(), command{args: []string{"/no/such/program"}}, nil); err == nil {
		t.Error("a program that there is not was started")
	}
	long := &lastOutputBuffer{}
	long.Write([]byte(strings.Repeat("x", 2*maxTailBytes) + "end"))
	if s := long.String(); len(s) != maxTailBytes || !strings.HasSuffix(s, "end") {
		t.Errorf("%d bytes were kept", len(s))
	}
}

func TestSplitCPUs(t *testing.T) {
	pairs := func(cpu int) int { return cpu / 2 }
	for _, c := range []struct {
		cpus         []int
		core         func(int) int
		server, load []int
	}{
		{[]int{0}, pairs, nil, nil},
		{[]int{0, 1}, pairs, []int{0}, []int{1}},
		{[]int{0, 1, 2, 3, 4, 5}, pairs, []int{0, 1}, []int{2, 3, 4, 5}},
		{[]int{0, 1, 2, 3}, func(cpu int) int { return cpu % 2 }, []int{0, 2}, []int{1, 3}},
		{[]int{7, 5, 3}, func(cpu int) int { return cpu }, []int{3}, []int{5, 7}},
	} {
		if p := splitCPUsPreferringWholeCores(c.cpus, c.core); !slices.Equal(p.Server, c.server) || !slices.Equal(p.Load, c.load) {
			t.Errorf("%v: %v", c.cpus, p)
		}
	}
}

func TestMemory(t *testing.T) {
	all := int64(100 << 30)
	for free, low := range map[int64]bool{all: false, all / reservedDivisor / 2: false, all/reservedDivisor/2 - 1: true} {
		err := availableMemory{free: free, total: all, limitedBy: "a cgroup"}.errIfLow()
		if (err != nil) != low || err != nil && !strings.Contains(err.Error(), "free in a cgroup, less than half") {
			t.Errorf("%d free: %v", free, err)
		}
	}
	if (availableMemory{}).bytesToKeepFree() != minReservedBytes {
		t.Error("too little memory is kept")
	}
}

// More connections than any machine holds are stopped by a wall, and some fit, unless there
// are too few descriptors for the 1,000 connections of room that a subject has beside.
func TestWall(t *testing.T) {
	t.Parallel()
	if _, err := readAvailableMemory(); err != nil {
		t.Skip("this system doesn't report its memory: ", err)
	}
	_, hard, limited := sock.DescriptorLimit()
	w := scenario.Workload{Connections: 1 << 30, Phases: []scenario.Phase{{Do: scenario.Broadcast}}}
	if why, fit := findLimitPreventingRun(scenario.Step{Workload: w}); why == "" || fit >= w.Connections || fit < 1 && (!limited || hard > 3000) {
		t.Errorf("%d of %d connections fit: %s", fit, w.Connections, why)
	}
	w.Connections = 1
	if why, _ := findLimitPreventingRun(scenario.Step{Workload: w}); why != "" {
		t.Errorf("a connection does not fit: %s", why)
	}
}

func newParkScenario(t *testing.T, rounds int, word string) scenario.Scenario {
	t.Helper()
	s, err := probe.ScenarioReader.ReadScenario(strings.NewReader(fmt.Sprintf(`
name = "park"
question = "What does a goroutine take?"
rounds = %d
[[subject]]
name = "own"
parks = true
command = "{self} %s {n}"
[[workload]]
name = "few"
connections = 2
phases = [{ do = "park" }]
`, rounds, word)))
	testkit.RequireNoError(t, err)
	return s
}

// A bench makes each round, and writes its report once, to a directory that was empty.
func TestAll(t *testing.T) {
	t.Setenv(asChild, "1")
	dir := filepath.Join(t.TempDir(), "new", "out")
	var wrote []int
	o := Options{Dir: dir, Self: os.Args[0], Command: "test", Progress: io.Discard, Write: func(to string, s *result.Set) error {
		wrote = append(wrote, s.CountRuns())
		return os.WriteFile(filepath.Join(to, "report"), nil, 0o600)
	}}
	set, err := RunScenarios(t.Context(), []scenario.Scenario{newParkScenario(t, 3, "park")}, o)
	if err != nil || set.CountRuns() != 3 || set.Took <= 0 || set.Reports[0].Runs[0].Figures["goroutine-stack"] != 50 {
		t.Fatalf("%v: %+v", err, set)
	}
	_, err = RunScenarios(t.Context(), []scenario.Scenario{newParkScenario(t, 1, "park")}, o)
	testkit.ExpectError(t, "a directory with a report", err, "is not empty; expected an empty one")
	if !slices.Equal(wrote, []int{3}) {
		t.Errorf("reports of %v runs were written, want one of 3", wrote)
	}
}

// A run that fails is a record, and the next one goes on; one that is interrupted is none.
func TestFailures(t *testing.T) {
	t.Setenv(asChild, "1")
	o := Options{Self: os.Args[0], Command: "test"}
	set, err := RunScenarios(t.Context(), []scenario.Scenario{newParkScenario(t, 2, "fail")}, o)
	if err != nil || set.CountRuns() != 2 || !strings.Contains(set.Reports[0].Runs[1].Error, "its last words") {
		t.Errorf("%v, %+v", err, set)
	}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	o.Progress = writerFunc(func(b []byte) (int, error) { cancel(); return len(b), nil }) // when the first run begins
	judged, wrote := false, false
	o.Dir, o.Evaluate, o.Write = t.TempDir(), func(*result.Set) { judged = true }, func(string, *result.Set) error { wrote = true; return nil }
	set, err = RunScenarios(ctx, []scenario.Scenario{newParkScenario(t, 2, "hang")}, o)
	if !errors.Is(err, context.Canceled) || set.CountRuns() != 0 || !strings.Contains(err.Error(), "interrupted in run 1 of 2") || !judged || !wrote {
		t.Errorf("interrupted: %v, %d runs, judged: %v, written: %v", err, set.CountRuns(), judged, wrote)
	}
	for _, o := range []Options{{Options: scenario.Options{Only: regexp.MustCompile("none")}}, {Dir: os.Args[0]}} {
		var wrong scenario.Error
		if _, err := RunScenarios(t.Context(), []scenario.Scenario{newParkScenario(t, 1, "park")}, o); !errors.As(err, &wrong) {
			t.Errorf("%+v: %v, want a scenario.Error", o, err)
		}
	}
}

type writerFunc func([]byte) (int, error)

func (f writerFunc) Write(b []byte) (int, error) { return f(b) }

// A side that does not end is ended, and has the row of what it has counted by then; one that
// has counted nothing has failed.
func TestSideThatStays(t *testing.T) {
	l := startLauncher(t)
	stay := func(mode string, slack time.Duration) (*result.Jobs, error) {
		j := &jobsRun{runner: &runner{launcher: l}, phase: scenario.Phase{Memory: 1 << 40}, overtime: slack - jobsDrainTimeout}
		side := scenario.Subject{Name: "x", Command: []string{os.Args[0], mode}, Contender: &scenario.Contender{}}
		rec := &result.Run{Started: time.Now(), Jobs: &result.Jobs{}}
		err := j.runContenderWithMemoryAndTimeLimits(t.Context(), rec, side, jobSettings{rate: 1})
		return rec.Jobs, err
	}
	// A machine can be too busy for the side to start, or to say anything, within a short time.
	for mode, as := range map[string]func(*result.Jobs, error) bool{
		"hang": func(got *result.Jobs, err error) bool {
			return err != nil && got.Result == nil && strings.Contains(err.Error(), "the job generator took longer than")
		},
		"progress": func(got *result.Jobs, err error) bool {
			return err == nil && got.Result != nil && got.Result.Finished == 7 && strings.Contains(got.Result.Overran, "its counts are of the first 0.8 s of its window")
		},
	} {
		slack := 250 * time.Millisecond
		got, err := stay(mode, slack)
		for !as(got, err) && slack < 10*time.Second {
			slack *= 2
			got, err = stay(mode, slack)
		}
		if !as(got, err) {
			t.Errorf("%s: got %+v, %v", mode, got.Result, err)
		}
	}
}
