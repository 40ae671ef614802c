package lograte

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/slogtest"
	"testing/synctest"
	"time"
)

// newTestLogger returns a logger, and a function that returns the lines since the last call, as "msg key=value ...".
func newTestLogger(keys ...string) (log *slog.Logger, written func() []string) {
	var out bytes.Buffer
	next := slog.NewTextHandler(&out, &slog.HandlerOptions{ReplaceAttr: func(groups []string, a slog.Attr) slog.Attr {
		if len(groups) == 0 && (a.Key == slog.TimeKey || a.Key == slog.LevelKey) {
			return slog.Attr{}
		}
		return a
	}})
	return slog.New(NewHandler(next, keys...)), func() []string {
		text := strings.TrimSpace(strings.ReplaceAll(out.String(), "msg=", ""))
		out.Reset()
		if text == "" {
			return nil
		}
		return strings.Split(text, "\n")
	}
}

func expectLines(t *testing.T, when string, got []string, want ...string) {
	t.Helper()
	if !slices.Equal(got, want) {
		t.Errorf("%s: written %q, want %q", when, got, want)
	}
}

func TestRepeats(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		log, written := newTestLogger()
		log.Debug("the next handler takes none")
		for range 5 {
			log.Warn("full")
		}
		log.Error("full") // another level
		log.Warn("empty") // another text
		expectLines(t, "at once", written(), "full", "full", "empty")
		time.Sleep(time.Second - 1)
		log.Warn("full")
		expectLines(t, "just before a second is over", written())
		time.Sleep(time.Nanosecond)
		log.Warn("full", "n", 1)
		log.Error("full")
		log.Warn("full")
		expectLines(t, "after a second", written(), "full n=1 suppressed=5", "full")
		time.Sleep(time.Minute)
		log.Warn("full")
		log.Warn("empty")
		expectLines(t, "after a minute", written(), "full suppressed=1", "empty")
	})
}

func TestKeys(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		log, written := newTestLogger("loop")
		log.Info("m", "loop", 1, "n", 1)
		log.Info("m", "loop", 1, "n", 2) // n is not a key
		log.Info("m", "loop", 2)
		log.Info("m")
		expectLines(t, "attributes", written(), "m loop=1 n=1", "m loop=2", "m")

		one, two := log.With("loop", 1), log.With("loop", 3)
		one.Info("m") // equal to the first
		two.Info("m")
		expectLines(t, "With", written(), "m loop=3")
		log.WithGroup("conn").Info("m", "loop", 9) // conn.loop is not a key
		expectLines(t, "groups", written())

		time.Sleep(Interval)
		one.Info("m")
		expectLines(t, "what the derived ones suppressed counts together", written(), "m loop=1 suppressed=2")
	})
}

// TestMaxMessages checks that messages beyond the limit share an entry until older ones are removed.
func TestMaxMessages(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		log, written := newTestLogger()
		for i := range MaxMessages {
			log.Info(fmt.Sprint(i))
		}
		log.Info("0")
		if n := len(written()); n != MaxMessages {
			t.Errorf("%d written, want %d", n, MaxMessages)
		}
		for range 2 {
			log.Info("c")
			log.Info("d")
		}
		expectLines(t, "they share an entry", written(), "c")
		time.Sleep(Interval)
		log.Info("d") // has its own entry now, the others are removed
		log.Info("c")
		expectLines(t, "an interval later", written(), "d", "c")
	})
}

type countingHandler struct {
	mu                 sync.Mutex
	passed, suppressed int64
}

func (c *countingHandler) Enabled(context.Context, slog.Level) bool { return true }
func (c *countingHandler) WithAttrs([]slog.Attr) slog.Handler       { return c }
func (c *countingHandler) WithGroup(string) slog.Handler            { return c }
func (c *countingHandler) Handle(_ context.Context, r slog.Record) error {
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

// TestNoneIsLost logs more messages than there are entries from many goroutines: each is written, reported as
// suppressed, or still to be reported.
func TestNoneIsLost(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var c countingHandler
		h := NewHandler(&c).(*rateLimitHandler)
		log := slog.New(h)
		const goroutines, each = 8, 1000
		var wg sync.WaitGroup
		for g := range goroutines {
			wg.Go(func() {
				for i := range each {
					log.Info(fmt.Sprint((i * (g + 1)) % (2 * MaxMessages)))
					time.Sleep(10 * time.Millisecond)
				}
			})
		}
		wg.Wait()
		left := h.table.shared.suppressed
		for _, e := range h.table.entries {
			left += e.suppressed
		}
		if c.passed+c.suppressed+left != goroutines*each || c.suppressed == 0 {
			t.Errorf("%d written, %d told as suppressed, %d to be told; want %d together",
				c.passed, c.suppressed, left, goroutines*each)
		}
	})
}

// TestSlog runs the standard library's tests of handlers.
func TestSlog(t *testing.T) {
	var out bytes.Buffer
	slogtest.Run(t, func(*testing.T) slog.Handler {
		out.Reset()
		return NewHandler(slog.NewJSONHandler(&out, nil))
	}, func(t *testing.T) map[string]any {
		var line map[string]any
		if err := json.Unmarshal(out.Bytes(), &line); err != nil {
			t.Fatal(err)
		}
		return line
	})
}
