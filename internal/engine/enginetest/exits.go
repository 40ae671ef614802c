package enginetest

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"

	"github.com/myriad-go/myriad/internal/await"
	"github.com/myriad-go/myriad/internal/engine"
)

// The cases of handlers that end their goroutine, which may be that of all connections of a loop,
// in the middle of its work for others.

// exitsAmongOthers has many connections whose handlers end their goroutine, in each call and often
// in several of the same turn, while others ask and are answered without a pause.
func exitsAmongOthers(b *bench) {
	const victims, atOnce, bystanders = 400, 40, 8
	var exits atomic.Int64
	exit := func() {
		exits.Add(1)
		runtime.Goexit()
	}
	var armed atomic.Bool
	var opened atomic.Int64
	at := func(c *engine.Conn, call string) {
		if v, _ := c.Value().(string); v == call {
			exit()
		}
	}
	s := b.serve(&Script{
		Opened: func(c *engine.Conn) {
			if armed.Load() && opened.Add(1)%8 == 0 {
				exit()
			}
		},
		Received: func(c *engine.Conn, in []byte) int {
			line, _, whole := strings.Cut(string(in), "\n")
			switch call, is := strings.CutPrefix(line, "exit in "); {
			case !whole || !is:
				return answerLine(c, in)
			case call == "Received":
				exit()
			case call == "Nudged":
				c.SetValue(call)
				_ = c.Ref().Nudge()
			case call == "Do":
				_ = c.Ref().Do(func(*engine.Conn) { exit() })
				_ = c.Ref().Send([]byte("never sent\n"))
			case call == "Closed and Received":
				c.SetValue("Closed")
				exit()
			default:
				c.SetValue(call)
			}
			return len(line) + 1
		},
		Nudged: func(c *engine.Conn) { at(c, "Nudged") },
		Ended:  func(c *engine.Conn, _ []byte) { at(c, "Ended") },
		Closed: func(c *engine.Conn, _ error) { at(c, "Closed") },
	})
	calls := []string{"Received", "Nudged", "Do", "Ended", "Closed", "Closed and Received"}

	var others, all sync.WaitGroup
	var stop atomic.Bool
	for i := range bystanders {
		c := s.dial()
		others.Go(func() {
			defer c.Close()
			for n := 0; !stop.Load(); n++ {
				line := fmt.Sprintf("bystander %d asks %d times\n", i, n)
				if err := errors.Join(c.tryWrite(line+line), c.tryExpect(line+line)); err != nil {
					b.Error(err)
					return
				}
			}
		})
	}
	s.wantOpened(bystanders)
	armed.Store(true)
	slots := make(chan struct{}, atOnce)
	for i := range victims {
		slots <- struct{}{}
		all.Go(func() {
			defer func() { <-slots }()
			b.ok(runVictim(b, s, calls[i%len(calls)]))
		})
	}
	all.Wait()
	stop.Store(true)
	others.Wait()

	whys := s.closed(victims + bystanders)
	await.True(b, "connections are left open", func() bool { return s.Counters()[engine.Open] == 0 })
	n := 0
	for _, why := range whys {
		switch {
		case errors.Is(why, engine.ErrGoexit):
			n++
		case why != io.EOF && !errors.Is(why, syscall.ECONNRESET):
			b.Errorf("closed for %v", why)
		}
	}
	if least := victims / len(calls) * 4; n < least {
		b.Errorf("closed %d connections for %v, want at least %d", n, engine.ErrGoexit, least)
	}
	if n := s.Counters(); n[engine.Panics] != exits.Load() || n[engine.Buffered] != 0 {
		b.Errorf("counted %d panics and %d bytes in buffers, want %d and 0", n[engine.Panics], n[engine.Buffered], exits.Load())
	}
}

// runVictim has a handler end its goroutine in a call, unless that was done in Opened.
func runVictim(b *bench, s *server, call string) error {
	c, err := tryDial(b, s.Addr().String())
	if err != nil {
		return err
	}
	defer c.Close()
	_, _ = c.Write([]byte("hello\nexit in " + call + "\n")) // it may be closed already
	_ = c.CloseWrite()
	got, err := io.ReadAll(c)
	if err != nil && !isReset(err) {
		return fmt.Errorf("victim of %s: got %q, then %w; want the end", call, got, err)
	}
	return nil
}

// exitsWhenKilled has Closed end its goroutine for each of the connections that a Stop closes by
// force.
func exitsWhenKilled(b *bench) {
	const n = 60
	s := b.serve(&Script{
		Received: answerLine,
		Closed:   func(*engine.Conn, error) { runtime.Goexit() },
	})
	for _, c := range s.dials(n) {
		c.exchange("on\n")
		c.send("half a message")
	}
	ctx, cancel := context.WithCancel(b.Context())
	cancel()
	if err := await.Receive(b, s.stop(ctx), "the return of Stop"); err == nil {
		b.Error("Stop says nothing of the connections that it has closed by force")
	}
	if got := s.closed(n); slices.ContainsFunc(got, func(err error) bool { return err != engine.ErrServerClosed }) {
		b.Errorf("closed for %v", got)
	}
}

func exitsInDialFailed(b *bench) {
	l := listen(b)
	nobody := l.Addr().(*net.TCPAddr).AddrPort()
	l.Close()
	target := echoServer(b)
	s := b.serve(&Script{DialFailed: func(error) { runtime.Goexit() }}, dialsOnly)
	const n = 20
	b.must(s.Dial(engine.Dial{Target: nobody, Count: n}))
	b.must(s.Dial(engine.Dial{Target: target, Count: n}))
	s.dialsFailed(n)
	s.wantOpened(n)
	await.True(b, "Goexit in DialFailed is not counted", func() bool { return s.Counters()[engine.Panics] == n })
}

func exitsInRefuse(b *bench) {
	s := b.serve(lines(), limited(func(l *engine.Limits) { l.MaxConns = 1 }), func(cfg *engine.Config) {
		cfg.Refuse = func(_ netip.AddrPort, _ error) []byte {
			runtime.Goexit()
			return nil
		}
	})
	first := s.dial()
	first.exchange("first\n")
	for range 3 {
		s.dial().expectGone()
	}
	first.exchange("goes on\n")
	first.Close()
	s.wantClosed(io.EOF)
	await.True(b, "the place is not free", func() bool { return s.Counters()[engine.Open] == 0 })
	s.dial().exchange("next\n")
	if n := s.Counters()[engine.Panics]; n != 3 {
		b.Errorf("counted %d panics, want 3", n)
	}
}
