package libraries

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/coder/websocket"
	"github.com/gobwas/httphead"
	"github.com/gobwas/ws"
	"github.com/gobwas/ws/wsflate"

	"github.com/myriad-go/myriad/internal/testkit"
	"github.com/myriad-go/myriad/internal/testkit/testserver"
	"github.com/myriad-go/myriad/tcp"
	"github.com/myriad-go/myriad/web"
)

// readFrame reads a frame of at most 2 MiB.
func readFrame(r io.Reader) (f ws.Frame, err error) {
	if f.Header, err = ws.ReadHeader(r); err != nil || f.Header.Length > 2<<20 {
		return f, errors.Join(err, fmt.Errorf("a frame of %d bytes", f.Header.Length))
	}
	f.Payload = make([]byte, f.Header.Length)
	_, err = io.ReadFull(r, f.Payload)
	return f, err
}

// echoSockets echoes messages and reports closed sockets.
type echoSockets struct {
	web.SocketBase
	closed chan error
}

func (e *echoSockets) Message(s web.Socket, kind web.Kind, message []byte) {
	if err := s.Write(kind, message); err != nil {
		s.Close(web.CloseInternal, err.Error())
	}
}

func (e *echoSockets) Closed(_ web.Socket, why error) { e.closed <- why }

func (e *echoSockets) waitClosed(t *testing.T, code int, reason string) {
	t.Helper()
	var is *web.CloseError
	if why := <-e.closed; !errors.As(why, &is) || *is != (web.CloseError{Code: code, Reason: reason}) {
		t.Errorf("Closed(%v); want %d %q", why, code, reason)
	}
}

var sizes = []int{0, 1, 125, 126, 8191, 65535, 65536, 1 << 20}

func newEchoServer() (*echoSockets, *web.HTTP) {
	e := &echoSockets{closed: make(chan error, 1)}
	mux := http.NewServeMux()
	one := func(compression bool) http.Handler {
		return &web.WebSocket{Handler: e, MaxMessage: 1 << 20, Subprotocols: []string{"chat.v2", "chat"}, Compression: compression}
	}
	mux.Handle("/plain", one(false))
	mux.Handle("/deflate", web.Quick(one(true)))
	return e, &web.HTTP{Handler: mux}
}

// TestWebWithCoderClient exchanges messages of all sizes and in fragments, compressed and not.
func TestWebWithCoderClient(t *testing.T) {
	e, h := newEchoServer()
	modes := map[string]websocket.CompressionMode{
		"plain": websocket.CompressionDisabled, "deflate": websocket.CompressionNoContextTakeover, "deflate with contexts offered": websocket.CompressionContextTakeover,
	}
	runUnderWeb(t, h, nil, func(t *testing.T, addr string) {
		for name, mode := range modes {
			for _, path := range []string{"/plain", "/deflate"} {
				t.Run(name+path, func(t *testing.T) {
					ctx, cancel := context.WithTimeout(context.Background(), testTimeout)
					defer cancel()
					c, res, err := websocket.Dial(ctx, "ws://"+addr+path, &websocket.DialOptions{CompressionMode: mode, Subprotocols: []string{"other", "chat"}})
					testkit.RequireNoError(t, err)
					c.SetReadLimit(-1)
					if c.Subprotocol() != "chat" {
						t.Errorf("the subprotocol is %q", c.Subprotocol())
					}
					extensions := res.Header.Get("Sec-WebSocket-Extensions")
					if (extensions != "") != (path == "/deflate" && mode != websocket.CompressionDisabled) {
						t.Errorf("the extensions are %q", extensions)
					}
					for _, size := range sizes {
						for _, kind := range []websocket.MessageType{websocket.MessageText, websocket.MessageBinary} {
							message := strings.Repeat("0123456789 äöü", size/16+1)[:size]
							if kind == websocket.MessageText {
								message = strings.ToValidUTF8(message, "")
							}
							testkit.RequireNoError(t, c.Write(ctx, kind, []byte(message)))
							if k, got, err := c.Read(ctx); k != kind || string(got) != message || err != nil {
								t.Fatalf("got %v of %d bytes, %v; want %v of %d", k, len(got), err, kind, len(message))
							}
						}
					}
					w, err := c.Writer(ctx, websocket.MessageText)
					testkit.RequireNoError(t, err)
					for i := range 100 { // one fragment each
						fmt.Fprintf(w, "%099d ", i)
					}
					w.Close()
					if _, got, err := c.Read(ctx); len(got) != 10_000 || err != nil {
						t.Errorf("a message in fragments came back as %d bytes, %v", len(got), err)
					}
					if err := c.Close(4000, "enough"); err != nil {
						t.Errorf("the closing handshake: %v", err)
					}
					e.waitClosed(t, 4000, "enough")
				})
			}
		}
	})
}

// TestWebWithGobwasClient exchanges compressed frames. The Autobahn cases of package web have fragments and pings.
func TestWebWithGobwasClient(t *testing.T) {
	e, h := newEchoServer()
	runUnderWeb(t, h, nil, func(t *testing.T, addr string) {
		ctx, cancel := context.WithTimeout(context.Background(), testTimeout)
		defer cancel()
		d := ws.Dialer{Protocols: []string{"other", "chat.v2"}, Extensions: []httphead.Option{wsflate.DefaultParameters.Option()}}
		c, early, hs, err := d.Dial(ctx, "ws://"+addr+"/deflate")
		testkit.RequireNoError(t, err)
		defer c.Close()
		if early != nil || hs.Protocol != "chat.v2" || len(hs.Extensions) != 1 {
			t.Fatalf("agreed on %+v, with early data: %v", hs, early != nil)
		}
		deadline, _ := ctx.Deadline()
		c.SetDeadline(deadline)
		for _, size := range sizes {
			message := bytes.Repeat([]byte("compress me "), size/12+1)[:size]
			f, err := wsflate.CompressFrame(ws.NewBinaryFrame(message))
			testkit.RequireNoError(t, err)
			testkit.RequireNoError(t, ws.WriteFrame(c, ws.MaskFrameInPlace(f)))
			got, err := readFrame(c)
			testkit.RequireNoError(t, err)
			small, err := wsflate.IsCompressed(got.Header)
			if small != (size >= 512) || err != nil {
				t.Errorf("%d bytes came compressed: %t, %v", size, small, err)
			}
			if small {
				got, err = wsflate.DecompressFrame(got)
				testkit.RequireNoError(t, err)
			}
			if !bytes.Equal(got.Payload, message) {
				t.Errorf("%d bytes came as %d others", size, len(got.Payload))
			}
		}
		bye := ws.NewCloseFrame(ws.NewCloseFrameBody(4002, "enough"))
		testkit.RequireNoError(t, ws.WriteFrame(c, ws.MaskFrame(bye)))
		if got, err := readFrame(c); got.Header != bye.Header || !bytes.Equal(got.Payload, bye.Payload) || err != nil {
			t.Errorf("the close was answered with %+v, %v", got, err)
		}
		c.Close()
		e.waitClosed(t, 4002, "enough")
	})
}

// dialedEcho sends messages of all sizes, each when the previous one has come back, and closes.
type dialedEcho struct {
	web.SocketBase
	t      *testing.T
	next   int
	closed chan error
}

func (d *dialedEcho) message() string { return strings.Repeat("x", sizes[d.next]) }

func (d *dialedEcho) Opened(s web.Socket) {
	if s.Subprotocol() != "chat" {
		d.t.Errorf("the subprotocol is %q", s.Subprotocol())
	}
	_ = s.WriteText(d.message())
}

func (d *dialedEcho) Message(s web.Socket, _ web.Kind, m []byte) {
	if string(m) != d.message() {
		d.t.Errorf("%d bytes came back as %d, or others", len(d.message()), len(m))
	}
	if d.next++; d.next == len(sizes) {
		_ = s.Close(4000, "enough")
		return
	}
	_ = s.WriteText(d.message())
}

func (d *dialedEcho) Closed(_ web.Socket, why error)         { d.closed <- why }
func (d *dialedEcho) DialFailed(_ web.SocketDial, why error) { d.closed <- why }

// TestWebDialsCoderServer connects web's client to a server of coder/websocket.
func TestWebDialsCoderServer(t *testing.T) {
	for _, model := range tcp.Models() {
		for _, mode := range []websocket.CompressionMode{websocket.CompressionDisabled, websocket.CompressionNoContextTakeover, websocket.CompressionContextTakeover} {
			t.Run(fmt.Sprint(model, mode), func(t *testing.T) {
				status := make(chan error, 1)
				s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
					c, err := websocket.Accept(w, r, &websocket.AcceptOptions{Subprotocols: []string{"chat"}, CompressionMode: mode})
					if err != nil {
						status <- err
						return
					}
					c.SetReadLimit(-1)
					for {
						kind, m, err := c.Read(r.Context())
						if err != nil {
							status <- err
							return
						}
						if err := c.Write(r.Context(), kind, m); err != nil {
							status <- err
							return
						}
					}
				}))
				defer s.Close()
				srv := &tcp.Server{Model: model, Handler: tcp.Base{}, Limits: tcp.Limits{MaxUnsent: 4 << 20}}
				testserver.Start(t, srv)
				d := &dialedEcho{t: t, closed: make(chan error, 1)}
				ws := &web.WebSocket{Handler: d, MaxMessage: 1 << 20, Subprotocols: []string{"other", "chat"}, Compression: true}
				testkit.RequireNoError(t, ws.Dial(srv, web.SocketDial{URL: "ws" + strings.TrimPrefix(s.URL, "http")}))
				if why := testkit.Receive(t, d.closed, "Closed"); why != nil {
					t.Errorf("closed for %v", why)
				}
				if err := testkit.Receive(t, status, "the server's end"); websocket.CloseStatus(err) != 4000 {
					t.Errorf("the server's end: %v", err)
				}
			})
		}
	}
}
