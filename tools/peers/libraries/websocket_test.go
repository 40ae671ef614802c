package libraries

import (
	"bytes"
	"context"
	"errors"
	"io"
	"strings"
	"testing"
	"time"

	"github.com/coder/websocket"
	"github.com/gobwas/ws"
	"github.com/gobwas/ws/wsutil"

	"github.com/myriad-go/myriad/internal/testkit"
	"github.com/myriad-go/myriad/tcp"
)

// echoMessage performs the handshake in the first call and then echoes one message per call: between messages a
// connection has no goroutine.
func echoMessage(n *tcp.NetConn) error {
	n.SetDeadline(time.Now().Add(testTimeout))
	if n.Value() == nil {
		_, err := ws.Upgrade(n)
		if errors.Is(err, io.ErrUnexpectedEOF) {
			err = io.EOF
		}
		n.SetValue(true)
		return err
	}
	msg, op, err := wsutil.ReadClientData(n) // also answers pings and closes
	var closed wsutil.ClosedError
	switch {
	case errors.As(err, &closed):
		return io.EOF
	case err != nil:
		return err
	}
	return wsutil.WriteServerMessage(n, op, msg)
}

// TestWebSocket serves gobwas/ws with a Blocking handler; coder/websocket is the client.
func TestWebSocket(t *testing.T) {
	runUnderModels(t, func(t *testing.T, model string) {
		addr := startServer(t, &tcp.Server{Model: model, Handler: &tcp.Blocking{Serve: echoMessage, End: func(_ *tcp.NetConn, why error) {
			if why != io.EOF && !errors.Is(why, tcp.ErrServerClosed) {
				t.Errorf("End(%v)", why)
			}
		}}})
		ctx, cancel := context.WithTimeout(context.Background(), testTimeout)
		defer cancel()
		c, _, err := websocket.Dial(ctx, "ws://"+addr, &websocket.DialOptions{CompressionMode: websocket.CompressionDisabled})
		testkit.RequireNoError(t, err)
		c.SetReadLimit(-1)
		for _, size := range []int{0, 125, 126, 65535, 65536, 8 << 20} {
			for _, kind := range []websocket.MessageType{websocket.MessageText, websocket.MessageBinary} {
				msg := []byte(strings.Repeat("x", size))
				testkit.RequireNoError(t, c.Write(ctx, kind, msg))
				if k, got, err := c.Read(ctx); k != kind || !bytes.Equal(got, msg) || err != nil {
					t.Fatalf("%d bytes: got %v of %d, %v", size, k, len(got), err)
				}
			}
		}
		if err := c.Close(websocket.StatusNormalClosure, "enough"); err != nil {
			t.Errorf("the closing handshake: %v", err)
		}
	})
}
