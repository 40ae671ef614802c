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
	o := &overload{runner: &runner{self: children(t).Self, launcher: newLauncher()}, load: Offer{Memory: 256 << 20}.filled(), slack: 20 * time.Second}
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
	rec := RunRecord{Overload: &OverloadRun{Window: time.Second, Capacity: 1000}}
	run := rec.Overload
	began := time.Now()
	o.offer(t.Context(), &rec, []string{o.self, "hoard"})
	rec.markOverload()
	if run.Ended == nil || rec.Error != "" {
		t.Fatalf("got error %q, want the watchdog to have ended it", rec.Error)
	}
	if e := run.Ended; e.RSS <= o.load.Memory || e.RSS > 2*o.load.Memory || e.Most != o.load.Memory || e.After <= 0 || run.PeakRSS != e.RSS {
		t.Errorf("got %+v and a peak of %d, want a little more than %d bytes", e, run.PeakRSS, o.load.Memory)
	}
	if left := time.Since(began) - run.Ended.After; left > 10*time.Second {
		t.Errorf("the process ended %v after the watchdog had seen it; want at once", left)
	}
	if run.Result == nil || run.Result.Good != 7 || run.goodput() != 7 {
		t.Errorf("got %+v, want what its last line has counted", run.Result)
	}
	if len(rec.Marks) == 0 || rec.Marks[0].Rule != RuleWatchdog || !strings.Contains(rec.Marks[0].Detail, "(allowed: 0.27 GB)") {
		t.Errorf("got marks %v", rec.Marks)
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
			rec := badSide(t, part)
			run := rec.Overload
			if !strings.Contains(rec.Error, want) || run.Ended != nil {
				t.Errorf("got error %q, ended %v, want %q", rec.Error, run.Ended, want)
			}
			if (run.Result == nil) != (part == "babble") || part != "babble" && run.Result.Good != 7 {
				t.Errorf("got %+v, want what it had counted", run.Result)
			}
			rec.markOverload()
			w := row{runs: []*RunRecord{&rec}}
			if _, ok := offered.median(w); ok || !strings.HasPrefix(w.marks(), "FAILED 1/1") {
				t.Errorf("got marks %q and figures %v, want no figures of a failed run", w.marks(), ok)
			}
		})
	}
	o := overloaded(t)
	rec := RunRecord{Overload: &OverloadRun{Capacity: 1000}}
	if o.offer(t.Context(), &rec, []string{"/no/such/side"}); !strings.Contains(rec.Error, "cannot start /no/such/side") {
		t.Errorf("got error %q", rec.Error)
	}
}

// badSide runs a side. One that hangs is not waited for for long, but where it has not yet said
// what it had counted: a busy machine may not have started it.
func badSide(t *testing.T, part string) (rec RunRecord) {
	t.Helper()
	o := overloaded(t)
	o.launcher.grace = 50 * time.Millisecond
	for _, slack := range []time.Duration{500 * time.Millisecond, 5 * time.Second, time.Minute} {
		if part == "hang" {
			o.slack = slack - offerDrain
		}
		rec = RunRecord{Overload: &OverloadRun{Capacity: 1000}}
		o.offer(t.Context(), &rec, []string{o.self, part})
		if part != "hang" || rec.Overload.Result != nil {
			break
		}
	}
	return rec
}

func TestOverloadChecks(t *testing.T) {
	of := func(change func(w *Workload)) Workload {
		w := Workload{Name: "jobs", Kind: Offering, Duration: time.Second, Offer: &Offer{Shape: "cpu", Times: 2}}
		change(&w)
		return w
	}
	for want, change := range map[string]func(w *Workload){
		"no offer": func(w *Workload) { w.Offer = nil },
		`jobs of shape "x"; expected published, cpu, mixed and network`: func(w *Workload) { w.Offer.Shape = "x" },
		"a duration of 1ms":            func(w *Workload) { w.Duration = time.Millisecond },
		"a duration of 21m0s":          func(w *Workload) { w.Duration = 21 * time.Minute },
		"a duration of 7m0s; expected": func(w *Workload) { w.Duration, w.Offer.Windows = 7*time.Minute, 3 },
		"-1 windows":                   func(w *Workload) { w.Offer.Windows = -1 },
		"a memory of 5 bytes":          func(w *Workload) { w.Offer.Memory = 5 },
		"a deadline of 1µs":            func(w *Workload) { w.Offer.Deadline = time.Microsecond },
		"a warm-up of 21m0s":           func(w *Workload) { w.WarmUp = 21 * time.Minute },
		"a queue of -1":                func(w *Workload) { w.Offer.Queue = -1 },
		"-1 times the capacity":        func(w *Workload) { w.Offer.Times = -1 },
		"1001 times the capacity":      func(w *Workload) { w.Offer.Times = 1001 },
		"0 jobs a second, and 0 times": func(w *Workload) { w.Offer.Times = 0 },
		"5 jobs a second, and 2 times": func(w *Workload) { w.Offer.Rate = 5 },
		"2e+08 jobs a second":          func(w *Workload) { w.Offer.Rate, w.Offer.Times = 2e8, 0 },
		"0 connections with 0 lines":   func(w *Workload) { w.Offer.Shape = shapeNetwork },
	} {
		var wrongs ScenarioError
		if err := of(change).check(); !errors.As(err, &wrongs) || !strings.Contains(err.Error(), want) {
			t.Errorf("got %v, want a ScenarioError with %q", err, want)
		}
	}
	if err := of(func(*Workload) {}).check(); err != nil {
		t.Error(err)
	}
	for want, f := range map[string]Offer{unloaded: {Times: 0.05}, "1x": {Times: 1}, "2.5x": {Times: 2.5}, "1,000,000/s": {Rate: 1e6}} {
		if got := f.load(); got != want {
			t.Errorf("got %s, want %s", got, want)
		}
	}
}

func TestOverloadSubjects(t *testing.T) {
	var wrongs ScenarioError
	scenario := builtIn(t, "overload")
	for _, text := range []string{"ours", "a/b=x", "a=", "a='x"} {
		if s, err := scenario.ParseSubject(text); !errors.As(err, &wrongs) {
			t.Errorf("%q: got %v, %v, want a ScenarioError", text, s, err)
		}
	}
	s, err := scenario.ParseSubject("mine='/a b/c' offer")
	if err != nil || s.Name != "mine" || len(s.Command) != 2 || s.Command[0] != "/a b/c" || s.Side == nil || !s.Side.Told {
		t.Errorf("got %+v, %v", s, err)
	}
	double := Options{Subjects: []Subject{{Name: "ours", Command: []string{"x"}, Side: &Side{}}}}
	if _, err := double.apply(scenario); !errors.As(err, &wrongs) || !strings.Contains(err.Error(), `two subjects are named "ours"`) {
		t.Errorf("got %v, want that the name is there", err)
	}
	if _, err := (OverloadChanges{Peers: "/no/such/peers"}).Apply(scenario); !errors.As(err, &wrongs) || !strings.Contains(err.Error(), "go build -C peers") {
		t.Errorf("got %v, want how peers are built", err)
	}
	jobs := Scenario{Subjects: []Subject{acting("a", "plain")}, Workloads: []Workload{small("one")}}
	if s, err := jobs.ParseSubject("mine=x {addr}"); err != nil || s.Side != nil {
		t.Errorf("got %+v, %v, want a server", s, err)
	}
}

// planned lists the "workload/side" of the scenario with changes, in one round.
func planned(t *testing.T, c OverloadChanges, o Options) (string, Scenario) {
	t.Helper()
	s, err := c.Apply(builtIn(t, "overload"))
	if err != nil {
		t.Fatal(err)
	}
	o.Rounds = 1
	if s, err = o.apply(s); err != nil {
		t.Fatal(err)
	}
	steps, err := s.plan(nil)
	if err != nil {
		t.Fatal(err)
	}
	var all strings.Builder
	for _, s := range steps {
		fmt.Fprintf(&all, "%s/%s\n", s.workload.Name, s.subject.Name)
	}
	return all.String(), s
}

func TestOverloadPlan(t *testing.T) {
	few, s := planned(t, OverloadChanges{}, Options{})
	if n := strings.Count(few, "\n"); n != (3*4+1)*3 {
		t.Errorf("got %d runs, want 4 loads of 3 shapes and the million on 3 sides:\n%s", n, few)
	}
	if strings.Contains(few, "ants") || strings.Contains(few, "network") || strings.Contains(few, "cpu-1M") || !strings.Contains(few, "published-1M/naive") {
		t.Errorf("got\n%s", few)
	}
	if s.Rounds = 3; s.Takes() < 20*time.Minute || s.Takes() > 45*time.Minute {
		t.Errorf("it takes %v, want 20 to 45 minutes", s.Takes())
	}
	peers := filepath.Join(t.TempDir(), "peers")
	if err := os.WriteFile(peers, nil, 0o777); err != nil {
		t.Fatal(err)
	}
	mine := Subject{Name: "mine", Command: []string{"x"}, Side: &Side{Told: true}}
	all, s := planned(t, OverloadChanges{
		Peers: peers, Memory: 1 << 30, Deadline: time.Second, Queue: 7, WarmUp: -1,
	}, Options{With: asking("ours", "network", "ants"), Subjects: []Subject{mine}})
	for _, want := range []string{"cpu-10x/ants", "mixed-1x/pond", "cpu-2x/failsafe", "cpu-unloaded/ours-plain", "cpu-1x/mine", "network-10x/serve-adaptive"} {
		if !strings.Contains(all, want+"\n") {
			t.Errorf("got\n%swant %s", all, want)
		}
	}
	if strings.Contains(all, "network-10x/ours") || strings.Contains(all, "cpu-1x/serve") {
		t.Errorf("sides meet loads that are not theirs:\n%s", all)
	}
	for _, w := range s.Workloads {
		if f := w.Offer.filled(); f.Memory != 1<<30 || f.Deadline != time.Second || f.Queue != 7 || w.WarmUp != 0 {
			t.Errorf("%s: got %+v and a warm-up of %v, want what was asked for", w.Name, f, w.WarmUp)
		}
	}
	for _, x := range s.Subjects {
		if x.Name == "ants" && (x.Command[0] != peers || x.Optional) {
			t.Errorf("got %+v, want the executable of the peers", x)
		}
	}
	if f := builtIn(t, "overload").Workloads[0].Offer.filled(); f.Memory != 2<<30 || f.Deadline != 200*time.Millisecond || f.Queue != 1024 || f.Windows != 1 {
		t.Errorf("defaults: %+v", f)
	}
}

// Each rule that a side is run without is one that the side knows, and together they
// are all.
func TestOverloadRules(t *testing.T) {
	var single []string
	all := ""
	for _, x := range builtIn(t, "overload").Subjects {
		if x.Side == nil || !x.Side.Variant {
			continue
		}
		off := x.Command[len(x.Command)-1]
		p := offer.Plan{Pool: "ours", Work: offer.CPU, Duration: time.Second, Deadline: time.Second, Workers: 1, Off: off}
		if err := p.Check(offer.Own()); err != nil {
			t.Errorf("%s: %v", x.Name, err)
		}
		if strings.Contains(off, ",") {
			all = off
		} else {
			single = append(single, off)
		}
	}
	if len(single) != 3 || all != strings.Join(single, ",") {
		t.Errorf("one is without %s, want all of %v", all, single)
	}
}

// TestOverload runs sides for real, for a moment each.
func TestOverload(t *testing.T) {
	o := children(t)
	o.Dir = filepath.Join(t.TempDir(), "r")
	o.Rounds, o.Duration = 1, 100*time.Millisecond
	o.Only = regexp.MustCompile("^cpu-(1x|10x)/(naive|channel|ours|mine|broken)$")
	s, err := OverloadChanges{WarmUp: 50 * time.Millisecond, Queue: 64}.Apply(builtIn(t, "overload"))
	if err != nil {
		t.Fatal(err)
	}
	o.Subjects = []Subject{
		{Name: "mine", Command: []string{"{self}", "offer", "--pool", "channel"}, Side: &Side{Told: true}},
		{Name: "broken", Command: []string{"{self}", "fail"}, Side: &Side{Told: true}},
	}
	report, err := Run(t.Context(), s, o)
	if err != nil {
		t.Fatal(err)
	}
	if len(report.Runs) != 10 || report.Planned != 10 || report.Failed() != 2 {
		t.Fatalf("got %d runs of %d, %d failed, want 10 of which the two of the broken side failed: %+v", len(report.Runs), report.Planned, report.Failed(), report.Runs)
	}
	if v := report.Verdicts; len(v) < len(report.judgeOverload()) || !strings.Contains(v[0].Text, "naive") {
		t.Errorf("the verdicts are not those of the published table and of overload: %+v", v)
	}
	c := report.Capacities()
	if len(c) != 1 || c[0].Shape != "cpu" || c[0].PerSecond < 20 || c[0].Workers < 1 || len(c[0].Tried) < 3 || c[0] != report.Runs[0].Overload.Measured {
		t.Fatalf("got %+v, want the capacity for jobs that compute, once", c)
	}
	rates := make(map[string]float64)
	for _, rec := range report.Runs {
		run, command := rec.Overload, strings.Join(rec.Command, " ")
		rates[run.Load] = run.Rate
		if rec.Subject == "broken" {
			continue
		}
		if rec.Error != "" || run.Result == nil || run.Result.Offered+run.Result.Missed == 0 || runtime.GOOS == "linux" && run.PeakRSS == 0 {
			t.Errorf("%s/%s: got error %q, %+v", rec.Workload, rec.Subject, rec.Error, run.Result)
		}
		if told := strings.Contains(command, fmt.Sprint("--workers ", c[0].Workers, " ")); told != (rec.Subject == "channel" || rec.Subject == "mine") {
			t.Errorf("%s: %v", rec.Subject, rec.Command)
		}
		if !strings.Contains(command, "--warmup 50ms ") || run.Result.Warmup != 50*time.Millisecond {
			t.Errorf("%s has no warm-up: %v", rec.Subject, rec.Command)
		}
		if !strings.Contains(command, "--iterations ") {
			t.Errorf("%s is not told how many iterations are a millisecond: %v", rec.Subject, rec.Command)
		}
	}
	if r := rates["10x"] / rates["1x"]; r < 9 || r > 10.1 {
		t.Errorf("got rates %v, want ten times as much", rates)
	}
	checkOverloadOut(t, filepath.Join(o.Dir, "report.json"), report)
}

// checkOverloadOut reads the written report back, and looks at the text.
func checkOverloadOut(t *testing.T, path string, report *Report) {
	t.Helper()
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	var book Book
	if err := json.Unmarshal(b, &book); err != nil || len(book.Reports) != 1 {
		t.Fatal(err, len(book.Reports))
	}
	read := book.Reports[0]
	if len(read.Runs) != len(report.Runs) || len(read.judgeOverload()) != len(report.judgeOverload()) || read.Command != "myriad bench test" {
		t.Errorf("read back: %d runs, %d findings, command %q", len(read.Runs), len(read.judgeOverload()), read.Command)
	}
	var text strings.Builder
	if err := read.WriteText(&text); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"go build -C peers", "cpu-10x: ", "broken, round 1: FAILED: the side ended: exit status 3", "goodput at 10x at least 95 %", "cpu-10x: naive: "} {
		if !strings.Contains(text.String(), want) {
			t.Errorf("the report does not say %q:\n%s", want, text.String())
		}
	}
}

// A capacity that an earlier run has measured, or could not measure, is not measured again;
// so it survives that the scenario is interrupted and resumed.
func TestOverloadCapacity(t *testing.T) {
	known := &Capacity{Shape: "cpu", PerSecond: 500, Workers: 3, Iterations: 77}
	r := &runner{before: []RunRecord{{}, {Overload: &OverloadRun{Measured: known}}, {Overload: &OverloadRun{Measured: &Capacity{Shape: "mixed"}}}}}
	var run OverloadRun
	o := &overload{runner: r, load: Offer{Shape: "cpu"}}
	if c, err := o.capacity(t.Context(), &run); err != nil || c != known || run.Measured != nil || o.iterations != 77 {
		t.Errorf("got %+v, %v, measured %v, want what is known", c, err, run.Measured)
	}
	o = &overload{runner: r, load: Offer{Shape: "mixed"}}
	if c, err := o.capacity(t.Context(), &run); err == nil || !strings.Contains(err.Error(), "the capacity of mixed could not be measured") || run.Measured != nil || o.iterations != 77 {
		t.Errorf("got %+v, %v, want that it could not be measured", c, err)
	}
}

// Interrupted while it measures, a run keeps no capacity.
func TestOverloadEnds(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	s := builtIn(t, "overload")
	r := &runner{self: "none", scenario: &s}
	for _, w := range s.Workloads[:1] {
		var rec RunRecord
		err := runOffering(ctx, r, step{workload: w, subject: s.Subjects[0], round: 1}, &rec)
		if !errors.Is(err, context.Canceled) || rec.Overload.Measured != nil {
			t.Errorf("got %+v, %v, want the end of the context", rec.Overload, err)
		}
	}
}
