package tcptest_test

import (
	"fmt"
	"io"
	"strings"
	"testing"
	"time"

	"github.com/myriad-go/myriad/internal/testkit"
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

func TestTimerAndDeadline(t *testing.T) {
	s := tcptest.NewServer(t, &tcp.Server{Handler: tcp.Lines(reminder{})})
	p := s.Dial()
	p.Send("in 10s\n")
	s.Advance(9 * time.Second)
	expectOutput(t, p, "")
	s.Advance(2 * time.Second)
	expectOutput(t, p, "now\n")
	for range 3 { // short ones are as exact
		p.Send("in 5ms\n")
		s.Advance(5*time.Millisecond - 1)
		expectOutput(t, p, "")
		s.Advance(1)
		expectOutput(t, p, "now\n")
	}
	p.Send("in 10s\nin 1m\n") // the later call counts
	s.Advance(30 * time.Second)
	expectOutput(t, p, "")
	p.Send("in 0s\n") // which stops it
	s.Advance(time.Hour)
	expectOutput(t, p, "")
	q := s.Dial()
	p.Send("until 10s\n")
	q.Send("until 10s\nuntil 0s\n") // the second takes it back
	s.Advance(9 * time.Second)
	expectOpen(t, p)
	s.Advance(2 * time.Second)
	p.ExpectClosed(tcp.ErrDeadline)
	expectOpen(t, q)
}

// TestReadRate has clients that are faster than their rates.
func TestReadRate(t *testing.T) {
	srv := &tcp.Server{Handler: tcp.Lines(tcp.MessageFunc(func(c *tcp.Conn, line []byte) {
		if string(line) == "fast" {
			c.SetReadRate(0, 0)
		}
		fmt.Fprintf(c, "%d\n", len(line))
	})), Limits: tcp.Limits{MessageRate: 10, ReadRate: 1000, MaxMessage: 1 << 20, IdleTimeout: time.Minute}}
	s := tcptest.NewServer(t, srv)
	p, q := s.Dial(), s.Dial()
	p.Send(strings.Repeat("x\n", 25))
	p.CloseWrite()
	expectOutput(t, p, strings.Repeat("1\n", 10)) // a second's allowance
	for range 10 {
		s.Advance(100 * time.Millisecond)
		expectOutput(t, p, "1\n")
	}
	s.Advance(500 * time.Millisecond)
	expectOutput(t, p, strings.Repeat("1\n", 5))
	s.Advance(100 * time.Millisecond) // the end is not read earlier
	p.ExpectClosed(io.EOF)

	q.Send(strings.Repeat("x", 120_999) + "\n") // 65536 bytes are read at once, which take 65.5 s, without silence
	s.Advance(64 * time.Second)
	q.Send("x\n")
	expectOutput(t, q, "")
	s.Advance(time.Second)
	expectOutput(t, q, "120999\n1\n")
	expectOpen(t, q)

	p = s.Dial()
	p.Send("fast\n" + strings.Repeat("x\n", 2000))
	expectOutput(t, p, "4\n"+strings.Repeat("1\n", 2000))
	p = s.Dial()
	p.Send(strings.Repeat("x\n", 15))
	s.StartDrain() // which waits for the rest
	s.Advance(time.Second)
	expectOutput(t, p, strings.Repeat("1\n", 15))
	p.ExpectClosed(tcp.ErrServerClosed)
	if n := srv.Stats().ReadLimited; n < 3 {
		t.Errorf("%d pauses are counted, expected one for each client at least", n)
	}

	config, roots := testkit.Identity()
	limits := tcp.Limits{MessageRate: 10, ReadRate: 1000}
	s = tcptest.NewServer(t, &tcp.Server{Handler: srv.Handler, TLSConfig: config, Limits: limits})
	p = s.Dial()
	testkit.RequireNoError(t, p.StartTLS(roots))
	s.Advance(10 * time.Second) // for the bytes of the handshake
	p.Send(strings.Repeat("x\n", 15))
	expectOutput(t, p, strings.Repeat("1\n", 10))
	s.Advance(time.Second)
	expectOutput(t, p, strings.Repeat("1\n", 5))
	p.Send(strings.Repeat("x", 20_000) + "\n")
	p.Send("x\n")
	s.Advance(15 * time.Second)
	expectOutput(t, p, "20000\n")
	s.Advance(10 * time.Second)
	expectOutput(t, p, "1\n")
}

// Messages wait for WriteDelay; answers do not.
func TestWriteDelay(t *testing.T) {
	s, _, d := startRecorded(t, func(srv *tcp.Server) { srv.WriteDelay = 20 * time.Millisecond })
	p, q := s.Dial(), s.Dial()
	var g tcp.Group
	g.Add(d.refs[0])
	g.Add(d.refs[1])
	g.Broadcast([]byte("one\n"))
	s.Advance(19 * time.Millisecond)
	g.Broadcast([]byte("two\n"))
	p.Send("question\n")
	expectOutput(t, p, "question\n")
	expectOutput(t, q, "")
	s.Advance(time.Millisecond)
	expectOutput(t, p, "one\ntwo\n")
	expectOutput(t, q, "one\ntwo\n")
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
	s.StartDrain()
	expectOpen(t, p)
	h.sendAnswer()
	p.Expect("answer\n")
	p.ExpectClosed(tcp.ErrServerClosed)
}
