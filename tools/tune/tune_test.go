package tune

import (
	"bufio"
	"encoding/json"
	"io"
	"math"
	"os"
	"os/exec"
	"runtime"
	"runtime/debug"
	"strings"
	"testing"

	limits "github.com/myriad-go/myriad/internal/cgroup"
)

// child, in the environment, makes the test binary a program that calls Memory
// with the Options in it, once its standard input has ended.
const child = "MYRIAD_TUNE_TEST"

// result is what it prints.
type result struct {
	Settings Settings
	Text     string
	Error    string
	// Limit and GOGC are what the runtime says afterwards.
	Limit int64
	GOGC  int
}

func TestMain(m *testing.M) {
	options, ok := os.LookupEnv(child)
	if !ok {
		os.Exit(m.Run())
	}
	_, _ = io.Copy(io.Discard, os.Stdin)
	var o Options
	if err := json.Unmarshal([]byte(options), &o); err != nil {
		panic(err)
	}
	var r result
	var err error
	if r.Settings, err = Memory(o); err != nil {
		r.Error = err.Error()
	}
	r.Text, r.Limit, r.GOGC = r.Settings.String(), debug.SetMemoryLimit(-1), debug.SetGCPercent(100)
	if err := json.NewEncoder(os.Stdout).Encode(r); err != nil {
		panic(err)
	}
}

// run has a process call Memory, with more in its environment, and in a group
// if there is one.
func run(t *testing.T, o Options, group *group, env ...string) (r result) {
	t.Helper()
	options, err := json.Marshal(o)
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(os.Args[0])
	for _, e := range os.Environ() {
		if !strings.HasPrefix(e, "GOGC=") && !strings.HasPrefix(e, "GOMEMLIMIT=") {
			cmd.Env = append(cmd.Env, e)
		}
	}
	cmd.Env = append(append(cmd.Env, child+"="+string(options), "GORACE=atexit_sleep_ms=0"), env...)
	cmd.Stderr = os.Stderr
	in, err1 := cmd.StdinPipe()
	out, err2 := cmd.StdoutPipe()
	if err1 != nil || err2 != nil {
		t.Fatal(err1, err2)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	if group != nil {
		if err := group.write("cgroup.procs", int64(cmd.Process.Pid)); err != nil {
			t.Error(err)
		}
	}
	in.Close()
	if err := json.NewDecoder(bufio.NewReader(out)).Decode(&r); err != nil {
		t.Error(err)
	}
	if err := cmd.Wait(); err != nil {
		t.Error(err)
	}
	return r
}

func TestMemoryUnderCgroup(t *testing.T) {
	const bound = 512 << 20
	group := newGroup(t, bound)
	for name, c := range map[string]struct {
		options Options
		limit   int64
		gogc    int
	}{
		"defaults":       {Options{}, bound / 100 * 90, 100},
		"half, GOGC 300": {Options{Percent: 50, GOGC: 300}, bound / 100 * 50, 300},
		"GOGC off":       {Options{GOGC: -1}, bound / 100 * 90, -1},
		"4 processes":    {Options{Processes: 4}, bound / 100 / 4 * 90, 100},
	} {
		r := run(t, c.options, group)
		s := r.Settings
		if s.Bound != bound || !strings.HasPrefix(s.From, "cgroup "+group.path+" memory.") {
			t.Errorf("%s: the bound is %d, from %q; want %d, from the group %s", name, s.Bound, s.From, bound, group.path)
		}
		if r.Error != "" || r.Limit != c.limit || r.GOGC != c.gogc || s.MemoryLimit != c.limit || s.GOGC != c.gogc || !s.SetLimit {
			t.Errorf("%s: got limit %d, GOGC %d, %+v, %s; want %d, %d", name, r.Limit, r.GOGC, s, r.Error, c.limit, c.gogc)
		}
	}
	if r := run(t, Options{}, group); r.Text != "memory limit 460 MiB (of 512 MiB: "+r.Settings.From+"), GOGC 100 (as it was)" {
		t.Errorf("got the text %q", r.Text)
	}
}

func TestMemoryOfMachine(t *testing.T) {
	r := run(t, Options{}, nil)
	if runtime.GOOS != "linux" {
		if r.Limit != math.MaxInt64 || r.Settings.SetLimit {
			t.Errorf("got %+v; want no limit where no memory is known", r)
		}
		return
	}
	bound, from := limits.MemoryLimit()
	if s := r.Settings; s.Bound != bound || s.From != from || r.Limit != bound/100*90 || s.SetGOGC || !s.SetLimit {
		t.Errorf("got %+v; want 90 %% of %d, from %s", r, bound, from)
	}
}

// TestEnvironmentWins also holds where no memory is known.
func TestEnvironmentWins(t *testing.T) {
	r := run(t, Options{GOGC: 300}, nil, "GOMEMLIMIT=100MiB", "GOGC=50")
	if r.Limit != 100<<20 || r.GOGC != 50 || r.Settings.SetLimit || r.Settings.SetGOGC ||
		r.Text != "memory limit 100 MiB (as it was), GOGC 50 (as it was)" {
		t.Errorf("with both in the environment: got %+v; want 100 MiB, 50", r)
	}
	if r := run(t, Options{GOGC: 300}, nil, "GOMEMLIMIT=", "GOGC="); r.GOGC != 300 || !r.Settings.SetGOGC {
		t.Errorf("with both empty in the environment: got %+v; want GOGC 300, as if they were not there", r)
	}
	if r := run(t, Options{GOGC: -1}, nil, "GOMEMLIMIT=100MiB"); r.GOGC != -1 || r.Text != "memory limit 100 MiB (as it was), GOGC off" {
		t.Errorf("GOGC off with GOMEMLIMIT: got %+v; want off", r)
	}
	if r := run(t, Options{}, nil, "GOMEMLIMIT=off"); r.Limit != math.MaxInt64 || r.Text != "memory limit none (as it was), GOGC 100 (as it was)" {
		t.Errorf("GOMEMLIMIT=off: got %+v; want no limit", r)
	}
	r = run(t, Options{GOGC: -1}, nil, "GOMEMLIMIT=off")
	if !strings.Contains(r.Error, "never be collected") || r.GOGC != 100 || r.Limit != math.MaxInt64 {
		t.Errorf("GOGC off without any limit: got %+v; want an error, and nothing set", r)
	}
}

func TestMemoryKeepsTheProgramsLimit(t *testing.T) {
	before := debug.SetMemoryLimit(1 << 30)
	defer debug.SetMemoryLimit(before)
	s, err := Memory(Options{})
	if err != nil || s.SetLimit || s.MemoryLimit != 1<<30 || debug.SetMemoryLimit(-1) != 1<<30 {
		t.Errorf("got %+v, %v; want the limit that was set, 1 GiB", s, err)
	}
}

func TestMemoryRefuses(t *testing.T) {
	before := debug.SetMemoryLimit(-1)
	for _, o := range []Options{{Percent: -1}, {Percent: 101}, {GOGC: -2}, {GOGC: 100_001}, {Processes: -1}, {Processes: 1025}} {
		if s, err := Memory(o); err == nil || !strings.Contains(err.Error(), "expected") {
			t.Errorf("%+v: got %+v, %v; want an error that says what is expected", o, s, err)
		}
	}
	if now := debug.SetMemoryLimit(-1); now != before {
		t.Errorf("the memory limit is %d, was %d; want it untouched by bad options", now, before)
	}
}
