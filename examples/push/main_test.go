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
	bob.Expect("sent to 1, 0 could not receive it\nerror: expected sub TOPIC or pub TOPIC TEXT\n")
	ann.Expect("hello\n")
	for range 3 {
		s.Advance(time.Minute / 2)
		ann.Expect("ping\n")
		ann.Send("pong\n")
	}
	bob.ExpectClosed(tcp.ErrHeartbeatTimeout) // it has not answered two heartbeats
	s.StartDrain()
	ann.Expect("bye: please reconnect\n")
	ann.ExpectClosed(tcp.ErrServerClosed)
}

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
