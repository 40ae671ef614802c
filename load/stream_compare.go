package load

import (
	"fmt"
	"io"
	"math"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"
)

// compared is a row of a comparison.
type compared struct {
	name string
	// of is the figure and its text, ok if it was measured.
	of func(*Result) (value float64, text string, ok bool)
}

// comparison are its rows.
var comparison = []compared{
	{"connected", func(r *Result) (float64, string, bool) { return comparedCount(int64(r.Connected)) }},
	{"rate, 1/s", func(r *Result) (float64, string, bool) {
		return r.Rate(), group(int64(math.Round(r.Rate()))), r.Window > 0
	}},
	{"mean", comparedTime("mean")}, {"50%", comparedTime("p50")}, {"90%", comparedTime("p90")},
	{"99%", comparedTime("p99")}, {"99.9%", comparedTime("p99.9")}, {"max", comparedTime("max")},
	{"errors", func(r *Result) (float64, string, bool) { return comparedCount(r.errors()) }},
	{"generator's CPU", func(r *Result) (float64, string, bool) {
		return r.CPUShare(), strconv.FormatFloat(100*r.CPUShare(), 'f', 0, 64) + "%", r.UserCPU+r.SystemCPU > 0 && r.Window > 0
	}},
}

func comparedCount(n int64) (float64, string, bool) { return float64(n), group(n), true }

func comparedTime(point string) func(*Result) (float64, string, bool) {
	return func(r *Result) (float64, string, bool) {
		d := latencyPoints[point](&r.Latency)
		return float64(d), round(d).String(), r.Latency.Count > 0
	}
}

// WriteComparison writes the results of several runs side by side, each with its
// name, and how many times the first's each figure is. A "-" stands for what was
// not measured, "cut off" for a run that did not come to its end.
func WriteComparison(w io.Writer, names []string, streams []*Stream) error {
	if len(names) != len(streams) {
		return fmt.Errorf("load: comparison: %d names of %d streams; expected one each", len(names), len(streams))
	}
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	row := func(name string, of func(*Stream) string) {
		fmt.Fprint(t, name)
		for _, s := range streams {
			fmt.Fprint(t, "\t", of(s))
		}
		fmt.Fprintln(t)
	}
	fmt.Fprintln(t, "\t"+strings.Join(names, "\t"))
	row("target", func(s *Stream) string { return s.field(func(r *Result) string { return r.Target }) })
	row("mode", func(s *Stream) string { return s.field(func(r *Result) string { return r.Mode }) })
	for _, c := range comparison {
		row(c.name, func(s *Stream) string {
			if !s.Complete() {
				return "-"
			}
			return c.beside(s.Result, streams[0].Result)
		})
	}
	return t.Flush()
}

// field is a text of the result.
func (s *Stream) field(of func(*Result) string) string {
	if !s.Complete() {
		return "cut off after " + round(s.Span()).Round(time.Millisecond).String()
	}
	if text := of(s.Result); text != "" {
		return text
	}
	return "-"
}

// beside is the figure of a result and its ratio to that of the first.
func (c compared) beside(r, first *Result) string {
	value, text, ok := c.of(r)
	if !ok {
		return "-"
	}
	if r == first || first == nil {
		return text
	}
	base, _, ok := c.of(first)
	if !ok || base == 0 {
		return text
	}
	digits := 2
	if value/base >= 100 {
		digits = 0
	}
	return fmt.Sprintf("%s  %.*f×", text, digits, value/base)
}
