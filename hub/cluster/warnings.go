package cluster

import (
	"fmt"
	"regexp"
	"sync"
	"time"
)

// warnings passes lines on: at most maxWarnings a second, and each at most once in repeatTime. It is safe for
// concurrent use.
type warnings struct {
	to func(line string)

	mu     sync.Mutex
	second time.Time
	passed int // in that second
	hidden int // because too many were
	known  map[string]*warning
}

// warning is a line that was passed on.
type warning struct {
	passed time.Time
	hidden int // how often it has come since
}

const (
	maxWarnings = 5
	repeatTime  = time.Minute
	// maxKnown is the most lines that are known. When there are more, all are forgotten.
	maxKnown = 256
)

// numbering is what tells lines apart that are about the same: numbers of connections and of attempts, and ports
// of clients.
var numbering = regexp.MustCompile(`\b[a-z]id:\d+|\battempt \d+|:\d+->`)

// say passes on what has gone wrong.
func (w *warnings) say(format string, v ...any) { w.pass(fmt.Sprintf(format, v...), false) }

// state passes on what has changed. What goes wrong from then on is news.
func (w *warnings) state(format string, v ...any) { w.pass(fmt.Sprintf(format, v...), true) }

func (w *warnings) pass(line string, state bool) {
	if w.to == nil {
		return
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if state {
		w.known = nil
	}
	now, key := time.Now(), numbering.ReplaceAllString(line, "")
	known := w.known[key]
	if known != nil && now.Sub(known.passed) < repeatTime {
		known.hidden++
		return
	}
	if now.Sub(w.second) >= time.Second {
		if w.hidden > 0 {
			w.to(fmt.Sprintf("%d more lines about NATS are not shown", w.hidden))
		}
		w.second, w.passed, w.hidden = now, 0, 0
	}
	if w.passed >= maxWarnings {
		w.hidden++
		return
	}
	w.passed++
	if known != nil && known.hidden > 0 {
		line += fmt.Sprintf(" (and %d times in the last %v)", known.hidden, now.Sub(known.passed).Round(time.Second))
	}
	if w.known == nil || len(w.known) >= maxKnown {
		w.known = make(map[string]*warning)
	}
	w.known[key] = &warning{passed: now}
	w.to(line)
}
