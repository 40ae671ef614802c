package page

import (
	"fmt"
	"math"
	"strings"
)

// Bars is a bar chart of a few named values.
type Bars struct {
	Title string
	Unit  Unit
	Bars  []Bar
}

// Bar is one bar of a Bars chart. The page displays Text beside the bar. If Text is "", the page displays Value in the
// unit Bars.Unit instead.
type Bar struct {
	Name  string
	Value float64
	Text  string
	Tone  Tone
}

func (b *Bars) Add(name string, value float64, text string, tone Tone) {
	b.Bars = append(b.Bars, Bar{name, value, text, tone})
}

func (b *Bars) barTextOrValue(bar Bar) string {
	if bar.Text != "" {
		return bar.Text
	}
	return b.Unit.Format(bar.Value)
}

func (b *Bars) fractionOfLongest(bar Bar) float64 {
	most := 0.0
	for _, other := range b.Bars {
		most = max(most, other.Value)
	}
	if most <= 0 || !(bar.Value > 0) {
		return 0
	}
	return bar.Value / most
}

func (b *Bars) cssWidth(bar Bar) string {
	return fmt.Sprintf("%.2f%%", max(100*b.fractionOfLongest(bar), 0.25))
}

func (b *Bars) writeText(w *strings.Builder) {
	const most = 40
	fmt.Fprintf(w, "  %s\n", b.Title)
	widest := 0
	for _, bar := range b.Bars {
		widest = max(widest, len([]rune(bar.Name)))
	}
	for _, bar := range b.Bars {
		fill := strings.Repeat(" ", widest-len([]rune(bar.Name)))
		fmt.Fprintf(w, "    %s%s  %s %s\n", bar.Name, fill, strings.Repeat("█", max(int(math.Round(most*b.fractionOfLongest(bar))), 1)), b.barTextOrValue(bar))
	}
}
