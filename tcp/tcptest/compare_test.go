package tcptest_test

import (
	"log/slog"
	"slices"
	"strings"
	"testing"

	"github.com/myriad-go/myriad/internal/testkit"
	"github.com/myriad-go/myriad/internal/testkit/testserver"
	"github.com/myriad-go/myriad/tcp"
)

type client interface {
	Send(text string)
	Expect(want string)
	CloseWrite()
}

// TestAsInProduction plays the same scripts to a server on a socket, under each model, and to one
// in memory: the handler's calls must be the same.
func TestAsInProduction(t *testing.T) {
	scripts := map[string]func(client){
		"half-close": func(c client) {
			c.Send("a\nb\nc")
			c.Expect("a\nb\n")
			c.CloseWrite()
			c.Expect("c\n")
		},
		"close": func(c client) {
			c.Send("a\nquit\nb\n")
			c.Expect("a\n")
		},
		"too long": func(c client) {
			c.Send("a\n" + strings.Repeat("x", 100))
			c.Expect("a\n")
		},
		"panic": func(c client) {
			c.Send("a\n")
			c.Expect("a\n")
			c.Send("panic\n")
		},
	}
	limits := tcp.Limits{MaxMessage: 50}
	for name, play := range scripts {
		s, _, d := startRecorded(t, func(srv *tcp.Server) { srv.Limits = limits })
		p := s.Dial()
		play(p)
		p.Closed() // a panic has been seen
		for _, model := range []string{tcp.Goroutine, tcp.Auto} {
			real := &callRecorder{}
			playOverSocket(t, &tcp.Server{Handler: tcp.Lines(real), Limits: limits, Model: model}, play)
			if want, got := real.events[1:], d.events[1:]; !slices.Equal(got, want) {
				t.Errorf("%s: happened %q; on a socket, %s, %q", name, got, model, want)
			}
		}
	}
}

func playOverSocket(t *testing.T, srv *tcp.Server, play func(client)) {
	srv.Log = slog.New(slog.DiscardHandler)
	addr, stop := testserver.Start(t, srv)
	c := testkit.Dial(t, addr)
	play(c)
	c.ExpectClosed()
	c.Close()
	stop()
}
