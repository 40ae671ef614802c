// Package lograte suppresses repeated log messages, such as when a million connections fail in the same way. It has no
// goroutines and no timers: the next record that passes reports the number of suppressed records.
package lograte

import (
	"context"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"time"
)

const (
	// Suppressed is the key of the attribute with the number of suppressed records.
	Suppressed = "suppressed"
	// Interval is the time during which equal records are written only once.
	Interval = time.Second
	// MaxMessages limits the number of distinct messages that are counted separately. Further messages share one count.
	MaxMessages = 1024
)

// NewHandler returns a handler that passes records to the handler next, and suppresses repeated records. Of equal
// records, it passes one per Interval. Records are equal if they have the same level, the same message, and equal
// values for the attribute keys in distinguishingKeys. Attributes within groups are not compared.
func NewHandler(next slog.Handler, distinguishingKeys ...string) slog.Handler {
	return &rateLimitHandler{next: next, keys: distinguishingKeys, table: &rateTable{entries: make(map[message]*entry)}}
}

type rateLimitHandler struct {
	next    slog.Handler
	table   *rateTable
	keys    []string
	grouped bool   // WithGroup was called
	values  string // keys and values of the distinguishing attributes that WithAttrs has set
}

func (h *rateLimitHandler) Enabled(ctx context.Context, level slog.Level) bool {
	return h.next.Enabled(ctx, level)
}

func (h *rateLimitHandler) Handle(ctx context.Context, r slog.Record) error {
	m := message{r.Level, r.Message, h.values}
	r.Attrs(func(a slog.Attr) bool {
		m.values += h.keyValueIfDistinguishing(a)
		return true
	})
	passes, suppressed := h.table.admitMessage(m, time.Now())
	if !passes {
		return nil
	}
	if suppressed > 0 {
		r = r.Clone()
		r.AddAttrs(slog.Int64(Suppressed, suppressed))
	}
	return h.next.Handle(ctx, r)
}

func (h *rateLimitHandler) WithAttrs(attrs []slog.Attr) slog.Handler {
	derived := *h
	derived.next = h.next.WithAttrs(attrs)
	for _, a := range attrs {
		derived.values += h.keyValueIfDistinguishing(a)
	}
	return &derived
}

func (h *rateLimitHandler) WithGroup(name string) slog.Handler {
	derived := *h
	derived.next = h.next.WithGroup(name)
	derived.grouped = h.grouped || name != ""
	return &derived
}

func (h *rateLimitHandler) keyValueIfDistinguishing(a slog.Attr) string {
	if h.grouped || !slices.Contains(h.keys, a.Key) {
		return ""
	}
	return strings.Join([]string{a.Key, a.Value.Resolve().String(), ""}, "\x00")
}

type message struct {
	level        slog.Level
	text, values string // values are the keys and values of distinguishing attributes
}

type rateTable struct {
	mu        sync.Mutex
	entries   map[message]*entry // at most MaxMessages
	shared    entry              // for all messages beyond the limit
	lastSweep time.Time
}

type entry struct {
	written    time.Time
	suppressed int64 // number of messages suppressed since one was last written
}

func (e *entry) isRecent(now time.Time) bool {
	return !e.written.IsZero() && now.Sub(e.written) < Interval
}

// admitMessage reports whether m may be written now. If m may be written, suppressed is the number of equal messages
// that were suppressed since one was last written.
func (t *rateTable) admitMessage(m message, now time.Time) (admitted bool, suppressed int64) {
	t.mu.Lock()
	defer t.mu.Unlock()
	e := t.entries[m]
	if e == nil {
		if len(t.entries) >= MaxMessages && now.Sub(t.lastSweep) >= Interval {
			t.moveOldEntriesIntoSharedLocked(now)
		}
		if e = &t.shared; len(t.entries) < MaxMessages {
			e = new(entry)
			t.entries[m] = e
		}
	}
	if e.isRecent(now) {
		e.suppressed++
		return false, 0
	}
	suppressed, e.suppressed, e.written = e.suppressed, 0, now
	return true, suppressed
}

// moveOldEntriesIntoSharedLocked removes the entries of messages that were not written within the last Interval. It
// adds the numbers of suppressed messages of these entries to t.shared.
func (t *rateTable) moveOldEntriesIntoSharedLocked(now time.Time) {
	t.lastSweep = now
	for m, e := range t.entries {
		if !e.isRecent(now) {
			t.shared.suppressed += e.suppressed
			delete(t.entries, m)
		}
	}
}
