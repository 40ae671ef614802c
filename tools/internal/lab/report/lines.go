package report

import (
	"cmp"
	"fmt"
	"html"
	"math"
	"slices"
	"strings"

	"github.com/myriad-go/myriad/internal/format"
)

// LinePanel is a line chart with a title. Both axes are logarithmic, so all coordinates must be above 0.
type LinePanel struct {
	Title string
	Lines []Line
}

// Line is a labeled line through points in the order of X. Color is an index from 0 to BarColors-1.
type Line struct {
	Label string
	Color int
	X, Y  []float64
}

const plotLeft, plotWidth, plotHeight = 56, 270, 220

func (p LinePanel) draw(b *strings.Builder, x, y int) (bottom int) {
	lowX, highX, lowY, highY := p.powerOfTenBounds()
	place := func(v, low, high, size float64) float64 {
		return (math.Log(v) - math.Log(low)) / max(math.Log(high)-math.Log(low), 1e-9) * size
	}
	y += 20
	drawTitle(b, x, y, p.Title)
	left, top := x+plotLeft, y+16
	bottom = top + plotHeight
	for v := lowY; v <= highY; v *= 10 {
		at := float64(bottom) - place(v, lowY, highY, plotHeight)
		fmt.Fprintf(b, `<path d="M%d %.1fh%d" stroke="var(--3)" stroke-opacity=".3"/><text x="%d" y="%.1f" text-anchor="end" fill="var(--2)">%s</text>`+"\n",
			left, at, plotWidth, left-6, at+4, format.Count(int64(v)))
	}
	for v := lowX; v <= highX; v *= 10 {
		at := float64(left) + place(v, lowX, highX, plotWidth)
		fmt.Fprintf(b, `<path d="M%.1f %dv%d" stroke="var(--3)" stroke-opacity=".3"/><text x="%.1f" y="%d" text-anchor="middle" fill="var(--2)">%s</text>`+"\n",
			at, top, plotHeight, at, bottom+18, format.Count(int64(v)))
	}
	lines := slices.SortedStableFunc(slices.Values(p.Lines), func(a, b Line) int { return cmp.Compare(a.Y[len(a.Y)-1], b.Y[len(b.Y)-1]) })
	type position struct{ x, y float64 }
	var labels []position
	for _, line := range lines {
		color := fmt.Sprintf("var(--%d)", firstBarColor+line.Color)
		var path strings.Builder
		atX, atY := 0.0, 0.0
		for i := range line.X {
			atX = float64(left) + place(line.X[i], lowX, highX, plotWidth)
			atY = float64(bottom) - place(line.Y[i], lowY, highY, plotHeight)
			fmt.Fprintf(&path, "%c%.1f %.1f", "ML"[min(i, 1)], atX, atY)
			fmt.Fprintf(b, `<circle cx="%.1f" cy="%.1f" r="3" fill="%s"/>`, atX, atY, color)
		}
		label := position{atX + 7, atY + 4}
		if atX < float64(left+plotWidth) {
			label.y = atY - 8 // another line may continue to the right
		}
		for _, other := range labels { // they are in order, from the bottom to the top
			if math.Abs(other.x-label.x) < 70 {
				label.y = min(label.y, other.y-15)
			}
		}
		labels = append(labels, label)
		fmt.Fprintf(b, `<path d="%s" fill="none" stroke="%s" stroke-width="2"/><text x="%.1f" y="%.1f" fill="%s">%s</text>`+"\n",
			path.String(), color, label.x, label.y, color, html.EscapeString(line.Label))
	}
	return bottom + 32
}

// powerOfTenBounds returns powers of ten that enclose the coordinates of all points.
func (p LinePanel) powerOfTenBounds() (lowX, highX, lowY, highY float64) {
	var x, y []float64
	for _, line := range p.Lines {
		x, y = append(x, line.X...), append(y, line.Y...)
	}
	down := func(v float64) float64 { return math.Pow10(int(math.Floor(math.Log10(v)))) }
	up := func(v float64) float64 { return math.Pow10(int(math.Ceil(math.Log10(v)))) }
	return down(slices.Min(x)), up(slices.Max(x)), down(slices.Min(y)), up(slices.Max(y))
}
