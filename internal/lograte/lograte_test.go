package lograte

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/slogtest"
	"testing/synctest"
	"time"
)

// lines logs to a list of lines, "msg key=value ...", without time and level.
func lines(o Options) (log *slog.Logger, written func() []string) {
	var out bytes.Buffer
	next := slog.NewTextHandler(&out, &slog.HandlerOptions{ReplaceAttr: func(groups []string, a slog.Attr) slog.Attr {
		if len(groups) == 0 && (a.Key == slog.TimeKey || a.Key == slog.LevelKey) {
			return slog.Attr{}
		}
		return a
	}})
	return slog.New(New(next, o)), func() []string {
		text := strings.TrimSpace(strings.ReplaceAll(out.String(), "msg=", ""))
		out.Reset()
		if text == "" {
			return nil
		}
		return strings.Split(text, "\n")
	}
}

func expect(t *testing.T, when string, got []string, want ...string) {
	t.Helper()
	if !slices.Equal(got, want) {
		t.Errorf("%s: written %q, want %q", when, got, want)
	}
}

func TestRepeats(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		log, written := lines(Options{})
		for range 5 {
			log.Warn("full")
		}
		log.Error("full") // another level
		log.Warn("empty") // another text
		expect(t, "at once", written(), "full", "full", "empty")
		time.Sleep(time.Second - 1)
		log.Warn("full")
		expect(t, "just before a second is over", written())
		time.Sleep(time.Nanosecond)
		log.Warn("full", "n", 1)
		log.Error("full")
		log.Warn("full")
		expect(t, "after a second", written(), "full n=1 suppressed=5", "full")
		time.Sleep(time.Minute)
		log.Warn("full")
		log.Warn("empty")
		expect(t, "after a minute", written(), "full suppressed=1", "empty")
	})
}

func TestKeys(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		log, written := lines(Options{Keys: []string{"loop", "conn.peer"}, Interval: time.Minute})
		log.Info("m", "loop", 1, "n", 1)
		log.Info("m", "loop", 1, "n", 2) // n does not count
		log.Info("m", "loop", 2)
		log.Info("m")
		expect(t, "attributes", written(), "m loop=1 n=1", "m loop=2", "m")

		one, two := log.With("loop", 1), log.With("loop", 3)
		one.Info("m") // as the first
		two.Info("m")
		expect(t, "With", written(), "m loop=3")

		conn := log.WithGroup("conn")
		conn.Info("m", "peer", "a")
		conn.Info("m", "peer", "b")
		conn.Info("m", "peer", "b", "loop", 9) // conn.loop does not count
		log.Info("m", "peer", "c")             // peer alone does not count
		conn.With("peer", "a").Info("m")
		expect(t, "groups", written(), "m conn.peer=a", "m conn.peer=b")

		time.Sleep(time.Minute)
		one.Info("m")
		expect(t, "what the derived ones suppressed counts together", written(), "m loop=1 suppressed=2")
	})
}

// TestOverflow fills the table.
func TestOverflow(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		log, written := lines(Options{MaxKeys: 2})
		log.Info("a")
		log.Info("b")
		log.Info("b")
		log.Info("c")
		log.Info("d")
		log.Info("c")
		expect(t, "two have entries, the others share one", written(), "a", "b", "c")
		time.Sleep(time.Second)
		log.Info("d") // a and b are forgotten, d has an entry now; b's and the shared ones are not told yet
		log.Info("e")
		log.Info("f")
		expect(t, "a second later", written(), "d", "e", "f suppressed=3")
	})
}

// TestCleaningIsRare fills the table again and again: it is walked through once
// an interval.
func TestCleaningIsRare(t *testing.T) {
	now := time.Unix(1e9, 0)
	tab := &table{interval: time.Second, max: 2, entries: make(map[key]*entry)}
	tab.take(key{text: "a"}, now)
	now = now.Add(900 * time.Millisecond)
	tab.take(key{text: "b"}, now)
	now = now.Add(200 * time.Millisecond)
	tab.take(key{text: "c"}, now) // in place of a
	cleaned := tab.cleaned
	now = now.Add(900 * time.Millisecond) // b's interval is over
	tab.take(key{text: "d"}, now)
	if tab.cleaned != cleaned || tab.overflow.written != now {
		t.Errorf("cleaned again after %v, want it after %v at the earliest", now.Sub(cleaned), tab.interval)
	}
	now = now.Add(100 * time.Millisecond)
	tab.take(key{text: "e"}, now)
	if tab.cleaned != now || tab.entries[key{text: "e"}] == nil {
		t.Errorf("not cleaned after %v", now.Sub(cleaned))
	}
}

// TestBound has many more messages than entries.
func TestBound(t *testing.T) {
	h := New(slog.DiscardHandler, Options{}).(*handler)
	for i := range 5000 {
		h.table.take(key{text: fmt.Sprint(i)}, time.Now())
	}
	if n := len(h.table.entries); n != 1024 {
		t.Errorf("%d entries, want 1,024", n)
	}
}

// count sums up what passes.
type count struct {
	mu                 sync.Mutex
	passed, suppressed int64
}

func (c *count) Enabled(context.Context, slog.Level) bool { return true }
func (c *count) WithAttrs([]slog.Attr) slog.Handler       { return c }
func (c *count) WithGroup(string) slog.Handler            { return c }
func (c *count) Handle(_ context.Context, r slog.Record) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.passed++
	r.Attrs(func(a slog.Attr) bool {
		if a.Key == Suppressed {
			c.suppressed += a.Value.Int64()
		}
		return true
	})
	return nil
}

// TestNoneIsLost logs from many goroutines, more messages than there are
// entries: each is written, told as suppressed, or still to be told.
func TestNoneIsLost(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var c count
		h := New(&c, Options{MaxKeys: 8, Interval: 10 * time.Millisecond}).(*handler)
		log := slog.New(h)
		const goroutines, each = 8, 500
		var wg sync.WaitGroup
		for g := range goroutines {
			wg.Go(func() {
				for i := range each {
					log.Info(fmt.Sprint((i * (g + 1)) % 23))
					if i%5 == 0 {
						time.Sleep(time.Millisecond)
					}
				}
			})
		}
		wg.Wait()
		left := h.table.overflow.suppressed
		for _, e := range h.table.entries {
			left += e.suppressed
		}
		if c.passed+c.suppressed+left != goroutines*each || c.suppressed == 0 || c.passed > 9*(each/5/10+1) {
			t.Errorf("%d written, %d told as suppressed, %d to be told; want %d together, at most 9 written each interval",
				c.passed, c.suppressed, left, goroutines*each)
		}
	})
}

func TestEnabled(t *testing.T) {
	log, written := lines(Options{})
	log.Debug("x")
	if log.Enabled(t.Context(), slog.LevelDebug) || written() != nil {
		t.Error("debug is enabled; want what the next handler says")
	}
}

// TestSlog is the standard library's own test of handlers.
func TestSlog(t *testing.T) {
	var out bytes.Buffer
	slogtest.Run(t, func(*testing.T) slog.Handler {
		out.Reset()
		return New(slog.NewTextHandler(&out, nil), Options{})
	}, func(t *testing.T) map[string]any { return parse(t, out.String()) })
}

// parse reads a line of TextHandler, its groups as maps.
func parse(t *testing.T, line string) map[string]any {
	t.Helper()
	top := make(map[string]any)
	for field := range strings.FieldsSeq(line) {
		name, value, ok := strings.Cut(field, "=")
		if !ok {
			t.Fatalf("%q: no value", field)
		}
		at := top
		path := strings.Split(name, ".")
		for _, group := range path[:len(path)-1] {
			if at[group] == nil {
				at[group] = make(map[string]any)
			}
			at = at[group].(map[string]any)
		}
		at[path[len(path)-1]] = value
	}
	return top
}

func BenchmarkSuppressed(b *testing.B) {
	log := slog.New(New(slog.NewTextHandler(io.Discard, nil), Options{Interval: time.Hour}))
	b.ReportAllocs()
	for b.Loop() {
		log.Warn("full", "n", 1)
	}
}
