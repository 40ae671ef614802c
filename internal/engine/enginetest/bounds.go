package enginetest

import (
	"io"
	"slices"
	"strings"

	"github.com/myriad-go/myriad/internal/engine"
)

var limitCases = []testCase{
	{"message longer than MaxMessage", messageTooLong},
	{"message as long as MaxMessage", messageJustRight},
	{"used count that is impossible", badUse},
	{"more connections than MaxConns", tooManyConns},
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
	if n := s.Counters(); n.Refused != more || n.Accepted != most || n.Open != most {
		b.Errorf("counted %d refused, %d accepted, %d open; want %d, %d, %d", n.Refused, n.Accepted, n.Open, more, most, most)
	}
	for _, c := range clients[1:] {
		c.exchange("still there\n")
	}
	clients[0].Close()
	s.wantClosed(io.EOF)
	eventually(b.T, "no room comes back after a connection has closed", func() bool {
		c := s.dial()
		c.Write([]byte("room?\n"))
		return c.tryExpect("room?\n") == nil
	})
	for _, c := range slices.Backward(clients[1:]) {
		c.Close()
	}
	s.closed(most)
}
