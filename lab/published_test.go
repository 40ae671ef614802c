package lab

import (
	"errors"
	"math"
	"strings"
	"testing"
	"time"

	"github.com/myriad-go/myriad/internal/offer"
	"github.com/myriad-go/myriad/internal/page"
)

// publishedReport has a published design and two of ours under two workloads, a third
// that was not run, and a published table of them.
func publishedReport() *Report {
	r := goldenReport()
	r.Runs, r.Notes = nil, nil
	r.Scenario.Subjects = []Subject{{Name: "net"}, {Name: "epoll"}, {Name: "uring", MaxConns: 50}}
	r.Scenario.Workloads = []Workload{
		{Name: "c100", Kind: Throughput, Connections: 100, Pipeline: 1},
		{Name: "c1000", Kind: Throughput, Connections: 1000, Pipeline: 1},
	}
	for round := 1; round <= 3; round++ {
		for subject, times := range map[string]float64{"net": 1, "epoll": 1.5 + float64(round)/100, "uring": 0.8} {
			r.Runs = append(r.Runs, throughputRun("c100", subject, round, 100_000*times*float64(round), 100))
		}
		r.Runs = append(r.Runs, RunRecord{Workload: "c1000", Subject: "net", Round: round, Error: "too many open files\nmore"})
	}
	r.Scenario.Published = []Published{{
		Title: "A million", Source: "somebody", Machine: "40 threads", Count: "connections",
		Faults: []string{"Nothing is removed."}, Notes: []string{"Ours are fewer."},
		Columns: []PublishedColumn{
			{Name: "throughput (TPS)", Figure: "tps"}, {Name: "latency", Figure: "mean"},
			{Name: "TPS × latency", Figure: "in-flight"}, {Name: "stars"},
		},
		Rows: []PublishedRow{
			{
				Name: "goroutines", Count: 1_000_000, Cells: []string{"202,830", "4.9 s", "994k", "many"},
				Workload: "c1000", Else: []string{"c10", "c100"}, Design: "net", About: []string{"tps"},
			},
			{
				Name: "one epoll", Count: 100, Cells: []string{"42,402", "0.8 s", "34k", ""},
				Workload: "c100", Design: "net", Ours: []string{"epoll"}, About: []string{"tps", "mean"},
			},
			{Name: "prefork", Cells: []string{"444,415", "1.5 s", "667k", ""}, Workload: "c10", Design: "net", About: []string{"tps"}},
		},
	}}
	return r
}

// throughputRun has every connection loaded.
func throughputRun(workload, subject string, round int, rate float64, inFlight int) RunRecord {
	return RunRecord{
		Workload: workload, Subject: subject, Round: round,
		Throughput: &ThroughputFigures{TPS: rate, InFlight: float64(inFlight), Expected: inFlight},
	}
}

// partsText is what parts say.
func partsText(t *testing.T, parts []page.Part) string {
	t.Helper()
	var b strings.Builder
	if err := (&page.Section{Parts: parts}).WriteText(&b); err != nil {
		t.Fatal(err)
	}
	return b.String()
}

// hasLines looks for lines by their words.
func hasLines(t *testing.T, text string, wants ...string) {
	t.Helper()
	var lines []string
	for line := range strings.Lines(text) {
		lines = append(lines, strings.Join(strings.Fields(line), " "))
	}
	all := "\n" + strings.Join(lines, "\n") + "\n"
	for _, want := range wants {
		if !strings.Contains(all, "\n"+want+"\n") {
			t.Errorf("no line %q in\n%s", want, text)
		}
	}
}

func TestPublishedParts(t *testing.T) {
	r := publishedReport()
	text := partsText(t, r.publishedParts(&r.Scenario.Published[0]))
	hasLines(t, text,
		"Published: A million",
		"Published by somebody. Measured there on 40 threads.",
		"row connections throughput (TPS) latency TPS × latency stars marks ahead",
		// Nothing worked under c1000, and c10 is not there: c100 stands in.
		"published: goroutines 1,000,000 202,830 4.9 s 994k many",
		"its design here: net 100 200,000 (too few rounds) 500 µs 100.0 -",
		"ours: epoll 100 304,000 (too few rounds) 329 µs 100.0 - 1.52 ±0.03",
		"ours: uring 50 160,000 (too few rounds) 625 µs 100.0 - 0.80 ±0.00",
		"published: one epoll 100 42,402 0.8 s 34k never loaded",
		"published: prefork - 444,415 1.5 s 667k",
		"Known fault of what is published: Nothing is removed.",
		"Ours are fewer.",
		"one epoll, as published: by Little's law 34k requests were in flight, which is not the 100 connections that it was to have.",
		"2 of 3 rows of ours are ahead of the published design in the same run; 1 behind, and nothing was measured of 1 published.",
		"goroutines: epoll is ahead of net in TPS, 1.52 ±0.03 (304,000 against 200,000), with 100 connections instead of 1,000,000.",
		"goroutines: uring is behind net in TPS, 0.80 ±0.00 (160,000 against 200,000), with 50 against 100 connections.",
		"one epoll: epoll is ahead of net in mean latency, 1.52 ±0.03 (329 µs against 500 µs).",
		"prefork: not measured: no run of c10 was made.",
	)
	if strings.Contains(text, "goroutines, as published") {
		t.Errorf("994k of 1,000,000 is within 10 %%:\n%s", text)
	}
}

// TestPublishedRepeated has a published row that stands on the runs of another: the overview
// counts it, and the table says by which figures it goes.
func TestPublishedRepeated(t *testing.T) {
	r := publishedReport()
	if all, _ := r.standings(&r.Scenario.Published[0]); repeated(all) != 1 || len(all) != 3 {
		t.Errorf("got %d of %d rows on the same runs, want one of 3: epoll beside net of c100", repeated(all), len(all))
	}
	table := (&Book{Reports: []*Report{r}}).headlines()
	if head, got := table.Lines[0], table.Lines[1]; head[5] != "on the same runs" || got[5] != "1" {
		t.Errorf("got %q under %q", got, head)
	}
	text := strings.Join(strings.Fields(partsText(t, r.publishedParts(&r.Scenario.Published[0]))), " ")
	if want := "each round's ratio to the design in TPS and mean latency, above 1"; !strings.Contains(text, want) {
		t.Errorf("no %q in %s", want, text)
	}
	if got := (&Published{Rows: []PublishedRow{{}}}).decided(); got != "" {
		t.Errorf("about nothing: got %q", got)
	}
}

// TestPublishedMissing tells of published rows beside which nothing of ours stands: none of
// ours was run, or there is no design; and has all that in the verdicts.
func TestPublishedMissing(t *testing.T) {
	r := publishedReport()
	p := &r.Scenario.Published[0]
	p.Rows = p.Rows[1:2]
	p.Rows[0].Ours = []string{"prefork"}
	p.Rows = append(p.Rows, PublishedRow{Name: "more", Cells: []string{"", "", "", ""}, Workload: "c100", About: []string{"tps"}}, PublishedRow{Name: "told", Cells: []string{"", "", "", ""}, Workload: "c100"})
	hasLines(t, partsText(t, r.publishedParts(p)),
		"one epoll: not measured: none of ours was run beside a design under c100.",
		"more: not measured: none of ours was run beside a design under c100.")
	if all, missing := r.standings(p); len(all) != 0 || len(missing) != 2 {
		t.Errorf("got %d standings and %d missing, want none and 2", len(all), len(missing))
	}
	want := Verdict{"A million", notCompared, "more: not measured: none of ours was run beside a design under c100."}
	if got := r.judged(); len(got) != 2 || got[1] != want {
		t.Errorf("got %+v, want %+v", got, want)
	}
	if got := publishedReport().judged(); len(got) != 5 || got[0].Outcome != inFront || got[1].Outcome != behind || got[4].Outcome != notCompared {
		t.Errorf("got %+v", got)
	}
}

// TestPublishedTones has the colours say what the words do.
func TestPublishedTones(t *testing.T) {
	r := publishedReport()
	for i := range r.Runs {
		if run := &r.Runs[i]; run.Subject == "uring" {
			run.Throughput.InFlight = 80
			run.Marks = []Mark{{RuleLittle, "80 in flight"}}
		}
	}
	parts := r.publishedParts(&r.Scenario.Published[0])
	table := parts[2].Table
	const inFlightColumn, marksColumn, aheadColumn = 4, 6, 7
	for _, want := range []struct {
		line, column int
		tone         page.Tone
	}{
		{1, 0, page.Faint}, {1, marksColumn, page.Plain}, {5, marksColumn, page.Warn},
		{3, aheadColumn, page.Good}, {4, aheadColumn, page.Bad}, {3, inFlightColumn, page.Plain}, {4, inFlightColumn, page.Warn},
		{4, marksColumn, page.Warn}, {7, aheadColumn, page.Good},
	} {
		if got := table.Tone(want.line, want.column); got != want.tone {
			t.Errorf("%q, column %d: tone %q, want %q", table.Lines[want.line], want.column, got, want.tone)
		}
	}
	for _, line := range table.Lines {
		if len(line) != len(table.Lines[0]) {
			t.Errorf("%d cells, want %d: %q", len(line), len(table.Lines[0]), line)
		}
	}
	tones := map[page.Tone]int{}
	for _, x := range parts[len(parts)-1].Remarks {
		tones[x.Tone]++
	}
	if tones[page.Good] != 3 || tones[page.Bad] != 2 || tones[page.Warn] != 1 {
		t.Errorf("tones of the verdict: %v", tones)
	}
}

// TestPublishedOverload has figures relative to one side, several units, and several
// figures that a row is about.
func TestPublishedOverload(t *testing.T) {
	r := &Report{Scenario: Scenario{
		Name: "overload", Rounds: 2, Subjects: []Subject{{Name: "naive"}, {Name: "ours"}},
		Workloads: []Workload{{Name: "published-1M", Kind: Offering}},
		Published: []Published{{
			Title: "Pools", Source: "an article",
			Columns: []PublishedColumn{
				{Name: "peak memory", Figure: "peak-memory", Unit: "GB"}, {Name: "mean latency", Figure: "mean"},
				{Name: "finished", Figure: "finished", Relative: "naive"}, {Name: "rejected", Figure: "rejected"},
			},
			Rows: []PublishedRow{{
				Name: "naive", Cells: []string{"50.86 GB", "2,063 ms", "1×", "0"},
				Workload: "published-1M", Design: "naive", About: []string{"peak-memory", "mean"},
			}},
		}},
	}}
	for round := 1; round <= 2; round++ {
		for _, side := range []struct {
			name      string
			peak      int64
			mean      time.Duration
			done, not uint64
		}{{"naive", 2e9, 2 * time.Second, 1000, 0}, {"ours", 40e6, 100 * time.Millisecond, 4600, 1_234_567}} {
			r.Runs = append(r.Runs, RunRecord{
				Workload: "published-1M", Subject: side.name, Round: round,
				Overload: &OverloadRun{PeakRSS: side.peak, Result: &offer.Result{Finished: side.done, Rejected: side.not, Mean: side.mean}},
			})
		}
	}
	hasLines(t, partsText(t, r.publishedParts(&r.Scenario.Published[0])),
		"row peak memory, GB mean latency finished rejected marks ahead",
		"published: naive 50.86 GB 2,063 ms 1× 0",
		"its design here: naive 2.00 GB ±0.0 % 2.00 s ±0.0 % 1.00× 0",
		"ours: ours 0.040 GB ±0.0 % 100 ms ±0.0 % 4.60× 1,234,567 peak memory 50.00 ±0.00, mean latency 20.00 ±0.00",
		"1 of 1 rows of ours are ahead of the published design in the same run.",
	)
	naive := func(change func(*OverloadRun)) string {
		for i := range r.Runs {
			if r.Runs[i].Subject == "naive" {
				change(r.Runs[i].Overload)
			}
		}
		return partsText(t, r.publishedParts(&r.Scenario.Published[0]))
	}
	text := naive(func(o *OverloadRun) { o.Result.Finished, o.Result.Mean = 0, 0 })
	hasLines(t, text, "its design here: naive 2.00 GB ±0.0 % - 0 0") // nothing to be a multiple of
	text = naive(func(o *OverloadRun) {
		o.Result.Finished, o.Result.Mean, o.Ended = 3, time.Second, &OverloadEnd{Most: 2 << 30}
	})
	hasLines(t, text,
		"ours: ours 0.040 GB ±0.0 % 100 ms ±0.0 % 4,600 1,234,567 peak memory 50.00 ±0.00, mean latency -",
		"1 of 1 rows of ours are ahead of the published design in the same run.",
		"naive: ours beside naive in mean latency: naive was ended by the watchdog of this lab at 2.15 GB: not compared.",
	)
	for _, word := range []string{"never", "alone", "came to nothing"} {
		if strings.Contains(text, word) {
			t.Errorf("the report says %q:\n%s", word, text)
		}
	}
}

// TestWorkloadOf finds where the design has all connections, or some, or none.
func TestWorkloadOf(t *testing.T) {
	p := &PublishedRow{Workload: "c1000", Else: []string{"c0", "c100"}, Design: "net", Ours: []string{"epoll"}}
	for _, c := range []struct {
		want   string
		change func(r *Report)
	}{
		{"c100", func(*Report) {}},
		{"c1000", func(r *Report) { r.Runs = r.Runs[len(r.Runs)-1:] }},
		{"", func(r *Report) { r.Runs = nil }},
		{"c1000", func(r *Report) {
			r.Runs = append(r.Runs, throughputRun("c1000", "net", 1, 1, 1), throughputRun("c1000", "epoll", 1, 1, 1))
		}},
		{"c100", func(r *Report) {
			r.Scenario.Subjects[0].MaxConns = 500
			r.Runs = append(r.Runs, throughputRun("c1000", "net", 1, 1, 1), throughputRun("c1000", "epoll", 1, 1, 1))
		}},
		{"c1000", func(r *Report) {
			r.Scenario.Subjects[0].MaxConns = 50
			r.Runs = append(r.Runs, throughputRun("c1000", "net", 1, 1, 1), throughputRun("c1000", "epoll", 1, 1, 1))
		}},
	} {
		r := publishedReport()
		c.change(r)
		if got, rows := r.workloadOf(p); got.Name != c.want || (c.want == "") != (len(rows) == 0) {
			t.Errorf("got %q with %d rows, want %q", got.Name, len(rows), c.want)
		}
	}
}

func TestPublishedCheck(t *testing.T) {
	r := publishedReport()
	if err := r.Scenario.Published[0].check(); err != nil {
		t.Error(err)
	}
	for says, breakIt := range map[string]func(*Published){
		`figure "speed"`: func(p *Published) { p.Columns[0].Figure = "speed" },
		`unit "yards"`:   func(p *Published) { p.Columns[0].Unit = "yards" },
		"has 1 cells":    func(p *Published) { p.Rows[0].Cells = []string{"1"} },
		`about "speed"`:  func(p *Published) { p.Rows[0].About = []string{"speed"} },
		`about "up"`:     func(p *Published) { p.Rows[0].About = []string{"up"} },
	} {
		broken := publishedReport()
		p := &broken.Scenario.Published[0]
		breakIt(p)
		if err := p.check(); !errors.As(err, new(ScenarioError)) || !strings.Contains(err.Error(), says) {
			t.Errorf("got %v, want it to say %s", err, says)
		}
	}
}

func TestAmount(t *testing.T) {
	for cell, want := range map[string]float64{"202,830": 202_830, "994k": 994_000, "34k": 34_000, "1.5": 1.5} {
		if got, ok := amount(cell); !ok || got != want {
			t.Errorf("%s: got %v, %v", cell, got, ok)
		}
	}
	for _, cell := range []string{"", "4.9 s", "k", "many"} {
		if got, ok := amount(cell); ok {
			t.Errorf("%q: got %v, want none", cell, got)
		}
	}
	for v, want := range map[float64]string{0: "0.00", 0.04: "0.040", 0.99961: "1.00", 38.84: "38.8", 999.4: "999", 1954.2: "1,954", -5: "-5.00", math.Pi: "3.14"} {
		if got := threeDigits(v); got != want {
			t.Errorf("%v: got %s, want %s", v, got, want)
		}
	}
}
