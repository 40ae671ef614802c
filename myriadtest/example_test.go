package myriadtest_test

import (
	"io"
	"testing"
	"time"

	"github.com/myriad-go/myriad"
	"github.com/myriad-go/myriad/myriadtest"
)

// testEcho is a test of a server that echoes lines, and asks silent clients for a word.
func testEcho(t *testing.T) {
	echo := myriad.MessageFunc(func(c *myriad.Conn, line []byte) {
		c.Write(line)
		c.WriteString("\n")
	})
	s := myriadtest.NewServer(t, &myriad.Server{
		Handler:   myriad.Lines(echo),
		Heartbeat: myriad.Heartbeat{Interval: 30 * time.Second, Message: []byte("ping\n")},
	})
	p := s.Dial()
	p.Send("hello\n")
	p.Expect("hello\n")
	s.Advance(30 * time.Second)
	p.Expect("ping\n")
	s.Advance(time.Minute) // another is left unanswered, too
	p.Expect("ping\n")
	p.ExpectClosed(myriad.ErrHeartbeatTimeout)

	gone := s.Dial()
	gone.CloseWrite()
	gone.ExpectClosed(io.EOF)
}

// In a package's own tests it would be TestEcho.
func Example() {
	_ = testEcho
}
