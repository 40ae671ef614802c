package web_test

import (
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/myriad-go/myriad/internal/testkit"
	"github.com/myriad-go/myriad/internal/testkit/testserver"
	"github.com/myriad-go/myriad/tcp"
	"github.com/myriad-go/myriad/web"
)

// room is a handler that tells what it hears.
type room struct {
	web.SocketBase
	group  web.Group
	closed chan error
}

func (r *room) Opened(s web.Socket) { r.group.Add(s) }

func (r *room) Message(s web.Socket, kind web.Kind, m []byte) {
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

func (r *room) Closed(s web.Socket, why error) {
	r.group.Remove(s)
	r.closed <- why
}

// TestSocketEnds has sockets end in each way, and their handler hear which.
func TestSocketEnds(t *testing.T) {
	r := &room{closed: make(chan error, 1)}
	rows := map[string]struct {
		do   func(w *wire)
		code int // of the close that comes; 0 for none
		why  func(error) bool
	}{
		"client closes": {func(w *wire) { w.say(fr(fin|8, closing(1001, "bye")), 0) }, 1001, func(err error) bool {
			var e *web.CloseError
			return errors.As(err, &e) && *e == web.CloseError{Code: 1001, Reason: "bye"}
		}},
		"server closes":       {func(w *wire) { w.say(fr(fin|1, "close"), 0) }, 4000, func(err error) bool { return err == nil }},
		"client ends":         {func(w *wire) { w.Conn.(*net.TCPConn).CloseWrite() }, 0, func(err error) bool { return err == io.ErrUnexpectedEOF }},
		"client is gone":      {func(w *wire) { w.Conn.Close() }, 0, func(err error) bool { return err == io.ErrUnexpectedEOF }},
		"half a frame, gone":  {func(w *wire) { w.say(fr(fin|1, "hello")[:5], 0); w.Conn.Close() }, 0, func(err error) bool { return err == io.ErrUnexpectedEOF }},
		"half a message":      {func(w *wire) { w.say(fr(1, "hello"), 0); w.Conn.Close() }, 0, func(err error) bool { return err == io.ErrUnexpectedEOF }},
		"message too long":    {func(w *wire) { w.say(fr(fin|2, strings.Repeat("x", 70000))[:100], 0) }, 1009, isCode(1009)},
		"fragments too long":  {func(w *wire) { w.say(fr(2, strings.Repeat("x", 40000))+fr(0, strings.Repeat("x", 40000)), 0) }, 1009, isCode(1009)},
		"frame of 2^63 bytes": {func(w *wire) { w.say("\x82\xff\x7f\xff\xff\xff\xff\xff\xff\xff\x00\x00\x00\x00", 0) }, 1009, isCode(1009)},
		"not masked":          {func(w *wire) { w.say("\x81\x05hello", 0) }, 1002, isCode(1002)},
		"16 bits for 5 bytes": {func(w *wire) { w.say("\x81\xfe\x00\x05\x00\x00\x00\x00hello", 0) }, 1002, isCode(1002)},
		"64 bits for 5 bytes": {func(w *wire) { w.say("\x81\xff\x00\x00\x00\x00\x00\x00\x00\x05\x00\x00\x00\x00hello", 0) }, 1002, isCode(1002)},
		"panic": {func(w *wire) { w.say(fr(fin|1, "panic"), 0) }, 0, func(err error) bool {
			var e *tcp.PanicError
			return errors.As(err, &e)
		}},
	}
	eachSocketServer(t, &web.WebSocket{Handler: r}, func(t *testing.T, addr string) {
		for name, row := range rows {
			t.Run(name, func(t *testing.T) {
				w := dialSocket(t, addr, "")
				w.say(fr(fin|9, ""), 0)
				if op, _, err := w.readFrame(); op != fin|10 {
					t.Fatalf("a ping was answered with %#x, %v", op, err)
				}
				row.do(w)
				if row.code != 0 {
					w.wantClose(row.code)
				}
				if why := testkit.Receive(t, r.closed, "Closed"); !row.why(why) {
					t.Errorf("closed for %v", why)
				}
			})
		}
	})
}

func isCode(code int) func(error) bool {
	return func(err error) bool {
		var e *web.CloseError
		return errors.As(err, &e) && e.Code == code
	}
}

// TestSocketGroup broadcasts to sockets with compression and without, by group and by Ref.
func TestSocketGroup(t *testing.T) {
	r := &room{closed: make(chan error, 2)}
	long := strings.Repeat("all of you ", 100)
	eachSocketServer(t, &web.WebSocket{Handler: r, Compression: true, Subprotocols: []string{"chat.v2", "chat"}}, func(t *testing.T, addr string) {
		plain := dialSocket(t, addr, "Sec-WebSocket-Protocol: foo, chat\r\n")
		small := dialSocket(t, addr, "Sec-WebSocket-Extensions: permessage-deflate\r\n")
		testkit.WaitFor(t, "not both have joined", func() bool { return r.group.Len() == 2 })
		if p := plain.head.Get("Sec-WebSocket-Protocol"); p != "chat" {
			t.Errorf("the subprotocol is %q", p)
		}
		plain.say(fr(fin|1, "protocol"), 0)
		plain.wantText("chat")
		for _, m := range []string{"short", long} {
			if sent, full := r.group.Broadcast(web.Text, []byte(m)); sent != 2 || full != 0 {
				t.Fatalf("Broadcast: %d sent, %d full", sent, full)
			}
			plain.wantText(m)
			op, p, err := small.readFrame()
			if compressed := op&0x40 != 0; err != nil || compressed != (m == long) {
				t.Errorf("the message of %d bytes came as %#x, %v", len(m), op, err)
			} else if compressed {
				p = decompressed(t, p)
			}
			if p != m {
				t.Errorf("the message came as %q", p)
			}
		}
		for _, w := range []*wire{plain, small} {
			w.say(fr(fin|8, ""), 0)
			w.wantClose(-1)
			testkit.Receive(t, r.closed, "Closed")
		}
	})
}

func (w *wire) wantText(want string) {
	w.t.Helper()
	if op, p, err := w.readFrame(); err != nil || op != fin|1 || p != want {
		w.t.Fatalf("a frame %#x %q, %v; want %q", op, p, err, want)
	}
}

// TestUpgradeRefused answers requests that can't become WebSockets.
func TestUpgradeRefused(t *testing.T) {
	ws := &web.WebSocket{Handler: echoSocket}
	good := "GET /ws HTTP/1.1\r\nHost: x\r\nConnection: keep-alive, Upgrade\r\nUpgrade: WebSocket\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nOrigin: http://X\r\n\r\n"
	rows := map[string]struct {
		old, new string
		status   int
	}{
		"good":            {"", "", 101},
		"no upgrade":      {"Connection: keep-alive, Upgrade\r\n", "", 426},
		"other upgrade":   {"Upgrade: WebSocket", "Upgrade: h2c", 426},
		"other version":   {"Version: 13", "Version: 8", 426},
		"short key":       {"dGhlIHNhbXBsZSBub25jZQ==", "c2hvcnQ=", 400},
		"no key":          {"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n", "", 400},
		"other origin":    {"http://X", "http://evil", 403},
		"origin null":     {"http://X", "null", 403},
		"two origins":     {"Origin: http://X", "Origin: http://X\r\nOrigin: http://evil", 400},
		"POST":            {"GET", "POST", 405},
		"with a body":     {"Host: x", "Host: x\r\nContent-Length: 2", 405},
		"over HTTP/1.0":   {"HTTP/1.1", "HTTP/1.0", 405},
		"two in the list": {"Upgrade: WebSocket", "Upgrade: h2c, websocket", 101},
	}
	eachSocketServer(t, ws, func(t *testing.T, addr string) {
		for name, row := range rows {
			t.Run(name, func(t *testing.T) {
				nc, r := dial(t, addr)
				io.WriteString(nc, strings.Replace(good, row.old, row.new, 1))
				res, err := http.ReadResponse(r, nil)
				if err != nil || res.StatusCode != row.status {
					t.Errorf("answered with %v, %v; expected %d", res, err, row.status)
				}
			})
		}
	})
}

// TestNilHandlers is what says that a handler is missing before a socket is open.
func TestNilHandlers(t *testing.T) {
	for name, h := range map[string]web.SocketHandler{"nil": nil, "nil OnMessage": web.OnMessage(nil)} {
		w := httptest.NewRecorder()
		err := (&web.WebSocket{Handler: h}).Upgrade(w, httptest.NewRequest("GET", "/", nil), nil)
		if !errors.Is(err, web.ErrNoUpgrade) || w.Code != 500 || !strings.Contains(w.Body.String(), "no Handler") {
			t.Errorf("%s: %v, %d %q", name, err, w.Code, w.Body)
		}
	}
	defer func() {
		if text := fmt.Sprint(recover()); !strings.Contains(text, "web: Quick: the http.Handler is nil") {
			t.Errorf("Quick(nil) panics with %q", text)
		}
	}()
	web.Quick(nil)
}

// TestUpgradeByHandler upgrades in a handler, behind middleware, with a cookie and a value.
func TestUpgradeByHandler(t *testing.T) {
	r := &room{closed: make(chan error, 1)}
	ws := &web.WebSocket{Handler: r}
	h := &web.HTTP{Handler: http.HandlerFunc(func(w http.ResponseWriter, q *http.Request) {
		http.SetCookie(w, &http.Cookie{Name: "a", Value: "b"})
		w = wrapped{w}
		if err := ws.Upgrade(w, q, "the value"); err != nil {
			t.Error(err)
		}
		if err := ws.Upgrade(w, q, nil); !errors.Is(err, web.ErrNoUpgrade) {
			t.Errorf("a second upgrade: %v", err)
		}
		if _, err := w.Write([]byte("x")); !errors.Is(err, http.ErrHijacked) {
			t.Errorf("Write: %v", err)
		}
	})}
	eachModel(t, h, func(t *testing.T, addr string) {
		w := dialSocket(t, addr, "")
		if c := w.head.Get("Set-Cookie"); c != "a=b" {
			t.Errorf("the cookie is %q", c)
		}
		w.say(fr(fin|1, "value"), 0)
		w.wantText("the value")
		w.Close()
		testkit.Receive(t, r.closed, "Closed")
	})
}

type wrapped struct{ http.ResponseWriter }

func (w wrapped) Unwrap() http.ResponseWriter { return w.ResponseWriter }

// TestSocketDrain tells sockets that the server ends.
func TestSocketDrain(t *testing.T) {
	for _, model := range tcp.Models() {
		t.Run(model, func(t *testing.T) {
			addr, stop := testserver.Start(t, &tcp.Server{Model: model, Handler: web.Handler(web.Quick(&web.WebSocket{Handler: echoSocket}))})
			w := dialSocket(t, addr, "")
			go stop()
			w.wantClose(1001)
		})
	}
}

// TestHeartbeats pings sockets, comments on streams, and leaves requests alone: with the same
// server, where only who is to answer and does not is closed.
func TestHeartbeats(t *testing.T) {
	mux := http.NewServeMux()
	mux.Handle("/ws", &web.WebSocket{Handler: echoSocket})
	mux.Handle("/events", &web.Events{})
	enough := make(chan struct{})
	mux.HandleFunc("/slow", func(w http.ResponseWriter, r *http.Request) { <-enough })
	for _, model := range tcp.Models() {
		t.Run(model, func(t *testing.T) {
			addr := serve(t, &tcp.Server{Model: model, Handler: web.Handler(mux), Heartbeat: tcp.Heartbeat{Interval: 100 * time.Millisecond, MaxMissed: 2}})
			deaf, live := dialSocket(t, addr, ""), dialSocket(t, addr, "")
			events, re := dial(t, addr)
			io.WriteString(events, "GET /events HTTP/1.1\r\nHost: x\r\n\r\n")
			slow, rs := dial(t, addr)
			io.WriteString(slow, "GET /slow HTTP/1.1\r\nHost: x\r\n\r\n")
			idle, ri := dial(t, addr)
			_ = idle
			res, err := http.ReadResponse(re, nil)
			if err != nil {
				t.Fatal(err)
			}
			var comments [4 * 3]byte
			for i := range 4 { // longer than MaxMissed
				if op, _, err := live.readFrame(); op != fin|9 {
					t.Fatalf("ping %d: %#x, %v", i, op, err)
				}
				live.say(fr(fin|10, ""), 0)
			}
			if _, err := io.ReadFull(res.Body, comments[:]); string(comments[:]) != ":\n\n:\n\n:\n\n:\n\n" {
				t.Errorf("the stream got %q, %v", comments, err)
			}
			if _, err := io.ReadAll(deaf.r); err != nil && !errors.Is(err, syscall.ECONNRESET) {
				t.Errorf("a socket that leaves pings unanswered ended with %v", err)
			}
			if _, err := io.ReadAll(ri); err != nil && !errors.Is(err, syscall.ECONNRESET) {
				t.Errorf("an idle connection ended with %v", err)
			}
			enough <- struct{}{}
			answer(t, rs)
		})
	}
}
