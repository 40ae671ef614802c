package app

import (
	"bytes"
	"crypto/rand"
	"io"
	"net"

	"github.com/myriad-go/myriad/tools/internal/websocket"
)

// ConnForLines returns a connection on which the caller writes and reads lines in the app's protocol. If the app is
// WebSocket, ConnForLines performs the client's handshake, and the returned connection converts lines into messages and
// messages into lines. It also converts each received ping into the line Heartbeat. For all other apps, ConnForLines
// returns conn.
func ConnForLines(conn net.Conn, appName string) (net.Conn, error) {
	if appName != WebSocket {
		return conn, nil
	}
	var key websocket.HandshakeKey
	_, _ = rand.Read(key[:]) // never fails
	if _, err := conn.Write(websocket.AppendRequest(nil, conn.RemoteAddr().String(), "/", nil, key)); err != nil {
		return nil, err
	}
	c := &webSocketLineConn{Conn: conn}
	for {
		if err := c.readIntoUnparsed(); err != nil {
			return nil, err
		}
		n, err := websocket.CheckHandshakeResponse(c.unparsed, key)
		if err != nil {
			return nil, err
		}
		if n > 0 {
			c.unparsed = c.unparsed[n:]
			return c, nil
		}
	}
}

type webSocketLineConn struct {
	net.Conn
	frames   websocket.FrameReader
	unparsed []byte // received bytes that are not parsed
	unread   []byte // lines that are not read
}

func (c *webSocketLineConn) readIntoUnparsed() error {
	var b [4096]byte
	n, err := c.Conn.Read(b[:])
	c.unparsed = append(c.unparsed, b[:n]...)
	if n > 0 {
		return nil
	}
	return err
}

func (c *webSocketLineConn) Write(lines []byte) (int, error) {
	var out []byte
	for line := range bytes.Lines(lines) {
		out = websocket.AppendMaskedFrame(out, websocket.OpText, [4]byte{}, bytes.TrimSuffix(line, []byte("\n")))
	}
	if _, err := c.Conn.Write(out); err != nil {
		return 0, err
	}
	return len(lines), nil
}

func (c *webSocketLineConn) Read(p []byte) (int, error) {
	for len(c.unread) == 0 {
		part, n, err := c.frames.Next(c.unparsed)
		switch {
		case err != nil:
			return 0, err
		case n == 0:
			if err := c.readIntoUnparsed(); err != nil {
				return 0, err
			}
			continue
		case part.Kind == websocket.Close:
			return 0, io.EOF
		case part.Kind == websocket.Ping:
			c.unread = append(c.unread, Heartbeat...)
		case part.Kind == websocket.Data:
			c.unread = append(c.unread, part.Payload...)
			if part.Last {
				c.unread = append(c.unread, '\n')
			}
		}
		c.unparsed = c.unparsed[n:]
	}
	n := copy(p, c.unread)
	c.unread = c.unread[n:]
	return n, nil
}
