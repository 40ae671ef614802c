package web_test

import (
	"bufio"
	"bytes"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/myriad-go/myriad/internal/testkit"
	"github.com/myriad-go/myriad/internal/wsframe"
	"github.com/myriad-go/myriad/tcp"
	"github.com/myriad-go/myriad/tcp/tcptest"
	"github.com/myriad-go/myriad/web"
)

// dialedSocket is the handler of dialed sockets. It records its calls.
type dialedSocket struct {
	events chan string
	refs   chan tcp.Ref
	onOpen func(web.Socket)
}

func newDialedSocket() *dialedSocket {
	return &dialedSocket{events: make(chan string, 100), refs: make(chan tcp.Ref, 1)}
}

func (d *dialedSocket) Opened(s web.Socket) {
	d.events <- fmt.Sprintf("opened %q %v %v", s.Subprotocol(), s.Compressed(), s.Value())
	d.refs <- s.Ref()
	if d.onOpen != nil {
		d.onOpen(s)
	}
}

func (d *dialedSocket) Message(s web.Socket, kind web.Kind, m []byte) {
	d.events <- fmt.Sprintf("message %d %s", kind, m)
	if string(m) == "close, please" {
		_ = s.Close(4001, "as you like")
	}
}

func (d *dialedSocket) Closed(_ web.Socket, why error) { d.events <- fmt.Sprint("closed ", why) }
func (d *dialedSocket) DialFailed(to web.SocketDial, why error) {
	d.events <- fmt.Sprint("failed ", to.Value, " ", why)
}

func (d *dialedSocket) expect(t *testing.T, events ...string) {
	t.Helper()
	for _, want := range events {
		if got := testkit.Receive(t, d.events, want); got != want {
			t.Errorf("got %.200q; expected %.200q", got, want)
		}
	}
}

// TestDialSocket dials this package's own server, with and without TLS and compression.
func TestDialSocket(t *testing.T) {
	cert, roots := newCertificate(t)
	long := strings.Repeat("a long message, ", 5000)
	for _, model := range tcp.Models() {
		for _, secure := range []bool{false, true} {
			t.Run(fmt.Sprint(model, " TLS ", secure), func(t *testing.T) {
				r := &roomHandler{closed: make(chan error, 2)}
				ws := &web.WebSocket{Handler: r, Subprotocols: []string{"chat", "other"}, Compression: secure, MaxMessage: 1 << 20}
				srv, scheme := &tcp.Server{Model: model, Handler: web.Handler(web.Quick(ws))}, "ws://"
				if secure {
					srv.TLSConfig, scheme = &tls.Config{Certificates: cert}, "wss://"
				}
				url := scheme + startServer(t, srv)
				d := newDialedSocket()
				d.onOpen = func(s web.Socket) {
					for _, m := range []string{"", "protocol", long[:125], long[:126], long[:65536]} {
						testkit.ExpectNoError(t, s.WriteText(m))
					}
					testkit.ExpectNoError(t, s.Ping())
				}
				client := &web.WebSocket{Handler: d, Subprotocols: []string{"unknown", "other"}, Compression: true, MaxMessage: 1 << 20}
				dial := web.SocketDial{URL: url + "/ws?a=b", Value: 7, TLSConfig: &tls.Config{RootCAs: roots, ServerName: "example.com"},
					Header: http.Header{"sec-websocket-key": {"mine"}}}
				testkit.RequireNoError(t, client.Dial(srv, dial))
				d.expect(t, fmt.Sprintf("opened %q %v 7", "other", secure), "message 1 ", "message 1 other",
					"message 1 "+long[:125], "message 1 "+long[:126], "message 1 "+long[:65536])
				ref := testkit.Receive(t, d.refs, "the socket")
				_ = ref.Send(web.MaskFrame(web.Frame(web.Binary, long)))
				d.expect(t, "message 2 "+long)
				r.group.Broadcast(web.Text, []byte("to all"))
				d.expect(t, "message 1 to all")
				_ = ref.Send(web.MaskFrame(web.Frame(web.Text, "close")))
				d.expect(t, "closed websocket: close 4000: as asked")
				if why := testkit.Receive(t, r.closed, "Closed"); why != nil {
					t.Errorf("the server's end has closed for %v", why)
				}
				var group web.Group
				d.onOpen = func(s web.Socket) { group.Add(s) }
				testkit.RequireNoError(t, client.Dial(srv, dial))
				d.expect(t, fmt.Sprintf("opened %q %v 7", "other", secure))
				testkit.WaitFor(t, "not both ends are in groups", func() bool { return group.Len() == 1 && r.group.Len() == 1 })
				if sent, full := group.Broadcast(web.Binary, []byte(long)); sent != 1 || full != 0 {
					t.Errorf("Broadcast: %d sent, %d full", sent, full)
				}
				d.expect(t, "message 2 "+long)
				r.group.Broadcast(web.Text, []byte("close, please"))
				d.expect(t, "message 1 close, please", "closed <nil>")
				var e *web.CloseError
				if why := testkit.Receive(t, r.closed, "Closed"); !errors.As(why, &e) || *e != (web.CloseError{Code: 4001, Reason: "as you like"}) {
					t.Errorf("the server's end has closed for %v", why)
				}
			})
		}
	}
}

const switching = "HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Accept: ACCEPT\r\n\r\n"

// acceptHandshake accepts a connection and answers its request with response, in which ACCEPT is replaced.
func acceptHandshake(t *testing.T, l net.Listener, response string) *testkit.Conn {
	t.Helper()
	nc, err := l.Accept()
	testkit.RequireNoError(t, err)
	c := testkit.NewConn(t, nc)
	req, err := http.ReadRequest(c.R)
	testkit.RequireNoError(t, err)
	c.Send(strings.ReplaceAll(response, "ACCEPT", wsframe.AcceptValue(req.Header.Get("Sec-WebSocket-Key"))))
	return c
}

func forEachDialer(t *testing.T, ws *web.WebSocket, f func(t *testing.T, dial func() net.Listener)) {
	for _, model := range tcp.Models() {
		t.Run(model, func(t *testing.T) {
			s := &tcp.Server{Model: model, Handler: tcp.Base{}, Limits: tcp.Limits{CloseTimeout: time.Minute, Linger: time.Millisecond}}
			startServer(t, s)
			l, err := net.Listen("tcp", "127.0.0.1:0")
			testkit.RequireNoError(t, err)
			t.Cleanup(func() { l.Close() })
			f(t, func() net.Listener {
				testkit.RequireNoError(t, ws.Dial(s, web.SocketDial{URL: "ws://" + l.Addr().String(), Value: 7, Timeout: time.Minute}))
				return l
			})
		})
	}
}

// TestBadHandshakes checks what a client accepts and rejects in the response to its handshake.
func TestBadHandshakes(t *testing.T) {
	replace := func(old, new string) string { return strings.Replace(switching, old, new, 1) }
	add := func(fields string) string { return replace("\r\n\r\n", "\r\n"+fields+"\r\n\r\n") }
	const invalid = "failed 7 web: invalid response to the WebSocket handshake: "
	const extension = "Sec-WebSocket-Extensions: permessage-deflate; "
	rows := map[string]struct{ response, want string }{
		"good":                 {switching, `opened "" false 7`},
		"early hints":          {"HTTP/1.1 103 Early Hints\r\nLink: </a>\r\n\r\n" + switching, `opened "" false 7`},
		"a list":               {replace("Connection: Upgrade", "connection: keep-alive, upgrade"), `opened "" false 7`},
		"subprotocol":          {add("Sec-WebSocket-Protocol: p"), `opened "p" false 7`},
		"compression":          {add(extension + "server_no_context_takeover; server_max_window_bits=10"), `opened "" true 7`},
		"refused":              {"HTTP/1.1 403 Forbidden\r\nContent-Length: 8\r\n\r\nno entry", `failed 7 web: the server answered the WebSocket handshake with 403 Forbidden: "no entry"`},
		"refused, long":        {"HTTP/1.1 403 Forbidden\r\nContent-Length: 9999\r\n\r\n" + strings.Repeat("x", 5000), strings.Repeat("x", 1<<10) + `"; expected 101`},
		"refused, cut":         {"HTTP/1.1 403 Forbidden\r\nContent-Length: 9\r\n\r\nno e<end>", `403 Forbidden: "no e"`},
		"refused, until close": {"HTTP/1.0 500 X\r\n\r\nno entry<end>", `500 Internal Server Error: "no entry"`},
		"redirect":             {"HTTP/1.1 302 Found\r\nLocation: /x\r\nContent-Length: 0\r\n\r\n", `302 Found: ""; expected 101`},
		"not HTTP":             {"220 mail\r\n\r\n", invalid + `malformed HTTP status code "mail"`},
		"lines end in LF":      {strings.ReplaceAll(switching, "\r", ""), invalid + "a line ends with LF alone"},
		"long head":            {replace("\r\n\r\n", "\r\nX: "+strings.Repeat("x", 20_000)), invalid + "the head is larger than 16384 bytes"},
		"HTTP/1.0":             {replace("1.1", "1.0"), invalid + "the server's protocol is HTTP/1.0"},
		"no upgrade":           {replace("Upgrade: websocket\r\n", ""), invalid + `the server's Upgrade is ""; expected websocket`},
		"no connection":        {replace("Connection: Upgrade", "Connection: keep-alive"), invalid + `the server's Connection is "keep-alive"`},
		"wrong accept":         {replace("ACCEPT", "xACCEPT"), invalid + `the server's Sec-Websocket-Accept is "x`},
		"two accepts":          {add("Sec-WebSocket-Accept: ACCEPT"), invalid + "the server's Sec-Websocket-Accept is "},
		"other subprotocol":    {add("Sec-WebSocket-Protocol: P"), invalid + `the server's Sec-Websocket-Protocol is "P"; expected none or one of ["p"]`},
		"context takeover":     {add(extension + "client_no_context_takeover"), "expected permessage-deflate; server_no"},
		"client's window":      {add(extension + "server_no_context_takeover; client_max_window_bits=9"), "expected permessage-deflate; server_no"},
		"no answer":            {"<end>", "failed 7 unexpected EOF"},
	}
	d := newDialedSocket()
	forEachDialer(t, &web.WebSocket{Handler: d, Subprotocols: []string{"p"}, Compression: true}, func(t *testing.T, dial func() net.Listener) {
		for name, row := range rows {
			response, ends := strings.CutSuffix(row.response, "<end>")
			c := acceptHandshake(t, dial(), response)
			if ends {
				c.CloseWrite()
			}
			got := testkit.Receive(t, d.events, row.want)
			if !strings.Contains(got, row.want) {
				t.Errorf("%s: got %.500q; expected %q", name, got, row.want)
			}
			if c.Close(); strings.HasPrefix(got, "opened") {
				<-d.refs
				d.expect(t, "closed unexpected EOF")
			}
		}
	})
}

// TestDialSocketFails checks the errors of Dial, and failures without a response.
func TestDialSocketFails(t *testing.T) {
	for _, model := range tcp.Models() {
		t.Run(model, func(t *testing.T) {
			s, d := &tcp.Server{Model: model, Handler: tcp.Base{}}, newDialedSocket()
			startServer(t, s)
			ws := &web.WebSocket{Handler: d}
			for _, bad := range []web.SocketDial{{}, {URL: "http://x"}, {URL: "ws:///path"}, {URL: "ws://x:y"}, {URL: "wss://me:secret@x"}, {URL: "ws://x#y"},
				{URL: "ws://x", Timeout: -1}, {URL: "ws://127.0.0.1", Source: netip.IPv6Loopback()}} {
				if err := ws.Dial(s, bad); !errors.Is(err, tcp.ErrBadConfig) || strings.Contains(err.Error(), "secret") {
					t.Errorf("%+v: %v", bad, err)
				}
			}
			if err := new(web.WebSocket).Dial(s, web.SocketDial{URL: "ws://x"}); !errors.Is(err, tcp.ErrBadConfig) {
				t.Errorf("no Handler: %v", err)
			}
			l, err := net.Listen("tcp", "127.0.0.1:0") // it never accepts
			testkit.RequireNoError(t, err)
			dial := web.SocketDial{URL: "ws://" + l.Addr().String(), Value: 7, Timeout: 10 * time.Millisecond}
			testkit.RequireNoError(t, ws.Dial(s, dial))
			d.expect(t, "failed 7 "+tcp.ErrDialTimeout.Error())
			l.Close()
			dial.Timeout = 0
			testkit.RequireNoError(t, ws.Dial(s, dial))
			d.expect(t, "failed 7 connection refused")
		})
	}
}

// readMasked reads a client's frame, which must be masked, and describes it.
func readMasked(t *testing.T, r *bufio.Reader) string {
	t.Helper()
	for n := 2; ; n++ {
		if p, err := r.Peek(n); err != nil {
			t.Fatalf("%q, %v", p, err)
		} else if h, err := wsframe.ParseHeadIfComplete(p); err != nil || n > 14 {
			t.Fatalf("%q: %v", p, err)
		} else if h.Len > 0 {
			if !h.Masked {
				t.Errorf("the frame is not masked")
			}
			payload := make([]byte, h.Len+int(h.Size))
			_, _ = io.ReadFull(r, payload)
			payload = payload[h.Len:]
			wsframe.ApplyMask(payload, payload, h.Mask, 0)
			return fmt.Sprintf("%#x %s", h.First, payload)
		}
	}
}

// TestDialedFrames checks how a client handles the frames of a server.
func TestDialedFrames(t *testing.T) {
	frame := func(first byte, payload string) string {
		return string(append([]byte{first, byte(len(payload))}, payload...))
	}
	closes := func(code int, reason string) string {
		return fmt.Sprintf("closed websocket: close %d: %s", code, reason)
	}
	rows := []struct {
		in, answer string // the frames of the server and the first one of the client
		events     []string
	}{
		{frame(0x01, "hel") + frame(0x80, "lo") + frame(0x89, "p"), "0x8a p", []string{"message 1 hello", "closed unexpected EOF"}},
		{frame(0x88, closeFrame(1000, "bye")), "0x88 " + closeFrame(1000, "bye"), []string{closes(1000, "bye")}},
		{frame(0x88, ""), "0x88 ", []string{closes(1005, "")}},
		{fr(0x81, "hello"), "0x88 " + closeFrame(1002, "a frame from the server is masked; expected it unmasked"), []string{closes(1002, "a frame from the server is masked; expected it unmasked")}},
		{frame(0x80, "x"), "0x88 " + closeFrame(1002, "a continuation frame without a message"), []string{closes(1002, "a continuation frame without a message")}},
		{"\x82\x7e\x04\x01", "0x88 " + closeFrame(1009, "the message is larger than 1024 bytes"), []string{closes(1009, "the message is larger than 1024 bytes")}},
	}
	d := newDialedSocket()
	forEachDialer(t, &web.WebSocket{Handler: d, MaxMessage: 1 << 10}, func(t *testing.T, dial func() net.Listener) {
		for _, row := range rows {
			c := acceptHandshake(t, dial(), switching+row.in) // the first frames arrive with the response
			d.expect(t, `opened "" false 7`)
			<-d.refs
			if got := readMasked(t, c.R); got != row.answer {
				t.Errorf("%q is answered with %q; expected %q", row.in, got, row.answer)
			}
			c.Close() // the client waits for that
			d.expect(t, row.events...)
		}
	})
}

// TestMaskFrame checks that masks differ, and that other bytes than frames are not masked.
func TestMaskFrame(t *testing.T) {
	frame := web.CloseFrame(1000, strings.Repeat("x", 100))
	a, b := web.MaskFrame(frame), web.MaskFrame(frame)
	if bytes.Equal(a, b) || len(a) != len(frame)+4 {
		t.Errorf("the same mask twice, or the wrong size: %x %x", a, b)
	}
	for _, bad := range [][]byte{nil, frame[:1], frame[:9], append(frame, 0), a, {0x83, 0}} {
		func() {
			defer func() {
				if text := fmt.Sprint(recover()); !strings.Contains(text, "MaskFrame") {
					t.Errorf("%x: %s", bad, text)
				}
			}()
			web.MaskFrame(bad)
		}()
	}
}

// TestServerClosesFirst checks that a client leaves the end of the TCP connection to the server, and how long.
func TestServerClosesFirst(t *testing.T) {
	srv, d := &tcp.Server{Handler: tcp.Base{}}, newDialedSocket()
	s := tcptest.NewServer(t, srv)
	d.onOpen = func(s web.Socket) { _ = s.Close(1000, "") }
	testkit.RequireNoError(t, (&web.WebSocket{Handler: d}).Dial(srv, web.SocketDial{URL: "ws://192.0.2.7/path?query", Header: http.Header{"origin": {"o"}, "host": {"h"}}}))
	p := s.AcceptDial()
	req, err := http.ReadRequest(bufio.NewReader(strings.NewReader(p.Output())))
	testkit.RequireNoError(t, err)
	if got := fmt.Sprintln(p.Addr(), req.RequestURI, req.Host, req.Header["Origin"]); got != "192.0.2.7:80 /path?query h [o]\n" {
		t.Errorf("the request is %s", got)
	}
	p.Send(strings.ReplaceAll(switching, "ACCEPT", wsframe.AcceptValue(req.Header.Get("Sec-WebSocket-Key"))))
	if got := readMasked(t, bufio.NewReader(strings.NewReader(p.Output()))); got != "0x88 "+closeFrame(1000, "") {
		t.Errorf("the client sends %q", got)
	}
	s.Advance(9 * time.Second)
	p.Send("more")
	if why, closed := p.Closed(); closed {
		t.Errorf("closed for %v before the server's end", why)
	}
	s.Advance(2 * time.Second)
	p.ExpectClosed(nil)
	d.expect(t, `opened "" false <nil>`, "closed <nil>")
}
