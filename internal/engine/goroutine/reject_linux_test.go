package goroutine

import (
	"io"
	"net"
	"testing"

	"github.com/myriad-go/myriad/internal/testkit"
)

// mustNotBlockConn fails the test if it is read or written in a way that may block.
type mustNotBlockConn struct {
	*net.TCPConn
	t *testing.T
}

func (p mustNotBlockConn) Read([]byte) (int, error) {
	p.t.Error("turning away waits for input")
	return 0, io.EOF
}

func (p mustNotBlockConn) Write(b []byte) (int, error) {
	p.t.Error("turning away waits for room")
	return len(b), nil
}

// Rejecting a connection does not block the acceptor, and each client gets the answer.
func TestRejectConnDoesNotBlock(t *testing.T) {
	const answer = "no\n"
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	testkit.RequireNoError(t, err)
	defer ln.Close()
	for _, said := range []string{"", "may I?"} {
		client := testkit.Dial(t, ln.Addr().String())
		nc, err := ln.Accept()
		testkit.RequireNoError(t, err)
		client.Send(said) // on the loopback it arrives at once
		sendRejectionAndCloseConn(mustNotBlockConn{nc.(*net.TCPConn), t}, []byte(answer))
		client.ExpectEOF(answer)
	}
}
