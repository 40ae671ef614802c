package browser

import (
	"fmt"
	"math"
	"os"
	"path/filepath"
	"testing"

	"github.com/myriad-go/myriad/internal/page"
	"github.com/myriad-go/myriad/internal/testkit"
)

// sample has every kind of part, and a chart of every kind of axis and series. n changes
// its figures.
func sample(n int) *page.Page {
	table := &page.Table{Caption: "Servers"}
	table.AddRow("server", "messages/s", "p99", "× the published", "memory of a connection", "rounds", "processor", "notes")
	for i, name := range []string{"plain net, as published", "epoll", "io_uring"} {
		table.AddRow(name, page.Number.Format(float64(116_204+n+i*20_000)), page.Seconds.Format(0.118/float64(i+1)), "1.2", page.Bytes.Format(float64(i*1000)), "5", "8.6 µs", "a longer note of what happened </td>")
		table.SetLastRowTone(3, []page.Tone{page.Plain, page.Good, page.Bad}[i])
	}
	return &page.Page{
		Title: "A sample", Lead: "It has everything.", Facts: [][2]string{{"Command", "myriad bench all --out a-long-name-without-any-place-to-break-it-in-the-middle-of-all-of-that"}, {"Number", fmt.Sprint(n)}},
		Sections: []page.Section{
			{ID: "first", Title: "First", Lead: "A lead.", Parts: []page.Part{
				{Text: "A paragraph."}, {Heading: "A heading"},
				{Remarks: []page.Remark{{Text: "plain"}, {Tone: page.Good, Text: "good"}, {Tone: page.Warn, Text: "warn"}, {Tone: page.Bad, Text: "bad"}, {Tone: page.Faint, Text: "faint"}}},
				{Table: table},
			}},
			{ID: "charts", Title: "Charts", Parts: charts(float64(n))},
		},
	}
}

func charts(n float64) []page.Part {
	var parts []page.Part
	curve := func(name string, from, to, factor, step float64, f func(x float64) float64) page.Series {
		s := page.Series{Name: name}
		for x := from; x <= to; x = x*factor + step {
			s.X, s.Y = append(s.X, x), append(s.Y, f(x))
		}
		return s
	}
	add := func(id string, x, y page.Axis, series ...page.Series) {
		parts = append(parts, page.Part{Chart: &page.Chart{ID: id, Title: "Chart " + id, X: x, Y: y, Series: series, Note: "A note."}})
	}
	clock := page.Axis{Label: "time", Unit: page.Clock}
	rate := curve("rate", 0, 60, 1, 1, func(x float64) float64 { return 1000*n + x*math.Mod(x, 7) })
	rate.Y[10], rate.Y[11] = math.NaN(), math.NaN()
	other := curve("of other times", 0.5, 60, 1, 1, func(x float64) float64 { return 500 * n })
	other.Dashed = true
	add("time", clock, page.Axis{Label: "messages a second"}, rate, other)
	add("share", clock, page.Axis{Label: "processor", Unit: page.Share}, curve("a", 0, 60, 1, 1, func(x float64) float64 { return x / 60 }))
	add("percentiles", page.Axis{Label: "percentile", Unit: page.Percentile}, page.Axis{Label: "latency", Unit: page.Seconds, Log: true},
		curve("a", 1, 20_000, 1.2, 0, func(x float64) float64 { return n * 1e-4 * (1 + math.Log(x)) }))
	memory := curve("a", 100, 1e6, 10, 0, func(x float64) float64 { return 8e6 + 3900*x })
	memory.Points = true
	add("memory", page.Axis{Label: "connections", Log: true}, page.Axis{Label: "memory", Unit: page.Bytes, Log: true}, memory)
	add("one", page.Axis{Label: "x"}, page.Axis{Label: "y", Unit: page.Bytes}, page.Series{Name: "a point", X: []float64{3}, Y: []float64{5}})
	add("lonely", clock, page.Axis{Label: "y"},
		page.Series{Name: "behind a gap", X: []float64{0, 1}, Y: []float64{math.NaN(), 5}},
		page.Series{Name: "between gaps", X: []float64{0.5, 1.5, 2.5}, Y: []float64{math.NaN(), 7, math.NaN()}})
	var many []page.Series
	for i := range 70 {
		many = append(many, curve(fmt.Sprintf("series %d", i), 0, 3000, 1, 1, func(x float64) float64 { return x * float64(i) }))
	}
	add("much", page.Axis{Label: "x"}, page.Axis{Label: "y"}, many...)
	return parts
}

// saved is the address of a page as a file.
func saved(t *testing.T, p *page.Page) string {
	t.Helper()
	name := filepath.Join(t.TempDir(), "page.html")
	f, err := os.Create(name)
	testkit.RequireNoError(t, err)
	testkit.RequireNoError(t, p.WriteHTML(f))
	testkit.RequireNoError(t, f.Close())
	return "file://" + filepath.ToSlash(name)
}
