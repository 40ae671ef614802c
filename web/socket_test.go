package web_test

import (
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/myriad-go/myriad/internal/testkit"
	"github.com/myriad-go/myriad/tcp"
	"github.com/myriad-go/myriad/tcp/tcptest"
	"github.com/myriad-go/myriad/web"
)

type roomHandler struct {
	web.SocketBase
	group  web.Group
	closed chan error
}

func (r *roomHandler) Opened(s web.Socket) { r.group.Add(s) }

func (r *roomHandler) Message(s web.Socket, kind web.Kind, m []byte) {
	switch string(m) {
	case "close":
		_ = s.Close(4000, "as asked")
	case "panic":
		panic("as asked")
	case "protocol":
		_ = s.WriteText(s.Subprotocol())
	case "value":
		v, _ := s.Value().(string)
		_ = s.WriteText(v)
	default:
		_ = s.Write(kind, m)
	}
}

func (r *roomHandler) Closed(s web.Socket, why error) {
	r.group.Remove(s)
	r.closed <- why
}

type missedCounter struct {
	roomHandler
	missed int64
}

func (h *missedCounter) Missed(_ web.Socket, n int64) { h.missed += n }

func TestSocketMissed(t *testing.T) {
	h := &missedCounter{roomHandler: roomHandler{closed: make(chan error, 1)}}
	s := tcptest.NewServer(t, &tcp.Server{
		Handler:      &web.HTTP{Handler: web.Quick(&web.WebSocket{Handler: h})},
		SlowConsumer: tcp.DropMessage, Limits: tcp.Limits{MaxUnsent: 3000},
	})
	p := s.Dial()
	p.Send(getRequest("/"))
	p.StopReading()
	for range 5 {
		h.group.Broadcast(web.Text, make([]byte, 1000))
		s.Advance(0)
	}
	p.StartReading()
	if h.missed != 3 {
		t.Errorf("%d messages were reported as missed, want 3", h.missed)
	}
}

// TestSocketEnds checks the reason of each kind of close.
func TestSocketEnds(t *testing.T) {
	r := &roomHandler{closed: make(chan error, 1)}
	closes := func(code int) func(error) bool {
		return func(err error) bool {
			var e *web.CloseError
			return errors.As(err, &e) && e.Code == code
		}
	}
	lost := func(err error) bool { return err == io.ErrUnexpectedEOF }
	send := func(text string) func(*testkit.Conn) { return func(c *testkit.Conn) { c.Send(text) } }
	x := strings.Repeat("x", 40000)
	rows := map[string]struct {
		do   func(c *testkit.Conn)
		code int // of the close that comes; 0 for none
		why  func(error) bool
	}{
		"client closes": {send(fr(fin|8, closeFrame(1001, "bye"))), 1001, func(err error) bool {
			var e *web.CloseError
			return errors.As(err, &e) && *e == web.CloseError{Code: 1001, Reason: "bye"}
		}},
		"server closes":       {send(fr(fin|1, "close")), 4000, func(err error) bool { return err == nil }},
		"client ends":         {func(c *testkit.Conn) { c.CloseWrite() }, 0, lost},
		"half a frame, gone":  {func(c *testkit.Conn) { c.Send(fr(fin|1, "hello")[:5]); c.Close() }, 0, lost},
		"half a message":      {func(c *testkit.Conn) { c.Send(fr(1, "hello")); c.Close() }, 0, lost},
		"message too long":    {send(fr(fin|2, x+x)[:100]), 1009, closes(1009)},
		"fragments too long":  {send(fr(2, x) + fr(0, x)), 1009, closes(1009)},
		"frame of 2^63 bytes": {send("\x82\xff\x7f\xff\xff\xff\xff\xff\xff\xff\x00\x00\x00\x00"), 1009, closes(1009)},
		"not masked":          {send("\x81\x05hello"), 1002, closes(1002)},
		"16 bits for 5 bytes": {send("\x81\xfe\x00\x05\x00\x00\x00\x00hello"), 1002, closes(1002)},
		"64 bits for 5 bytes": {send("\x81\xff\x00\x00\x00\x00\x00\x00\x00\x05\x00\x00\x00\x00hello"), 1002, closes(1002)},
		"panic":               {send(fr(fin|1, "panic")), 0, func(err error) bool { return errors.As(err, new(*tcp.PanicError)) }},
	}
	forEachSocketServer(t, &web.WebSocket{Handler: r}, func(t *testing.T, addr string) {
		for name, row := range rows {
			t.Run(name, func(t *testing.T) {
				c := dialSocket(t, addr, "")
				c.Send(fr(fin|9, ""))
				expectFrame(t, c, fin|10, "")
				row.do(c)
				if row.code != 0 {
					expectClose(t, c, row.code)
				}
				if why := testkit.Receive(t, r.closed, "Closed"); !row.why(why) {
					t.Errorf("closed for %v", why)
				}
			})
		}
	})
}

// TestSocketGroup broadcasts to sockets with and without compression, by group and by Ref.
func TestSocketGroup(t *testing.T) {
	r := &roomHandler{closed: make(chan error, 2)}
	long := strings.Repeat("all of you ", 100)
	ws := &web.WebSocket{Handler: r, Compression: true, Subprotocols: []string{"chat.v2", "chat"}}
	forEachSocketServer(t, ws, func(t *testing.T, addr string) {
		plain := testkit.Dial(t, addr)
		if p := plain.HandshakeWebSocket("/ws", "Sec-WebSocket-Protocol: foo, chat\r\n").Get("Sec-WebSocket-Protocol"); p != "chat" {
			t.Errorf("the subprotocol is %q", p)
		}
		small := dialSocket(t, addr, "Sec-WebSocket-Extensions: permessage-deflate\r\n")
		testkit.WaitFor(t, "not both have joined", func() bool { return r.group.Len() == 2 })
		plain.Send(fr(fin|1, "protocol"))
		expectFrame(t, plain, fin|1, "chat")
		for _, m := range []string{"short", long} {
			if sent, full := r.group.Broadcast(web.Text, []byte(m)); sent != 2 || full != 0 {
				t.Fatalf("Broadcast: %d sent, %d full", sent, full)
			}
			expectFrame(t, plain, fin|1, m)
			op, p, err := testkit.ReadFrame(small.R)
			if compressed := op&0x40 != 0; err != nil || compressed != (m == long) {
				t.Errorf("the message of %d bytes came as %#x, %v", len(m), op, err)
			} else if compressed {
				p = inflateMessage(t, p)
			}
			if p != m {
				t.Errorf("the message came as %q", p)
			}
		}
		for _, c := range []*testkit.Conn{plain, small} {
			c.Send(fr(fin|8, ""))
			expectClose(t, c, -1)
			testkit.Receive(t, r.closed, "Closed")
		}
	})
}

// TestUpgradeRefused checks the answers to requests that can't become WebSockets.
func TestUpgradeRefused(t *testing.T) {
	mux := http.NewServeMux()
	mux.Handle("/ws", web.Quick(&web.WebSocket{Handler: echoSocket}))
	const good = "GET /ws HTTP/1.1\r\nHost: x\r\nConnection: keep-alive, Upgrade\r\nUpgrade: WebSocket\r\nSec-WebSocket-Version: 13\r\n" +
		"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nOrigin: http://X\r\n\r\n"
	for name, row := range map[string]struct {
		old, new string
		status   int
	}{
		"good":            {"", "", 101},
		"no upgrade":      {"Connection: keep-alive, Upgrade\r\n", "", 426},
		"other upgrade":   {"Upgrade: WebSocket", "Upgrade: h2c", 426},
		"other version":   {"Version: 13", "Version: 8", 426},
		"short key":       {"dGhlIHNhbXBsZSBub25jZQ==", "c2hvcnQ=", 400},
		"other origin":    {"http://X", "http://evil", 403},
		"two origins":     {"Origin: http://X", "Origin: http://X\r\nOrigin: http://evil", 400},
		"POST":            {"GET", "POST", 405},
		"with a body":     {"Host: x", "Host: x\r\nContent-Length: 2", 405},
		"over HTTP/1.0":   {"HTTP/1.1", "HTTP/1.0", 405},
		"two in the list": {"Upgrade: WebSocket", "Upgrade: h2c, websocket", 101},
	} {
		t.Run(name, func(t *testing.T) {
			p := tcptest.NewServer(t, &tcp.Server{Handler: web.Handler(mux)}).Dial()
			p.Send(strings.Replace(good, row.old, row.new, 1))
			version := "HTTP/1.1"
			if row.old == version {
				version = row.new
			}
			p.Expect(fmt.Sprintf("%s %d ", version, row.status))
		})
	}
}

// TestNilHandlers checks that a missing handler is reported before a socket is open.
func TestNilHandlers(t *testing.T) {
	for _, h := range []web.SocketHandler{nil, web.OnMessage(nil)} {
		w := httptest.NewRecorder()
		err := (&web.WebSocket{Handler: h}).Upgrade(w, httptest.NewRequest("GET", "/", nil), nil)
		if !errors.Is(err, web.ErrNoUpgrade) || w.Code != 500 || !strings.Contains(w.Body.String(), "Handler is nil") {
			t.Errorf("%T: %v, %d %q", h, err, w.Code, w.Body)
		}
	}
	defer func() {
		if text := fmt.Sprint(recover()); !strings.Contains(text, "web: Quick: the http.Handler is nil") {
			t.Errorf("Quick(nil) panics with %q", text)
		}
	}()
	web.Quick(nil)
}

// TestHiddenResponseWriter checks the error if middleware hides the ResponseWriter of package web.
func TestHiddenResponseWriter(t *testing.T) {
	ws, events := &web.WebSocket{Handler: echoSocket}, new(web.Events)
	mux := http.NewServeMux()
	mux.Handle("/ws", http.TimeoutHandler(ws, time.Minute, ""))
	mux.Handle("/events", http.TimeoutHandler(events, time.Minute, ""))
	c := testkit.Dial(t, startServer(t, &tcp.Server{Handler: web.Handler(mux)}))
	const fields = "Connection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n"
	for _, path := range []string{"/ws", "/events"} {
		c.Send("GET " + path + " HTTP/1.1\r\nHost: x\r\n" + fields + "\r\n")
		res, body := c.ReadResponse()
		if res.StatusCode != http.StatusInternalServerError || !strings.Contains(body, "*http.timeoutWriter") || !strings.Contains(body, "Unwrap() http.ResponseWriter") {
			t.Errorf("%s: %s %q; want the wrapper's type and the missing method", path, res.Status, body)
		}
	}
}

// TestUpgradeByHandler upgrades in a handler, below middleware, with a cookie and a value.
func TestUpgradeByHandler(t *testing.T) {
	r := &roomHandler{closed: make(chan error, 1)}
	ws := &web.WebSocket{Handler: r}
	h := &web.HTTP{Handler: http.HandlerFunc(func(w http.ResponseWriter, q *http.Request) {
		http.SetCookie(w, &http.Cookie{Name: "a", Value: "b"})
		w = wrappedWriter{w}
		testkit.ExpectNoError(t, ws.Upgrade(w, q, "the value"))
		if err := ws.Upgrade(w, q, nil); !errors.Is(err, web.ErrNoUpgrade) {
			t.Errorf("a second upgrade: %v", err)
		}
		if _, err := w.Write([]byte("x")); !errors.Is(err, http.ErrHijacked) {
			t.Errorf("Write: %v", err)
		}
	})}
	forEachModel(t, h, func(t *testing.T, addr string) {
		c := testkit.Dial(t, addr)
		if got := c.HandshakeWebSocket("/ws", "").Get("Set-Cookie"); got != "a=b" {
			t.Errorf("the cookie is %q", got)
		}
		c.Send(fr(fin|1, "value"))
		expectFrame(t, c, fin|1, "the value")
		c.Close()
		testkit.Receive(t, r.closed, "Closed")
	})
}

type wrappedWriter struct{ http.ResponseWriter }

func (w wrappedWriter) Unwrap() http.ResponseWriter { return w.ResponseWriter }

// TestHeartbeats checks that sockets get pings, streams comments and requests nothing, and that
// only peers that do not answer pings are closed.
func TestHeartbeats(t *testing.T) {
	mux := http.NewServeMux()
	mux.Handle("/ws", web.Quick(&web.WebSocket{Handler: echoSocket}))
	mux.Handle("/events", web.Quick(&web.Events{}))
	entered, enough := make(chan struct{}), make(chan struct{})
	mux.HandleFunc("/slow", func(w http.ResponseWriter, r *http.Request) {
		entered <- struct{}{}
		<-enough
	})
	s := tcptest.NewServer(t, &tcp.Server{Handler: web.Handler(mux), Heartbeat: tcp.Heartbeat{Interval: 10 * time.Second, MaxMissed: 2}})
	deaf, live, events, slow, idle := s.Dial(), s.Dial(), s.Dial(), s.Dial(), s.Dial()
	for p, request := range map[*tcptest.Peer]string{deaf: getRequest("/ws"), live: getRequest("/ws"), events: getRequests("/events"), slow: getRequests("/slow")} {
		p.Send(request)
		p.Output()
	}
	<-entered
	for range 4 { // longer than MaxMissed
		s.Advance(10 * time.Second)
		live.Expect("\x89\x00")
		live.Send(fr(fin|10, ""))
		events.Expect(":\n\n")
	}
	deaf.ExpectClosed(tcp.ErrHeartbeatTimeout)
	idle.ExpectClosed(tcp.ErrHeartbeatTimeout)
	close(enough)
	slow.Expect("HTTP/1.1 200 OK\r\n")
}
