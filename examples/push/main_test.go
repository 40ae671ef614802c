package main

import (
	"fmt"
	"testing"
	"time"

	"github.com/myriad-go/myriad/tcp"
	"github.com/myriad-go/myriad/tcp/tcptest"
)

func TestGateway(t *testing.T) {
	s := tcptest.NewServer(t, newServer("", time.Minute/2))
	ann, bob := s.Dial(), s.Dial()
	ann.Send("sub news\n")
	ann.Expect("subscribed to news\n")
	bob.Send("pub news hello\nhello?\n")
	bob.Expect("sent to 1, 0 have no room\nerror: expected sub TOPIC or pub TOPIC TEXT\n")
	ann.Expect("hello\n")
	for range 3 {
		s.Advance(time.Minute / 2)
		ann.Expect("ping\n")
		ann.Send("pong\n")
	}
	bob.ExpectClosed(tcp.ErrHeartbeatTimeout) // which has not answered two
	s.Drain()
	ann.Expect("bye: connect again\n")
	ann.ExpectClosed(tcp.ErrServerClosed)
}

// TestTopics has a client ask for more topics than there may be.
func TestTopics(t *testing.T) {
	s := tcptest.NewServer(t, newServer("", time.Minute))
	p := s.Dial()
	for i := range maxTopics {
		p.Send(fmt.Sprintf("sub %d\n", i))
		p.Expect(fmt.Sprintf("subscribed to %d\n", i))
	}
	p.Send("sub one more\n")
	p.Expect("error: too many topics\n")
}
