package tcptest_test

import (
	"fmt"
	"io"
	"testing"
	"time"

	"github.com/myriad-go/myriad/tcp"
	"github.com/myriad-go/myriad/tcp/tcptest"
)

// reminder answers "in DURATION" with "now" after that time, and "until DURATION" sets a
// deadline.
type reminder struct {
	tcp.Base
	calls int
}

func (h *reminder) Message(c *tcp.Conn, line []byte) {
	var word, d string
	fmt.Sscan(string(line), &word, &d)
	after, err := time.ParseDuration(d)
	if err != nil {
		c.CloseWith(err)
		return
	}
	switch word {
	case "in":
		c.SetTimer(after)
	case "until":
		c.SetDeadline(after)
	}
}

func (h *reminder) Timer(c *tcp.Conn) {
	h.calls++
	c.WriteString("now\n")
}

func TestTimer(t *testing.T) {
	h := &reminder{}
	s := tcptest.NewServer(t, &tcp.Server{Handler: tcp.Lines(h)})
	p := s.Dial()
	p.Send("in 10s\n")
	s.Advance(9 * time.Second)
	if got := p.Output(); got != "" {
		t.Errorf("%q a second early", got)
	}
	s.Advance(2 * time.Second)
	p.Expect("now\n")
	p.Send("in 10s\nin 1m\n") // the later call counts
	s.Advance(30 * time.Second)
	if got := p.Output(); got != "" {
		t.Errorf("%q of a timer that was set anew", got)
	}
	p.Send("in 0s\n")
	s.Advance(time.Hour)
	if h.calls != 1 {
		t.Errorf("%d calls of Timer; expected 1: the second timer was stopped", h.calls)
	}
}

func TestDeadline(t *testing.T) {
	s := tcptest.NewServer(t, &tcp.Server{Handler: tcp.Lines(&reminder{})})
	p, q := s.Dial(), s.Dial()
	p.Send("until 10s\n")
	q.Send("until 10s\nuntil 0s\n")
	s.Advance(9 * time.Second)
	if why, ok := p.Closed(); ok {
		t.Errorf("closed a second early: %v", why)
	}
	s.Advance(2 * time.Second)
	p.ExpectClosed(tcp.ErrDeadline)
	if why, ok := q.Closed(); ok {
		t.Errorf("closed by a deadline that was taken back: %v", why)
	}
}

// asyncHandler stores Refs and answers when the test calls sendAnswer.
type asyncHandler struct {
	tcp.Base
	asked []tcp.Ref
}

func (h *asyncHandler) Message(c *tcp.Conn, _ []byte) {
	c.Retain()
	h.asked = append(h.asked, c.Ref())
}

func (h *asyncHandler) sendAnswer() {
	for _, r := range h.asked {
		r.Send([]byte("answer\n"))
		r.Release()
	}
	h.asked = nil
}

// A client that ends after its request gets its answer, however late; if that never comes, it is
// closed in the end. A drain waits for answers.
func TestRetain(t *testing.T) {
	h := &asyncHandler{}
	s := tcptest.NewServer(t, &tcp.Server{Handler: tcp.Lines(h), Limits: tcp.Limits{IdleTimeout: time.Hour}})
	ask := func() *tcptest.Peer {
		p := s.Dial()
		p.Send("request\n")
		return p
	}
	stays := func(p *tcptest.Peer) {
		t.Helper()
		if why, ok := p.Closed(); ok {
			t.Fatalf("closed before the answer: %v", why)
		}
	}
	p := ask()
	p.CloseWrite()
	s.Advance(time.Minute)
	stays(p)
	h.sendAnswer()
	p.Expect("answer\n")
	p.ExpectClosed(io.EOF)

	forgotten := ask()
	forgotten.CloseWrite()
	s.Advance(2 * time.Hour)
	forgotten.ExpectClosed(tcp.ErrIdleTimeout)

	p = ask()
	s.Drain()
	stays(p)
	h.sendAnswer()
	p.Expect("answer\n")
	p.ExpectClosed(tcp.ErrServerClosed)
}
