package load

import (
	"fmt"
	"html"
	"html/template"
	"math"
	"strings"
)

// The sizes at which each chart is drawn, in pixels; the page shows the one that
// fits, so that its text keeps its size.
var chartWidths = []int{1040, 640, 330}

// The room around a chart, in pixels, for its axes.
const (
	chartLeft, chartRight = 58, 22
	chartTop, chartBottom = 10, 24
	chartText             = 7 // the width of a character at most
)

// curve is one curve of a chart.
type curve struct {
	class  string    // its colour
	places []float64 // of its values, on the x axis
	values []float64
	area   bool // filled down to the axis
}

// band is a part of the x axis in another shade.
type band struct{ from, to float64 }

// chart is a drawing of curves.
type chart struct {
	label  string // what it shows, for those who can't see it
	x      axis
	y      axis
	lines  []curve
	shade  []band
	height int
}

// draw is the chart at a width, as SVG.
func (c chart) draw(width int) template.HTML {
	var b strings.Builder
	c.x.low, c.x.top = chartLeft, float64(width-chartRight)
	c.y.low, c.y.top = float64(c.height-chartBottom), chartTop
	fmt.Fprintf(&b, `<svg class="w%d" viewBox="0 0 %d %d" role="img" aria-label="%s">`, width, width, c.height, html.EscapeString(c.label))
	for _, s := range c.shade {
		if from, to := c.x.at(s.from), c.x.at(s.to); to > from {
			fmt.Fprintf(&b, `<rect class="shade" x="%.1f" y="%.1f" width="%.1f" height="%.1f"/>`, from, c.y.top, to-from, c.y.low-c.y.top)
		}
	}
	c.drawAxes(&b)
	for _, l := range c.lines {
		c.drawLine(&b, l)
	}
	fmt.Fprintf(&b, `<line class="cross" x1="0" x2="0" y1="%.1f" y2="%.1f"/></svg>`, c.y.top, c.y.low)
	return template.HTML(b.String())
}

// drawAxes draws both axes. A tick whose text would touch the one before it has
// none.
func (c chart) drawAxes(b *strings.Builder) {
	for _, t := range c.y.ticks {
		y := c.y.at(t.at)
		fmt.Fprintf(b, `<line class="grid" x1="%.1f" x2="%.1f" y1="%.1f" y2="%.1f"/>`, c.x.low, c.x.top, y, y)
		fmt.Fprintf(b, `<text x="%.1f" y="%.1f" text-anchor="end">%s</text>`, c.x.low-8, y+4, html.EscapeString(t.text))
	}
	fmt.Fprintf(b, `<line class="axis" x1="%.1f" x2="%.1f" y1="%.1f" y2="%.1f"/>`, c.x.low, c.x.top, c.y.low, c.y.low)
	taken := math.Inf(-1)
	for _, t := range c.x.ticks {
		x, half := c.x.at(t.at), float64(chartText*len([]rune(t.text)))/2
		fmt.Fprintf(b, `<line class="axis" x1="%.1f" x2="%.1f" y1="%.1f" y2="%.1f"/>`, x, x, c.y.low, c.y.low+4)
		if x-half < taken+8 {
			continue
		}
		taken = x + half
		fmt.Fprintf(b, `<text x="%.1f" y="%.1f" text-anchor="middle">%s</text>`, x, c.y.low+18, html.EscapeString(t.text))
	}
}

// drawLine draws a curve. It has a gap where a value is not a number.
func (c chart) drawLine(b *strings.Builder, l curve) {
	var path strings.Builder
	first, last, points := 0.0, 0.0, 0
	finish := func() {
		if points == 0 {
			return
		}
		if l.area {
			fmt.Fprintf(b, `<path class="area %s" d="%sL%.1f %.1fL%.1f %.1fZ"/>`, l.class, path.String(), last, c.y.low, first, c.y.low)
		}
		class := "line"
		if points == 1 {
			class = "line dot"
		}
		fmt.Fprintf(b, `<path class="%s %s" d="%s"/>`, class, l.class, path.String())
		path.Reset()
		points = 0
	}
	for i, v := range l.values {
		if math.IsNaN(v) {
			finish()
			continue
		}
		x, y := c.x.at(l.places[i]), c.y.at(v)
		if points == 0 {
			first = x
			fmt.Fprintf(&path, "M%.1f %.1fh.1", x, y) // so that a single point shows
		} else {
			fmt.Fprintf(&path, "L%.1f %.1f", x, y)
		}
		last = x
		points++
	}
	finish()
}
