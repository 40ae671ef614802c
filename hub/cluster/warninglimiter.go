package cluster

import (
	"fmt"
	"regexp"
	"sync"
	"time"
)

// warningLimiter drops repeated and excessive warnings. It is safe for concurrent use.
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
	suppressed int // repeats of the line since it was last shown
}

const (
	maxWarningsPerSecond = 5
	repeatInterval       = time.Minute
	maxKnownWarnings     = 256
)

// variableNumbers matches numbers that vary between otherwise equal log lines.
var variableNumbers = regexp.MustCompile(`\b[a-z]id:\d+|\battempt \d+|:\d+->`)

func (w *warningLimiter) warnf(format string, v ...any) {
	w.logUnlessRepeatedOrTooMany(fmt.Sprintf(format, v...), false)
}

// logChange logs a change of the node's state. After the change, lines that repeat earlier lines are logged again.
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
			w.sink(fmt.Sprintf("%d more log lines about NATS were suppressed", w.suppressed))
		}
		w.windowStart, w.shown, w.suppressed = now, 0, 0
	}
	if w.shown >= maxWarningsPerSecond {
		w.suppressed++
		return
	}
	w.shown++
	if known != nil && known.suppressed > 0 {
		line += fmt.Sprintf(" (repeated %d times in the last %v)", known.suppressed, now.Sub(known.shownAt).Round(time.Second))
	}
	if w.known == nil || len(w.known) >= maxKnownWarnings {
		w.known = make(map[string]*shownWarning)
	}
	w.known[key] = &shownWarning{shownAt: now}
	w.sink(line)
}
