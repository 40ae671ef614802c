package lab

import (
	"bytes"
	"cmp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/myriad-go/myriad/internal/offer"
	"github.com/myriad-go/myriad/internal/page"
)

// madeUp is a run with a goodput a second and a p99 in milliseconds.
func madeUp(load, side string, good uint64, p99 int) RunRecord {
	return RunRecord{Workload: "cpu-" + load, Subject: side, Round: 1, Overload: &OverloadRun{
		Shape: "cpu", Load: load, Rate: 1000, Capacity: 1000,
		Window: time.Second, Deadline: 200 * time.Millisecond, PeakRSS: 100e6,
		Result: &offer.Result{
			Pool: side, Work: "cpu", Duration: time.Second, Elapsed: time.Second, Offered: good, Accepted: good, Finished: good, Good: good,
			P50: time.Millisecond, P99: time.Duration(p99) * time.Millisecond, P999: time.Duration(p99) * time.Millisecond,
			CPUUser: time.Second, CPUSystem: 500 * time.Millisecond, PeakGoroutines: 1234,
		},
	}}
}

func madeUpReport(runs ...RunRecord) *Report {
	r := &Report{
		Machine: Machine{OS: "linux", Arch: "amd64", CPUs: 2, Go: "go1.26"}, Date: time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC),
		Command: "myriad bench overload", Runs: runs,
		Scenario: Scenario{Name: "overload", Question: "What becomes of a pool?", Rounds: 1, Subjects: []Subject{
			{Name: "naive", Side: &Side{Unbounded: true}}, {Name: "channel", Side: &Side{Told: true}},
			{Name: "ants", Optional: true, Command: []string{"{peers}", "offer"}, Side: &Side{Told: true}},
			{Name: "ours", Side: &Side{Own: true}}, {Name: "ours-plain", Side: &Side{Own: true, Variant: true}},
		}},
	}
	for load, times := range map[string]float64{unloaded: 0.05, once: 1, tenfold: 10} {
		r.Scenario.Workloads = append(r.Scenario.Workloads, Workload{
			Name: "cpu-" + load, Kind: Offering, Caption: "Jobs that compute.", WarmUp: 2 * time.Second, Offer: &Offer{Shape: "cpu", Times: times},
		})
	}
	slices.SortFunc(r.Scenario.Workloads, func(a, b Workload) int { return cmp.Compare(a.Offer.Times, b.Offer.Times) })
	if len(r.Runs) > 0 {
		r.Runs[0].Overload.Measured = &Capacity{Shape: "cpu", PerSecond: 1000, Side: "channel with 4 workers", Workers: 4}
	}
	return r
}

// sound are runs of a pool that keeps what it should.
func sound() []RunRecord {
	return []RunRecord{madeUp(unloaded, "ours", 50, 4), madeUp(once, "ours", 1000, 10), madeUp(tenfold, "ours", 950, 17)}
}

func TestOverloadVerdict(t *testing.T) {
	const others = "no other side ahead both in goodput and in p99, by more than 1 % each, in any row"
	with := func(change func(runs []RunRecord) []RunRecord) *Report {
		return madeUpReport(change(sound())...)
	}
	add := func(more ...RunRecord) func([]RunRecord) []RunRecord {
		return func(runs []RunRecord) []RunRecord { return append(runs, more...) }
	}
	ended := endedAt(tenfold)
	failed := madeUp(tenfold, "channel", 2000, 1)
	failed.Error = "no such file"
	for name, c := range map[string]struct {
		report *Report
		want   string
	}{
		"goodput kept":       {with(add()), "cpu: goodput at 10x at least 95 % of that at 1x: met: 95.0 % (950 of 1,000 a second)"},
		"goodput lost":       {with(func(r []RunRecord) []RunRecord { r[2].Overload.Result.Good = 949; return r }), "95 % of that at 1x: NOT MET: 94.9 %"},
		"goodput unknown":    {madeUpReport(madeUp(tenfold, "ours", 1, 1)), "95 % of that at 1x: not measured"},
		"latency kept":       {with(add()), "cpu: p99 at 10x at most 3 × the unloaded one + 5ms: met: 17.0 ms; allowed 17.0 ms (unloaded 4.00 ms)"},
		"latency lost":       {with(func(r []RunRecord) []RunRecord { r[2].Overload.Result.P99++; return r }), "the unloaded one + 5ms: NOT MET"},
		"nothing ran":        {with(func(r []RunRecord) []RunRecord { r[2].Overload.Result.P99 = 0; return r }), "the unloaded one + 5ms: NOT MET: -; allowed 17.0 ms (unloaded 4.00 ms)"},
		"nothing ran before": {with(func(r []RunRecord) []RunRecord { r[0].Overload.Result.P99 = 0; return r }), "the unloaded one + 5ms: not measured: no job has run unloaded"},
		"nothing of ours": {with(func(r []RunRecord) []RunRecord {
			r[2].Overload.Result.P99, r[2].Overload.Result.Good = 0, 0
			return append(r, madeUp(tenfold, "channel", 1, 1))
		}), others + ": NOT MET: cpu-10x/channel (goodput 1 against 0 a second, p99 1.00 ms against -)"},
		"not run":            {madeUpReport(madeUp(once, "ours", 1, 1)), "95 % of that at 1x: not measured: cpu-10x was not run"},
		"memory kept":        {with(add()), "in every row: met: 0.10 of 2.15 GB (in cpu-unloaded)"},
		"memory lost":        {with(func(r []RunRecord) []RunRecord { r[1].Overload.PeakRSS = 3e9; return r }), "in every row: NOT MET: 3.00 of 2.15 GB (in cpu-1x)"},
		"memory unknown":     {with(func(r []RunRecord) []RunRecord { clearPeaks(r); return r }), "in every row: not measured"},
		"no others":          {with(add()), others + ": not measured"},
		"others behind":      {with(add(madeUp(tenfold, "channel", 2000, 17), madeUp(once, "channel", 1000, 1))), others + ": met"},
		"other ahead":        {with(add(madeUp(tenfold, "channel", 960, 16))), others + ": NOT MET: cpu-10x/channel (goodput 960 against 950 a second, p99 16.0 ms against 17.0 ms)"},
		"ahead by a little":  {with(add(madeUp(tenfold, "channel", 959, 16))), others + ": met"},
		"variant ahead":      {with(add(madeUp(tenfold, "ours-plain", 2000, 1))), others + ": not measured"},
		"ended is not ahead": {with(add(ended)), others + ": met"},
		"naive ended":        {with(add(ended)), "cpu-10x: naive: ended by the watchdog at 1.5 s with 2.20 GB (allowed: 2.15 GB) (1 of 1 rounds)"},
		"naive survived":     {with(add(madeUp(tenfold, "naive", 20, 5000))), "cpu-10x: naive: came to its end with a goodput of 2 % of the capacity, p99 5.00 s and 100 MB"},
		"naive ended early":  {with(add(endedAt(once))), "cpu-1x: naive: ended by the watchdog"},
		"failed":             {with(add(failed)), others + ": met"},
	} {
		var got []string
		for _, f := range c.report.judgeOverload() {
			got = append(got, f.String())
		}
		if text := strings.Join(got, "\n") + "\n"; !strings.Contains(text, c.want) {
			t.Errorf("%s: got\n%swant %q", name, text, c.want)
		}
	}
	if v := madeUpReport().judgeOverload(); v != nil {
		t.Errorf("of no runs: got %v", v)
	}
}

// A run of the own pool that has failed is in no median, so no verdict may rest on the
// other rounds.
func TestOverloadOwnFailed(t *testing.T) {
	const goodput, late, memory, others = 0, 1, 2, 3 // the order of the verdict
	for name, c := range map[string]struct {
		load string
		fail func(run *RunRecord)
		why  string
		want map[int]string // by the order in the verdict; the others are met
	}{
		"crashed at 10x": {tenfold, func(r *RunRecord) { r.Error = "exit status 2\ngoroutine 1" }, "exit status 2",
			map[int]string{goodput: NotMeasured, late: NotMeasured, memory: NotMeasured, others: NotMet}},
		"crashed at 1x": {once, func(r *RunRecord) { r.Error = "exit status 2" }, "exit status 2",
			map[int]string{goodput: NotMeasured, memory: NotMeasured, others: NotMet}},
		"crashed unloaded": {unloaded, func(r *RunRecord) { r.Error = "exit status 2" }, "exit status 2",
			map[int]string{late: NotMeasured, memory: NotMeasured, others: NotMet}},
		"ended and said nothing": {tenfold, func(r *RunRecord) { r.Overload.Ended, r.Overload.Result = endedAt(tenfold).Overload.Ended, nil }, "ended by the watchdog at 1.5 s with 2.20 GB (allowed: 2.15 GB)",
			map[int]string{goodput: NotMeasured, late: NotMeasured, memory: NotMeasured, others: NotMet}},
		"crashed with too much": {tenfold, func(r *RunRecord) { r.Error, r.Overload.PeakRSS = "exit status 2", 3e9 }, "exit status 2",
			map[int]string{goodput: NotMeasured, late: NotMeasured, memory: NotMet, others: NotMet}},
	} {
		var runs []RunRecord
		for round := range 3 {
			for _, run := range append(sound(), madeUp(unloaded, "channel", 1, 50), madeUp(once, "channel", 1, 50), madeUp(tenfold, "channel", 1, 50)) {
				run.Round = round + 1
				if round == 1 && run.Subject == "ours" && run.Overload.Load == c.load {
					c.fail(&run)
				}
				runs = append(runs, run)
			}
		}
		why := "ours has failed in 1 of 3 rounds: " + c.why
		for i, f := range madeUpReport(runs...).judgeOverload()[:others+1] {
			want, bad := c.want[i]
			if !bad {
				want = Met
			}
			if f.Outcome != want || bad && f.Outcome+f.Detail != NotMet+"3.00 of 2.15 GB (in cpu-10x)" && !strings.Contains(f.Detail, why) {
				t.Errorf("%s: got %q, want %q with %q", name, f, want, why)
			}
			if strings.Contains(f.String(), "goroutine 1") {
				t.Errorf("%s: got %q, want the first line of the error", name, f)
			}
		}
	}
}

// Who is well ahead in one of the two figures is told of, and breaks no claim.
func TestOverloadAheadInOne(t *testing.T) {
	failed := madeUp(tenfold, "channel", 3000, 1)
	failed.Error = "x"
	for want, more := range map[string][]RunRecord{
		"not measured": nil,
		"none":         {madeUp(tenfold, "channel", 997, 17), madeUp(once, "channel", 1, 10)},
		"cpu-10x/channel in goodput (goodput 2,850 against 950 a second, p99 17.2 ms against 17.0 ms)":                                                                                    {madeUp(tenfold, "channel", 2850, 17)},
		"cpu-1x/channel in p99 (goodput 1,000 against 1,000 a second, p99 9.20 ms against 10.0 ms)":                                                                                       {madeUp(once, "channel", 1000, 9)},
		"cpu-1x/naive in p99 (goodput 5 against 1,000 a second, p99 1.20 ms against 10.0 ms); cpu-10x/channel in goodput (goodput 998 against 950 a second, p99 17.2 ms against 17.0 ms)": {madeUp(tenfold, "channel", 998, 17), madeUp(once, "naive", 5, 1)},
		"none ":   {madeUp(tenfold, "channel", 2000, 1)}, // in both
		"none  ":  {endedAt(tenfold)},
		"none   ": {failed},
	} {
		for i := range more {
			more[i].Overload.Result.P99 += 200 * time.Microsecond
		}
		runs := append(sound(), more...)
		f := madeUpReport(runs...).judgeOverload()[4]
		if f.Claim != "other sides ahead in only one of the two, by more than 5 %" || f.Outcome != "" || f.Detail != strings.TrimRight(want, " ") {
			t.Errorf("got %q, want %q", f, want)
		}
	}
}

// The latency of no job is no latency, and not the best.
func TestOverloadNoLatency(t *testing.T) {
	var runs []RunRecord
	for _, p99 := range []int{0, 10, 20} {
		runs = append(runs, madeUp(once, "ours", 100, p99))
	}
	r := madeUpReport(runs...)
	w := r.own(r.rows("cpu-1x"))
	if got := w.cell(p99); got != "20.0 ms" {
		t.Errorf("got %s of 10 ms, 20 ms and no job, want 20.0 ms", got)
	}
	w.runs = w.runs[:1]
	w.runs[0].Overload.Result = &offer.Result{}
	for _, f := range []Figure{p50, p99, jobP999} {
		if got := w.cell(f); got != none {
			t.Errorf("got %q, want %q", got, none)
		}
	}
}

// endedAt is a run that the watchdog has ended, and that was ahead by then.
func endedAt(load string) RunRecord {
	run := madeUp(load, "naive", 2000, 1)
	run.Overload.Ended = &OverloadEnd{After: 1500 * time.Millisecond, RSS: 2.2e9, Most: 2.15e9}
	return run
}

func clearPeaks(runs []RunRecord) {
	for i := range runs {
		runs[i].Overload.PeakRSS = 0
	}
}

// Medians are over rounds.
func TestOverloadRounds(t *testing.T) {
	var runs []RunRecord
	for round, good := range []uint64{100, 900, 500} {
		run := madeUp(once, "ours", good, 10)
		run.Round = round + 1
		runs = append(runs, run)
	}
	r := madeUpReport(runs...)
	w := r.own(r.rows("cpu-1x"))
	if v, ok := goodput.median(w); !ok || v != 500 {
		t.Errorf("got %v, %v, want the median, 500", v, ok)
	}
}

// Goodput is over the time in which jobs could be good.
func TestOverloadGoodput(t *testing.T) {
	for elapsed, want := range map[time.Duration]float64{
		500 * time.Millisecond: 2400, 600 * time.Millisecond: 2000, 1200 * time.Millisecond: 1000, time.Minute: 1000, 0: 0,
	} {
		run := madeUp(once, "ours", 1200, 1)
		run.Overload.Result.Elapsed = elapsed
		if got := run.Overload.goodput(); got != want {
			t.Errorf("after %v: got %v, want %v", elapsed, got, want)
		}
	}
}

// A side that was ended in its warm-up has no goodput, and its mark says so.
func TestOverloadEndedWarming(t *testing.T) {
	run := endedAt(tenfold)
	run.Overload.Result, run.Overload.Warmup = nil, 2*time.Second
	run.Overload.Warming = &offer.Result{Offered: 5000, Finished: 30, Good: 2, PeakGoroutines: 4000}
	run.Overload.endedWarming()
	run.markOverload()
	const want = "ended by the watchdog at 1.5 s, in the warm-up, with 2.20 GB (allowed: 2.15 GB); of 5,000 jobs that it was offered by then 30 had finished, 2 of them within their deadline"
	if !run.Overload.Ended.Warming || run.Overload.goodput() != 0 || run.Overload.Result.PeakGoroutines != 4000 || len(run.Marks) != 1 || run.Marks[0].Detail != want {
		t.Errorf("got %+v, %+v, want %q", run.Marks, run.Overload.Result, want)
	}
}

// After a warm-up goodput is what ended in the window.
func TestOverloadSteady(t *testing.T) {
	run := madeUp(once, "ours", 1200, 1)
	run.Overload.Result.Warmup, run.Overload.Result.Steady, run.Overload.Result.Elapsed = time.Second, 900, 1200*time.Millisecond
	if got := run.Overload.goodput(); got != 900 {
		t.Errorf("got %v, want 900", got)
	}
}

func TestOverloadMarks(t *testing.T) {
	for want, change := range map[string]func(r *RunRecord){
		"":           func(r *RunRecord) { r.Overload.Result.Late = 10 },
		RuleLate:     func(r *RunRecord) { r.Overload.Result.Late, r.Overload.Result.Missed = 5, 6 },
		RuleOverran:  func(r *RunRecord) { r.Overload.Result.Overran = "ended from outside" },
		RulePanicked: func(r *RunRecord) { r.Overload.Result.Panicked = 1 },
		RuleBooks:    func(r *RunRecord) { r.Overload.Result.Expired = 1 },
		RuleCapacity: func(r *RunRecord) { r.Overload.Result.Elapsed /= 2 },
		RuleWatchdog: func(r *RunRecord) { r.Overload.Ended, r.Overload.Result.Expired = &OverloadEnd{}, 1 },
		RuleUnfinished: func(r *RunRecord) {
			r.Overload.Result.Accepted++
			r.Overload.Result.Offered++
			r.Overload.Result.Unfinished++
		},
	} {
		run := madeUp(once, "ours", 1000, 1)
		change(&run)
		run.markOverload()
		got := ""
		for _, m := range run.Marks {
			got += m.Rule
		}
		if got != want {
			t.Errorf("got marks %v, want %q", run.Marks, want)
		}
	}
}

// The mark of a run that was offered late says by how much.
func TestOverloadLateness(t *testing.T) {
	for p99, want := range map[time.Duration]string{
		123 * time.Millisecond: "of 1,000 jobs that were due 20 were offered more than 10 ms late, and 0 never; the p99 of the lateness is 123 ms",
		0:                      "of 1,000 jobs that were due 20 were offered more than 10 ms late, and 0 never",
	} {
		run := madeUp(once, "ours", 1000, 1)
		run.Overload.Result.Late, run.Overload.Result.LateP99 = 20, p99
		run.markOverload()
		if len(run.Marks) != 1 || run.Marks[0].Detail != want {
			t.Errorf("got marks %v, want %q", run.Marks, want)
		}
	}
}

func TestOverloadText(t *testing.T) {
	ended := madeUp(tenfold, "naive", 20, 900)
	ended.Overload.Ended, ended.Overload.PeakRSS = &OverloadEnd{After: 1500 * time.Millisecond, RSS: 2.2e9, Most: 2.15e9}, 2.2e9
	ended.markOverload()
	early := madeUp(once, "naive", 20, 900)
	early.Overload.Ended, early.Overload.Result = ended.Overload.Ended, nil
	early.markOverload()
	failed := madeUp(once, "channel", 1, 1)
	failed.Error, failed.Overload.Result = "the side ended: exit status 1: no such file\nsecond line", nil
	warming := endedAt(unloaded)
	warming.Overload.Result, warming.Overload.Warmup = nil, 2*time.Second
	warming.Overload.endedWarming()
	warming.markOverload()
	r := madeUpReport(append(sound(), ended, early, warming, failed, madeUp(tenfold, "channel", 960, 16))...)
	var section page.Section
	for _, w := range r.Scenario.Workloads {
		section.Parts = append(section.Parts, r.workloadParts(w)...)
	}
	section.Parts = append(section.Parts, r.verdicts()...)
	var got bytes.Buffer
	if err := section.WriteText(&got); err != nil {
		t.Fatal(err)
	}
	golden(t, "overload.golden", got.String())
}

// TestOverloadNames has scenarios of names that make poor IDs in one page, with the charts
// of each.
func TestOverloadNames(t *testing.T) {
	names := []string{"_mine", "Überlast", "overload", "Overload"}
	b := &Book{Format: BookFormat, Command: "myriad bench"}
	for _, name := range names {
		runs := sound()
		for i := range runs {
			runs[i].Overload.Rate = map[string]float64{unloaded: 50, once: 1000, tenfold: 10_000}[runs[i].Overload.Load]
		}
		r := madeUpReport(runs...)
		r.Scenario.Name = name
		b.Reports = append(b.Reports, r)
	}
	p := b.Page()
	var html bytes.Buffer
	if err := p.WriteHTML(&html); err != nil {
		t.Fatal(err)
	}
	if n := strings.Count(html.String(), "<figure"); n != 2*len(names) {
		t.Errorf("%d charts, want goodput and p99 of each scenario, once", n)
	}
}
