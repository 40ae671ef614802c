package lab

import (
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"io"
	"net"
	"strings"
	"testing"
)

// TestAsk has servers that answer wrongly.
func TestAsk(t *testing.T) {
	for _, c := range []struct{ app, answer, want string }{
		{Echo, strings.Repeat("ping\n", 10), ""},
		{Lines, strings.Repeat("ping\n", 9) + "pong\n", `ping\npong\n"; expected`},
		{Echo, "ping\npi", `not answered but for "ping\npi"`},
		{HTTP, "HTTP/1.1 200 OK\r\nContent-Length: 13\r\n\r\nHello, World!", ""},
		{HTTP, "HTTP/1.1 200 OK\r\nContent-Length: 13\r\n\r\nHello, world!", `"Hello, world!"`},
		{HTTP, "HTTP/1.1 200 OK\r\nContent-Length: 14\r\n\r\nHello, World!!", `"Hello, World!!"`},
		{HTTP, "HTTP/1.1 404 Not Found\r\nContent-Length: 13\r\n\r\nHello, World!", "404"},
		{HTTP, "HTTP/1.1 200 OK\r\nContent-Length: 13\r\n\r\nHello", "not answered"},
		{HTTP, "ping\n", "not answered"},
		{Wait, strings.Repeat("ping\n", 10), "expected at least 10ms"},
		{Wait, "ping\n", `not answered but for "ping\n"`},
		{Pow, strings.Repeat("myriad 125 0000000000001078\n", 10), ""},
		{Pow, strings.Repeat("myriad 125 0000000000001079\n", 10), "expected"},
		{Sha, strings.Repeat("758d\n", 10), ""},
		{Sha, strings.Repeat("ping\n", 10), "expected"},
		{Pow, "myriad 125\n", "not answered"},
	} {
		client, server := net.Pipe()
		done := make(chan struct{})
		go func() {
			defer close(done)
			server.Read(make([]byte, 1024))
			io.WriteString(server, c.answer)
			server.Close()
		}()
		err := ask(pipeConn{client}, c.app)
		if (err == nil) != (c.want == "") || err != nil && !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s answered with %q: got %v, want %q", c.app, c.answer, err, c.want)
		}
		client.Close()
		<-done
	}
}

// TestPowAnswer looks for the proof that the load expects.
func TestPowAnswer(t *testing.T) {
	line := []byte(strings.TrimSuffix(powMessage, "\n"))
	for nonce := uint64(0); ; nonce++ {
		sum := sha256.Sum256(binary.BigEndian.AppendUint64(line, nonce))
		if sum[0] != 0 || sum[1] != 0 {
			continue
		}
		if got := fmt.Sprintf("%s %016x\n", line, nonce); got != powAnswer {
			t.Errorf("got %q, want %q", got, powAnswer)
		}
		return
	}
}

// pipeConn is an end of a pipe whose two addresses differ.
type pipeConn struct{ net.Conn }

func (pipeConn) LocalAddr() net.Addr { return &net.TCPAddr{Port: 1} }
