package doctor

import (
	"fmt"
	"maps"
	"slices"
	"time"
)

// Warning is what Watch warns of: a wall that is 80 % or 95 % used, one that is
// reached within a minute at the rate of the last, a counter that rose, a process
// that has ended. Each comes once until it is over: the wall is 5 % of its limit
// below, or two minutes off; and at most once a minute.
type Warning struct {
	// Wall is the wall's name; of a counter, its own.
	Wall string `json:"wall"`
	Text string `json:"text"`
}

const (
	// relief is by how much of a limit a level is to fall below a mark until it is
	// warned of anew.
	relief = 0.05
	// soon is the forecast that is warned of, and far the one at which it is over.
	soon = time.Minute
	far  = 2 * time.Minute
	// again is the least time between two warnings of the same.
	again = time.Minute
)

// marks are the shares of a limit that are warned of.
var marks = []float64{0.80, 0.95}

// about says what a warning is of: a mark of a level, its forecast (mark -1), or a
// counter.
type about struct {
	wall string
	mark int
}

// alarm is the state of a warning.
type alarm struct {
	on   bool      // it holds, and was told
	told time.Time // when
	sum  int64     // a counter's rise that was not told
}

// alarms says each warning once. There are no more than walls and counters have names.
type alarms map[about]*alarm

// of are the warnings of a reading.
func (a *alarms) of(r *Reading) (warnings []Warning) {
	if *a == nil {
		*a = make(alarms)
	}
	for i := range r.Levels {
		l := &r.Levels[i]
		if text := a.level(r.At, l); text != "" {
			warnings = append(warnings, Warning{Wall: l.Wall, Text: text})
		}
	}
	for _, name := range slices.Sorted(maps.Keys(told)) { // also what rose earlier, within a minute of a warning
		if n := a.counter(r.At, name, r.Rose[name]); n > 0 {
			warnings = append(warnings, Warning{Wall: name, Text: fmt.Sprintf("%s rose by %d: %s", name, n, told[name])})
		}
	}
	return warnings
}

// level is the most severe new warning of a level, "" for none.
func (a alarms) level(now time.Time, l *Level) (text string) {
	coming := l.In > 0 && l.In <= soon
	if a.ring(about{l.Wall, -1}, now, coming, l.In == 0 || l.In > far) {
		text = l.String()
	}
	for i, mark := range marks {
		if a.ring(about{l.Wall, i}, now, l.Share >= mark, l.Share < mark-relief) {
			text = l.String()
		}
	}
	return text
}

// ring says whether a warning is to be told now.
func (a alarms) ring(of about, now time.Time, holds, over bool) bool {
	s := a[of]
	if s == nil {
		if !holds {
			return false
		}
		s = &alarm{}
		a[of] = s
	}
	if over {
		s.on = false
	}
	if !holds || s.on || !s.told.IsZero() && now.Sub(s.told) < again {
		return false
	}
	s.on, s.told = true, now
	return true
}

// counter is by how much a counter rose since that was told, 0 if it isn't to be
// told now.
func (a alarms) counter(now time.Time, name string, rose int64) int64 {
	of := about{wall: name}
	s := a[of]
	if s == nil {
		s = &alarm{}
		a[of] = s
	}
	s.sum += rose
	if s.sum == 0 || !s.told.IsZero() && now.Sub(s.told) < again {
		return 0
	}
	rose, s.sum, s.told = s.sum, 0, now
	return rose
}
