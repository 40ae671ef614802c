package browser

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/chromedp/cdproto/security"
	"github.com/chromedp/chromedp"

	"github.com/myriad-go/myriad/internal/testkit"
	"github.com/myriad-go/myriad/internal/testkit/testserver"
	"github.com/myriad-go/myriad/tcp"
	"github.com/myriad-go/myriad/web"
)

// serveWeb serves a handler with package web until the test ends, over TLS if cfg is not nil.
func serveWeb(t *testing.T, model string, h *web.HTTP, cfg *tls.Config) (url string, s *tcp.Server) {
	t.Helper()
	s = &tcp.Server{Model: model, Handler: h, Limits: tcp.Limits{MaxUnsent: 2 << 20}, TLSConfig: cfg}
	addr, _ := testserver.Start(t, s)
	if cfg != nil {
		return "https://" + addr + "/", s
	}
	return "http://" + addr + "/", s
}

// said is a socket's handler that echoes and tells of ends.
type said struct {
	web.SocketBase
	closed chan error
}

func (e *said) Message(s web.Socket, kind web.Kind, message []byte) {
	if string(message) == "close" {
		s.Close(4001, "as asked")
		return
	}
	if err := s.Write(kind, message); err != nil {
		s.Close(web.CloseInternal, err.Error())
	}
}

func (e *said) Closed(_ web.Socket, why error) { e.closed <- why }

// TestWeb has a page use what package web serves, under each model: sockets, streams of
// events that connect again, and bodies that stream.
func TestWeb(t *testing.T) {
	u := newUsedSite()
	for _, model := range append(tcp.Models(), tcp.Auto) {
		t.Run(model, func(t *testing.T) {
			url, _ := serveWeb(t, model, &web.HTTP{Handler: u.mux}, nil)
			u.use(open(t, url))
		})
	}
}

// TestWebTLS does the same over TLS, with HTTP/1.1 and HTTP/2. Sockets always use HTTP/1.1.
func TestWebTLS(t *testing.T) {
	certified := httptest.NewUnstartedServer(nil)
	certified.StartTLS()
	certified.Close()
	trust := chromedp.Func(func(ctx context.Context, _ *chromedp.Target) error {
		_, err := chromedp.Call(ctx, security.SetIgnoreCertificateErrors, security.SetIgnoreCertificateErrorsParams{Ignore: true})
		return err
	})
	u := newUsedSite()
	for _, model := range tcp.Models() {
		for protocol, without := range map[string]bool{"http/1.1": true, "h2": false} {
			t.Run(model+"/"+protocol, func(t *testing.T) {
				url, s := serveWeb(t, model, &web.HTTP{Handler: u.mux, DisableHTTP2: without}, &tls.Config{Certificates: certified.TLS.Certificates})
				p := open(t, url, trust)
				if used := eval[string](p, `performance.getEntriesByType("navigation")[0].nextHopProtocol`); used != protocol {
					t.Errorf("the page came over %q, want %q", used, protocol)
				}
				u.use(p)
				if n := s.Stats().TLS; n.Compact < 3 || n.Version+n.CipherSuite > 0 {
					t.Errorf("handshakes by what processes the records: %+v, want 3 or more that are compact", n)
				}
			})
		}
	}
}

// usedSite is a site of which a page uses everything.
type usedSite struct {
	mux  *http.ServeMux
	said *said
	next chan bool // lets the answer of /stream go on
}

func newUsedSite() *usedSite {
	u := &usedSite{mux: http.NewServeMux(), said: &said{closed: make(chan error, 1)}, next: make(chan bool)}
	mux := u.mux
	mux.HandleFunc("GET /{$}", func(w http.ResponseWriter, r *http.Request) {
		io.WriteString(w, `<!doctype html><html data-ready=yes><link rel=icon href="data:,">`)
	})
	mux.Handle("GET /socket", &web.WebSocket{Handler: u.said, Compression: true, MaxMessage: 1 << 20, Subprotocols: []string{"chat"}})
	// Each stream has one event and ends, so that the browser connects again.
	events := &web.Events{Opened: func(c *tcp.Conn) {
		last := c.Value().(string)
		c.Write(web.Event{ID: last + "i", Data: "after " + last, Retry: 1e6}.Bytes())
		if len(last) < 3 {
			c.Close()
		}
	}}
	mux.HandleFunc("GET /events", func(w http.ResponseWriter, r *http.Request) {
		events.Subscribe(w, r, r.Header.Get("Last-Event-ID"))
	})
	mux.HandleFunc("POST /stream", func(w http.ResponseWriter, r *http.Request) {
		n, err := io.Copy(io.Discard, r.Body)
		fmt.Fprintf(w, "%d bytes, %v;", n, err)
		for range 2 {
			http.NewResponseController(w).Flush()
			<-u.next
			io.WriteString(w, "more;")
		}
	})
	return u
}

func (u *usedSite) use(p *tab) {
	p.t.Helper()
	p.socket(u.said)
	eval[bool](p, `window.got = [], window.es = new EventSource("events"), es.onmessage = (m) => got.push(m.lastEventId + " " + m.data), true`)
	p.until(`got.join() === "i after ,ii after i,iii after ii,iiii after iii" && es.readyState === 1`)
	eval[bool](p, `es.close(), true`)
	p.streams(u.next)
	p.quiet("", "403") // of the origin
}

// socket opens sockets, whose browser negotiates compression, and closes them in both
// directions.
func (p *tab) socket(e *said) {
	t := p.t
	const connect = `window.got = [], window.end = null, window.ws = new WebSocket(location.origin.replace("http", "ws") + "/socket", ["other", "chat"]), ws.binaryType = "arraybuffer",
		ws.onmessage = (m) => got.push(m.data), ws.onclose = (c) => end = c.code + " " + c.reason + " " + c.wasClean, true`
	eval[bool](p, connect)
	p.until(`ws.readyState === 1`)
	if agreed := eval[string](p, `ws.protocol + " " + ws.extensions`); agreed != "chat permessage-deflate; server_no_context_takeover; client_no_context_takeover" {
		t.Errorf("agreed on %q", agreed)
	}
	eval[bool](p, `window.sent = ["short", "äöü ".repeat(125000), new Uint8Array(1 << 20).map((_, i) => i * i >> 7), ""], sent.forEach((m) => ws.send(m)), true`)
	p.until(`got.length === sent.length`)
	if !eval[bool](p, `got.every((m, i) => typeof m === "string" ? m === sent[i] : new Uint8Array(m).every((b, at) => b === sent[i][at]))`) {
		t.Error("what came back is not what was sent")
	}
	eval[bool](p, `ws.close(4000, "enough"), true`)
	p.until(`end === "4000 enough true"`)
	var is *web.CloseError
	if why := testkit.Receive(t, e.closed, "Closed"); !errors.As(why, &is) || *is != (web.CloseError{Code: 4000, Reason: "enough"}) {
		t.Errorf("Closed(%v)", why)
	}
	eval[bool](p, connect)
	p.until(`ws.readyState === 1`)
	eval[bool](p, `ws.send("close"), true`)
	p.until(`end === "4001 as asked true"`)
	if why := testkit.Receive(t, e.closed, "Closed"); why != nil {
		t.Errorf("Closed(%v)", why)
	}
	// A page of another origin may not.
	eval[bool](p, strings.Replace(connect, "location.origin", `location.origin.replace("127.0.0.1", "localhost")`, 1))
	p.until(`end === "1006  false"`)
}

// streams uploads a body and reads an answer as it comes. (Chromium streams a request's body
// over HTTP/2 alone.)
func (p *tab) streams(next chan bool) {
	eval[bool](p, `window.body = "", fetch("stream", { method: "POST", body: new Blob([new Uint8Array(3 << 20)]) }).then(async (r) => {
		const reader = r.body.pipeThrough(new TextDecoderStream()).getReader();
		for (let part; !(part = await reader.read()).done; ) body += part.value;
		body += "end";
	}), true`)
	const first = "3145728 bytes, <nil>;"
	for _, want := range []string{first, first + "more;"} {
		p.until(fmt.Sprintf("body === %q", want))
		next <- true
	}
	p.until(fmt.Sprintf("body === %q", first+"more;more;end"))
}

// TestWebChat has two readers of examples/webchat talk with each other.
func TestWebChat(t *testing.T) {
	url := "http://" + start(t, "./examples/webchat", "-addr", "127.0.0.1:0").WaitForOutput(` on (\S+)\n`)[1]
	one, two := visit(t, url), visit(t, url)
	one.until(`all.textContent.includes("has joined: 2 here")`)
	two.until(`all.textContent.includes("has joined: 2 here")`)
	one.write("input", "hello, two\r")
	two.until(`all.firstChild.textContent.endsWith(": hello, two")`)
	two.write("input", "hello, <b>one</b>\r")
	one.until(`all.firstChild.textContent.endsWith(": hello, <b>one</b>")`)
	eval[bool](two, `ws.close(), true`)
	one.until(`all.firstChild.textContent.endsWith(" has left")`)
}
