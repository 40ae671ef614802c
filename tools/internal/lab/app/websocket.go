package app

import (
	"bytes"
	"crypto/rand"
	"io"
	"net"

	"github.com/myriad-go/myriad/tools/internal/websocket"
)

// Dialogue is a connection over which an app is spoken to in lines: that of WebSocket is
// upgraded, each line written is a message then, each message read is a line, and each ping
// is Heartbeat. The caller sets deadlines.
func Dialogue(conn net.Conn, name string) (net.Conn, error) {
	if name != WebSocket {
		return conn, nil
	}
	var key websocket.Key
	_, _ = rand.Read(key[:]) // never fails
	if _, err := conn.Write(websocket.AppendRequest(nil, conn.RemoteAddr().String(), "/", nil, key)); err != nil {
		return nil, err
	}
	c := &lineConn{Conn: conn}
	for {
		if err := c.receive(); err != nil {
			return nil, err
		}
		n, err := websocket.CheckResponse(c.in, key)
		if err != nil {
			return nil, err
		}
		if n > 0 {
			c.in = c.in[n:]
			return c, nil
		}
	}
}

// lineConn is a WebSocket whose messages are lines.
type lineConn struct {
	net.Conn
	frames websocket.Reader
	in     []byte // not looked at
	lines  []byte // not given out
}

// receive reads more, of which there is some unless it fails.
func (c *lineConn) receive() error {
	var b [4096]byte
	n, err := c.Conn.Read(b[:])
	c.in = append(c.in, b[:n]...)
	if n > 0 {
		return nil
	}
	return err
}

func (c *lineConn) Write(p []byte) (int, error) {
	var out []byte
	for line := range bytes.Lines(p) {
		out = websocket.AppendFrame(out, websocket.OpText, [4]byte{}, bytes.TrimSuffix(line, []byte("\n")))
	}
	if _, err := c.Conn.Write(out); err != nil {
		return 0, err
	}
	return len(p), nil
}

func (c *lineConn) Read(p []byte) (int, error) {
	for len(c.lines) == 0 {
		part, n, err := c.frames.Next(c.in)
		switch {
		case err != nil:
			return 0, err
		case n == 0:
			if err := c.receive(); err != nil {
				return 0, err
			}
			continue
		case part.Kind == websocket.Close:
			return 0, io.EOF
		case part.Kind == websocket.Ping:
			c.lines = append(c.lines, Heartbeat...)
		case part.Kind == websocket.Data:
			c.lines = append(c.lines, part.Payload...)
			if part.Last {
				c.lines = append(c.lines, '\n')
			}
		}
		c.in = c.in[n:]
	}
	n := copy(p, c.lines)
	c.lines = c.lines[n:]
	return n, nil
}
