package enginetest

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"net"
	"syscall"
	"testing"
	"time"
)

// client is a plain connection to a server. Its methods but try… end the test
// when something goes wrong, so they are for the test's own goroutine.
type client struct {
	*net.TCPConn
	t testing.TB
}

// dial connects to the server. The connection is closed when the test ends.
func (s *server) dial() *client {
	s.t.Helper()
	return dialTo(s.t, s.Addr().String())
}

func (s *server) dials(n int) (all []*client) {
	s.t.Helper()
	for range n {
		all = append(all, s.dial())
	}
	return all
}

// stream is a client that speaks TLS, or not, and has small buffers if it is slow.
func (s *server) stream(encrypted, slow bool) io.ReadWriter {
	s.t.Helper()
	c := s.dial()
	if slow {
		c.smallBuffers()
	}
	if !encrypted {
		return c
	}
	t, err := c.encrypt(clientTLS())
	if err != nil {
		s.t.Fatal(err)
	}
	return t
}

func dialTo(t testing.TB, addr string) *client {
	t.Helper()
	c, err := tryDial(t, addr)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func tryDial(t testing.TB, addr string) (*client, error) {
	nc, err := net.DialTimeout("tcp", addr, patience)
	if err != nil {
		return nil, err
	}
	nc.SetDeadline(time.Now().Add(patience))
	t.Cleanup(func() { nc.Close() })
	return &client{TCPConn: nc.(*net.TCPConn), t: t}, nil
}

// smallBuffers keeps the kernel from taking much that nobody reads.
func (c *client) smallBuffers() {
	if err := errors.Join(c.SetReadBuffer(128<<10), c.SetWriteBuffer(128<<10)); err != nil {
		c.t.Fatal(err)
	}
}

func (c *client) send(s string) {
	c.t.Helper()
	if _, err := io.WriteString(c, s); err != nil {
		c.t.Fatalf("client: sending %s: %v", brief([]byte(s)), err)
	}
}

// expect reads as many bytes as want has and compares.
func (c *client) expect(want string) {
	c.t.Helper()
	if err := c.tryExpect(want); err != nil {
		c.t.Fatal(err)
	}
}

func (c *client) tryExpect(want string) error {
	got := make([]byte, len(want))
	n, err := io.ReadFull(c, got)
	if err != nil {
		return fmt.Errorf("client: got %d bytes, %s, then %w; want %s", n, brief(got[:n]), err, brief([]byte(want)))
	}
	if string(got) == want { // without a copy of many megabytes
		return nil
	}
	return compare(got, []byte(want))
}

// expectEnd reads to the end: want and an orderly close, no reset.
func (c *client) expectEnd(want string) {
	c.t.Helper()
	got, err := io.ReadAll(c)
	if err != nil {
		c.t.Errorf("client: got %d bytes, then %v instead of the end", len(got), err)
	}
	if err := compare(got, []byte(want)); err != nil {
		c.t.Fatal(err)
	}
}

// expectGone reads until the server has closed, in order or by a reset.
func (c *client) expectGone() {
	c.t.Helper()
	if _, err := io.Copy(io.Discard, c); err != nil && !isReset(err) {
		c.t.Fatalf("client: %v, want the connection closed", err)
	}
}

// exchange sends a line and expects it back.
func (c *client) exchange(line string) {
	c.t.Helper()
	c.send(line)
	c.expect(line)
}

// endSending shuts the sending direction.
func (c *client) endSending() {
	c.t.Helper()
	if err := c.CloseWrite(); err != nil {
		c.t.Fatalf("client: CloseWrite: %v", err)
	}
}

// reset closes with a reset.
func (c *client) reset() {
	c.SetLinger(0)
	c.Close()
}

// isReset says whether an error of package net means a reset by the peer, under
// any of its numbers.
func isReset(err error) bool {
	const wsaeConnAborted, wsaeConnReset = syscall.Errno(10053), syscall.Errno(10054)
	return errors.Is(err, syscall.ECONNRESET) || errors.Is(err, syscall.EPIPE) ||
		errors.Is(err, wsaeConnAborted) || errors.Is(err, wsaeConnReset)
}

func compare(got, want []byte) error {
	if bytes.Equal(got, want) {
		return nil
	}
	at := 0
	for at < min(len(got), len(want)) && got[at] == want[at] {
		at++
	}
	return fmt.Errorf("client: got %d bytes, want %d; from byte %d on: %s, want %s",
		len(got), len(want), at, brief(got[at:]), brief(want[at:]))
}

func brief(p []byte) string {
	if len(p) > 40 {
		return fmt.Sprintf("%q… (%d bytes)", p[:40], len(p))
	}
	return fmt.Sprintf("%q", p)
}

func (c *client) tryWrite(p string) error {
	_, err := io.WriteString(c, p)
	return err
}
