package tcp

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/myriad-go/myriad/internal/testkit"
)

// logRecorder is a log that can be read while it is written.
type logRecorder struct{ testkit.Buffer }

// waitForLine waits for a line that contains a text, and returns it.
func (l *logRecorder) waitForLine(t *testing.T, substring string) (found string) {
	t.Helper()
	testkit.WaitForFunc(t, func() bool {
		for line := range strings.Lines(l.String()) {
			if strings.Contains(line, substring) {
				found = line
				return true
			}
		}
		return false
	}, func() string { return fmt.Sprintf("a line with %q in the log:\n%s", substring, l.String()) })
	return found
}

func (l *logRecorder) newLogger() *slog.Logger { return slog.New(slog.NewTextHandler(l, nil)) }

// A connection closed or rejected by a limit is logged with the limit, its value, the value seen
// and the peer.
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
				var log logRecorder
				s := startServer(t, &Server{Model: model, Limits: test.limits, Log: log.newLogger(), Handler: Lines(MessageFunc(func(c *Conn, line []byte) {
					for n := 0; string(line) == "flood" && n < 100; n++ {
						c.WriteString("more and more\n")
					}
				}))})
				c := dial(t, s.addr)
				test.do(t, c)
				line := log.waitForLine(t, "connection closed by a limit")
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
		var log logRecorder
		s := startServer(t, &Server{Model: model, Limits: Limits{MaxConns: 1}, Log: log.newLogger()})
		dial(t, s.addr).Exchange("hello", "hello")
		refused := dial(t, s.addr)
		line := log.waitForLine(t, "refused by a limit")
		for _, want := range []string{"limit=Limits.MaxConns", "value=1", "peer=" + refused.LocalAddr().String()} {
			if !strings.Contains(line, want) {
				t.Errorf("%s: the log has no %q:\n%s", model, want, line)
			}
		}
	}
}

// wrongCountHandler returns one byte more than it was given or, when it sheds, a negative number.
type wrongCountHandler struct {
	Base
	opened chan struct{}
}

func (g wrongCountHandler) Opened(*Conn) { g.opened <- struct{}{} }

func (wrongCountHandler) Received(_ *Conn, in []byte) int { return len(in) + 1 }

func (wrongCountHandler) Shed(*Conn, []byte, error) int { return -1 }

// An invalid count of used bytes is logged with the handler's type, the numbers and a remedy.
func TestBadCountIsLogged(t *testing.T) {
	serve := func(t *testing.T, srv *Server) (c net.Conn, log *logRecorder) {
		log = new(logRecorder)
		g := wrongCountHandler{opened: make(chan struct{}, 1)}
		srv.Log, srv.Handler = log.newLogger(), g
		c = dial(t, startServer(t, srv).addr)
		<-g.opened
		return c, log
	}
	want := func(t *testing.T, c net.Conn, log *logRecorder, words ...string) {
		io.WriteString(c, "hello")
		if n, err := c.Read(make([]byte, 1)); err == nil {
			t.Errorf("the client read %d bytes; want the end of the connection", n)
		}
		line := log.waitForLine(t, "invalid count")
		for _, want := range append(words, "level=ERROR", "handler=tcp.wrongCountHandler", "offered=5", "0 to len(in)", "peer="+c.LocalAddr().String()) {
			if !strings.Contains(line, want) {
				t.Errorf("the log has no %q:\n%s", want, line)
			}
		}
	}
	forEachModel(t, func(t *testing.T, model string, loops int) {
		c, log := serve(t, &Server{Model: model, Loops: loops})
		want(t, c, log, "method=Received", "returned=6")
	})
	runOnLoopModels(t, func(t *testing.T, model string) {
		p := newPool(t, singleWorker)
		c, log := serve(t, &Server{Model: model, Loops: 1, Workers: p})
		blocked, release := make(chan struct{}), make(chan struct{})
		requireNoError(t, p.Submit(context.Background(), func(context.Context) { close(blocked); <-release }))
		<-blocked
		want(t, c, log, "method=Shed", "returned=-1")
		close(release)
	})
}
