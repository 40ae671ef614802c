package enginetest

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"net"
	"testing"

	"github.com/myriad-go/myriad/internal/testkit"
)

type client struct {
	*testkit.Conn
	t testing.TB
}

func (s *server) dial() *client {
	s.t.Helper()
	return dialTo(s.t, s.Addr().String())
}

func (s *server) dialMany(n int) (all []*client) {
	s.t.Helper()
	for range n {
		all = append(all, s.dial())
	}
	return all
}

// dialStream connects, with TLS if encrypted, and with small socket buffers if slow.
func (s *server) dialStream(encrypted, slow bool) io.ReadWriter {
	s.t.Helper()
	c := s.dial()
	if slow {
		c.shrinkSocketBuffers()
	}
	if !encrypted {
		return c
	}
	t, err := c.encrypt(clientTLS())
	testkit.RequireNoError(s.t, err)
	return t
}

func dialTo(t testing.TB, addr string) *client {
	t.Helper()
	return &client{testkit.Dial(t, addr), t}
}

func tryDial(t testing.TB, addr string) (*client, error) {
	nc, err := net.DialTimeout("tcp", addr, patience)
	if err != nil {
		return nil, err
	}
	return &client{testkit.NewConn(t, nc), t}, nil
}

// Read also returns what the methods of testkit.Conn have buffered.
func (c *client) Read(p []byte) (int, error) { return c.R.Read(p) }

// shrinkSocketBuffers limits what the kernel buffers for a client that does not read.
func (c *client) shrinkSocketBuffers() {
	nc := c.Conn.Conn.(*net.TCPConn)
	testkit.RequireNoError(c.t, errors.Join(nc.SetReadBuffer(128<<10), nc.SetWriteBuffer(128<<10)))
}

// tryExpect is readAndCompare for a client.
func (c *client) tryExpect(want string) error { return readAndCompare(c, want) }

// readAndCompare reads len(want) bytes and compares them. It may be called on any goroutine.
func readAndCompare(r io.Reader, want string) error {
	got := make([]byte, len(want))
	n, err := io.ReadFull(r, got)
	if err != nil {
		return fmt.Errorf("client: got %d bytes, %s, then %w; want %s", n, abbreviate(got[:n]), err, abbreviate([]byte(want)))
	}
	return compareBytes(got, []byte(want))
}

func (c *client) tryWrite(p string) error {
	_, err := io.WriteString(c, p)
	return err
}

func (c *client) sendAndExpect(send, want string) {
	c.t.Helper()
	c.Send(send)
	c.Expect(want)
}

func (c *client) exchange(text string) {
	c.t.Helper()
	c.sendAndExpect(text, text)
}

func (c *client) sendInBackground(p []byte) <-chan error {
	sent := make(chan error, 1)
	go func() {
		_, err := c.Write(p)
		c.CloseWrite()
		sent <- err
	}()
	return sent
}

func readAllInBackground(c *client) <-chan string {
	got := make(chan string, 1)
	go func() {
		all, err := io.ReadAll(c)
		if err != nil {
			c.t.Errorf("client: got %d bytes, then %v instead of the end", len(all), err)
		}
		got <- string(all)
	}()
	return got
}

func compareBytes(got, want []byte) error {
	if bytes.Equal(got, want) {
		return nil
	}
	at := 0
	for at < min(len(got), len(want)) && got[at] == want[at] {
		at++
	}
	return fmt.Errorf("client: got %d bytes, want %d; from byte %d on: %s, want %s",
		len(got), len(want), at, abbreviate(got[at:]), abbreviate(want[at:]))
}

func abbreviate(p []byte) string {
	if len(p) > 40 {
		return fmt.Sprintf("%q… (%d bytes)", p[:40], len(p))
	}
	return fmt.Sprintf("%q", p)
}
