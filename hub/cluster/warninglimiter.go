package cluster

import (
	"fmt"
	"regexp"
	"sync"
	"time"
)

// warningLimiter limits the lines passed to sink. It passes at most maxWarningsPerSecond lines per second, and the same
// line at most once per repeatInterval. It is safe for concurrent use.
type warningLimiter struct {
	sink func(line string)

	mu          sync.Mutex
	windowStart time.Time
	shown       int // in this second
	suppressed  int // in this second
	known       map[string]*shownWarning
}

type shownWarning struct {
	shownAt    time.Time
	suppressed int // repeats since
}

const (
	maxWarningsPerSecond = 5
	repeatInterval       = time.Minute
	// maxKnownWarnings limits the number of remembered lines. If there are more, all are forgotten.
	maxKnownWarnings = 256
)

// variableNumbers matches numbers that vary between otherwise equal log lines, such as connection numbers and client
// ports.
var variableNumbers = regexp.MustCompile(`\b[a-z]id:\d+|\battempt \d+|:\d+->`)

func (w *warningLimiter) warnf(format string, v ...any) {
	w.logUnlessRepeatedOrTooMany(fmt.Sprintf(format, v...), false)
}

// logChange logs a change of the node's state. After a change, lines that were already logged may be logged again.
func (w *warningLimiter) logChange(format string, v ...any) {
	w.logUnlessRepeatedOrTooMany(fmt.Sprintf(format, v...), true)
}

func (w *warningLimiter) logUnlessRepeatedOrTooMany(line string, forgetRepeats bool) {
	if w.sink == nil {
		return
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if forgetRepeats {
		w.known = nil
	}
	now, key := time.Now(), variableNumbers.ReplaceAllString(line, "")
	known := w.known[key]
	if known != nil && now.Sub(known.shownAt) < repeatInterval {
		known.suppressed++
		return
	}
	if now.Sub(w.windowStart) >= time.Second {
		if w.suppressed > 0 {
			w.sink(fmt.Sprintf("%d more lines about NATS are not shown", w.suppressed))
		}
		w.windowStart, w.shown, w.suppressed = now, 0, 0
	}
	if w.shown >= maxWarningsPerSecond {
		w.suppressed++
		return
	}
	w.shown++
	if known != nil && known.suppressed > 0 {
		line += fmt.Sprintf(" (and %d times in the last %v)", known.suppressed, now.Sub(known.shownAt).Round(time.Second))
	}
	if w.known == nil || len(w.known) >= maxKnownWarnings {
		w.known = make(map[string]*shownWarning)
	}
	w.known[key] = &shownWarning{shownAt: now}
	w.sink(line)
}
