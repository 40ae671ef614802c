package lab

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/myriad-go/myriad/internal/offer"
)

// madeUp is a run with a goodput a second and a p99 in milliseconds.
func madeUp(load, side string, good uint64, p99 int) OverloadRun {
	return OverloadRun{
		Workload: "cpu-" + load, Shape: "cpu", Load: load, Side: side, Round: 1, Rate: 1000,
		Window: time.Second, Deadline: 200 * time.Millisecond, PeakRSS: 100e6,
		Result: &offer.Result{
			Pool: side, Work: "cpu", Duration: time.Second, Elapsed: time.Second, Offered: good, Accepted: good, Finished: good, Good: good,
			P50: time.Millisecond, P99: time.Duration(p99) * time.Millisecond, P999: time.Duration(p99) * time.Millisecond,
			CPUUser: time.Second, CPUSystem: 500 * time.Millisecond, PeakGoroutines: 1234,
		},
	}
}

func madeUpReport(runs ...OverloadRun) *OverloadReport {
	r := &OverloadReport{
		Machine: Machine{OS: "linux", Arch: "amd64", CPUs: 2, Go: "go1.26"}, Date: time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC),
		Command: "myriad bench overload", Memory: 2 << 30, Deadline: 200 * time.Millisecond, Warmup: 2 * time.Second, Queue: 1024, Rounds: 1,
		Sides:      []OverloadSide{{Name: "naive"}, {Name: "channel"}, {Name: "ours", Own: true}, {Name: "ours-plain", Own: true, Variant: true}},
		Capacities: []*Capacity{{Shape: "cpu", PerSecond: 1000, Side: "channel with 4 workers", Workers: 4}},
		Runs:       runs,
	}
	for _, load := range []string{unloaded, once, tenfold} {
		r.Workloads = append(r.Workloads, Workload{Name: "cpu-" + load, Caption: "Jobs that compute."})
	}
	r.Verdict = r.judge()
	return r
}

// sound are runs of a pool that keeps what it should.
func sound() []OverloadRun {
	return []OverloadRun{madeUp(unloaded, "ours", 50, 4), madeUp(once, "ours", 1000, 10), madeUp(tenfold, "ours", 950, 17)}
}

func TestOverloadVerdict(t *testing.T) {
	const others = "no other side ahead both in goodput and in p99, by more than 1 % each, in any row"
	with := func(change func(runs []OverloadRun) []OverloadRun) *OverloadReport {
		return madeUpReport(change(sound())...)
	}
	add := func(more ...OverloadRun) func([]OverloadRun) []OverloadRun {
		return func(runs []OverloadRun) []OverloadRun { return append(runs, more...) }
	}
	ended := endedAt(tenfold)
	failed := madeUp(tenfold, "channel", 2000, 1)
	failed.Error = "no such file"
	for name, c := range map[string]struct {
		report *OverloadReport
		want   string
	}{
		"goodput kept":       {with(add()), "cpu: goodput at 10x at least 95 % of that at 1x: met: 95.0 % (950 of 1,000 a second)"},
		"goodput lost":       {with(func(r []OverloadRun) []OverloadRun { r[2].Result.Good = 949; return r }), "95 % of that at 1x: NOT MET: 94.9 %"},
		"goodput unknown":    {madeUpReport(madeUp(tenfold, "ours", 1, 1)), "95 % of that at 1x: not measured"},
		"latency kept":       {with(add()), "cpu: p99 at 10x at most 3 × the unloaded one + 5ms: met: 17.0 ms; allowed 17.0 ms (unloaded 4.00 ms)"},
		"latency lost":       {with(func(r []OverloadRun) []OverloadRun { r[2].Result.P99++; return r }), "the unloaded one + 5ms: NOT MET"},
		"nothing ran":        {with(func(r []OverloadRun) []OverloadRun { r[2].Result.P99 = 0; return r }), "the unloaded one + 5ms: NOT MET: -; allowed 17.0 ms (unloaded 4.00 ms)"},
		"nothing ran before": {with(func(r []OverloadRun) []OverloadRun { r[0].Result.P99 = 0; return r }), "the unloaded one + 5ms: not measured: no job has run unloaded"},
		"nothing of ours": {with(func(r []OverloadRun) []OverloadRun {
			r[2].Result.P99, r[2].Result.Good = 0, 0
			return append(r, madeUp(tenfold, "channel", 1, 1))
		}), others + ": NOT MET:\ncpu-10x/channel (goodput 1 against 0 a second, p99 1.00 ms against -)"},
		"not run":            {madeUpReport(madeUp(once, "ours", 1, 1)), "95 % of that at 1x: not measured: cpu-10x was not run"},
		"memory kept":        {with(add()), "in every row: met: 0.10 of 2.15 GB (in cpu-unloaded)"},
		"memory lost":        {with(func(r []OverloadRun) []OverloadRun { r[1].PeakRSS = 3e9; return r }), "in every row: NOT MET: 3.00 of 2.15 GB (in cpu-1x)"},
		"memory unknown":     {with(func(r []OverloadRun) []OverloadRun { clearPeaks(r); return r }), "in every row: not measured"},
		"no others":          {with(add()), others + ": not measured"},
		"others behind":      {with(add(madeUp(tenfold, "channel", 2000, 17), madeUp(once, "channel", 1000, 1))), others + ": met"},
		"other ahead":        {with(add(madeUp(tenfold, "channel", 960, 16))), others + ": NOT MET:\ncpu-10x/channel (goodput 960 against 950 a second, p99 16.0 ms against 17.0 ms)"},
		"ahead by a little":  {with(add(madeUp(tenfold, "channel", 959, 16))), others + ": met"},
		"variant ahead":      {with(add(madeUp(tenfold, "ours-plain", 2000, 1))), others + ": not measured"},
		"ended is not ahead": {with(add(ended)), others + ": met"},
		"naive ended":        {with(add(ended)), "cpu-10x: naive: ended by the watchdog at 1.5 s with 2.20 GB (allowed: 2.15 GB) (1 of 1 rounds)"},
		"naive survived":     {with(add(madeUp(tenfold, "naive", 20, 5000))), "cpu-10x: naive: came to its end with a goodput of 2 % of the capacity, p99 5.00 s and 100 MB"},
		"naive ended early":  {with(add(endedAt(once))), "cpu-1x: naive: ended by the watchdog"},
		"failed":             {with(add(failed)), others + ": met"},
	} {
		var got []string
		for _, f := range c.report.Verdict {
			got = append(got, f.String())
		}
		if text := strings.Join(got, "\n") + "\n"; !strings.Contains(text, c.want) {
			t.Errorf("%s: got\n%swant %q", name, text, c.want)
		}
	}
	if v := madeUpReport().Verdict; v != nil {
		t.Errorf("of no runs: got %v", v)
	}
}

// A run of the own pool that has failed is in no median, so no verdict may rest on the
// other rounds.
func TestOverloadOwnFailed(t *testing.T) {
	const goodput, late, memory, others = 0, 1, 2, 3 // the order of the verdict
	for name, c := range map[string]struct {
		load string
		fail func(run *OverloadRun)
		why  string
		want map[int]string // by the order in the verdict; the others are met
	}{
		"crashed at 10x": {tenfold, func(r *OverloadRun) { r.Error = "exit status 2\ngoroutine 1" }, "exit status 2",
			map[int]string{goodput: NotMeasured, late: NotMeasured, memory: NotMeasured, others: NotMet}},
		"crashed at 1x": {once, func(r *OverloadRun) { r.Error = "exit status 2" }, "exit status 2",
			map[int]string{goodput: NotMeasured, memory: NotMeasured, others: NotMet}},
		"crashed unloaded": {unloaded, func(r *OverloadRun) { r.Error = "exit status 2" }, "exit status 2",
			map[int]string{late: NotMeasured, memory: NotMeasured, others: NotMet}},
		"ended and said nothing": {tenfold, func(r *OverloadRun) { r.Ended, r.Result = endedAt(tenfold).Ended, nil }, "ended by the watchdog at 1.5 s with 2.20 GB (allowed: 2.15 GB)",
			map[int]string{goodput: NotMeasured, late: NotMeasured, memory: NotMeasured, others: NotMet}},
		"crashed with too much": {tenfold, func(r *OverloadRun) { r.Error, r.PeakRSS = "exit status 2", 3e9 }, "exit status 2",
			map[int]string{goodput: NotMeasured, late: NotMeasured, memory: NotMet, others: NotMet}},
	} {
		var runs []OverloadRun
		for round := range 3 {
			for _, run := range append(sound(), madeUp(unloaded, "channel", 1, 50), madeUp(once, "channel", 1, 50), madeUp(tenfold, "channel", 1, 50)) {
				run.Round = round + 1
				if round == 1 && run.Side == "ours" && run.Load == c.load {
					c.fail(&run)
				}
				runs = append(runs, run)
			}
		}
		why := "ours has failed in 1 of 3 rounds: " + c.why
		for i, f := range madeUpReport(runs...).Verdict[:others+1] {
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
	for want, more := range map[string][]OverloadRun{
		"not measured": nil,
		"none":         {madeUp(tenfold, "channel", 997, 17), madeUp(once, "channel", 1, 10)},
		"\ncpu-10x/channel in goodput (goodput 2,850 against 950 a second, p99 17.2 ms against 17.0 ms)":                                                                                    {madeUp(tenfold, "channel", 2850, 17)},
		"\ncpu-1x/channel in p99 (goodput 1,000 against 1,000 a second, p99 9.20 ms against 10.0 ms)":                                                                                       {madeUp(once, "channel", 1000, 9)},
		"\ncpu-1x/naive in p99 (goodput 5 against 1,000 a second, p99 1.20 ms against 10.0 ms)\ncpu-10x/channel in goodput (goodput 998 against 950 a second, p99 17.2 ms against 17.0 ms)": {madeUp(tenfold, "channel", 998, 17), madeUp(once, "naive", 5, 1)},
		"none ":   {madeUp(tenfold, "channel", 2000, 1)}, // in both
		"none  ":  {endedAt(tenfold)},
		"none   ": {failed},
	} {
		for i := range more {
			more[i].Result.P99 += 200 * time.Microsecond
		}
		runs := append(sound(), more...)
		f := madeUpReport(runs...).Verdict[4]
		if f.Claim != "other sides ahead in only one of the two, by more than 5 %" || f.Outcome != "" || f.Detail != strings.TrimRight(want, " ") {
			t.Errorf("got %q, want %q", f, want)
		}
	}
}

// The latency of no job is no latency, and not the best.
func TestOverloadNoLatency(t *testing.T) {
	var runs []OverloadRun
	for _, p99 := range []int{0, 10, 20} {
		runs = append(runs, madeUp(once, "ours", 100, p99))
	}
	w, _ := own(madeUpReport(runs...).rows("cpu-1x"))
	if got := w.cell(runP99, runLatency); got != "20.0 ms" {
		t.Errorf("got %s of 10 ms, 20 ms and no job, want 20.0 ms", got)
	}
	w.runs = w.runs[:1]
	w.runs[0].Result = &offer.Result{}
	for _, f := range []overloadFigure{runP50, runP99, runP999} {
		if got := w.cell(f, runLatency); got != none {
			t.Errorf("got %q, want %q", got, none)
		}
	}
}

// endedAt is a run that the watchdog has ended, and that was ahead by then.
func endedAt(load string) OverloadRun {
	run := madeUp(load, "naive", 2000, 1)
	run.Ended = &OverloadEnd{After: 1500 * time.Millisecond, RSS: 2.2e9, Most: 2.15e9}
	return run
}

func clearPeaks(runs []OverloadRun) {
	for i := range runs {
		runs[i].PeakRSS = 0
	}
}

// Medians are over rounds.
func TestOverloadRounds(t *testing.T) {
	var runs []OverloadRun
	for round, good := range []uint64{100, 900, 500} {
		run := madeUp(once, "ours", good, 10)
		run.Round = round + 1
		runs = append(runs, run)
	}
	w, ok := own(madeUpReport(runs...).rows("cpu-1x"))
	if v, _ := w.median((*OverloadRun).goodput); !ok || v != 500 {
		t.Errorf("got %v, %v, want the median, 500", v, ok)
	}
}

// Goodput is over the time in which jobs could be good.
func TestOverloadGoodput(t *testing.T) {
	for elapsed, want := range map[time.Duration]float64{
		500 * time.Millisecond: 2400, 600 * time.Millisecond: 2000, 1200 * time.Millisecond: 1000, time.Minute: 1000, 0: 0,
	} {
		run := madeUp(once, "ours", 1200, 1)
		run.Result.Elapsed = elapsed
		if got := run.goodput(); got != want {
			t.Errorf("after %v: got %v, want %v", elapsed, got, want)
		}
	}
}

// A side that was ended in its warm-up has no goodput, and its mark says so.
func TestOverloadEndedWarming(t *testing.T) {
	run := endedAt(tenfold)
	run.Result, run.Warmup = nil, 2*time.Second
	run.Warming = &offer.Result{Offered: 5000, Finished: 30, Good: 2, PeakGoroutines: 4000}
	run.endedWarming()
	run.judge(1000)
	const want = "ended by the watchdog at 1.5 s, in the warm-up, with 2.20 GB (allowed: 2.15 GB); of 5,000 jobs that it was offered by then 30 had finished, 2 of them within their deadline"
	if !run.Ended.Warming || run.goodput() != 0 || run.Result.PeakGoroutines != 4000 || len(run.Marks) != 1 || run.Marks[0].Detail != want {
		t.Errorf("got %+v, %+v, want %q", run.Marks, run.Result, want)
	}
}

// After a warm-up goodput is what ended in the window.
func TestOverloadSteady(t *testing.T) {
	run := madeUp(once, "ours", 1200, 1)
	run.Result.Warmup, run.Result.Steady, run.Result.Elapsed = time.Second, 900, 1200*time.Millisecond
	if got := run.goodput(); got != 900 {
		t.Errorf("got %v, want 900", got)
	}
}

func TestOverloadMarks(t *testing.T) {
	for want, change := range map[string]func(r *OverloadRun){
		"":           func(r *OverloadRun) { r.Result.Late = 10 },
		RuleLate:     func(r *OverloadRun) { r.Result.Late, r.Result.Missed = 5, 6 },
		RuleOverran:  func(r *OverloadRun) { r.Result.Overran = "ended from outside" },
		RulePanicked: func(r *OverloadRun) { r.Result.Panicked = 1 },
		RuleBooks:    func(r *OverloadRun) { r.Result.Expired = 1 },
		RuleNoise:    func(r *OverloadRun) { r.Foreign = 0.2 },
		RuleCapacity: func(r *OverloadRun) { r.Result.Elapsed /= 2 },
		RuleWatchdog: func(r *OverloadRun) { r.Ended, r.Result.Expired = &OverloadEnd{}, 1 },
		RuleUnfinished: func(r *OverloadRun) {
			r.Result.Accepted++
			r.Result.Offered++
			r.Result.Unfinished++
		},
	} {
		run := madeUp(once, "ours", 1000, 1)
		change(&run)
		run.judge(1000)
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
		run.Result.Late, run.Result.LateP99 = 20, p99
		run.judge(1000)
		if len(run.Marks) != 1 || run.Marks[0].Detail != want {
			t.Errorf("got marks %v, want %q", run.Marks, want)
		}
	}
}

func TestOverloadText(t *testing.T) {
	ended := madeUp(tenfold, "naive", 20, 900)
	ended.Ended, ended.PeakRSS = &OverloadEnd{After: 1500 * time.Millisecond, RSS: 2.2e9, Most: 2.15e9}, 2.2e9
	ended.judge(1000)
	early := madeUp(once, "naive", 20, 900)
	early.Ended, early.Result = ended.Ended, nil
	early.judge(1000)
	failed := madeUp(once, "channel", 1, 1)
	failed.Error, failed.Result = "the side ended: exit status 1: no such file\nsecond line", nil
	warming := endedAt(unloaded)
	warming.Result, warming.Warmup = nil, 2*time.Second
	warming.endedWarming()
	warming.judge(1000)
	r := madeUpReport(append(sound(), ended, early, warming, failed, madeUp(tenfold, "channel", 960, 16))...)
	r.note("A note.")
	var got bytes.Buffer
	if err := r.WriteText(&got); err != nil {
		t.Fatal(err)
	}
	path := filepath.Join("testdata", "overload.golden")
	if *update {
		if err := os.WriteFile(path, got.Bytes(), 0o666); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if got.String() != strings.ReplaceAll(string(want), "\r\n", "\n") {
		t.Errorf("got:\n%s\nwant:\n%s", got.String(), want)
	}
}
