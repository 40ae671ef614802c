package hub

import (
	"encoding/json"
	"errors"
	"io"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/myriad-go/myriad/internal/testkit"
	"github.com/myriad-go/myriad/internal/testkit/testserver"
	"github.com/myriad-go/myriad/tcp"
)

func serveSlowConsumers(t *testing.T, newHub func() *Hub, f func(t *testing.T, h *Hub, srv *tcp.Server, addr string)) {
	t.Helper()
	for _, model := range tcp.Models() {
		t.Run(model, func(t *testing.T) {
			h := newHub()
			srv := &tcp.Server{
				Model: model, Handler: h.Handler(), SlowConsumer: tcp.DropMessage,
				Socket: tcp.Socket{SendBuffer: 4 << 10}, Limits: tcp.Limits{MaxUnsent: 128 << 10, CloseTimeout: 1},
			}
			addr, _ := testserver.Start(t, srv)
			f(t, h, srv, addr)
		})
	}
}

func TestSlowClientsFound(t *testing.T) {
	serveSlowConsumers(t, newPlainHub, func(t *testing.T, h *Hub, srv *tcp.Server, addr string) {
		const slow = maxSlowListed + 2
		dialAndSend(t, addr, "PING\r\n")
		quick := dialAndSend(t, addr, "SUBSCRIBE quick\r\n")
		all := []*testkit.Conn{quick}
		for range slow {
			all = append(all, dialAndSend(t, addr, "PSUBSCRIBE slow.*\r\n"))
		}
		testkit.WaitFor(t, "all have subscribed", func() bool { return h.Stats().Subscriptions == slow+1 })
		look := func() Slow {
			s, err := h.Slow(t.Context(), srv)
			testkit.RequireNoError(t, err)
			return s
		}
		testkit.WaitFor(t, "the slow ones are known", func() bool {
			h.publishAll(t, "slow.a", strings.Repeat("x", 60<<10))
			s := look()
			return s.Behind == slow && s.Missed == slow
		})
		s := look()
		if s.Clients != slow+1 || s.Waiting != slow || s.Bytes < slow*64<<10 || len(s.Top) != maxSlowListed {
			t.Errorf("%+v", s)
		}
		for i, one := range s.Top {
			if one.Topic != "slow.*" || one.Subscriptions != 1 || one.User != "default" || one.Dropped == 0 || one.ID == 0 ||
				i > 0 && one.Pending > s.Top[i-1].Pending || !strings.HasPrefix(one.Addr, "127.0.0.1:") {
				t.Errorf("%+v", one)
			}
		}
		var shown struct {
			Stats Stats
			Slow  Slow
			Error string
		}
		w := httptest.NewRecorder()
		h.StatsAndSlowPage(srv).ServeHTTP(w, httptest.NewRequest("GET", "/hub", nil))
		if err := json.Unmarshal(w.Body.Bytes(), &shown); err != nil || shown.Slow.Behind != slow || shown.Stats.Subscriptions != slow+1 || shown.Error != "" {
			t.Errorf("what an operator sees: %s, %v", w.Body, err)
		}
		h.publishAll(t, "quick", "who reads gets it")
		expectLine(t, quick, "who reads gets it")
		for _, c := range all {
			c.Close()
		}
		testkit.WaitFor(t, "all have gone", func() bool { return h.Stats().Subscriptions == 0 })
		if s := look(); s.Clients != 0 || s.Top != nil {
			t.Errorf("when all have gone: %+v", s)
		}
	})
}

func TestSlowScanErrors(t *testing.T) {
	h := &Hub{}
	srv := &tcp.Server{}
	if _, err := h.Slow(t.Context(), srv); !errors.Is(err, tcp.ErrServerClosed) {
		t.Errorf("a server that does not run: %v", err)
	}
	h.slowScanMu.Lock()
	if _, err := h.Slow(t.Context(), srv); !errors.Is(err, ErrBusy) {
		t.Errorf("while somebody looks: %v, want %v", err, ErrBusy)
	}
	w := httptest.NewRecorder()
	h.StatsAndSlowPage(srv).ServeHTTP(w, httptest.NewRequest("GET", "/hub", nil))
	if !strings.Contains(w.Body.String(), ErrBusy.Error()) {
		t.Errorf("what an operator sees: %s", w.Body)
	}
}

// TestCloseRevoked checks that only clients whose user is gone or has lost a right are closed.
func TestCloseRevoked(t *testing.T) {
	const before = "user a on >a +@all &*\nuser b on >b +@all &*\nuser c on >c +@all &*\n"
	serveSlowConsumers(t, func() *Hub { return newHubWithUsers(before) }, func(t *testing.T, h *Hub, srv *tcp.Server, addr string) {
		enter := func(text, confirmation string) *testkit.Conn {
			t.Helper()
			c := dialAndSend(t, addr, text)
			expectUpTo(t, c, confirmation)
			return c
		}
		stays := enter("AUTH a a\r\nSUBSCRIBE x\r\n", ":1\r\n")
		idle := enter("AUTH b b\r\n", "+OK\r\n")
		loses := enter("AUTH b b\r\nPSUBSCRIBE x*\r\n", ":1\r\n")
		gone := enter("AUTH c c\r\n", "+OK\r\n")
		stream := enter("GET /events?topic=y&token=a HTTP/1.1\r\nHost: localhost\r\n\r\n", "retry: ")
		socket := dialWebSocket(t, addr, "?token=c")
		socket.exchange(`{"op":"subscribe","topic":"x"}`, `{"op":"subscribed","topic":"x","count":*`)
		waitForSubscribers(t, h, "x", 2)
		testkit.RequireNoError(t, h.Users.Reload(strings.NewReader("user a on >new +@all &x\nuser b on >b +@all &x\n")))
		if n, err := h.CloseRevoked(t.Context(), srv); n != 4 || err != nil {
			t.Errorf("%d clients are closed, %v; want 4", n, err)
		}
		for name, in := range map[string]*testkit.Conn{"whose user has lost a right": loses, "whose user is gone": gone, "of a stream": stream} {
			if _, err := io.ReadAll(in.R); err != nil {
				t.Errorf("a client %s: %v, want the end", name, err)
			}
		}
		if _, m, err := socket.Read(socket.ctx); err == nil {
			t.Errorf("the socket of a user that is gone goes on with %s", m)
		}
		h.publishAll(t, "x", "still here")
		expectUpTo(t, stays, "still here\r\n")
		idle.Send("PING\r\n")
		expectLine(t, idle, "+PONG")
	})
}

// TestLostMessagesCounted checks that unsent output counts as lost for clients closed for slowness, not for those
// that leave.
func TestLostMessagesCounted(t *testing.T) {
	for front, in := range map[string]string{
		"Redis": "SUBSCRIBE a\r\n", "WebSocket": webSocketHandshake + maskedTextFrame(`{"op":"subscribe","topic":"a"}`), "events": "GET /events?topic=a HTTP/1.1\r\nHost: localhost\r\n\r\n",
	} {
		t.Run(front, func(t *testing.T) {
			h := new(Hub)
			s := serveVirtual(t, h, tcp.Limits{MaxUnsent: 8000, WriteTimeout: time.Second})
			publish := func(n int) {
				for range n {
					h.publishAll(t, "a", strings.Repeat("x", 100))
				}
				s.Advance(0)
			}
			slow, gone := s.Dial(), s.Dial()
			slow.Send(in)
			gone.Send(in)
			publish(3)
			gone.StopReading()
			publish(1)
			gone.Reset()
			if st := h.Stats(); st.Delivered != 8 || st.Lost != 0 || st.LostBytes != 0 {
				t.Fatalf("before it is slow: %+v", st)
			}
			slow.StopReading()
			publish(7)
			s.Advance(time.Minute)
			slow.ExpectClosed(tcp.ErrWriteTimeout)
			if st := h.Stats(); st.Delivered != 15 || st.Lost != 7 || st.LostBytes < 700 {
				t.Errorf("%+v; want 7 of 15 lost", st)
			}
		})
	}
}
