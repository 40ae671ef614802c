package tcp

import (
	"context"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/myriad-go/myriad/internal/testkit"
)

// logRecorder is a log that can be read while it is written.
type logRecorder struct{ testkit.Buffer }

// waitForLine waits for a line that contains a text, and checks that it contains the words, too.
func (l *logRecorder) waitForLine(t *testing.T, substring string, words ...string) {
	t.Helper()
	var found string
	eventually(t, func() bool {
		for line := range strings.Lines(l.String()) {
			if strings.Contains(line, substring) {
				found = line
				return true
			}
		}
		return false
	}, func() string { return fmt.Sprintf("a line with %q in the log:\n%s", substring, l.String()) })
	for _, word := range words {
		if !strings.Contains(found, word) {
			t.Errorf("the log has no %q:\n%s", word, found)
		}
	}
}

func (l *logRecorder) newLogger() *slog.Logger { return slog.New(slog.NewTextHandler(l, nil)) }

// A connection closed or rejected by a limit is logged with the limit, its value, the value seen and the peer.
func TestLimitsAreLogged(t *testing.T) {
	for _, test := range []struct {
		limit  string
		limits Limits
		say    string
		want   []string
	}{
		{"Limits.MaxMessage", Limits{}, strings.Repeat("a", 1<<20), []string{"value=65536", "raise Server.Limits.MaxMessage", "level=WARN"}},
		{"Limits.FirstByteTimeout", Limits{FirstByteTimeout: time.Millisecond}, "", []string{"value=1ms", "level=INFO"}},
		{"Limits.IdleTimeout", Limits{IdleTimeout: time.Millisecond}, "hello\n", []string{"value=1ms"}},
		{"Limits.MessageTimeout", Limits{MessageTimeout: time.Millisecond}, "hel", []string{"value=1ms"}},
		{"Limits.MaxUnsent", Limits{MaxUnsent: 100}, "flood\n", []string{"value=100", "Conn.Paused"}},
	} {
		t.Run(test.limit, func(t *testing.T) {
			forEachModel(t, func(t *testing.T, model string, loops int) {
				t.Parallel()
				var log logRecorder
				s := startServer(t, &Server{Model: model, Limits: test.limits, Log: log.newLogger(), Handler: Lines(MessageFunc(func(c *Conn, line []byte) {
					for n := 0; string(line) == "flood" && n < 100; n++ {
						c.WriteString("more and more\n")
					}
				}))})
				c := dial(t, s.addr)
				c.Send(test.say)
				words := append(test.want, "limit="+test.limit, "seen=", "peer="+c.LocalAddr().String())
				log.waitForLine(t, "connection closed by a limit", words...)
			})
		})
	}
	forEachModel(t, func(t *testing.T, model string, loops int) {
		var log logRecorder
		s := startServer(t, &Server{Model: model, Limits: Limits{MaxConns: 1}, Log: log.newLogger()})
		dial(t, s.addr).ExchangeLine("hello", "hello")
		refused := dial(t, s.addr)
		log.waitForLine(t, "refused by a limit", "limit=Limits.MaxConns", "value=1", "peer="+refused.LocalAddr().String())
	})
}

// wrongCountHandler returns one byte more than it was given or, when it sheds, a negative number.
type wrongCountHandler struct {
	Base
	opened chan uint64 // IDs
}

func (g wrongCountHandler) Opened(c *Conn) { g.opened <- c.Ref().ID() }

func (wrongCountHandler) Received(_ *Conn, in []byte) int { return len(in) + 1 }

func (wrongCountHandler) Shed(*Conn, []byte, error) int { return -1 }

// An invalid count of used bytes is logged with the handler's type, the connection's ID, the numbers and a remedy.
func TestBadCountIsLogged(t *testing.T) {
	test := func(t *testing.T, srv *Server, occupyPool func(), words ...string) {
		var log logRecorder
		g := wrongCountHandler{opened: make(chan uint64, 1)}
		srv.Log, srv.Handler = log.newLogger(), g
		c := dial(t, startServer(t, srv).addr)
		words = append(words, fmt.Sprintf("conn=%d", <-g.opened))
		occupyPool()
		c.Send("hello")
		expectClosedWithoutOutput(t, c)
		words = append(words, "level=ERROR", "handler=tcp.wrongCountHandler", "offered=5", "0 to len(in)", "peer="+c.LocalAddr().String())
		log.waitForLine(t, "invalid count", words...)
	}
	forEachModel(t, func(t *testing.T, model string, loops int) {
		test(t, &Server{Model: model, Loops: loops}, func() {}, "method=Received", "returned=6")
	})
	forEachLoopModel(t, func(t *testing.T, model string) {
		p := newPool(t, singleWorker)
		release := make(chan struct{})
		defer close(release)
		test(t, &Server{Model: model, Loops: 1, Workers: p}, func() {
			blocked := make(chan struct{})
			requireNoError(t, p.Submit(context.Background(), func(context.Context) { close(blocked); <-release }))
			<-blocked
		}, "method=Shed", "returned=-1")
	})
}
