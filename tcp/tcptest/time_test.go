package tcptest_test

import (
	"io"
	"strings"
	"testing"
	"time"

	"github.com/myriad-go/myriad/tcp"
	"github.com/myriad-go/myriad/tcp/tcptest"
)

// reminder answers "in DURATION" with "now" after that time, and "until DURATION" sets a deadline.
type reminder struct{ tcp.Base }

func (reminder) Message(c *tcp.Conn, line []byte) {
	word, d, _ := strings.Cut(string(line), " ")
	after, err := time.ParseDuration(d)
	switch {
	case err != nil:
		c.CloseWith(err)
	case word == "in":
		c.SetTimer(after)
	case word == "until":
		c.SetDeadline(after)
	}
}

func (reminder) Timer(c *tcp.Conn) { c.WriteString("now\n") }

func TestTimer(t *testing.T) {
	s := tcptest.NewServer(t, &tcp.Server{Handler: tcp.Lines(reminder{})})
	p := s.Dial()
	p.Send("in 10s\n")
	s.Advance(9 * time.Second)
	expectOutput(t, p, "")
	s.Advance(2 * time.Second)
	expectOutput(t, p, "now\n")
	p.Send("in 10s\nin 1m\n") // the later call counts
	s.Advance(30 * time.Second)
	expectOutput(t, p, "")
	p.Send("in 0s\n") // which stops it
	s.Advance(time.Hour)
	expectOutput(t, p, "")
}

func TestDeadline(t *testing.T) {
	s := tcptest.NewServer(t, &tcp.Server{Handler: tcp.Lines(reminder{})})
	p, q := s.Dial(), s.Dial()
	p.Send("until 10s\n")
	q.Send("until 10s\nuntil 0s\n") // the second takes it back
	s.Advance(9 * time.Second)
	expectOpen(t, p)
	s.Advance(2 * time.Second)
	p.ExpectClosed(tcp.ErrDeadline)
	expectOpen(t, q)
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

// A client that ends after its request gets its answer, however late; if that never comes, it is closed in the end.
func TestRetain(t *testing.T) {
	h := &asyncHandler{}
	s := tcptest.NewServer(t, &tcp.Server{Handler: tcp.Lines(h), Limits: tcp.Limits{IdleTimeout: time.Hour}})
	ask := func() *tcptest.Peer {
		p := s.Dial()
		p.Send("request\n")
		return p
	}
	p := ask()
	p.CloseWrite()
	s.Advance(time.Minute)
	expectOpen(t, p)
	h.sendAnswer()
	p.Expect("answer\n")
	p.ExpectClosed(io.EOF)

	forgotten := ask()
	forgotten.CloseWrite()
	s.Advance(2 * time.Hour)
	forgotten.ExpectClosed(tcp.ErrIdleTimeout)

	p = ask()
	s.Drain()
	expectOpen(t, p)
	h.sendAnswer()
	p.Expect("answer\n")
	p.ExpectClosed(tcp.ErrServerClosed)
}
