package main

import (
	"testing"
	"time"

	"github.com/myriad-go/myriad/tcp"
	"github.com/myriad-go/myriad/tcp/tcptest"
)

func TestCounter(t *testing.T) {
	s := tcptest.NewServer(t, newServer())
	ann, bob := s.Dial(), s.Dial()
	ann.Send("hel")
	ann.Send("lo\nworld\n") // messages may arrive in pieces
	ann.Expect("1: hello\n2: world\n")
	bob.Send("hi\n")
	bob.Expect("1: hi\n")

	s.Advance(59 * time.Minute)
	bob.Send("still here\n")
	bob.Expect("2: still here\n")
	s.Advance(time.Minute)
	ann.ExpectClosed(tcp.ErrIdleTimeout)

	bob.StopReading() // its buffers are full now
	bob.Send("more\n")
	s.StartDrain()
	bob.StartReading()
	bob.Expect("3: more\nbye\n")
	bob.ExpectClosed(tcp.ErrServerClosed)
}
