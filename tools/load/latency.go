package load

import (
	"fmt"
	"math"
	"slices"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"

	"github.com/myriad-go/myriad/internal/page"
)

// Latency summarizes a distribution of times that was recorded in an HDR histogram. The precision is usually three
// significant digits. It is two digits for times to connect, times to the first byte, and all times of held
// connections. Times above 60 s count as 60 s.
type Latency struct {
	Count int64         `json:"count"`
	Min   time.Duration `json:"min"`
	Mean  time.Duration `json:"mean"`
	P50   time.Duration `json:"p50"`
	P75   time.Duration `json:"p75"`
	P90   time.Duration `json:"p90"`
	P95   time.Duration `json:"p95"`
	P99   time.Duration `json:"p99"`
	P999  time.Duration `json:"p999"`
	P9999 time.Duration `json:"p9999"`
	Max   time.Duration `json:"max"`
}

type LatencyPoint struct {
	// Name is "min", "mean", "max" or a percentile such as "p99.9".
	Name string
	// Quantile is from 0 (for "min") to 1 (for "max"), such as 0.999 for "p99.9". For "mean", it is -1.
	Quantile float64
	of       func(*Latency) *time.Duration
}

func (p *LatencyPoint) Of(l *Latency) time.Duration { return *p.of(l) }

// LatencyPoints lists the figures of a Latency in ascending order of their quantile. An exception is the mean, which is
// second. The list must not be changed.
var LatencyPoints = []LatencyPoint{
	{"min", 0, func(l *Latency) *time.Duration { return &l.Min }},
	{"mean", -1, func(l *Latency) *time.Duration { return &l.Mean }},
	{"p50", 0.5, func(l *Latency) *time.Duration { return &l.P50 }},
	{"p75", 0.75, func(l *Latency) *time.Duration { return &l.P75 }},
	{"p90", 0.9, func(l *Latency) *time.Duration { return &l.P90 }},
	{"p95", 0.95, func(l *Latency) *time.Duration { return &l.P95 }},
	{"p99", 0.99, func(l *Latency) *time.Duration { return &l.P99 }},
	{"p99.9", 0.999, func(l *Latency) *time.Duration { return &l.P999 }},
	{"p99.99", 0.9999, func(l *Latency) *time.Duration { return &l.P9999 }},
	{"max", 1, func(l *Latency) *time.Duration { return &l.Max }},
}

func findLatencyPoint(name string) (pointOrNil *LatencyPoint) {
	i := slices.IndexFunc(LatencyPoints, func(p LatencyPoint) bool { return p.Name == name })
	if i < 0 {
		return nil
	}
	return &LatencyPoints[i]
}

// mergeKeepingWorst merges other into l. The merged percentiles are unknown, so l keeps the longer of the two times for
// each percentile.
func (l *Latency) mergeKeepingWorst(other *Latency) {
	if other.Count == 0 {
		return
	}
	if l.Count == 0 {
		*l = *other
		return
	}
	a, b := float64(l.Count), float64(other.Count)
	for _, p := range LatencyPoints {
		switch to, more := p.of(l), p.Of(other); p.Quantile {
		case 0:
			*to = min(*to, more)
		case -1:
			*to = time.Duration(math.Round(float64(*to)*(a/(a+b)) + float64(more)*(b/(a+b))))
		default:
			*to = max(*to, more)
		}
	}
	l.Count += other.Count
}

// PercentileCurve returns the percentiles as a curve. The y values are times in seconds. The x value of a quantile q is
// 1/(1-q), which is 100 for the 99th percentile, for example. The last point is the maximum, at x = Count. Percentiles
// that would have the same or a greater x are omitted.
func (l *Latency) PercentileCurve() (c page.Series) {
	for _, p := range LatencyPoints {
		one := math.Round(1 / (1 - p.Quantile))
		if p.Quantile == 1 {
			one = float64(l.Count)
		}
		if p.Quantile >= 0 && (one < float64(l.Count) || p.Quantile == 1) {
			c.X, c.Y = append(c.X, one), append(c.Y, max(p.Of(l), 1).Seconds())
		}
	}
	return c
}

const maxLatency = time.Minute

func newHistogram() *hdrhistogram.Histogram {
	return hdrhistogram.New(1, int64(maxLatency), 3)
}

// distribution is a histogram of durations. The first call of record allocates it.
type distribution struct {
	histogram *hdrhistogram.Histogram
	coarse    bool // two significant digits instead of three
}

func (d *distribution) ensureHistogram() {
	switch {
	case d.histogram != nil:
	case d.coarse:
		d.histogram = hdrhistogram.New(1, int64(maxLatency), 2)
	default:
		d.histogram = newHistogram()
	}
}

func (d *distribution) record(t time.Duration, repetitions int) {
	d.ensureHistogram()
	_ = d.histogram.RecordValues(int64(min(max(t, 0), maxLatency)), int64(repetitions)) // the value is never out of range
}

func (d *distribution) count() int64 {
	if d.histogram == nil {
		return 0
	}
	return d.histogram.TotalCount()
}

func (d *distribution) merge(other *distribution) {
	if other.count() == 0 {
		return
	}
	d.ensureHistogram()
	d.histogram.Merge(other.histogram)
}

func (d *distribution) reset() {
	if d.count() > 0 {
		d.histogram.Reset()
	}
}

func sumDistributions(a, b *distribution) (newSumOrA *distribution) {
	if b.count() == 0 {
		return a
	}
	all := new(distribution)
	all.merge(a)
	all.merge(b)
	return all
}

func summarizeDistribution(d *distribution) Latency { return summarizeHistogram(d.histogram) }

func encodeDistributions(distributions map[string]*distribution) map[string]string {
	all := make(map[string]string)
	for name, d := range distributions {
		if text := encodeHistogram(d.histogram); text != "" {
			all[name] = text
		}
	}
	return all
}

// encodeHistogram returns a histogram in the compressed encoding (V2) of HdrHistogram, as base64, or "" if it is empty.
func encodeHistogram(h *hdrhistogram.Histogram) string {
	if h == nil || h.TotalCount() == 0 {
		return ""
	}
	b, err := h.Encode(hdrhistogram.V2CompressedEncodingCookieBase)
	if err != nil {
		return "" // impossible with histograms of newHistogram
	}
	return string(b)
}

// decodeHistogramOrNil decodes the result of encodeHistogram. It returns nil for "".
func decodeHistogramOrNil(text string) (*hdrhistogram.Histogram, error) {
	if text == "" {
		return nil, nil
	}
	h, err := hdrhistogram.Decode([]byte(text))
	if err != nil {
		return nil, fmt.Errorf("histogram: %w; expected the compressed encoding V2 in base64", err)
	}
	return h, nil
}

func summarizeHistogram(h *hdrhistogram.Histogram) Latency {
	if h == nil || h.TotalCount() == 0 {
		return Latency{}
	}
	l := Latency{Count: h.TotalCount()}
	for _, p := range LatencyPoints {
		*p.of(&l) = time.Duration(h.ValueAtPercentile(100 * p.Quantile))
	}
	l.Min, l.Mean, l.Max = time.Duration(h.Min()), time.Duration(h.Mean()), time.Duration(h.Max())
	return l
}
