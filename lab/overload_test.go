package lab

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/myriad-go/myriad/internal/offer"
	"github.com/myriad-go/myriad/internal/procfs"
)

// childOffer is what "myriad offer" is.
func childOffer(args []string) error {
	var plan offer.Plan
	flags := flag.NewFlagSet("offer", flag.ContinueOnError)
	plan.AddFlags(flags, offer.Own())
	if err := flags.Parse(args); err != nil {
		return err
	}
	return offer.Run(context.Background(), plan, offer.Own(), os.Stdout)
}

// childBad is a side that does not do what it should. All but babble say before
// what they have counted.
func childBad(part string) error {
	if part == "babble" {
		fmt.Println("myriad: hello")
		time.Sleep(time.Hour) // until it is ended
	}
	so := offer.Result{Pool: part, Duration: time.Second, Elapsed: 100 * time.Millisecond, Offered: 7, Accepted: 7, Finished: 7, Good: 7}
	if err := (offer.Line{Progress: &so}).Write(os.Stdout); err != nil {
		return err
	}
	switch part {
	case "relapse":
		if err := (offer.Line{Result: &so}).Write(os.Stdout); err != nil {
			return err
		}
		return errors.New("this side crashes at its end")
	case "crash":
		return errors.New("this side crashes")
	case "hang":
		time.Sleep(time.Hour) // until it is ended
	case "hoard":
		for all := [][]byte{}; ; time.Sleep(10 * time.Millisecond) {
			more := make([]byte, 8<<20)
			for i := range more {
				more[i] = 1
			}
			all = append(all, more)
		}
	}
	return nil
}

// overloaded is an overload whose children are the test binary.
func overloaded(t *testing.T) *overload {
	t.Helper()
	options, err := OverloadOptions{Options: children(t), Memory: 256 << 20}.filled()
	if err != nil {
		t.Fatal(err)
	}
	o := &overload{OverloadOptions: options, self: options.Self, launcher: newLauncher(), slack: 20 * time.Second}
	t.Cleanup(o.launcher.close)
	return o
}

// A side that takes more memory than it may is ended, and its row says so and what it
// had counted.
func TestOverloadWatchdog(t *testing.T) {
	if runtime.GOOS != "linux" {
		t.Skip("no /proc")
	}
	o := overloaded(t)
	run := OverloadRun{Window: time.Second}
	o.offer(t.Context(), &run, []string{o.self, "hoard"})
	run.judge(1000)
	if run.Ended == nil || run.Error != "" {
		t.Fatalf("got error %q, want the watchdog to have ended it", run.Error)
	}
	if e := run.Ended; e.RSS <= o.Memory || e.RSS > 2*o.Memory || e.Most != o.Memory || e.After <= 0 || run.PeakRSS != e.RSS {
		t.Errorf("got %+v and a peak of %d, want a little more than %d bytes", e, run.PeakRSS, o.Memory)
	}
	if left := run.Took - run.Ended.After; left > 10*time.Second {
		t.Errorf("the process ended %v after the watchdog had seen it; want at once", left)
	}
	if run.Result == nil || run.Result.Good != 7 || run.goodput() != 7 {
		t.Errorf("got %+v, want what its last line has counted", run.Result)
	}
	if len(run.Marks) == 0 || run.Marks[0].Rule != RuleWatchdog || !strings.Contains(run.Marks[0].Detail, "(allowed: 0.27 GB)") {
		t.Errorf("got marks %v", run.Marks)
	}
}

// A side that crashes, babbles, says nothing or hangs is reported, with what it had
// counted.
func TestOverloadBadSides(t *testing.T) {
	for part, want := range map[string]string{
		"crash":   "the side ended: exit status 3: this side crashes; expected a line with its result before",
		"relapse": "the side ended: exit status 3: this side crashes at its end",
		"babble":  `"myriad: hello" is no line of a result`,
		"hush":    "the side ended: exit status 0; expected a line with its result before",
		"hang":    "the side took longer than",
	} {
		t.Run(part, func(t *testing.T) {
			o := overloaded(t)
			if part == "hang" {
				o.slack = 500*time.Millisecond - offerDrain
			}
			o.launcher.grace = 50 * time.Millisecond
			var run OverloadRun
			o.offer(t.Context(), &run, []string{o.self, part})
			if !strings.Contains(run.Error, want) || run.Ended != nil {
				t.Errorf("got error %q, ended %v, want %q", run.Error, run.Ended, want)
			}
			if (run.Result == nil) != (part == "babble") || part != "babble" && run.Result.Good != 7 {
				t.Errorf("got %+v, want what it had counted", run.Result)
			}
			run.judge(1000)
			w := overloadRow{runs: []*OverloadRun{&run}}
			if _, ok := w.median(offered); ok || !strings.HasPrefix(w.marks(), "FAILED 1/1") {
				t.Errorf("got marks %q and figures %v, want no figures of a failed run", w.marks(), ok)
			}
		})
	}
	o := overloaded(t)
	var run OverloadRun
	if o.offer(t.Context(), &run, []string{"/no/such/side"}); !strings.Contains(run.Error, "cannot start /no/such/side") {
		t.Errorf("got error %q", run.Error)
	}
}

func TestOverloadOptions(t *testing.T) {
	var wrongs ScenarioError
	for want, o := range map[string]OverloadOptions{
		"-1 rounds":                   {Options: Options{Rounds: -1}},
		"a duration of 1ms":           {Options: Options{Duration: time.Millisecond}},
		"a duration of 21m0s":         {Options: Options{Duration: 21 * time.Minute}},
		"a memory of 5 bytes":         {Memory: 5},
		"a deadline of 1µs":           {Deadline: time.Microsecond},
		"a warm-up of 21m0s":          {Warmup: 21 * time.Minute},
		"a queue of -1":               {Queue: -1},
		`"^none$" matches no run`:     {Options: Options{Only: regexp.MustCompile("^none$")}},
		`two sides are named "ours"`:  {Options: Options{Subjects: []Subject{{Name: "ours", Command: []string{"x"}}}}},
		"subject mine has no command": {Options: Options{Subjects: []Subject{{Name: "mine"}}}},
		"go build -C peers":           {Peers: "/no/such/peers"},
	} {
		if report, err := Overload(t.Context(), o); report != nil || !errors.As(err, &wrongs) || !strings.Contains(err.Error(), want) {
			t.Errorf("got %v, want a ScenarioError with %q", err, want)
		}
	}
	for _, text := range []string{"ours", "a/b=x", "a=", "a='x"} {
		if s, err := ParseOverloadSide(text); !errors.As(err, &wrongs) {
			t.Errorf("%q: got %v, %v, want a ScenarioError", text, s, err)
		}
	}
	if s, err := ParseOverloadSide("mine='/a b/c' offer"); err != nil || s.Name != "mine" || len(s.Command) != 2 || s.Command[0] != "/a b/c" {
		t.Errorf("got %+v, %v", s, err)
	}
}

// planned lists the "workload/side" of a plan.
func planned(t *testing.T, o OverloadOptions) string {
	t.Helper()
	o, err := o.filled()
	if err != nil {
		t.Fatal(err)
	}
	p, err := o.plan()
	if err != nil {
		t.Fatal(err)
	}
	var all strings.Builder
	for _, s := range p.steps {
		fmt.Fprintf(&all, "%s/%s\n", s.workload.Name, s.subject.Name)
	}
	return all.String()
}

func TestOverloadPlan(t *testing.T) {
	few := planned(t, OverloadOptions{Options: Options{Rounds: 1}})
	if n := strings.Count(few, "\n"); n != (3*4+1)*3 {
		t.Errorf("got %d runs, want 4 loads of 3 shapes and the million on 3 sides:\n%s", n, few)
	}
	if strings.Contains(few, "ants") || strings.Contains(few, "network") || strings.Contains(few, "cpu-1M") || !strings.Contains(few, "published-1M/naive") {
		t.Errorf("got\n%s", few)
	}
	mine, _ := ParseOverloadSide("mine=x")
	all := planned(t, OverloadOptions{Options: Options{Rounds: 1, Subjects: []Subject{mine}}, Peers: "peers", Rules: true, Network: true})
	for _, want := range []string{"cpu-10x/ants", "mixed-1x/pond", "cpu-2x/failsafe", "cpu-unloaded/ours-plain", "cpu-1x/mine", "network-10x/serve-adaptive"} {
		if !strings.Contains(all, want+"\n") {
			t.Errorf("got\n%swant %s", all, want)
		}
	}
	if strings.Contains(all, "network-10x/ours") || strings.Contains(all, "cpu-1x/serve") {
		t.Errorf("sides meet loads that are not theirs:\n%s", all)
	}
	short, err := OverloadTakes(OverloadOptions{Options: Options{Only: regexp.MustCompile("^cpu-1x/ours$"), Rounds: 1, Duration: time.Second}})
	long, err2 := OverloadTakes(OverloadOptions{})
	if errors.Join(err, err2) != nil || short < 5*time.Second || short > time.Minute || long < 20*time.Minute || long > 40*time.Minute {
		t.Errorf("takes: got %v and %v, %v", short, long, errors.Join(err, err2))
	}
}

// Each rule that a side is run without is one that the side knows, and together they
// are all.
func TestOverloadRules(t *testing.T) {
	var single []string
	for _, r := range ruleSides {
		p := offer.Plan{Pool: sideOurs, Work: offer.CPU, Duration: time.Second, Deadline: time.Second, Workers: 1, Off: r.off}
		if err := p.Check(offer.Own()); err != nil {
			t.Errorf("%s: %v", r.name, err)
		}
		if !strings.Contains(r.off, ",") {
			single = append(single, r.off)
		}
	}
	if all := ruleSides[len(ruleSides)-1]; all.off != strings.Join(single, ",") {
		t.Errorf("%s is without %s, want all of %v", all.name, all.off, single)
	}
}

// TestOverload runs sides for real, for a moment each.
func TestOverload(t *testing.T) {
	o := OverloadOptions{Options: children(t)}
	o.Out = filepath.Join(t.TempDir(), "out.json")
	o.Rounds, o.Duration, o.Warmup, o.Queue = 1, 100*time.Millisecond, 50*time.Millisecond, 64
	o.Only = regexp.MustCompile("^cpu-(1x|10x)/(naive|channel|ours|mine|broken)$")
	o.Subjects = []Subject{{Name: "mine", Command: []string{"{self}", "offer", "--pool", "channel"}}, {Name: "broken", Command: []string{"{self}", "fail"}}}
	report, err := Overload(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	if len(report.Runs) != 10 || report.Planned != 10 || report.Failed() != 2 {
		t.Fatalf("got %d runs of %d, %d failed, want 10 of which the two of the broken side failed: %+v", len(report.Runs), report.Planned, report.Failed(), report.Runs)
	}
	c := report.Capacities
	if len(c) != 1 || c[0].Shape != "cpu" || c[0].PerSecond < 20 || c[0].Workers < 1 || len(c[0].Tried) < 3 {
		t.Fatalf("got %+v, want the capacity for jobs that compute", c)
	}
	rates := make(map[string]float64)
	for _, run := range report.Runs {
		rates[run.Load] = run.Rate
		if run.Side == "broken" {
			continue
		}
		if run.Error != "" || run.Result == nil || run.Result.Offered+run.Result.Missed == 0 || runtime.GOOS == "linux" && run.PeakRSS == 0 {
			t.Errorf("%s/%s: got error %q, %+v", run.Workload, run.Side, run.Error, run.Result)
		}
		if told := strings.Contains(strings.Join(run.Command, " "), fmt.Sprint("--workers ", c[0].Workers, " ")); told != (run.Side == "channel" || run.Side == "mine") {
			t.Errorf("%s: %v", run.Side, run.Command)
		}
		if !strings.Contains(strings.Join(run.Command, " "), "--warmup 50ms ") || run.Result.Warmup != o.Warmup {
			t.Errorf("%s has no warm-up: %v", run.Side, run.Command)
		}
		if !strings.Contains(strings.Join(run.Command, " "), "--iterations ") {
			t.Errorf("%s is not told how many iterations are a millisecond: %v", run.Side, run.Command)
		}
	}
	if r := rates["10x"] / rates["1x"]; r < 9 || r > 10.1 {
		t.Errorf("got rates %v, want ten times as much", rates)
	}
	checkOverloadOut(t, o.Out, report)
}

// checkOverloadOut reads the written report back, and looks at the text.
func checkOverloadOut(t *testing.T, path string, report *OverloadReport) {
	t.Helper()
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	var read OverloadReport
	if err := json.Unmarshal(b, &read); err != nil {
		t.Fatal(err)
	}
	if len(read.Runs) != len(report.Runs) || len(read.Verdict) != len(report.Verdict) || read.Command != "myriad bench test" {
		t.Errorf("read back: %d runs, %d findings, command %q", len(read.Runs), len(read.Verdict), read.Command)
	}
	var text strings.Builder
	if err := report.WriteText(&text); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"go build -C peers", "cpu-10x: ", "broken, round 1: FAILED: the side ended: exit status 3", "goodput at 10x at least 95 %", "cpu-10x: naive: "} {
		if !strings.Contains(text.String(), want) {
			t.Errorf("the report does not say %q:\n%s", want, text.String())
		}
	}
}

// TestOverloadEnds when its context does, with the report so far.
func TestOverloadEnds(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	report, err := Overload(ctx, OverloadOptions{Options: children(t)})
	if !errors.Is(err, context.Canceled) || report == nil || len(report.Runs) != 0 {
		t.Errorf("got %+v, %v, want an empty report and the end of the context", report, err)
	}
}

// What others do is what the machine does but for this process.
func TestOverloadForeign(t *testing.T) {
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
		return cpus.All.Busy + cpus.All.Stolen, stat.CPU()
	}
	all, own := read()
	got, err := busyOthers()
	allAfter, ownAfter := read()
	if err != nil || got < all-ownAfter || got > allAfter-own {
		t.Errorf("got %v, %v, want %v to %v", got, err, all-ownAfter, allAfter-own)
	}
}
