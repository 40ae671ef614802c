package page

import (
	"cmp"
	"encoding/json"
	"fmt"
	"html/template"
	"math"
	"slices"

	"github.com/myriad-go/myriad/internal/format"
)

// Limits of the data in a chart.
const (
	maxPoints = 2000 // of a series
	maxSeries = 64
)

// chartData is a Chart in the form that the page's script reads.
type chartData struct {
	Title  string       `json:"title"`
	X      axisData     `json:"x"`
	Y      axisData     `json:"y"`
	Series []seriesData `json:"series"`
	// Left contains sentences about omitted data.
	Left []string `json:"left,omitempty"`
}

type axisData struct {
	Label string `json:"label"`
	Unit  Unit   `json:"unit"`
	Log   bool   `json:"log"`
}

type seriesData struct {
	Name   string `json:"name"`
	Dashed bool   `json:"dashed,omitempty"`
	Points bool   `json:"points,omitempty"`
	// X is omitted if it equals the X of the previous series.
	X []float64  `json:"x,omitempty"`
	Y []*float64 `json:"y"` // null is a gap
}

func (c *Chart) toDownsampledChartData() chartData {
	d := chartData{
		Title:  c.Title,
		X:      axisData{c.X.Label, c.X.Unit, c.X.Log || c.X.Unit == Percentile},
		Y:      axisData{c.Y.Label, c.Y.Unit, c.Y.Log},
		Series: []seriesData{},
	}
	series := c.Series
	if len(series) > maxSeries {
		d.Left = append(d.Left, fmt.Sprintf("Only the first %[2]d of %[1]d series are shown.", len(series), maxSeries))
		series = series[:maxSeries]
	}
	var before []float64
	for _, s := range series {
		x, y := dropInvalidXAndSort(s.X, s.Y, d.X.Log, c.Y.Log)
		if len(x) > maxPoints {
			d.Left = append(d.Left, fmt.Sprintf("%s has %s points; at most %s are shown, including the minimum and maximum of each interval.",
				s.Name, format.Rounded(float64(len(x))), format.Rounded(maxPoints)))
			x, y = downsample(x, y)
		}
		one := seriesData{Name: s.Name, Dashed: s.Dashed, Points: s.Points, Y: make([]*float64, len(y))}
		for i := range y {
			if !math.IsNaN(y[i]) {
				one.Y[i] = &y[i]
			}
		}
		if before == nil || !slices.Equal(before, x) {
			one.X, before = x, x
		}
		d.Series = append(d.Series, one)
	}
	return d
}

// JSON returns d in a JSON encoding that is safe within a script element of an HTML page.
func (d chartData) JSON() (template.JS, error) {
	text, err := json.Marshal(d)
	return template.JS(text), err
}

// dropInvalidXAndSort removes points whose x cannot be drawn, and sorts by x. A y that cannot be drawn becomes NaN.
func dropInvalidXAndSort(x, y []float64, logX, logY bool) (sortedX, yOrNaN []float64) {
	points := make([][2]float64, 0, len(x))
	for i := range x {
		if math.IsNaN(x[i]) || math.IsInf(x[i], 0) || logX && x[i] <= 0 {
			continue
		}
		v := y[i]
		if math.IsInf(v, 0) || logY && v <= 0 {
			v = math.NaN()
		}
		points = append(points, [2]float64{x[i], v})
	}
	slices.SortStableFunc(points, func(a, b [2]float64) int { return cmp.Compare(a[0], b[0]) })
	for _, p := range points {
		sortedX, yOrNaN = append(sortedX, p[0]), append(yOrNaN, p[1])
	}
	return sortedX, yOrNaN
}

// downsample reduces a series to at most maxPoints points, and keeps extreme points and gaps.
func downsample(x, y []float64) (xs, ys []float64) {
	keep := func(i int) { xs, ys = append(xs, x[i]), append(ys, y[i]) }
	last := len(x) - 1
	stretches := (maxPoints - 2) / 3
	keep(0)
	for s := range stretches {
		from, to := 1+s*(last-1)/stretches, 1+(s+1)*(last-1)/stretches
		low, high, gap := -1, -1, -1
		for i := from; i < to; i++ {
			switch {
			case math.IsNaN(y[i]):
				gap = i
				continue
			case low < 0:
				low, high = i, i
			}
			if y[i] < y[low] {
				low = i
			}
			if y[i] > y[high] {
				high = i
			}
		}
		kept := []int{low, high, gap}
		slices.Sort(kept)
		for _, i := range slices.Compact(kept) {
			if i >= 0 {
				keep(i)
			}
		}
	}
	keep(last)
	return xs, ys
}
