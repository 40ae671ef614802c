package myriad

import (
	"fmt"
	"io"
	"log/slog"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/myriad-go/myriad/internal/await"
)

// logBook is a log that tests look at while it is written.
type logBook struct{ await.Buffer }

// line waits for the first line with a text.
func (l *logBook) line(t *testing.T, with string) (found string) {
	t.Helper()
	await.TrueOr(t, func() bool {
		for line := range strings.Lines(l.String()) {
			if strings.Contains(line, with) {
				found = line
				return true
			}
		}
		return false
	}, func() string { return fmt.Sprintf("a line with %q in the log:\n%s", with, l.String()) })
	return found
}

func (l *logBook) logger() *slog.Logger { return slog.New(slog.NewTextHandler(l, nil)) }

// A connection that a limit closes, or does not let in, is in the log: with the limit,
// its value, what was seen and whose it was.
func TestLimitsAreLogged(t *testing.T) {
	silence := func(*testing.T, net.Conn) {}
	say := func(text string) func(*testing.T, net.Conn) {
		return func(t *testing.T, c net.Conn) {
			if _, err := io.WriteString(c, text); err != nil {
				t.Error(err)
			}
		}
	}
	for _, test := range []struct {
		limit  string
		limits Limits
		do     func(*testing.T, net.Conn)
		want   []string
	}{
		{"Limits.MaxMessage", Limits{}, say(strings.Repeat("a", 1<<20)), []string{"value=65536", "raise Server.Limits.MaxMessage", "level=WARN"}},
		{"Limits.FirstByteTimeout", Limits{FirstByteTimeout: time.Millisecond}, silence, []string{"value=1ms", "level=INFO"}},
		{"Limits.IdleTimeout", Limits{IdleTimeout: time.Millisecond}, say("hello\n"), []string{"value=1ms"}},
		{"Limits.MessageTimeout", Limits{MessageTimeout: time.Millisecond}, say("hel"), []string{"value=1ms"}},
		{"Limits.MaxUnsent", Limits{MaxUnsent: 100}, say("flood\n"), []string{"value=100", "Conn.Paused"}},
	} {
		for _, model := range Models() {
			t.Run(test.limit+"/"+model, func(t *testing.T) {
				t.Parallel()
				var log logBook
				s := start(t, &Server{Model: model, Limits: test.limits, Log: log.logger(), Handler: Lines(MessageFunc(func(c *Conn, line []byte) {
					for n := 0; string(line) == "flood" && n < 100; n++ {
						c.WriteString("more and more\n")
					}
				}))})
				c := dial(t, s.addr)
				test.do(t, c)
				line := log.line(t, "connection closed by a limit")
				for _, want := range append(test.want, "limit="+test.limit, "seen=", "peer="+c.LocalAddr().String()) {
					if !strings.Contains(line, want) {
						t.Errorf("the log has no %q:\n%s", want, line)
					}
				}
			})
		}
	}
}

func TestRefusalsAreLogged(t *testing.T) {
	for _, model := range Models() {
		var log logBook
		s := start(t, &Server{Model: model, Limits: Limits{MaxConns: 1}, Log: log.logger()})
		ask(t, dial(t, s.addr), "hello")
		refused := dial(t, s.addr)
		line := log.line(t, "turned away")
		for _, want := range []string{"limit=Limits.MaxConns", "value=1", "peer=" + refused.LocalAddr().String()} {
			if !strings.Contains(line, want) {
				t.Errorf("%s: the log has no %q:\n%s", model, want, line)
			}
		}
	}
}
