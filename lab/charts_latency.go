package lab

import (
	"cmp"
	"math"
	"slices"

	"github.com/HdrHistogram/hdrhistogram-go"

	"github.com/myriad-go/myriad/internal/page"
)

// A latency curve has so many points for each nine of its percentiles, up to so many
// nines.
const (
	pointsEachNine = 12
	mostNines      = 6
)

// latencyChart is the latency of each subject by percentile, nil where no run has it.
func (r *Report) latencyChart(w Workload) *page.Chart {
	if w.Kind != Throughput {
		return nil
	}
	c := &page.Chart{
		Title: "Latency by percentile: " + w.Name,
		Note:  "Of each subject it is the round with the middle throughput.",
		X:     page.Axis{Label: "percentile", Unit: page.Percentile},
		Y:     page.Axis{Label: "latency", Unit: page.Seconds, Log: true},
	}
	for _, x := range r.rows(w.Name) {
		run := x.middle(tps)
		if run == nil || run.Result == nil {
			continue
		}
		h, err := hdrhistogram.Decode([]byte(run.Result.Histogram))
		if err != nil || h.TotalCount() == 0 {
			continue // the run has none
		}
		c.Series = append(c.Series, percentiles(x.subject, h))
	}
	if len(c.Series) == 0 {
		return nil
	}
	return c
}

// middle is the run with the median of a figure, the lower one of two, nil where none has it.
func (w row) middle(f Figure) *RunRecord {
	var having []*RunRecord
	for _, run := range w.runs {
		if _, ok := f.of(run); ok {
			having = append(having, run)
		}
	}
	if len(having) == 0 {
		return nil
	}
	slices.SortStableFunc(having, func(a, b *RunRecord) int {
		x, _ := f.of(a)
		y, _ := f.of(b)
		return cmp.Compare(x, y)
	})
	return having[(len(having)-1)/2]
}

// percentiles is a histogram of nanoseconds as a curve: X is 1/(1-p). The least of all, which
// one lucky message has, is not in it. It ends with the longest, where a percentile would be of less than one value.
func percentiles(name string, h *hdrhistogram.Histogram) page.Series {
	var c curve
	for i := range pointsEachNine * mostNines {
		x := math.Pow(10, float64(i+1)/pointsEachNine)
		if x >= float64(h.TotalCount()) {
			break
		}
		c.add(x, float64(h.ValueAtPercentile(100*(1-1/x)))/1e9)
	}
	c.add(float64(h.TotalCount()), float64(h.Max())/1e9)
	return c.series(name)
}
