// Package lograte keeps a log from being flooded by one message that repeats, as
// when each of a million connections fails in the same way.
//
// One table, under one mutex, has an entry for each message that was seen of
// late. It is held for a look-up and, at most once an interval and only when the
// table is full, for a walk through it; never while a record is written. There
// are no goroutines and no timers: what was suppressed is told by the next record
// that passes.
package lograte

import (
	"context"
	"log/slog"
	"slices"
	"strings"
	"time"
)

// Suppressed is the key of the attribute that says how many were suppressed.
const Suppressed = "suppressed"

// Options say what is a repeat. The zero value means the defaults.
type Options struct {
	// Interval is the time in which the same message is written at most
	// once. The default, also for a negative one, is a second.
	Interval time.Duration
	// Keys are the attributes whose values, beside the level and the text,
	// tell messages apart: those below WithGroup("g") as "g.key". Values
	// are compared as text. The default is none.
	Keys []string
	// MaxKeys is the most messages that are told apart at a time. Further
	// ones share one entry, until some that are there have not come for an
	// interval. The default, also for a negative one, is 1,024.
	MaxKeys int
}

// New returns a handler that passes records on to next: of those that are the
// same, one each interval. When one passes after others were suppressed, it has
// the attribute Suppressed with their number; it stands in the group that is
// open, if any. The record that passes for the shared entry tells those of all
// messages that share it, and of messages that were forgotten before they could
// tell. It is safe for concurrent use as far as next is.
func New(next slog.Handler, o Options) slog.Handler {
	if o.Interval <= 0 {
		o.Interval = time.Second
	}
	if o.MaxKeys <= 0 {
		o.MaxKeys = 1024
	}
	return &handler{next: next, table: &table{
		interval: o.Interval, max: o.MaxKeys, entries: make(map[key]*entry),
	}, keys: slices.Clone(o.Keys)}
}

// handler is a slog.Handler; all that come from one by WithAttrs and WithGroup
// share its table.
type handler struct {
	next   slog.Handler
	table  *table
	keys   []string
	groups string // the open groups, "a.b." or ""
	values string // those of keys that WithAttrs gave, as in key.values
}

func (h *handler) Enabled(ctx context.Context, level slog.Level) bool {
	return h.next.Enabled(ctx, level)
}

func (h *handler) Handle(ctx context.Context, r slog.Record) error {
	passes, suppressed := h.table.take(h.key(r), time.Now())
	if !passes {
		return nil
	}
	if suppressed > 0 {
		r = r.Clone()
		r.AddAttrs(slog.Int64(Suppressed, suppressed))
	}
	return h.next.Handle(ctx, r)
}

func (h *handler) WithAttrs(attrs []slog.Attr) slog.Handler {
	derived := *h
	derived.next = h.next.WithAttrs(attrs)
	var values strings.Builder
	values.WriteString(h.values)
	for _, a := range attrs {
		h.add(&values, a)
	}
	derived.values = values.String()
	return &derived
}

func (h *handler) WithGroup(name string) slog.Handler {
	if name == "" {
		return h
	}
	derived := *h
	derived.next = h.next.WithGroup(name)
	derived.groups += name + "."
	return &derived
}

// key is what is the same in records that are.
type key struct {
	level  slog.Level
	text   string
	values string // "key\x00value\x00" for each of Options.Keys that is there
}

func (h *handler) key(r slog.Record) key {
	k := key{r.Level, r.Message, h.values}
	if len(h.keys) == 0 {
		return k
	}
	var values strings.Builder
	values.WriteString(h.values)
	r.Attrs(func(a slog.Attr) bool {
		h.add(&values, a)
		return true
	})
	k.values = values.String()
	return k
}

// add adds an attribute's value if it is one of those that count.
func (h *handler) add(to *strings.Builder, a slog.Attr) {
	if name := h.groups + a.Key; slices.Contains(h.keys, name) {
		to.WriteString(name + "\x00" + a.Value.Resolve().String() + "\x00")
	}
}
