package tcptest_test

import (
	"io"
	"testing"
	"time"

	"github.com/myriad-go/myriad/tcp"
	"github.com/myriad-go/myriad/tcp/tcptest"
)

// testEcho tests a server that echoes lines and pings silent clients.
func testEcho(t *testing.T) {
	echo := tcp.MessageFunc(func(c *tcp.Conn, line []byte) {
		c.Write(line)
		c.WriteString("\n")
	})
	s := tcptest.NewServer(t, &tcp.Server{
		Handler:   tcp.Lines(echo),
		Heartbeat: tcp.Heartbeat{Interval: 30 * time.Second, Message: []byte("ping\n")},
	})
	p := s.Dial()
	p.Send("hello\n")
	p.Expect("hello\n")
	s.Advance(30 * time.Second)
	p.Expect("ping\n")
	s.Advance(time.Minute) // another is left unanswered, too
	p.Expect("ping\n")
	p.ExpectClosed(tcp.ErrHeartbeatTimeout)

	gone := s.Dial()
	gone.CloseWrite()
	gone.ExpectClosed(io.EOF)
}

// In a package's own tests it would be TestEcho.
func Example() {
	_ = testEcho
}
