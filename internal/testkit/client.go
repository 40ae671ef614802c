package testkit

import (
	"bufio"
	"crypto/tls"
	"errors"
	"io"
	"net"
	"net/http"
	"strings"
	"syscall"
	"testing"
	"time"
)

// Conn is a client connection for tests. Reads and writes fail once Timeout has passed since the Conn was created.
//
// The methods defined by Conn itself fail the test on errors. Call them only on the test's goroutine.
type Conn struct {
	net.Conn
	R *bufio.Reader // the buffer that the methods read from
	t testing.TB
}

// Dial connects to a TCP address, or to a unix socket if addrOrSocketPath contains a slash. The connection is closed
// when the test ends.
func Dial(t testing.TB, addrOrSocketPath string) *Conn {
	t.Helper()
	network := "tcp"
	if strings.Contains(addrOrSocketPath, "/") {
		network = "unix"
	}
	nc, err := net.DialTimeout(network, addrOrSocketPath, Timeout)
	RequireNoError(t, err)
	return NewConn(t, nc)
}

func DialTLS(t testing.TB, addr string, config *tls.Config) *Conn {
	t.Helper()
	nc, err := tls.DialWithDialer(&net.Dialer{Timeout: Timeout}, "tcp", addr, config)
	RequireNoError(t, err)
	return NewConn(t, nc)
}

func NewConn(t testing.TB, nc net.Conn) *Conn {
	t.Helper()
	t.Cleanup(func() { nc.Close() })
	RequireNoError(t, nc.SetDeadline(time.Now().Add(Timeout)))
	return &Conn{Conn: nc, R: bufio.NewReader(nc), t: t}
}

func (c *Conn) Send(text string) {
	c.t.Helper()
	if _, err := io.WriteString(c, text); err != nil {
		c.t.Fatalf("writing %.100q: %v", text, err)
	}
}

// Expect reads len(want) bytes. If the bytes differ from want, it fails the test.
func (c *Conn) Expect(want string) {
	c.t.Helper()
	got := make([]byte, len(want))
	if n, err := io.ReadFull(c.R, got); err != nil || string(got) != want {
		c.t.Fatalf("got %.300q, %v; want %.300q", got[:n], err, want)
	}
}

// ExchangeLine sends a line and reads a line as the reply. If the reply differs from want, it fails the test. send and
// want are lines without line feeds.
func (c *Conn) ExchangeLine(send, want string) {
	c.t.Helper()
	c.Send(send + "\n")
	if got := c.ReadLine(); got != want {
		c.t.Fatalf("%.100q was answered with %.300q, want %.300q", send, got, want)
	}
}

// ReadLine reads a line and returns it without the line feed.
func (c *Conn) ReadLine() string {
	c.t.Helper()
	line, err := c.R.ReadString('\n')
	if err != nil {
		c.t.Fatalf("got %.300q, %v; want a line", line, err)
	}
	return strings.TrimSuffix(line, "\n")
}

// CloseWrite shuts down the sending direction. It succeeds even if the server has reset the connection.
func (c *Conn) CloseWrite() {
	c.t.Helper()
	if err := c.Conn.(interface{ CloseWrite() error }).CloseWrite(); err != nil && !IsReset(err) {
		c.t.Fatal(err)
	}
}

// ExpectEOF reads all data until EOF. If the data differs from want, or if the server resets the connection, it fails
// the test.
func (c *Conn) ExpectEOF(want string) {
	c.t.Helper()
	if got, err := io.ReadAll(c.R); err != nil || string(got) != want {
		c.t.Fatalf("got %.300q, %v; want %.300q and the end", got, err, want)
	}
}

// ExpectClosed reads all data until the server closes or resets the connection, and returns the data.
func (c *Conn) ExpectClosed() string {
	c.t.Helper()
	got, err := io.ReadAll(c.R)
	if err != nil && !IsReset(err) {
		c.t.Fatalf("got %.300q, %v; want the end of the connection", got, err)
	}
	return string(got)
}

func (c *Conn) Reset() {
	if tc, ok := c.Conn.(*net.TCPConn); ok {
		_ = tc.SetLinger(0)
	}
	c.Close()
}

// ReadResponse reads an HTTP response and its body. It cannot read the response to a HEAD request.
func (c *Conn) ReadResponse() (*http.Response, string) {
	c.t.Helper()
	res, err := http.ReadResponse(c.R, nil)
	RequireNoError(c.t, err)
	body, err := io.ReadAll(res.Body)
	if err != nil {
		c.t.Fatalf("body of %s: %.300q, %v", res.Status, body, err)
	}
	return res, string(body)
}

// IsReset reports whether an error means that the peer has closed or reset the connection.
func IsReset(err error) bool {
	return errors.Is(err, syscall.ECONNRESET) || errors.Is(err, syscall.EPIPE) || errors.Is(err, syscall.ENOTCONN)
}
