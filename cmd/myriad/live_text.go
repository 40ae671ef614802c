package main

import (
	"fmt"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/myriad-go/myriad/internal/format"
)

// The styles are parameters of the escape sequence that begins them (SGR); those
// used here can be read on dark and on light.
const (
	bold   = "1"
	dim    = "2"
	red    = "31"
	green  = "32"
	cyan   = "36"
	strong = "1;33" // yellow
)

// styled is a text in one style, "" for none.
type styled struct{ style, text string }

// liveLine is a line on a terminal. Its text can hold anything; what could move the
// cursor, or is not one column wide, is shown as "?".
type liveLine []styled

// blocks are the runes beyond ASCII that are one column wide wherever we draw.
const blocks = "▁▂▃▄▅▆▇█░µ×…"

func cleanRune(r rune) rune {
	if r >= ' ' && r <= '~' || r != utf8.RuneError && strings.ContainsRune(blocks, r) {
		return r
	}
	return '?'
}

// width is how many columns the line takes on a screen.
func (l liveLine) width(most int) int {
	n := 0
	for _, s := range l {
		n += utf8.RuneCountInString(s.text)
	}
	return min(n, most)
}

// fit is the line in at most so many columns; where it is longer its last one says
// so.
func (l liveLine) fit(width int, colour bool) string {
	var b strings.Builder
	left, over := width, l.width(width+1) > width
	for _, s := range l {
		runes := []rune(strings.Map(cleanRune, s.text))
		if over && len(runes) >= left {
			runes = append(runes[:max(left-1, 0)], '…')[:left]
		}
		if len(runes) == 0 {
			continue
		}
		left -= len(runes)
		if colour && s.style != "" {
			b.WriteString("\x1b[" + s.style + "m" + string(runes) + "\x1b[0m")
		} else {
			b.WriteString(string(runes))
		}
	}
	return b.String()
}

// sparkline draws the last of the values, each a column, from 0 to the greatest of
// them; what is 0 is the lowest bar.
func sparkline(values []float64, width int) string {
	if len(values) > width {
		values = values[len(values)-max(width, 0):]
	}
	const bars = "▁▂▃▄▅▆▇█"
	all := []rune(bars)
	most := 0.0
	for _, v := range values {
		most = max(most, v)
	}
	drawn := make([]rune, len(values))
	for i, v := range values {
		drawn[i] = all[int(shareOf(v, most)*float64(len(all)-1)+0.5)]
	}
	return string(drawn)
}

// liveBar draws a share, 0 to 1, in so many columns. Only the whole fills all of them.
func liveBar(share float64, width int) (full, rest string) {
	n := int(share*float64(width) + 0.5)
	if share < 1 {
		n = min(n, max(width-1, 0))
	}
	return strings.Repeat("█", n), strings.Repeat("░", width-n)
}

func liveCount(n int64) string { return format.Count(n) }

func liveDigits(v float64) string { return format.Fixed(v) }

// liveTime writes a latency with three digits.
func liveTime(d time.Duration) string {
	switch {
	case d < time.Microsecond:
		return fmt.Sprintf("%dns", d.Nanoseconds())
	case d < time.Millisecond:
		return liveDigits(float64(d)/float64(time.Microsecond)) + "µs"
	case d < time.Second:
		return liveDigits(float64(d)/float64(time.Millisecond)) + "ms"
	}
	return liveDigits(d.Seconds()) + "s"
}

func liveSpan(d time.Duration) string { return format.Elapsed(d) }

// liveBytes writes a size with three digits, in units of 1,024.
func liveBytes(n float64) string {
	units := []string{"B", "KiB", "MiB", "GiB", "TiB"}
	i := 0
	for ; n >= 999.5 && i < len(units)-1; i++ {
		n /= 1024
	}
	if i == 0 {
		return strconv.FormatFloat(n, 'f', 0, 64) + " B"
	}
	return liveDigits(n) + " " + units[i]
}
