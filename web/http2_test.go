package web_test

import (
	"bytes"
	"cmp"
	"context"
	"crypto/tls"
	"encoding/binary"
	"fmt"
	"io"
	"log"
	"log/slog"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/myriad-go/myriad/internal/testkit"
	"github.com/myriad-go/myriad/tcp"
	"github.com/myriad-go/myriad/web"
)

// newHTTP2Client returns a client that uses HTTP/2 only. Without config it uses no TLS.
func newHTTP2Client(t *testing.T, config *tls.Config) *http.Client {
	tr := &http.Transport{TLSClientConfig: config, Protocols: new(http.Protocols)}
	tr.Protocols.SetHTTP2(config != nil)
	tr.Protocols.SetUnencryptedHTTP2(config == nil)
	t.Cleanup(tr.CloseIdleConnections)
	return &http.Client{Transport: tr, Timeout: testkit.Timeout}
}

func get(t *testing.T, c *http.Client, url string) string {
	t.Helper()
	res, err := c.Get(url)
	testkit.RequireNoError(t, err)
	defer res.Body.Close()
	body, err := io.ReadAll(res.Body)
	if err != nil || res.ProtoMajor != 2 {
		t.Fatalf("%s: %s, %v; want HTTP/2", url, res.Proto, err)
	}
	return string(body)
}

func getOrError(c *http.Client, url string) string {
	res, err := c.Get(url)
	if err != nil {
		return err.Error()
	}
	defer res.Body.Close()
	if body, err := io.ReadAll(res.Body); err == nil {
		return string(body)
	}
	return err.Error()
}

const (
	settingsFrame = "\x00\x00\x00\x04\x00\x00\x00\x00\x00"
	http2Preface  = "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
)

// Types of HTTP/2 frames.
const (
	frameSettings = 4
	framePing     = 6
	frameGoAway   = 7
)

func dialHTTP2(t *testing.T, addr string) *testkit.Conn {
	t.Helper()
	c := testkit.Dial(t, addr)
	c.Send(http2Preface + settingsFrame)
	return c
}

// awaitFrame reads frames until one of the type, of which GOAWAY must be the last, and returns its payload.
func awaitFrame(t *testing.T, c *testkit.Conn, frameType byte) (payload []byte) {
	t.Helper()
	for {
		var head [9]byte
		_, err := io.ReadFull(c.R, head[:])
		testkit.RequireNoError(t, err)
		payload = make([]byte, int(head[0])<<16|int(head[1])<<8|int(head[2]))
		_, err = io.ReadFull(c.R, payload)
		testkit.RequireNoError(t, err)
		if head[3] == frameType {
			return payload
		} else if head[3] == frameGoAway {
			t.Fatalf("GOAWAY with %x; want a frame of type %d", payload, frameType)
		}
	}
}

func expectGoAway(t *testing.T, c *testkit.Conn, code uint32) {
	t.Helper()
	if got := binary.BigEndian.Uint32(awaitFrame(t, c, frameGoAway)[4:]); got != code {
		t.Fatalf("GOAWAY with code %d; want %d", got, code)
	}
}

// TestHTTP2 uses net/http's client, with and without TLS, under every model.
func TestHTTP2(t *testing.T) {
	cert, roots := newCertificate(t)
	release := make(chan struct{})
	var waiting atomic.Int64
	logged := new(testkit.Buffer)
	mux := http.NewServeMux()
	mux.HandleFunc("/about", func(w http.ResponseWriter, r *http.Request) {
		_, ref := web.Ref(r)
		secure := r.TLS != nil && r.TLS.NegotiatedProtocol == "h2" && r.TLS.HandshakeComplete
		isClient := strings.HasPrefix(r.RemoteAddr, "127.0.0.1:") && r.RemoteAddr != r.Host
		fmt.Fprint(w, r.Proto, secure, isClient, " ", r.Context().Value(http.LocalAddrContextKey), " ", ref)
	})
	mux.HandleFunc("/echo", func(w http.ResponseWriter, r *http.Request) { _, _ = io.Copy(w, r.Body) })
	mux.HandleFunc("/wait", func(w http.ResponseWriter, r *http.Request) {
		waiting.Add(1)
		<-release
		fmt.Fprint(w, r.URL.RawQuery)
	})
	mux.HandleFunc("/panic", func(http.ResponseWriter, *http.Request) { panic("on purpose") })
	mux.Handle("/quick", web.Quick(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { io.WriteString(w, "quick") })))
	mux.Handle("/socket", &web.WebSocket{Handler: echoSocket})
	for _, model := range tcp.Models() {
		for _, scheme := range []string{"https", "http"} {
			t.Run(model+" "+scheme, func(t *testing.T) {
				h := &web.HTTP{Handler: mux, UnencryptedHTTP2: true, ErrorLog: log.New(logged, "", 0)}
				srv := &tcp.Server{Model: model, Handler: h, Log: slog.New(slog.DiscardHandler)}
				var config *tls.Config
				if scheme == "https" {
					srv.TLSConfig, config = &tls.Config{Certificates: cert}, &tls.Config{RootCAs: roots}
				}
				addr := startServer(t, srv)
				base := scheme + "://" + addr
				c := newHTTP2Client(t, config)
				want := fmt.Sprint("HTTP/2.0", config != nil, true, " ", addr, " false")
				if got := get(t, c, base+"/about"); got != want {
					t.Errorf("a handler sees %q; want %q", got, want)
				}
				if got := get(t, c, base+"/quick"); got != "quick" {
					t.Errorf("a Quick handler answers %q", got)
				}
				if res, err := c.Get(base + "/socket"); err != nil || res.StatusCode != http.StatusUpgradeRequired {
					t.Errorf("a WebSocket: %v, %v; want status 426", res, err)
				}
				if res, err := c.Get(base + "/panic"); err == nil {
					t.Errorf("a handler that panics answers with %s", res.Status)
				}
				testkit.WaitFor(t, "the panic is not in ErrorLog", func() bool { return strings.Contains(logged.String(), "on purpose") })

				body := bytes.Repeat([]byte("0123456789abcdef"), 256<<10) // more than all windows and buffers
				res, err := c.Post(base+"/echo", "", io.NopCloser(bytes.NewReader(body)))
				testkit.RequireNoError(t, err)
				if n := srv.Stats().BytesIn; n > int64(len(body))/2 {
					t.Errorf("%d bytes are read although the client does not read the response", n)
				}
				if got, err := io.ReadAll(res.Body); err != nil || !bytes.Equal(got, body) {
					t.Errorf("%d bytes of %d came back, %v", len(got), len(body), err)
				}

				results := make(chan string)
				for _, text := range []string{"a", "b"} { // both are handled at a time, on the same connection
					go func() { results <- getOrError(c, base+"/wait?"+text) }()
				}
				testkit.WaitFor(t, "not both requests are handled", func() bool { return waiting.Load() == 2 })
				open := srv.Stats().Open
				release <- struct{}{}
				release <- struct{}{}
				// The panic may have cost a connection.
				if got := (<-results) + (<-results); got != "ab" && got != "ba" || open > 2 {
					t.Errorf("the answers are %q, with %d connections; want a and b, with 1", got, open)
				}
				waiting.Store(0)
			})
		}
	}
}

// TestHTTP2Preface sends the first bytes of connections by hand.
func TestHTTP2Preface(t *testing.T) {
	cert, roots := newCertificate(t)
	h := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { io.WriteString(w, r.Proto) })
	plain := startServer(t, &tcp.Server{Handler: &web.HTTP{Handler: h, UnencryptedHTTP2: true}})
	encrypted := startServer(t, &tcp.Server{Handler: web.Handler(h), TLSConfig: &tls.Config{Certificates: cert}, Log: slog.New(slog.DiscardHandler)})
	dialTLS := func(cfg *tls.Config) *testkit.Conn {
		cfg.RootCAs = roots
		return testkit.DialTLS(t, encrypted, cfg)
	}
	t.Run("in pieces", func(t *testing.T) {
		srv := &tcp.Server{Handler: &web.HTTP{Handler: h, UnencryptedHTTP2: true}}
		c := testkit.Dial(t, startServer(t, srv))
		for i, b := range []byte(http2Preface) {
			c.Send(string(b))
			testkit.WaitFor(t, "a byte is not read", func() bool { return srv.Stats().BytesIn > int64(i) })
		}
		c.Send(settingsFrame)
		c.Expect("\x00\x00") // SETTINGS
	})
	t.Run("another method", func(t *testing.T) {
		c := testkit.Dial(t, plain)
		c.Send("PRI /x HTTP/2.0\r\n\r\nSM\r\n\r\n")
		if res, _ := c.ReadResponse(); res.StatusCode != http.StatusHTTPVersionNotSupported {
			t.Error(res.Status)
		}
	})
	t.Run("HTTP/1.1 with h2", func(t *testing.T) {
		c := dialTLS(&tls.Config{NextProtos: []string{"h2"}})
		c.Send(getRequests("/"))
		expectGoAway(t, c, 1)
		c.ExpectEOF("")
	})
	t.Run("HTTP/2 with http/1.1", func(t *testing.T) {
		c := dialTLS(&tls.Config{NextProtos: []string{"http/1.1"}})
		c.Send(http2Preface)
		if res, body := c.ReadResponse(); res.StatusCode != http.StatusHTTPVersionNotSupported {
			t.Error(res.Status, body)
		}
	})
	t.Run("insecure cipher suite", func(t *testing.T) {
		c := dialTLS(&tls.Config{NextProtos: []string{"h2"}, MaxVersion: tls.VersionTLS12,
			CipherSuites: []uint16{tls.TLS_ECDHE_ECDSA_WITH_AES_128_CBC_SHA, tls.TLS_ECDHE_RSA_WITH_AES_128_CBC_SHA}})
		c.Send(http2Preface + settingsFrame)
		expectGoAway(t, c, 12)
		c.ExpectEOF("")
	})
	t.Run("secure cipher suite of TLS 1.2", func(t *testing.T) {
		c := newHTTP2Client(t, &tls.Config{RootCAs: roots, MaxVersion: tls.VersionTLS12})
		if got := get(t, c, "https://"+encrypted); got != "HTTP/2.0" {
			t.Error(got)
		}
	})
}

// TestHTTP2Drain checks that clients get GOAWAY at a drain and that active requests are answered.
func TestHTTP2Drain(t *testing.T) {
	for _, model := range tcp.Models() {
		t.Run(model, func(t *testing.T) {
			started, release := make(chan bool), make(chan bool)
			h := &web.HTTP{UnencryptedHTTP2: true, Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				started <- true
				<-release
				io.WriteString(w, "done")
			})}
			srv := &tcp.Server{Model: model, Handler: h}
			addr := startServer(t, srv)
			otherStarted := startServer(t, &tcp.Server{Model: model, Handler: h}) // shares h and goes on
			idle, other := dialHTTP2(t, addr), dialHTTP2(t, otherStarted)
			awaitFrame(t, idle, frameSettings)
			c := newHTTP2Client(t, nil)
			answer := make(chan string, 1)
			go func() { answer <- getOrError(c, "http://"+addr) }()
			<-started
			ended := make(chan error, 1)
			go func() { ended <- srv.Shutdown(context.Background()) }()
			expectGoAway(t, idle, 0)
			release <- true
			if got := testkit.Receive(t, answer, "the answer"); got != "done" {
				t.Errorf("the active request: %q", got)
			}
			testkit.ExpectNoError(t, testkit.Receive(t, ended, "the end of Shutdown"))
			other.Send("\x00\x00\x08\x06\x00\x00\x00\x00\x00pingping")
			awaitFrame(t, other, framePing) // and no GOAWAY
		})
	}
}

// TestHTTP2Limits checks settings of HTTP and of the server on HTTP/2 connections.
func TestHTTP2Limits(t *testing.T) {
	h := &web.HTTP{Handler: http.NewServeMux(), UnencryptedHTTP2: true, IdleTimeout: 50 * time.Millisecond}
	expectGoAway(t, dialHTTP2(t, startServer(t, &tcp.Server{Handler: h})), 0)

	h = &web.HTTP{Handler: http.NewServeMux(), UnencryptedHTTP2: true}
	h.HTTP2 = &http.HTTP2Config{MaxConcurrentStreams: 7}
	addr := startServer(t, &tcp.Server{Handler: h, Heartbeat: tcp.Heartbeat{Interval: 100 * time.Millisecond}})
	c := dialHTTP2(t, addr)
	if settings := awaitFrame(t, c, frameSettings); !bytes.Contains(settings, []byte("\x00\x03\x00\x00\x00\x07")) {
		t.Errorf("the settings are %x; want MaxConcurrentStreams 7", settings)
	}
	awaitFrame(t, c, framePing)
	client := newHTTP2Client(t, nil)
	for size, want := range map[int]int{30 << 10: 404, 64 << 10: 431} {
		req, _ := http.NewRequest("GET", "http://"+addr, nil)
		req.Header.Set("X", strings.Repeat("x", size))
		// The client may not get the answer to a head that is too large.
		if res, err := client.Do(req); err == nil && res.StatusCode != want || err != nil && want == 404 {
			t.Errorf("%d bytes: %v, %v; want %d", size, res, err, want)
		}
	}
}

// TestHTTP2Events checks streams of events over HTTP/2.
func TestHTTP2Events(t *testing.T) {
	for _, model := range tcp.Models() {
		t.Run(model, func(t *testing.T) {
			opened, closed := make(chan *tcp.Server, 1), make(chan error, 1)
			var all tcp.Group
			events := &web.Events{
				Opened: func(c *tcp.Conn) { all.Add(c.Ref()); opened <- c.Server() },
				Closed: func(c *tcp.Conn, why error) { all.Remove(c.Ref()); closed <- why },
			}
			srv := &tcp.Server{Model: model, Handler: &web.HTTP{Handler: events, UnencryptedHTTP2: true}}
			addr := startServer(t, srv)
			c := newHTTP2Client(t, nil)
			subscribe := func(ctx context.Context) io.Reader {
				req, _ := http.NewRequestWithContext(ctx, "GET", "http://"+addr, nil)
				res, err := c.Do(req)
				if err != nil || res.StatusCode != 200 || res.Header.Get("Content-Type") != "text/event-stream" {
					t.Fatalf("%v, %v", res, err)
				}
				if s := testkit.Receive(t, opened, "the stream"); s != srv {
					t.Errorf("the stream belongs to %p; want %p", s, srv)
				}
				all.Broadcast(web.Event{Data: "event"}.Bytes())
				b := make([]byte, len("data: event\n\n"))
				if _, err := io.ReadFull(res.Body, b); err != nil || string(b) != "data: event\n\n" {
					t.Fatalf("%q, %v", b, err)
				}
				return res.Body
			}
			ctx, cancel := context.WithCancel(t.Context())
			subscribe(ctx)
			cancel()
			testkit.Receive(t, closed, "the end after the client's")
			body := subscribe(t.Context())
			ended := make(chan error, 1)
			go func() { ended <- srv.Shutdown(context.Background()) }()
			if rest, err := io.ReadAll(body); err != nil || len(rest) > 0 {
				t.Errorf("at a drain: %q, %v; want the end", rest, err)
			}
			if err := cmp.Or(testkit.Receive(t, ended, "the end of Shutdown"), testkit.Receive(t, closed, "the end of the stream")); err != nil && err != tcp.ErrServerClosed {
				t.Error(err)
			}
			if res, err := c.Post("http://"+addr, "", nil); err == nil {
				t.Errorf("after the end: %s", res.Status)
			}
		})
	}
}
