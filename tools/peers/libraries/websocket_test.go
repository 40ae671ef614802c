package libraries

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/coder/websocket"
	"github.com/gobwas/ws"
	"github.com/gobwas/ws/wsutil"

	"github.com/myriad-go/myriad/tcp"
)

// echo upgrades a connection, and then echoes one message a call: between messages a
// connection has no goroutine.
func echo(n *tcp.NetConn) error {
	n.SetDeadline(time.Now().Add(patience))
	if n.Value() == nil {
		_, err := ws.Upgrade(n)
		if errors.Is(err, io.ErrUnexpectedEOF) {
			err = io.EOF
		}
		n.SetValue(true)
		return err
	}
	msg, op, err := wsutil.ReadClientData(n) // answers pings and closes, too
	var closed wsutil.ClosedError
	switch {
	case errors.As(err, &closed):
		return io.EOF
	case err != nil:
		return err
	}
	return wsutil.WriteServerMessage(n, op, msg)
}

// gobwas/ws serves a Blocking handler, and coder/websocket is its client.
func TestWebSocket(t *testing.T) {
	underModels(t, func(t *testing.T, model string) {
		before := runtime.NumGoroutine()
		addr := serve(t, &tcp.Server{Model: model, Handler: &tcp.Blocking{Serve: echo, End: func(_ *tcp.NetConn, why error) {
			if why != io.EOF && !errors.Is(why, tcp.ErrServerClosed) {
				t.Errorf("End(%v)", why)
			}
		}}})
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		defer cancel()
		connect := func() *websocket.Conn {
			c, _, err := websocket.Dial(ctx, "ws://"+addr, &websocket.DialOptions{CompressionMode: websocket.CompressionDisabled})
			if err != nil {
				t.Fatal(err)
			}
			c.SetReadLimit(-1)
			return c
		}
		t.Run("messages of all sizes", func(t *testing.T) {
			c := connect()
			for _, size := range []int{0, 1, 125, 126, 127, 65535, 65536, 65537, 1 << 20, 8 << 20} {
				for _, kind := range []websocket.MessageType{websocket.MessageText, websocket.MessageBinary} {
					msg := []byte(strings.Repeat("x", size))
					if err := c.Write(ctx, kind, msg); err != nil {
						t.Fatal(err)
					}
					if k, got, err := c.Read(ctx); k != kind || !bytes.Equal(got, msg) || err != nil {
						t.Fatalf("%d bytes: got %v of %d, %v", size, k, len(got), err)
					}
				}
			}
			if err := c.Close(websocket.StatusNormalClosure, "enough"); err != nil {
				t.Errorf("the closing handshake: %v", err)
			}
		})
		t.Run("fragments, and a ping among them", func(t *testing.T) {
			c, err := net.Dial("tcp", addr)
			if err != nil {
				t.Fatal(err)
			}
			defer c.Close()
			c.SetDeadline(time.Now().Add(patience))
			fmt.Fprintf(c, "GET / HTTP/1.1\r\nHost: x\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"+
				"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n\r\n")
			head := make([]byte, 0, 200)
			for !bytes.HasSuffix(head, []byte("\r\n\r\n")) {
				head = append(head, 0)
				if _, err := c.Read(head[len(head)-1:]); err != nil {
					t.Fatal(err)
				}
			}
			for _, f := range []ws.Frame{
				ws.NewFrame(ws.OpText, false, []byte("in ")), ws.NewPingFrame([]byte("alive?")), ws.NewFrame(ws.OpContinuation, true, []byte("parts")),
			} {
				for _, b := range ws.MustCompileFrame(ws.MaskFrame(f)) { // a byte at a time
					c.Write([]byte{b})
				}
			}
			for _, want := range []string{"alive?", "in parts"} {
				h, err := ws.ReadHeader(c)
				if err != nil || h.Length != int64(len(want)) {
					t.Fatalf("got %+v, %v; want %q", h, err, want)
				}
				payload := make([]byte, len(want))
				if _, err := io.ReadFull(c, payload); err != nil || string(payload) != want {
					t.Fatalf("got %q, %v; want %q", payload, err, want)
				}
			}
		})
		t.Run("pings", func(t *testing.T) {
			c := connect()
			defer c.CloseNow()
			hear := c.CloseRead(ctx)
			for range 10 {
				if err := c.Ping(ctx); err != nil {
					t.Fatal(err, hear.Err())
				}
			}
		})
		t.Run("many, which are idle without a goroutine", func(t *testing.T) {
			const conns = 500
			all := make([]*websocket.Conn, conns)
			var dials sync.WaitGroup
			for i := range all {
				dials.Go(func() { all[i] = connect() })
			}
			dials.Wait()
			for round := range 3 {
				for i, c := range all {
					if err := c.Write(ctx, websocket.MessageText, fmt.Append(nil, i, round)); err != nil {
						t.Fatal(err)
					}
				}
				for i, c := range all {
					if _, got, err := c.Read(ctx); string(got) != fmt.Sprint(i, round) || err != nil {
						t.Fatalf("%q, %v", got, err)
					}
				}
			}
			if model != tcp.Goroutine { // whose connections have one each
				// the client has some for each connection, so only ours are told apart
				stacks := make([]byte, 64<<20)
				stacks = stacks[:runtime.Stack(stacks, true)]
				if n := bytes.Count(stacks, []byte("myriad.(*Blocking)")); n > 10 {
					t.Errorf("%d goroutines of Blocking while all is idle; there were %d in all before", n, before)
				}
			}
			for _, c := range all {
				c.CloseNow()
			}
		})
	})
}
