package load

import (
	"context"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/coder/websocket"
)

// heldSocketServer sends messages back by another library, one frame each, and pings who has
// sent one. Before, each connection begins with what begin does.
func heldSocketServer(t *testing.T, begin func(ctx context.Context, c *websocket.Conn) error) (addr string) {
	ctx, cancel := context.WithCancel(context.Background())
	var wait sync.WaitGroup
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		wait.Add(1)
		defer wait.Done()
		c, err := websocket.Accept(w, r, nil)
		if err != nil {
			return // the client has been told
		}
		defer c.CloseNow()
		for err = begin(ctx, c); err == nil; {
			var kind websocket.MessageType
			var message []byte
			if kind, message, err = c.Read(ctx); err == nil {
				wait.Go(func() { _ = c.Ping(ctx) }) // answered while the next one is read
				err = c.Write(ctx, kind, message)
			}
		}
	}))
	t.Cleanup(func() {
		cancel()
		s.Close()
		wait.Wait()
	})
	return s.Listener.Addr().String()
}

// TestHeldWebSockets verifies WebSockets, answers pings, and counts the broadcast.
func TestHeldWebSockets(t *testing.T) {
	t.Parallel()
	const n = 50
	eachModel(t, func(t *testing.T, model string) {
		addr := heldSocketServer(t, func(ctx context.Context, c *websocket.Conn) error {
			return c.Write(ctx, websocket.MessageText, []byte("hear ye"))
		})
		r, told := heldRun(t, Config{
			Target: addr, Connections: n, Model: model, Loops: 2, WebSocket: &WebSocket{Path: "/chat"},
			Check: 7, Broadcast: "hear ye\n", Duration: 200 * time.Millisecond,
		})
		if err := r.Err(); err != nil || len(r.Verifications) != 2 || r.Verifications[0].Checked != n || r.Verifications[1].Checked != n {
			t.Errorf("%v, %+v; want %d checked, twice", err, r.Verifications, n)
		}
		// A ping behind the last message may come too late.
		if b := r.Broadcast; b == nil || b.Heard != n || b.Again != 0 || len(told.of(Heard)) != 1 || r.Heartbeats < n || r.Heartbeats > 2*n {
			t.Errorf("broadcast %+v, %d pings; want %d heard, and %d to %d pings", b, r.Heartbeats, n, n, 2*n)
		}
		if b := r.Bytes; b.Sent == 0 || b.Sent != b.Answered || b.InFlight != 0 {
			t.Errorf("bytes %+v", b)
		}
	})
}

// TestHeldWebSocketFaults has servers say what nobody expects.
func TestHeldWebSocketFaults(t *testing.T) {
	t.Parallel()
	const n = 5
	write := func(texts ...string) func(context.Context, *websocket.Conn) error {
		return func(ctx context.Context, c *websocket.Conn) (err error) {
			for _, text := range texts {
				if err == nil {
					err = c.Write(ctx, websocket.MessageText, []byte(text))
				}
			}
			return err
		}
	}
	for name, test := range map[string]struct {
		begin func(context.Context, *websocket.Conn) error
		says  string
	}{
		"twice": {write("hear ye", "hear ye"), "came again 5 times"},
		"stray": {write("hear ye", "and me"), `first: "and me"`},
		"empty": {write("hear ye", ""), "5 lines that nobody expected"},
		"full":  {write("hear ye", strings.Repeat("x", MaxLine)), "5 lines that nobody expected"},
		"long":  {write(strings.Repeat("x", MaxLine+1)), "5 × a line of more than 4096 bytes"},
		"fragments": {func(ctx context.Context, c *websocket.Conn) error {
			w, err := c.Writer(ctx, websocket.MessageText)
			if err == nil {
				_, err = w.Write([]byte("hear"))
			}
			if err == nil {
				err = w.Close()
			}
			return err
		}, "5 × " + errFragment.Error()},
		"closed": {func(_ context.Context, c *websocket.Conn) error {
			return c.Close(websocket.StatusNormalClosure, "enough")
		}, "5 × " + errClosedFrame.Error()},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			for times := range slower(t) {
				r, _ := heldRun(t, Config{Target: heldSocketServer(t, test.begin), Connections: n, WebSocket: &WebSocket{}, Broadcast: "hear ye\n", Duration: times * 100 * time.Millisecond})
				err := r.Err()
				if err != nil && strings.Contains(err.Error(), test.says) {
					return
				}
				t.Logf("got %v, want %q", err, test.says)
			}

		})
	}
}
