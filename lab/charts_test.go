package lab

import (
	"bytes"
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"

	"github.com/myriad-go/myriad/internal/offer"
	"github.com/myriad-go/myriad/internal/page"
	"github.com/myriad-go/myriad/load"
)

// coded is a histogram of so many latencies of 1 µs and one of 1 s.
func coded(t testing.TB, n int64) string {
	t.Helper()
	h := hdrhistogram.New(1, int64(time.Minute), 3)
	h.RecordValues(1000, n)
	h.RecordValue(int64(time.Second))
	text, err := h.Encode(hdrhistogram.V2CompressedEncodingCookieBase)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// ticked is a time line of so many ticks, a second apart: each side keeps half a CPU busy.
func ticked(n int) (ticks []Tick) {
	for i := range n {
		at := time.Duration(i) * time.Second
		side := TickSide{User: at / 4, System: at / 4, RSS: 1<<20 + int64(i), PSS: 1<<19 + int64(i), Goroutines: 7, GCs: int64(3 * i), Voluntary: int64(100*i + 1),
			Turns: int64(10*i + 1), Lag: time.Duration(i) * 10 * time.Millisecond}
		ticks = append(ticks, Tick{At: at + 12345*time.Microsecond, Server: side, Load: side, Slab: int64(1000 + 10*i), Free: int64(1<<30 - 100*i), TCPMemory: 4096, TimeWait: int64(i), Orphans: 3, Open: 100, Answered: int64(500 * i)})
	}
	return ticks
}

// drawnBook has a workload of each kind at two sizes, with all that there is to draw.
func drawnBook(t testing.TB, subjects, ticks int) *Book {
	r := &Report{Scenario: Scenario{Name: "Drawn", Question: "Is it drawn?", Rounds: 3, Baseline: "s0"}, Pinning: twoCPUs}
	for i := range subjects {
		r.Scenario.Subjects = append(r.Scenario.Subjects, Subject{Name: fmt.Sprintf("s%d", i)})
	}
	r.Scenario.Published = []Published{{
		Title: "Theirs", Source: "them", Count: "connections",
		Columns: []PublishedColumn{{Name: "throughput", Figure: "tps"}, {Name: "in flight", Figure: "in-flight"}},
		Rows: []PublishedRow{
			{Name: "a", Count: 100, Cells: []string{"202,830", "100"}, Workload: "echo-100", Design: "s0", About: []string{"tps"}},
			{Name: "b", Count: 1000, Cells: []string{"150k", "1000"}, Workload: "echo-1000", Design: "s0", About: []string{"tps"}},
			{Name: "never loaded", Count: 1000, Cells: []string{"150k", "5"}, Workload: "echo-1000"},
			{Name: "of another", Count: 1000, Cells: []string{"150k", "1000"}, Workload: "idle-1000"},
		},
	}}
	add := func(w Workload, run func(i int, rec *RunRecord)) {
		r.Scenario.Workloads = append(r.Scenario.Workloads, w)
		for round := range 3 {
			for i := range subjects {
				rec := RunRecord{Workload: w.Name, Subject: fmt.Sprintf("s%d", i), Round: round + 1, Timeline: ticked(ticks)}
				run(i+round, &rec)
				r.Runs = append(r.Runs, rec)
			}
		}
	}
	histogram := coded(t, 99_999)
	for _, n := range []int{1000, 100} { // not in order
		add(Workload{Name: fmt.Sprintf("echo-%d", n), Kind: Throughput, App: Echo, Size: 64, Connections: n, Pipeline: 1, Duration: time.Duration(n)},
			func(i int, rec *RunRecord) {
				rec.Throughput = &ThroughputFigures{TPS: float64(1000*n + i), P99: time.Millisecond}
				rec.Result = &load.Result{Histogram: histogram}
			})
		add(Workload{Name: fmt.Sprintf("idle-%d", n), Kind: Idle, App: Echo, Size: 64, Connections: n, Pipeline: 1},
			func(i int, rec *RunRecord) {
				rec.Idle = &IdleFigures{Memory: &MemoryFigures{Idle: 100 + float64(i), KernelIdle: 8000, Exchanged: 200}}
			})
		add(Workload{Name: fmt.Sprintf("offer-%d", n), Kind: Offering, App: Echo, Connections: n}, func(i int, rec *RunRecord) {
			rec.Overload = &OverloadRun{Shape: "cpu", Rate: float64(n), Window: time.Second, Result: &offer.Result{Good: uint64(n), P99: time.Second, Finished: 1, Elapsed: time.Second}}
		})
	}
	return &Book{Format: BookFormat, Command: "myriad bench drawn", Scale: "small", Reports: []*Report{r}}
}

// chart finds a chart of a page by its title.
func chart(t *testing.T, p page.Page, title string) *page.Chart {
	t.Helper()
	var all []string
	for _, s := range p.Sections {
		for _, part := range s.Parts {
			if part.Chart != nil {
				if part.Chart.Title == title {
					return part.Chart
				}
				all = append(all, part.Chart.Title)
			}
		}
	}
	t.Fatalf("no chart %q in %q", title, all)
	return nil
}

func TestChartsBySize(t *testing.T) {
	p := drawnBook(t, 2, 0).Page()
	c := chart(t, p, "Throughput: echo, 64 B")
	if len(c.Series) != 3 || !c.X.Log || c.Y.Log {
		t.Fatalf("got %+v, want two subjects and what was published", c)
	}
	if s := c.Series[1]; s.Name != "s1" || !slices.Equal(s.X, []float64{100, 1000}) || !slices.Equal(s.Y, []float64{100002, 1000000}) {
		t.Errorf("s1: %+v, want medians by size, in order", s)
	}
	if s := c.Series[2]; s.Name != "published: s0" || !s.Dashed || !slices.Equal(s.X, []float64{100, 1000}) || !slices.Equal(s.Y, []float64{202830, 150000}) {
		t.Errorf("published: %+v, want the rows of these workloads that were loaded", s)
	}
	c = chart(t, p, "Server memory for each silent connection: echo, 64 B")
	if !c.X.Log || !c.Y.Log || c.Y.Unit != page.Bytes || c.Series[0].Y[0] != 101 {
		t.Errorf("memory: %+v", c)
	}
	c = chart(t, p, "p99 by what is offered: cpu")
	if s := c.Series[0]; len(c.Series) != 2 || !slices.Equal(s.X, []float64{100, 1000}) || s.Y[0] != 1 {
		t.Errorf("p99 by what is offered: %+v", c)
	}
}

// TestChartsNone draws nothing of a scenario with one size, without a histogram or a time line.
func TestChartsNone(t *testing.T) {
	b := bookOf(map[string][]float64{"net": {1, 2}})
	p := b.Page()
	for _, s := range p.Sections {
		for _, part := range s.Parts {
			if part.Chart != nil || part.Heading == "Charts" {
				t.Errorf("drawn: %+v", part)
			}
		}
	}
	if len(p.Sections) != 2 {
		t.Errorf("%d sections, want overview and report", len(p.Sections))
	}
}

func TestLatencyChart(t *testing.T) {
	c := chart(t, drawnBook(t, 2, 0).Page(), "Latency by percentile: echo-100")
	s := c.Series[0]
	if c.X.Unit != page.Percentile || len(c.Series) != 2 || s.X[0] != rounded(math.Pow(10, 1.0/pointsEachNine)) || s.X[len(s.X)-1] != 100_000 {
		t.Fatalf("got %+v", s)
	}
	// Of 100,000 values one is a second: from the percentile on that has it.
	for i, x := range s.X {
		want := 1e-6
		if x == 100_000 {
			want = 1
		}
		if math.Abs(s.Y[i]/want-1) > 0.002 {
			t.Errorf("at %v: %v, want %v", x, s.Y[i], want)
		}
	}
}

func TestMiddle(t *testing.T) {
	w := row{}
	for _, v := range []float64{5, 1, 9, 7} {
		w.runs = append(w.runs, &RunRecord{Throughput: &ThroughputFigures{TPS: v}})
	}
	w.runs = append(w.runs, &RunRecord{Error: "failed"})
	if got := w.middle(tps); got != w.runs[0] {
		t.Errorf("got %+v, want the one with 5", got)
	}
	if got := (row{}).middle(tps); got != nil {
		t.Errorf("got %+v of nothing", got)
	}
}

func TestTimeCharts(t *testing.T) {
	p := drawnBook(t, 2, 10).Page()
	for title, want := range map[string]struct {
		series int
		value  float64 // of the first series, at the third tick
	}{
		"CPU of server and load: echo-100":           {4, 0.5},
		"Memory: echo-100":                           {6, 1<<20 + 2},
		"Memory of the machine: echo-100":            {4, 200},
		"Open connections: echo-100":                 {2, 100},
		"TCP sockets that nobody has open: echo-100": {4, 2},
		"Answered: echo-100":                         {2, 500},
		"Goroutines: echo-100":                       {2, 7},
		"Collections of garbage: echo-100":           {4, 3},
		"Turns of loops: echo-100":                   {2, 0.001},
		"Context switches: echo-100":                 {2, 100},
	} {
		c := chart(t, p, title)
		if len(c.Series) != want.series || c.X.Unit != page.Clock {
			t.Errorf("%s: %d series, X %+v", title, len(c.Series), c.X)
		}
		if s := c.Series[0]; s.X[2] != 2 || rounded(s.Y[2]) != rounded(want.value) {
			t.Errorf("%s: %v at %v, want %v at 2", title, s.Y[2], s.X[2], want.value)
		}
	}
}

// TestTimeChartsOfLittle has no chart of what was zero all the time, or not known, and no
// curve of it in others. PSS that is looked at now and then is a curve without gaps.
func TestTimeChartsOfLittle(t *testing.T) {
	ticks := ticked(12)
	for i := range ticks {
		k := &ticks[i]
		k.TimeWait, k.Orphans, k.TCPMemory, k.Free = 0, 0, 0, 0
		if i%5 != 0 {
			k.Server.PSS = 0
		}
	}
	all := func(ticks []Tick) map[string][]page.Series {
		drawn := make(map[string][]page.Series)
		for _, c := range timeCharts("w", []timed{{"s", ticks}}) {
			drawn[c.Title] = c.Series
		}
		return drawn
	}
	drawn := all(ticks)
	for _, title := range []string{"TCP sockets that nobody has open: w", "Memory of the machine: w"} {
		if s, ok := drawn[title]; ok {
			t.Errorf("%s is drawn: %+v", title, s)
		}
	}
	memory := drawn["Memory: w"]
	if len(memory) != 3 || !slices.Equal(memory[1].X, []float64{0, 5, 10}) || !slices.Equal(memory[1].Y, []float64{1 << 19, 1<<19 + 5, 1<<19 + 10}) {
		t.Errorf("memory: %+v, want PSS at three ticks", memory)
	}
	for i := range ticks {
		ticks[i].Server.PSS, ticks[i].Orphans = 0, 1
	}
	drawn = all(ticks)
	if n := len(drawn["Memory: w"]); n != 2 {
		t.Errorf("%d curves of memory without PSS, want 2", n)
	}
	if s := drawn["TCP sockets that nobody has open: w"]; len(s) != 1 || s[0].Name != "s, orphans" {
		t.Errorf("orphans alone: %+v", s)
	}
}

// TestRateGaps has counters that are not known, go back, and are read twice at once.
func TestRateGaps(t *testing.T) {
	read := func(k *Tick) (float64, bool) { return float64(k.Answered), k.Open > 0 }
	ticks := []Tick{
		{At: 0, Open: 1, Answered: 10},
		{At: time.Second, Open: 1, Answered: 30},
		{At: 2 * time.Second},                        // not known
		{At: 3 * time.Second, Open: 1, Answered: 50}, // since the one before: 10 a second
		{At: 4 * time.Second, Open: 1, Answered: 5},  // another process
		{At: 5 * time.Second, Open: 1, Answered: 6},
		{At: 5*time.Second + time.Millisecond, Open: 1, Answered: 7}, // too close
	}
	s := rate("x", ticks, read)
	want := []float64{math.NaN(), 20, math.NaN(), 10, math.NaN(), 1}
	if fmt.Sprint(s.Y) != fmt.Sprint(want) {
		t.Errorf("got %v, want %v", s.Y, want)
	}
	if says(page.Series{Y: []float64{0, math.NaN()}}) || !says(s) {
		t.Errorf("says: wrong")
	}
}

// TestThinned has its bound.
func TestThinned(t *testing.T) {
	for _, n := range []int{0, 5, mostTicks, mostTicks + 1, 10*mostTicks + 3} {
		kept := thinned(ticked(n))
		if len(kept) > mostTicks || len(kept) < min(n, mostTicks/2) {
			t.Errorf("%d of %d ticks are kept", len(kept), n)
		}
	}
}

// TestPageSize has more than a bench of everything, and stays small enough to be sent.
func TestPageSize(t *testing.T) {
	b := drawnBook(t, 8, 60)
	for i := range 11 {
		more := *b.Reports[0]
		more.Scenario.Name = fmt.Sprintf("drawn-%d", i)
		b.Reports = append(b.Reports, &more)
	}
	p := b.Page()
	var html, markdown bytes.Buffer
	if err := p.WriteHTML(&html); err != nil {
		t.Fatal(err)
	}
	if err := p.WriteMarkdown(&markdown); err != nil {
		t.Fatal(err)
	}
	if n := html.Len(); n > 5<<20 {
		t.Errorf("the page has %d bytes, want 5 MiB at the most", n)
	}
	if n := strings.Count(html.String(), "<figure"); n < 12*40 {
		t.Errorf("the page has %d charts", n)
	}
	t.Logf("%d bytes of HTML, %d of Markdown", html.Len(), markdown.Len())
}
