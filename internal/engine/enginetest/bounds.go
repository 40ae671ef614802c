package enginetest

import (
	"io"
	"log/slog"
	"net"
	"slices"
	"strings"

	"github.com/myriad-go/myriad/internal/engine"
)

var limitCases = []testCase{
	{"message longer than MaxMessage", messageTooLong},
	{"message as long as MaxMessage", messageJustRight},
	{"used count that is impossible", badUse},
	{"more connections than MaxConns", tooManyConns},
	{"listener of the caller's", callersListener},
	{"address that is taken", addressTaken},
}

func messageTooLong(b *bench) {
	s := b.serve(lines(), limited(func(l *engine.Limits) { l.MaxMessage = 1000 }))
	c := s.dial()
	c.send("one\ntwo\n" + strings.Repeat("x", 3000))
	c.expectEnd("one\ntwo\n")
	c.Close()
	s.wantClosed(engine.ErrMessageTooLong)
}

func messageJustRight(b *bench) {
	const most = 1000
	s := b.serve(lines(), limited(func(l *engine.Limits) { l.MaxMessage = most }))
	c := s.dial()
	line := strings.Repeat("x", most-1) + "\n"
	c.send(line[:most-1])
	s.wantBytesIn(most - 1)
	c.send(line[most-1:] + line + line)
	c.expect(line + line + line)
	c.Close()
	s.wantClosed(io.EOF)
}

func badUse(b *bench) {
	s := b.serve(&Script{Received: func(_ *engine.Conn, in []byte) int { return len(in) + 1 }})
	c := s.dial()
	c.send("x")
	c.expectGone()
	s.wantClosed(engine.ErrBadUse)
}

func tooManyConns(b *bench) {
	const most, more = 4, 3
	s := b.serve(lines(), limited(func(l *engine.Limits) { l.MaxConns = most }))
	var clients []*client
	for range most {
		c := s.dial()
		c.exchange("welcome\n")
		clients = append(clients, c)
	}
	for range more {
		s.dial().expectGone()
	}
	if n := s.Counters(); n.AllRefused() != more || n[engine.Accepted] != most || n[engine.Open] != most {
		b.Errorf("counted %d refused, %d accepted, %d open; want %d, %d, %d", n.AllRefused(), n[engine.Accepted], n[engine.Open], more, most, most)
	}
	for _, c := range clients[1:] {
		c.exchange("still there\n")
	}
	clients[0].Close()
	s.wantClosed(io.EOF)
	eventually(b, "no room comes back after a connection has closed", func() bool {
		c := s.dial()
		c.Write([]byte("room?\n"))
		return c.tryExpect("room?\n") == nil
	})
	for _, c := range slices.Backward(clients[1:]) {
		c.Close()
	}
	s.closed(most)
}

func callersListener(b *bench) {
	l := listen(b)
	s := b.serve(lines(), func(cfg *engine.Config) { cfg.Listeners = []engine.Listener{{Socket: l}} })
	if got, want := s.Addr().String(), l.Addr().String(); got != want {
		b.Errorf("Addr is %s, want that of the listener, %s", got, want)
	}
	for range 10 {
		c := s.dial()
		c.exchange("hello\n")
		c.Close()
	}
	wantStopped(b, s, s.stopNow(b))
}

func addressTaken(b *bench) {
	l := listen(b)
	e, err := b.model.Start(engine.Config{
		Network: "tcp", Addr: l.Addr().String(), Handler: newWitness(b, &Script{}),
		Limits: Limits(), Loops: b.loops, Log: slog.New(slog.DiscardHandler),
	})
	if err == nil {
		b.Error("Start at an address that another listens at: no error")
		e.Stop(background(b))
	}
	if nc, err := net.Dial("tcp", l.Addr().String()); err != nil {
		b.Errorf("the other listener was harmed: %v", err)
	} else {
		nc.Close()
	}
}
