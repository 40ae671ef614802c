package websocket_test

import (
	"bytes"
	"fmt"
	"io"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/myriad-go/myriad/internal/websocket"
	"github.com/myriad-go/myriad/internal/websocket/wstest"
)

// client drives the codec over a connection, on the test's goroutine.
type client struct {
	t      *testing.T
	conn   net.Conn
	reader websocket.Reader
	in     []byte // what has arrived and isn't taken
	out    []byte
	mask   [4]byte

	pings, pongs []string
	parts        int  // of the message that was read last
	closing      bool // a Close has been sent
	closed       int  // the code of the server's Close
}

// connect starts a server and upgrades a connection to it.
func connect(t *testing.T, options wstest.Options) (*client, *wstest.Server) {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	server := wstest.Serve(ln, options)
	t.Cleanup(server.Close)
	conn, err := net.Dial("tcp", server.Addr())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	if err := conn.SetDeadline(time.Now().Add(2 * time.Minute)); err != nil {
		t.Fatal(err)
	}
	c := &client{t: t, conn: conn}
	c.upgrade(server.Addr())
	return c, server
}

func (c *client) upgrade(host string) {
	c.t.Helper()
	key := websocket.Key([]byte("0123456789abcdef"))
	c.write(websocket.AppendRequest(nil, host, "/echo?x=y", nil, key))
	for {
		n, err := websocket.CheckResponse(c.in, key)
		if err != nil {
			c.t.Fatal(err)
		}
		if n > 0 {
			c.in = c.in[n:]
			return
		}
		c.more()
	}
}

func (c *client) write(b []byte) {
	c.t.Helper()
	if _, err := c.conn.Write(b); err != nil {
		c.t.Fatal(err)
	}
}

func (c *client) send(op websocket.Opcode, payload []byte) {
	c.t.Helper()
	c.closing = c.closing || op == websocket.OpClose
	c.mask[len(payload)%4] += 77
	c.out = websocket.AppendFrame(c.out[:0], op, c.mask, payload)
	c.write(c.out)
}

// more reads what has arrived.
func (c *client) more() {
	c.t.Helper()
	var buffer [4096]byte
	n, err := c.conn.Read(buffer[:])
	if err != nil {
		c.t.Fatal(err)
	}
	c.in = append(c.in, buffer[:n]...)
}

// next waits for a message, or for what else stop waits for. It answers pings
// and closes.
func (c *client) next(stop func() bool) (message []byte) {
	c.t.Helper()
	for c.parts = 0; !stop(); {
		part, n, err := c.reader.Next(c.in)
		if err != nil {
			c.t.Fatal(err)
		}
		if n == 0 {
			c.more()
			continue
		}
		payload := bytes.Clone(part.Payload)
		c.in = c.in[n:]
		switch part.Kind {
		case websocket.Data:
			message = append(message, payload...)
			c.parts++
			if part.Last {
				return message
			}
		case websocket.Ping:
			c.pings = append(c.pings, string(payload))
			c.send(websocket.OpPong, payload)
		case websocket.Pong:
			c.pongs = append(c.pongs, string(payload))
		case websocket.Close:
			c.closed = websocket.CloseCode(payload)
			if !c.closing {
				c.send(websocket.OpClose, payload)
			}
		}
	}
	return message
}

func never() bool { return false }

func TestInterop(t *testing.T) {
	for _, options := range []wstest.Options{{}, {Fragment: 1000}, {Fragment: 100, PingEvery: 1}} {
		t.Run(fmt.Sprintf("%+v", options), func(t *testing.T) {
			c, server := connect(t, options)
			count := int64(0)
			for _, op := range []websocket.Opcode{websocket.OpText, websocket.OpBinary} {
				for _, n := range []int{0, 1, 125, 126, 127, 65535, 65536, 200_000, wstest.MaxMessage} {
					message := []byte(strings.Repeat("The quick brown fox. ", n/21+1)[:n])
					c.send(op, message)
					got := c.next(never)
					count++
					if !bytes.Equal(got, message) {
						t.Fatalf("opcode %d: %d bytes come back as %d, or others", op, n, len(got))
					}
					if size := options.Fragment; size > 0 && c.parts < n/size {
						t.Errorf("%d bytes come in %d parts; expected at least %d", n, c.parts, n/size)
					}
				}
			}
			if got := server.Messages(); got != count {
				t.Errorf("the server counts %d messages; expected %d", got, count)
			}
		})
	}
}

func TestInteropPings(t *testing.T) {
	c, server := connect(t, wstest.Options{PingEvery: 2})
	for _, payload := range []string{"", "are you there?", strings.Repeat("x", websocket.MaxControl)} {
		c.send(websocket.OpPing, []byte(payload))
		c.next(func() bool { return len(c.pongs) > 0 })
		if c.pongs[0] != payload {
			t.Errorf("ping %q is answered with %q", payload, c.pongs[0])
		}
		c.pongs = nil
	}
	for sent := 0; server.Pongs() < 3; sent++ {
		c.send(websocket.OpText, []byte("tick"))
		if got := c.next(never); string(got) != "tick" {
			t.Fatalf("tick comes back as %q", got)
		}
	}
	if len(c.pings) < 3 || c.pings[0] == c.pings[1] {
		t.Errorf("pings %q; expected 3 that differ", c.pings)
	}
}

func TestInteropClose(t *testing.T) {
	for name, payload := range map[string]string{"without a code": "", "with a code": "\x03\xe8", "with a reason": "\x0f\xa0enough"} {
		t.Run(name, func(t *testing.T) {
			c, _ := connect(t, wstest.Options{})
			c.send(websocket.OpClose, []byte(payload))
			c.waitClose(websocket.CloseCode([]byte(payload)))
		})
	}
	t.Run("of the server", func(t *testing.T) {
		c, _ := connect(t, wstest.Options{CloseAfter: 2, Fragment: 3})
		for range 2 {
			c.send(websocket.OpText, []byte("message"))
			if got := c.next(never); string(got) != "message" {
				t.Fatalf("a message comes back as %q", got)
			}
		}
		c.waitClose(1000)
	})
	t.Run("of a message that is too long", func(t *testing.T) {
		c, _ := connect(t, wstest.Options{})
		c.send(websocket.OpBinary, make([]byte, wstest.MaxMessage+1))
		c.next(func() bool { return c.closed > 0 })
		if c.closed != 1009 {
			t.Errorf("the server closes with code %d; expected 1009", c.closed)
		}
	})
}

// waitClose waits for the server's Close and the end of the stream.
func (c *client) waitClose(code int) {
	c.t.Helper()
	c.next(func() bool { return c.closed > 0 })
	if c.closed != code {
		c.t.Errorf("the server closes with code %d; expected %d", c.closed, code)
	}
	if rest, err := io.ReadAll(c.conn); len(rest) > 0 || len(c.in) > 0 || err != nil {
		c.t.Errorf("%q and %q behind the Close, %v; expected the end", c.in, rest, err)
	}
}
