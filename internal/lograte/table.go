package lograte

import (
	"sync"
	"time"
)

// table remembers when each message was last written.
type table struct {
	interval time.Duration
	max      int

	mu       sync.Mutex
	entries  map[key]*entry // at most max
	overflow entry          // that of all messages beyond
	cleaned  time.Time
}

// entry is a message that was written, and may not be again before an interval
// is over.
type entry struct {
	written    time.Time
	suppressed int64 // since then
}

// take says whether a message may be written now, and if so, how many were
// suppressed before it.
func (t *table) take(k key, now time.Time) (passes bool, suppressed int64) {
	t.mu.Lock()
	defer t.mu.Unlock()
	e := t.entry(k, now)
	if t.fresh(e, now) {
		e.suppressed++
		return false, 0
	}
	suppressed, e.suppressed, e.written = e.suppressed, 0, now
	return true, suppressed
}

// fresh says whether an entry keeps its message from being written.
func (t *table) fresh(e *entry, now time.Time) bool {
	return !e.written.IsZero() && now.Sub(e.written) < t.interval
}

// entry finds the entry of a message, or makes it, if need be in place of
// others.
func (t *table) entry(k key, now time.Time) *entry {
	if e := t.entries[k]; e != nil {
		return e
	}
	if len(t.entries) >= t.max && now.Sub(t.cleaned) >= t.interval {
		t.clean(now)
	}
	if len(t.entries) >= t.max {
		return &t.overflow
	}
	e := new(entry)
	t.entries[k] = e
	return e
}

// clean forgets the messages that have not been written for an interval. What
// they have not told is left to the shared entry to tell.
func (t *table) clean(now time.Time) {
	t.cleaned = now
	for k, e := range t.entries {
		if !t.fresh(e, now) {
			t.overflow.suppressed += e.suppressed
			delete(t.entries, k)
		}
	}
}
