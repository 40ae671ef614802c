package report

import (
	"fmt"
	"io"
	"strconv"
	"strings"
	"unicode"

	"github.com/myriad-go/myriad/internal/page"
	"github.com/myriad-go/myriad/tools/internal/lab/probe"
	"github.com/myriad-go/myriad/tools/internal/lab/result"
	"github.com/myriad-go/myriad/tools/internal/lab/stats"
)

// WriteBenchstat writes the valid runs of a set in the format that the tool benchstat reads. Each run is one line. The
// line contains all figures of the run, except those of which neither higher nor lower values are better.
func WriteBenchstat(w io.Writer, s *result.Set) error {
	var b strings.Builder
	fmt.Fprintf(&b, "goos: %s\ngoarch: %s\n", s.Machine.OS, s.Machine.Arch)
	if s.Machine.CPU != "" {
		fmt.Fprintf(&b, "cpu: %s\n", s.Machine.CPU)
	}
	for _, f := range probe.AllFigures() {
		if f.Better == probe.Neither {
			continue
		}
		better := "lower"
		if f.Better == probe.Higher {
			better = "higher"
		}
		fmt.Fprintf(&b, "Unit %s better=%s\n", figureNameAsBenchstatUnit(f), better)
	}
	for _, r := range s.Reports {
		for i := range r.Runs {
			run := &r.Runs[i]
			if values := benchmarkLineValues(run); values != "" {
				fmt.Fprintf(&b, "Benchmark%s/%s/%s 1%s\n", upperFirstLetter(r.Scenario.Name), run.Workload, run.Subject, values)
			}
		}
	}
	_, err := io.WriteString(w, b.String())
	return err
}

// benchmarkLineValues returns the values and units of a benchmark line for a run. If the run is invalid or has no
// figures for benchstat, it returns "".
func benchmarkLineValues(run *result.Run) string {
	if !run.IsValid() {
		return ""
	}
	var b strings.Builder
	for _, f := range probe.AllFigures() {
		if v, ok := run.Figures[f.Name]; ok && f.Better != probe.Neither && !stats.IsNeverLatency(v) {
			b.WriteString(" " + strconv.FormatFloat(v, 'g', -1, 64) + " " + figureNameAsBenchstatUnit(f))
		}
	}
	return b.String()
}

// figureNameAsBenchstatUnit returns a name that benchstat accepts as a unit. The name must be unique for each figure,
// because benchstat shows one table per unit. It is the name of the figure, followed by "-sec" if values are in
// seconds, and by "-B" if values are in bytes.
func figureNameAsBenchstatUnit(f probe.Figure) string {
	switch f.Unit {
	case page.Seconds:
		return f.Name + "-sec"
	case page.Bytes:
		return f.Name + "-B"
	}
	return f.Name
}

func upperFirstLetter(name string) string {
	runes := []rune(name)
	if len(runes) > 0 {
		runes[0] = unicode.ToUpper(runes[0])
	}
	return string(runes)
}
