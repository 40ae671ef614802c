package load

import (
	"math"
	"time"
)

const (
	// SteadyVariation is the largest Result.Variation of a window that is steady.
	SteadyVariation = 0.25
	// steadyParts is of how many parts the variation is, each a tenth of Duration, and
	// steadyTimes how many times Duration a window lasts at most that is to be steady.
	steadyParts = 10
	steadyTimes = 3
)

// parts are the last parts of a window: at what rate bytes were received in each.
type parts struct {
	each  time.Duration
	at    time.Duration // the end of the last part, or the beginning of the window
	bytes int64         // received by then
	rates [steadyParts]float64
	n     int
}

// add takes how many bytes of the window had been received at a time.
func (p *parts) add(now time.Duration, bytes int64) {
	if now-p.at < p.each {
		return
	}
	p.rates[p.n%steadyParts] = float64(bytes-p.bytes) / float64(now-p.at)
	p.n, p.at, p.bytes = p.n+1, now, bytes
}

// steady says that Duration has passed, and varied little since.
func (p *parts) steady() bool {
	return p.n >= steadyParts && p.variation() <= SteadyVariation
}

// variation is the standard deviation of the rates, divided by their mean.
func (p *parts) variation() float64 {
	rates := p.rates[:min(p.n, steadyParts)]
	sum, squares := 0.0, 0.0
	for _, r := range rates {
		sum += r
	}
	mean := sum / float64(len(rates))
	if len(rates) < 2 || mean == 0 {
		return 0
	}
	for _, r := range rates {
		squares += (r - mean) * (r - mean)
	}
	return math.Sqrt(squares/float64(len(rates)-1)) / mean
}
