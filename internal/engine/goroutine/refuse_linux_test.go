package goroutine

import (
	"io"
	"net"
	"testing"
	"time"
)

// patient is a connection on which nobody is to wait.
type patient struct {
	*net.TCPConn
	t *testing.T
}

func (p patient) Read([]byte) (int, error) {
	p.t.Error("turning away waits for input")
	return 0, io.EOF
}

func (p patient) Write(b []byte) (int, error) {
	p.t.Error("turning away waits for room")
	return len(b), nil
}

// The acceptor waits for nobody whom it turns away, and each gets the answer.
func TestTurnAwayDoesNotWait(t *testing.T) {
	const answer = "no\n"
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close()
	for _, said := range []string{"", "may I?"} {
		client, err := net.Dial("tcp", ln.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		defer client.Close()
		nc, err := ln.Accept()
		if err != nil {
			t.Fatal(err)
		}
		_, _ = io.WriteString(client, said) // on the loopback it is there at once
		turnAway(patient{nc.(*net.TCPConn), t}, []byte(answer))
		_ = client.SetDeadline(time.Now().Add(patience))
		if got, err := io.ReadAll(client); string(got) != answer || err != nil {
			t.Errorf("who said %q got %q and %v, want %q and an orderly end", said, got, err, answer)
		}
	}
}
