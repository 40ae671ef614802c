package web_test

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"runtime"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/myriad-go/myriad/internal/testkit"
	"github.com/myriad-go/myriad/internal/testkit/testserver"
	"github.com/myriad-go/myriad/pool"
	"github.com/myriad-go/myriad/tcp"
	"github.com/myriad-go/myriad/web"
)

// eachModel calls f with the address of a server of h for each model.
func eachModel(t *testing.T, h *web.HTTP, f func(t *testing.T, addr string)) {
	t.Helper()
	h.ErrorLog = silent
	for _, model := range tcp.Models() {
		t.Run(model, func(t *testing.T) { f(t, serve(t, &tcp.Server{Model: model, Handler: h})) })
	}
}

func dial(t testing.TB, addr string) (net.Conn, *bufio.Reader) {
	t.Helper()
	nc, err := net.Dial("tcp", addr)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { nc.Close() })
	_ = nc.SetDeadline(time.Now().Add(testkit.Timeout))
	return nc, bufio.NewReader(nc)
}

func answer(t testing.TB, r *bufio.Reader) (*http.Response, string) {
	t.Helper()
	res, err := http.ReadResponse(r, nil)
	if err != nil {
		t.Fatal(err)
	}
	b, err := io.ReadAll(res.Body)
	if err != nil {
		t.Fatal(err)
	}
	return res, string(b)
}

// TestSmuggling sends what proxies and servers have read in two ways: none of it gets
// through, and the connection is closed behind it.
func TestSmuggling(t *testing.T) {
	get := "GET / HTTP/1.1\r\nHost: x\r\n"
	post := "POST / HTTP/1.1\r\nHost: x\r\n"
	behind := "GET /smuggled HTTP/1.1\r\nHost: x\r\n\r\n"
	rows := map[string]string{
		"length and chunks":             post + "Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
		"chunks and length":             post + "Transfer-Encoding: chunked\r\nContent-Length: 5\r\n\r\n0\r\n\r\n",
		"two lengths":                   post + "Content-Length: 5\r\nContent-Length: 6\r\n\r\nhello",
		"the same length twice":         post + "Content-Length: 5\r\nContent-Length: 5\r\n\r\nhello",
		"lengths in a list":             post + "Content-Length: 5, 5\r\n\r\nhello",
		"length with a sign":            post + "Content-Length: +5\r\n\r\nhello",
		"negative length":               post + "Content-Length: -5\r\n\r\n",
		"length in hexadecimal":         post + "Content-Length: 0x5\r\n\r\nhello",
		"length with an underscore":     post + "Content-Length: 1_0\r\n\r\nhellohello",
		"empty length":                  post + "Content-Length:\r\n\r\n",
		"length beyond 63 bits":         post + "Content-Length: 18446744073709551621\r\n\r\nhello",
		"chunked twice":                 post + "Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
		"chunked, and something":        post + "Transfer-Encoding: chunked, identity\r\n\r\n0\r\n\r\n",
		"something, and chunked":        post + "Transfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n",
		"identity":                      post + "Transfer-Encoding: identity\r\nContent-Length: 5\r\n\r\nhello",
		"xchunked":                      post + "Transfer-Encoding: xchunked\r\n\r\n0\r\n\r\n",
		"chunked behind a vertical tab": post + "Transfer-Encoding: \x0bchunked\r\n\r\n0\r\n\r\n",
		"chunked in 1.0":                "POST / HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
		"space before a colon":          post + "Transfer-Encoding : chunked\r\n\r\n0\r\n\r\n",
		"tab before a colon":            post + "Content-Length\t: 5\r\n\r\nhello",
		"folded line":                   post + "X: a\r\n b\r\n\r\n",
		"folded encoding":               post + "Transfer-Encoding:\r\n chunked\r\n\r\n0\r\n\r\n",
		"first line folded":             post[:len("POST / HTTP/1.1\r\n")] + " Host: x\r\n\r\n",
		"bare LF":                       "GET / HTTP/1.1\nHost: x\n\n",
		"one bare LF":                   get + "X: a\nY: b\r\n\r\n",
		"bare LF at the end":            get + "X: a\r\n\n",
		"bare CR":                       get + "X: a\rTransfer-Encoding: chunked\r\n\r\n",
		"bare CR in the first line":     "GET / HTTP/1.1\rX: y\r\nHost: x\r\n\r\n",
		"NUL in a value":                get + "X: a\x00b\r\n\r\n",
		"NUL in a name":                 get + "X\x00: a\r\n\r\n",
		"no colon":                      get + "X\r\n\r\n",
		"no name":                       get + ": a\r\n\r\n",
		"name with a bracket":           get + "X(: a\r\n\r\n",
		"no Host":                       "GET / HTTP/1.1\r\n\r\n",
		"two Hosts":                     get + "Host: y\r\n\r\n",
		"Host with a space":             "GET / HTTP/1.1\r\nHost: x y\r\n\r\n",
		"Host with a slash":             "GET / HTTP/1.1\r\nHost: x/y\r\n\r\n",
		"two spaces":                    "GET  / HTTP/1.1\r\nHost: x\r\n\r\n",
		"space behind the version":      "GET / HTTP/1.1 \r\nHost: x\r\n\r\n",
		"tab instead of a space":        "GET\t/ HTTP/1.1\r\nHost: x\r\n\r\n",
		"HTTP/0.9":                      "GET /\r\n\r\n",
		"HTTP/1.2":                      "GET / HTTP/1.2\r\nHost: x\r\n\r\n",
		"HTTP/2":                        "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
		"lower-case version":            "GET / http/1.1\r\nHost: x\r\n\r\n",
		"version with more digits":      "GET / HTTP/1.10\r\nHost: x\r\n\r\n",
		"Host of a dot":                 "GET / HTTP/1.1\r\nHost: .\r\n\r\n",
		"chunked with a Kelvin sign":    post + "Transfer-Encoding: chun\u212aed\r\n\r\n0\r\n\r\n",
		"host with a comma":             "GET http://a,b/ HTTP/1.1\r\nHost: a\r\n\r\n",
		"host with a bracket":           "GET http://a]/ HTTP/1.1\r\nHost: a\r\n\r\n",
		"Authorization twice":           get + "Authorization: Basic YTpi\r\nAuthorization: Basic YzpkCg==\r\n\r\n",
		"Expect twice":                  get + "Expect: 100-continue\r\nExpect: x\r\n\r\n",
		"tab before a length":           post + "Content-Length:\t5\r\n\r\nhello",
		"tab before an encoding":        post + "Transfer-Encoding:\tchunked\r\n\r\n0\r\n\r\n",
		"tab behind an encoding":        post + "Transfer-Encoding: chunked\t\r\n\r\n0\r\n\r\n",
		"method behind a body's rest":   "helloGET / HTTP/1.1\r\nHost: x\r\n\r\n",
		"method in lower case":          "get / HTTP/1.1\r\nHost: x\r\n\r\n",
		"method with a brace":           "GE{T / HTTP/1.1\r\nHost: x\r\n\r\n",
		"target without a slash":        "GET x HTTP/1.1\r\nHost: x\r\n\r\n",
		"scheme without a host":         "GET http:///x HTTP/1.1\r\nHost: x\r\n\r\n",
		"opaque target":                 "GET x:80 HTTP/1.1\r\nHost: x\r\n\r\n",
		"user in a target":              "GET http://a@x/ HTTP/1.1\r\nHost: x\r\n\r\n",
		"asterisk of GET":               "GET * HTTP/1.1\r\nHost: x\r\n\r\n",
		"CONNECT without Host":          "CONNECT x:80 HTTP/1.1\r\n\r\n",
		"empty Host":                    "GET / HTTP/1.1\r\nHost:\r\n\r\n",
		"Host with a port alone":        "GET / HTTP/1.1\r\nHost: :80\r\n\r\n",
		"Host with two dots":            "GET / HTTP/1.1\r\nHost: a..b\r\n\r\n",
		"control character in a target": "GET /\x01 HTTP/1.1\r\nHost: x\r\n\r\n",
		"chunk size with a sign":        post + "Transfer-Encoding: chunked\r\n\r\n+5\r\nhello\r\n0\r\n\r\n",
		"chunk size with 0x":            post + "Transfer-Encoding: chunked\r\n\r\n0x5\r\nhello\r\n0\r\n\r\n",
		"chunk size with a space":       post + "Transfer-Encoding: chunked\r\n\r\n 5\r\nhello\r\n0\r\n\r\n",
		"empty chunk size":              post + "Transfer-Encoding: chunked\r\n\r\n\r\nhello\r\n0\r\n\r\n",
		"chunk size beyond 62 bits":     post + "Transfer-Encoding: chunked\r\n\r\nFFFFFFFFFFFFFFFFF\r\nhello\r\n0\r\n\r\n",
		"chunk size line with LF":       post + "Transfer-Encoding: chunked\r\n\r\n5\nhello\r\n0\r\n\r\n",
		"chunk extension with CR":       post + "Transfer-Encoding: chunked\r\n\r\n5;a\rb\r\nhello\r\n0\r\n\r\n",
		"long chunk extension":          post + "Transfer-Encoding: chunked\r\n\r\n5;" + strings.Repeat("a", 300) + "\r\nhello\r\n0\r\n\r\n",
		"chunk without its end":         post + "Transfer-Encoding: chunked\r\n\r\n5\r\nhelloworld\r\n0\r\n\r\n",
		"chunk that ends with LF":       post + "Transfer-Encoding: chunked\r\n\r\n5\r\nhello\n0\r\n\r\n",
		"trailer without a colon":       post + "Transfer-Encoding: chunked\r\n\r\n0\r\nX\r\n\r\n",
		"bad trailer announced":         post + "Transfer-Encoding: chunked\r\nTrailer: Content-Length\r\n\r\n0\r\n\r\n",
	}
	var smuggled atomic.Int32
	h := &web.HTTP{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/smuggled" {
			smuggled.Add(1)
		}
		if _, err := io.Copy(io.Discard, r.Body); err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
		}
	})}
	eachModel(t, h, func(t *testing.T, addr string) {
		for name, payload := range rows {
			t.Run(name, func(t *testing.T) {
				t.Parallel()
				nc, r := dial(t, addr)
				_, _ = io.WriteString(nc, payload+behind)
				res, body := answer(t, r)
				if res.StatusCode < 400 || !res.Close && res.Header.Get("Connection") != "close" {
					t.Errorf("answered with %s %v %q; expected an error and the end", res.Status, res.Header, body)
				}
				if rest, err := io.ReadAll(r); err != nil || len(rest) > 0 {
					t.Errorf("behind the answer came %q, %v", rest, err)
				}
			})
		}
	})
	if n := smuggled.Load(); n > 0 {
		t.Errorf("%d requests were smuggled through", n)
	}
}

// TestBodyBackpressure has a handler read a large body slowly: the server keeps a bounded
// part of it, and all of it arrives.
func TestBodyBackpressure(t *testing.T) {
	const size = 8 << 20
	read := make(chan struct{})
	h := &web.HTTP{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		<-read
		n, err := io.Copy(w, r.Body)
		if err != nil || n != size {
			t.Errorf("the handler got %d bytes and %v; expected %d", n, err, size)
		}
	})}
	eachModel(t, h, func(t *testing.T, addr string) {
		nc, r := dial(t, addr)
		fmt.Fprintf(nc, "POST / HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n", size)
		body := bytes.Repeat([]byte("0123456789abcdef"), size/16)
		sent := make(chan error, 1)
		go func() { _, err := nc.Write(body); sent <- err }()
		read <- struct{}{}
		if _, got := answer(t, r); got != string(body) {
			t.Errorf("%d bytes came back, and not what was sent", len(got))
		}
		if err := <-sent; err != nil {
			t.Error(err)
		}
	})
}

// TestContextEnds ends a request's context with its connection, and with its handler.
func TestContextEnds(t *testing.T) {
	started, ended := make(chan context.Context, 1), make(chan error, 1)
	h := &web.HTTP{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		started <- r.Context()
		if r.URL.Path == "/wait" {
			<-r.Context().Done()
			ended <- r.Context().Err()
		}
	})}
	eachModel(t, h, func(t *testing.T, addr string) {
		nc, r := dial(t, addr)
		io.WriteString(nc, "GET / HTTP/1.1\r\nHost: x\r\n\r\n")
		answer(t, r)
		testkit.Receive(t, (<-started).Done(), "the end of a context whose handler has returned")
		io.WriteString(nc, "GET /wait HTTP/1.1\r\nHost: x\r\n\r\n")
		ctx := <-started
		if a, ok := ctx.Value(http.LocalAddrContextKey).(net.Addr); !ok || a.String() != addr {
			t.Errorf("the context's local address is %v; expected %v", a, addr)
		}
		if s, ok := ctx.Value(http.ServerContextKey).(*http.Server); !ok || s == nil {
			t.Error("the context has no server")
		}
		nc.Close()
		if err := testkit.Receive(t, ended, "the end of a context whose connection has closed"); !errors.Is(err, context.Canceled) {
			t.Errorf("the context ended with %v", err)
		}
	})
}

// TestGoexit closes the connection of a handler that ends its goroutine, which may be an event
// loop's, and no other.
func TestGoexit(t *testing.T) {
	exit := http.HandlerFunc(func(http.ResponseWriter, *http.Request) { runtime.Goexit() })
	mux := http.NewServeMux()
	mux.Handle("/exit", exit)
	mux.Handle("/quick/exit", web.Quick(exit))
	mux.Handle("/quick", web.Quick(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { io.WriteString(w, "quick") })))
	eachModel(t, &web.HTTP{Handler: mux}, func(t *testing.T, addr string) {
		other, answers := dial(t, addr)
		for _, path := range []string{"/exit", "/quick/exit"} {
			nc, r := dial(t, addr)
			io.WriteString(nc, "GET "+path+" HTTP/1.1\r\nHost: x\r\n\r\n")
			if b, err := io.ReadAll(r); err != nil || len(b) > 0 {
				t.Errorf("%s: read %q, %v; expected the end", path, b, err)
			}
			io.WriteString(other, "GET /quick HTTP/1.1\r\nHost: x\r\n\r\n")
			if _, got := answer(t, answers); got != "quick" {
				t.Errorf("after %s another connection was answered with %q", path, got)
			}
		}
	})
}

// TestHijack gives a handler its connection, with what the client has sent behind the head.
func TestHijack(t *testing.T) {
	h := &web.HTTP{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		nc, rw, err := http.NewResponseController(w).Hijack()
		if err != nil {
			t.Error(err)
			return
		}
		if _, err := w.Write([]byte("x")); !errors.Is(err, http.ErrHijacked) {
			t.Errorf("Write after Hijack: %v", err)
		}
		go func() {
			defer nc.Close()
			rw.WriteString("yours\n")
			rw.Flush()
			io.Copy(nc, rw)
		}()
	})}
	eachModel(t, h, func(t *testing.T, addr string) {
		nc, r := dial(t, addr)
		io.WriteString(nc, "GET / HTTP/1.1\r\nHost: x\r\n\r\nearly ")
		if line, err := r.ReadString('\n'); line != "yours\n" {
			t.Fatalf("read %q, %v", line, err)
		}
		io.WriteString(nc, "late")
		nc.(*net.TCPConn).CloseWrite()
		if b, err := io.ReadAll(r); string(b) != "early late" {
			t.Errorf("read %q, %v", b, err)
		}
	})
}

// TestDeadlines ends reads and writes of a handler.
func TestDeadlines(t *testing.T) {
	got := make(chan error, 2)
	h := &web.HTTP{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		c := http.NewResponseController(w)
		if r.Method == http.MethodPost {
			c.SetReadDeadline(time.Now().Add(10 * time.Millisecond))
			_, err := io.ReadAll(r.Body)
			got <- err
			return
		}
		c.SetWriteDeadline(time.Now().Add(10 * time.Millisecond))
		var err error
		for p := make([]byte, 64<<10); err == nil; {
			_, err = w.Write(p)
		}
		got <- err
	})}
	eachModel(t, h, func(t *testing.T, addr string) {
		nc, r := dial(t, addr)
		io.WriteString(nc, "POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 10\r\n\r\nhalf")
		if err := testkit.Receive(t, got, "the end of a read"); !errors.Is(err, os.ErrDeadlineExceeded) {
			t.Errorf("a read ended with %v", err)
		}
		answer(t, r)
		nc, r = dial(t, addr)
		io.WriteString(nc, "GET / HTTP/1.1\r\nHost: x\r\n\r\n")
		if err := testkit.Receive(t, got, "the end of a write"); !errors.Is(err, os.ErrDeadlineExceeded) {
			t.Errorf("a write ended with %v", err)
		}
		res, err := http.ReadResponse(r, nil)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := io.Copy(io.Discard, res.Body); !errors.Is(err, io.ErrUnexpectedEOF) {
			t.Errorf("a response that is cut off ends with %v, want %v", err, io.ErrUnexpectedEOF)
		}
	})
}

// TestTimeouts closes connections whose clients take too long.
func TestTimeouts(t *testing.T) {
	h := &web.HTTP{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { io.Copy(io.Discard, r.Body) }),
		ReadHeaderTimeout: 100 * time.Millisecond, IdleTimeout: 200 * time.Millisecond, ReadTimeout: 50 * time.Millisecond}
	eachModel(t, h, func(t *testing.T, addr string) {
		for name, s := range map[string]string{
			"silent":                   "",
			"half a head":              "GET / HTTP/1.1\r\nHo",
			"half a body":              "POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 10\r\n\r\nhalf",
			"silent behind an answer":  "GET / HTTP/1.1\r\nHost: x\r\n\r\n",
			"half a head behind that":  "GET / HTTP/1.1\r\nHost: x\r\n\r\nGET",
			"answered, then half body": "GET / HTTP/1.1\r\nHost: x\r\n\r\nPOST / HTTP/1.1\r\nHost: x\r\nContent-Length: 1\r\n\r\n",
		} {
			t.Run(name, func(t *testing.T) {
				t.Parallel()
				nc, r := dial(t, addr)
				io.WriteString(nc, s)
				// A reset is the end, too, where all that comes from here comes too late.
				if _, err := io.Copy(io.Discard, r); err != nil && !errors.Is(err, syscall.ECONNRESET) {
					t.Errorf("the connection ended with %v; expected its end", err)
				}
			})
		}
	})
}

// TestNoWorker answers 503 where the pool has no room, and serves again when it has.
func TestNoWorker(t *testing.T) {
	p, err := pool.New(pool.Config{Max: 1, Queue: pool.NoQueue})
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close(context.Background())
	entered, release := make(chan struct{}), make(chan struct{})
	h := &web.HTTP{Pool: p, Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/hold" {
			entered <- struct{}{}
			<-release
		}
	})}
	eachModel(t, h, func(t *testing.T, addr string) {
		one, r1 := dial(t, addr)
		two, r2 := dial(t, addr)
		io.WriteString(one, "GET /hold HTTP/1.1\r\nHost: x\r\n\r\n")
		<-entered
		io.WriteString(two, "POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 4\r\n\r\nbody")
		if res, _ := answer(t, r2); res.StatusCode != 503 || res.Header.Get("Retry-After") == "" {
			t.Errorf("answered with %s %v", res.Status, res.Header)
		}
		release <- struct{}{}
		answer(t, r1)
		testkit.WaitFor(t, "the connection that was refused is not served", func() bool {
			io.WriteString(two, "GET / HTTP/1.1\r\nHost: x\r\n\r\n")
			res, _ := answer(t, r2)
			return res.StatusCode == 200
		})
	})
}

// TestDrain lets requests under way end.
func TestDrain(t *testing.T) {
	for _, model := range tcp.Models() {
		t.Run(model, func(t *testing.T) {
			entered, release := make(chan struct{}), make(chan struct{})
			addr, stop := testserver.Start(t, &tcp.Server{Model: model,
				Handler: web.Handler(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
					entered <- struct{}{}
					<-release
					io.WriteString(w, "done")
				}))})
			idle, ri := dial(t, addr)
			nc, r := dial(t, addr)
			io.WriteString(nc, "GET / HTTP/1.1\r\nHost: x\r\n\r\n")
			<-entered
			_ = idle
			go stop()
			if b, err := io.ReadAll(ri); err != nil || len(b) > 0 {
				t.Errorf("an idle connection ended with %q, %v", b, err)
			}
			close(release)
			if _, body := answer(t, r); body != "done" {
				t.Errorf("answered with %q", body)
			}
			if b, err := io.ReadAll(r); err != nil || len(b) > 0 {
				t.Errorf("behind the answer came %q, %v", b, err)
			}
			stop() // when the server has ended
		})
	}
}

// TestHalfClose answers all requests of a client that has ended its direction behind them.
func TestHalfClose(t *testing.T) {
	h := &web.HTTP{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { io.WriteString(w, r.URL.Path) })}
	eachModel(t, h, func(t *testing.T, addr string) {
		nc, r := dial(t, addr)
		for i := range 5 {
			fmt.Fprintf(nc, "GET /%d HTTP/1.1\r\nHost: x\r\n\r\n", i)
		}
		nc.(*net.TCPConn).CloseWrite()
		for i := range 5 {
			if _, body := answer(t, r); body != fmt.Sprintf("/%d", i) {
				t.Errorf("answer %d is %q", i, body)
			}
		}
		if b, err := io.ReadAll(r); err != nil || len(b) > 0 {
			t.Errorf("at the end came %q, %v", b, err)
		}
	})
}

// TestEvents streams events to subscribers, and hears of their end.
func TestEvents(t *testing.T) {
	var g tcp.Group
	closed := make(chan error, 2)
	e := &web.Events{Opened: func(c *tcp.Conn) { g.Add(c.Ref()) }, Closed: func(c *tcp.Conn, why error) { g.Remove(c.Ref()); closed <- why }}
	for i, h := range []http.Handler{e, web.Quick(e)} {
		mux := http.NewServeMux()
		mux.Handle("/events", h)
		t.Run([]string{"pool", "quick"}[i], func(t *testing.T) {
			eachModel(t, &web.HTTP{Handler: mux}, func(t *testing.T, addr string) {
				nc, r := dial(t, addr)
				io.WriteString(nc, "GET /events HTTP/1.1\r\nHost: x\r\n\r\n")
				res, err := http.ReadResponse(r, nil)
				if err != nil || res.Header.Get("Content-Type") != "text/event-stream" {
					t.Fatalf("answered with %v, %v", res, err)
				}
				testkit.WaitFor(t, "nobody has subscribed", func() bool { return g.Len() == 1 })
				g.Broadcast(web.Event{ID: "7\n", Name: "tick", Data: "one\r\ntwo", Retry: time.Second}.Bytes())
				want := "id: 7\nevent: tick\nretry: 1000\ndata: one\ndata: two\n\n"
				got := make([]byte, len(want))
				if _, err := io.ReadFull(res.Body, got); string(got) != want {
					t.Errorf("the event is %q, %v; expected %q", got, err, want)
				}
				nc.Close()
				testkit.Receive(t, closed, "the stream's end")
			})
		})
	}
}
