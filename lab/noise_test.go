package lab

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/myriad-go/myriad/internal/procfs"
)

// attempt is a run that others disturbed by so many CPUs; negative is one that failed.
func attempt(foreign float64) RunRecord {
	r := RunRecord{Workload: "one", Subject: "a", Round: 1, Took: time.Second}
	if foreign < 0 {
		r.Error = "it failed"
		return r
	}
	r.Throughput = &ThroughputFigures{TPS: 1000 * foreign, Server: &ServerFigures{Foreign: foreign}}
	if foreign > noiseTolerance {
		r.Marks = []Mark{{RuleNoise, fmt.Sprintf("%.1f CPUs", foreign)}}
	}
	return r
}

func attempts(foreign ...float64) (all []RunRecord) {
	for i, f := range foreign {
		all = append(all, attempt(f))
		all[i].Attempt = i + 1
	}
	return all
}

func TestSupersede(t *testing.T) {
	for _, c := range []struct {
		foreign []float64
		counts  int
	}{
		{[]float64{0}, 0}, {[]float64{0.5}, 0}, {[]float64{-1}, 0},
		{[]float64{0.5, 0}, 1}, {[]float64{0.5, 0.4, 0}, 2},
		{[]float64{0.5, 0.3, 0.4}, 1}, {[]float64{0.2, 0.3, 0.4}, 0}, {[]float64{0.5, 0.4, 0.3}, 2},
		{[]float64{0.5, -1}, 0},
	} {
		all := attempts(c.foreign...)
		supersede(all)
		for i := range all {
			if all[i].Superseded == (i == c.counts) {
				t.Errorf("%v: attempt %d is superseded: %v, want %d to count", c.foreign, i, all[i].Superseded, c.counts)
			}
		}
	}
	supersede(nil)
}

func TestRepeater(t *testing.T) {
	wants := func(what string, r repeater, want bool, foreign ...float64) {
		t.Helper()
		all := attempts(foreign...)
		r.made(all, 0)
		if got := r.wants(all, time.Second); got != want {
			t.Errorf("%s: got %v, want %v", what, got, want)
		}
	}
	r := repeater{most: 2, planned: time.Hour}
	wants("none yet", r, true)
	wants("a quiet one", r, false, 0)
	wants("a failed one", r, false, -1)
	wants("a noisy one", r, true, 0.5)
	wants("two", r, true, 0.5, 0.5)
	wants("three", r, false, 0.5, 0.5, 0.5)
	wants("a quiet one at last", r, false, 0.5, 0)
	wants("never", repeater{planned: time.Hour}, false, 0.5)
	wants("none yet, never again", repeater{}, true)
}

// TestRepeaterBound has every run disturbed: repeats end when they have taken a quarter of
// the time, and the book says so.
func TestRepeaterBound(t *testing.T) {
	const steps = 40
	r := repeater{most: 2, planned: steps * time.Second}
	repeats := 0
	for range steps {
		var all []RunRecord
		for r.wants(all, time.Second) {
			made := len(all)
			all = append(all, attempt(0.5))
			r.made(all, made)
		}
		repeats += len(all) - 1
	}
	if repeats != steps/repeatShare || r.refused != steps-repeats/2 {
		t.Errorf("%d repeats, %d refused, want %d", repeats, r.refused, steps/repeatShare)
	}
	b := &Book{}
	r.note(b)
	if len(b.Notes) != 1 || !strings.Contains(b.Notes[0], "a quarter of the planned time, 10s; 35 more were not") {
		t.Errorf("got %q", b.Notes)
	}
}

// TestSupersededRows has what was made again in no figure, and told of.
func TestSupersededRows(t *testing.T) {
	r := &Report{Scenario: testScenario()}
	r.Runs = attempts(0.5, 0.2)
	supersede(r.Runs)
	rows := r.rows("one")
	if len(rows) != 1 || len(rows[0].runs) != 1 || !slices.Equal(tps.values(rows[0]), []float64{200}) || rows[0].marks() != "noise 1/1" {
		t.Fatalf("got %+v, want the second attempt alone", rows)
	}
	var text strings.Builder
	if err := r.WriteText(&text); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"a, round 1: made again, and attempt 1 counts for nothing: noise: 0.5 CPUs", "a, round 1: noise: 0.2 CPUs"} {
		if !strings.Contains(text.String(), want) {
			t.Errorf("the report does not say %q:\n%s", want, text.String())
		}
	}
}

// TestBusyOthers has what others do be what the machine does but for this process and its
// children.
func TestBusyOthers(t *testing.T) {
	if runtime.GOOS != "linux" {
		t.Skip("no /proc")
	}
	for begin := time.Now(); time.Since(begin) < 100*time.Millisecond; {
	}
	read := func() (all, own time.Duration) {
		cpus, err := procfs.ReadCPUs()
		stat, err2 := procfs.ReadStat(os.Getpid())
		if err := errors.Join(err, err2); err != nil || stat.CPU() == 0 {
			t.Fatal(err, stat)
		}
		return cpus.All.Busy + cpus.All.Stolen, stat.CPU() + stat.Waited
	}
	all, own := read()
	got, _, err := busyOthers()
	allAfter, ownAfter := read()
	if err != nil || got < all-ownAfter || got > allAfter-own {
		t.Errorf("got %v, %v, want %v to %v", got, err, all-ownAfter, allAfter-own)
	}
}

// TestWaitedChildren has a child, and its child, be no others once they are waited for.
func TestWaitedChildren(t *testing.T) {
	if runtime.GOOS != "linux" {
		t.Skip("no /proc")
	}
	waited := func() time.Duration {
		s, err := procfs.ReadStat(os.Getpid())
		if err != nil {
			t.Fatal(err)
		}
		return s.Waited
	}
	before := waited()
	c := exec.Command("sh", "-c", "sh -c 'i=0; while [ $i -lt 100000 ]; do i=$((i+1)); done'; exit 0")
	if err := c.Run(); err != nil {
		t.Skip("needs sh: ", err)
	}
	used := c.ProcessState.UserTime() + c.ProcessState.SystemTime()
	if got := waited() - before; got < used-20*time.Millisecond {
		t.Errorf("%v more were waited for, want %v of a child and its child", got, used)
	}
}

// TestNoiseOfEveryKind has each kind marked, but a soak, and those made again whose figures
// are of time.
func TestNoiseOfEveryKind(t *testing.T) {
	for kind, c := range map[Kind]struct {
		run           RunRecord
		marked, again bool
	}{
		Throughput: {RunRecord{Throughput: &ThroughputFigures{Server: &ServerFigures{Foreign: 0.2}}}, true, true},
		Heartbeats: {RunRecord{Heartbeats: &HeartbeatFigures{Server: &HeartbeatServer{Foreign: 0.2}}}, true, true},
		Flood:      {RunRecord{Flood: &FloodFigures{Server: &ServerFigures{Foreign: 0.2}}}, true, true},
		Offering:   {RunRecord{Foreign: 0.2, Overload: &OverloadRun{}}, true, true},
		Idle:       {RunRecord{Foreign: 0.2, Idle: &IdleFigures{}}, true, false},
		Parking:    {RunRecord{Foreign: 0.2, Parked: &ParkedFigures{}}, true, false},
		Holding:    {RunRecord{Foreign: 0.2, Million: &MillionRun{}}, true, false},
		Soaking:    {RunRecord{Foreign: 0.2, Soak: &SoakFigures{}}, false, false},
	} {
		c.run.markNoise(kind)
		if c.run.noisy() != c.marked || c.run.again() != c.again {
			t.Errorf("%s: marks %v, made again: %v; want %v, %v", kind, c.run.Marks, c.run.again(), c.marked, c.again)
		}
		r := repeater{most: 1, planned: time.Hour}
		if got := r.wants([]RunRecord{c.run}, time.Second); got != c.again {
			t.Errorf("%s: wanted again: %v", kind, got)
		}
	}
	quiet := RunRecord{Foreign: 0.5, Throughput: &ThroughputFigures{Server: &ServerFigures{Foreign: noiseTolerance}}}
	if quiet.markNoise(Throughput); quiet.noisy() {
		t.Errorf("marks %v of a quiet window", quiet.Marks)
	}
}

// TestNoiseStolen tells what of the noise the host took, in the window or, where figures are
// of the whole run, in that.
func TestNoiseStolen(t *testing.T) {
	for stolen, want := range map[time.Duration]string{
		0:                      "something else took 55 % of a CPU",
		300 * time.Millisecond: "something else took 55 % of a CPU, of which the host took 30 %",
	} {
		r := goodRun()
		from, to := r.sample(Measuring), r.sample(Measured)
		window := float64(to.At.Sub(from.At)) / float64(time.Second)
		to.Busy += time.Duration(0.5 * window * float64(time.Second))
		from.Stolen, to.Stolen = time.Second, time.Second+time.Duration(float64(stolen)*window)
		r.judge(Workload{Kind: Throughput, Connections: 100, Pipeline: 1}, twoCPUs)
		if len(r.Marks) != 1 || r.Marks[0] != (Mark{RuleNoise, want}) {
			t.Errorf("got %v, want %q", r.Marks, want)
		}
	}
	whole := RunRecord{Foreign: 0.5, Stolen: 0.25, Idle: &IdleFigures{}}
	if whole.markNoise(Idle); len(whole.Marks) != 1 || whole.Marks[0].Detail != "something else took 50 % of a CPU, of which the host took 25 %" {
		t.Errorf("got %v", whole.Marks)
	}
}

// TestLabIsNoOther has what the lab does itself in a window, such as to take a trace, be no
// noise.
func TestLabIsNoOther(t *testing.T) {
	r := goodRun()
	r.Samples[2].Busy += 500 * time.Millisecond
	r.Samples[2].Lab += 500 * time.Millisecond
	r.judge(Workload{Kind: Throughput, Connections: 100, Pipeline: 1}, twoCPUs)
	if f := r.Throughput.Server.Foreign; !near(f, 0.05) || len(r.Marks) != 0 {
		t.Errorf("%v CPUs of others, marks %v", f, r.Marks)
	}
}

// TestSupersedeFailed has a failed attempt count for nothing if another has not failed,
// whatever disturbed them.
func TestSupersedeFailed(t *testing.T) {
	failed := RunRecord{Error: "it failed", Foreign: 0.2, Marks: []Mark{{RuleNoise, "0.2 CPUs"}}}
	for _, c := range []struct {
		all    []RunRecord
		counts int
	}{
		{[]RunRecord{attempt(0.5), failed}, 0}, {[]RunRecord{failed, attempt(0.5)}, 1},
		{[]RunRecord{failed, attempt(0.5), attempt(0.4), failed}, 2}, {[]RunRecord{failed, failed}, 1},
	} {
		supersede(c.all)
		for i := range c.all {
			if c.all[i].Superseded == (i == c.counts) {
				t.Errorf("%+v: attempt %d is superseded: %v, want %d to count", c.all, i, c.all[i].Superseded, c.counts)
			}
		}
	}
}
