package web_test

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"os"
	"runtime"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/myriad-go/myriad/internal/testkit"
	"github.com/myriad-go/myriad/internal/testkit/testserver"
	"github.com/myriad-go/myriad/pool"
	"github.com/myriad-go/myriad/tcp"
	"github.com/myriad-go/myriad/tcp/tcptest"
	"github.com/myriad-go/myriad/web"
)

func startServer(t testing.TB, s *tcp.Server) string {
	t.Helper()
	addr, _ := testserver.Start(t, s)
	return addr
}

var silent = log.New(io.Discard, "", 0)

func forEachModel(t *testing.T, h *web.HTTP, f func(t *testing.T, addr string)) {
	t.Helper()
	h.ErrorLog = silent
	for _, model := range tcp.Models() {
		t.Run(model, func(t *testing.T) { f(t, startServer(t, &tcp.Server{Model: model, Handler: h})) })
	}
	web.MoveRoutesToLoop(h)
	t.Run("on loops", func(t *testing.T) { f(t, startServer(t, &tcp.Server{Model: tcp.Epoll, Handler: h})) })
}

func newPool(t *testing.T, config pool.Config) *pool.Pool {
	p, err := pool.New(config)
	testkit.RequireNoError(t, err)
	t.Cleanup(func() { p.Close(context.Background()) })
	return p
}

func getRequests(paths ...string) (all string) {
	for _, path := range paths {
		all += "GET " + path + " HTTP/1.1\r\nHost: x\r\n\r\n"
	}
	return all
}

func expectBody(t testing.TB, c *testkit.Conn, want string) {
	t.Helper()
	if res, body := c.ReadResponse(); body != want {
		t.Fatalf("answered with %s, %d bytes %.40q; want %d bytes %.40q", res.Status, len(body), body, len(want), want)
	}
}

// ask sends a GET request and expects the body of the response.
func ask(t testing.TB, c *testkit.Conn, path, want string) {
	t.Helper()
	c.Send(getRequests(path))
	expectBody(t, c, want)
}

// TestSmuggling sends requests that proxies and servers have interpreted differently: all are
// rejected, and the connection is closed.
func TestSmuggling(t *testing.T) {
	getX := "GET / HTTP/1.1\r\nHost: x\r\n"
	post := "POST / HTTP/1.1\r\nHost: x\r\n"
	rows := map[string]string{
		"length and chunks":             post + "Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
		"chunks and length":             post + "Transfer-Encoding: chunked\r\nContent-Length: 5\r\n\r\n0\r\n\r\n",
		"the same length twice":         post + "Content-Length: 5\r\nContent-Length: 5\r\n\r\nhello",
		"lengths in a list":             post + "Content-Length: 5, 5\r\n\r\nhello",
		"length with a sign":            post + "Content-Length: +5\r\n\r\nhello",
		"length beyond 63 bits":         post + "Content-Length: 18446744073709551621\r\n\r\nhello",
		"chunked twice":                 post + "Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
		"chunked, and something":        post + "Transfer-Encoding: chunked, identity\r\n\r\n0\r\n\r\n",
		"something, and chunked":        post + "Transfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n",
		"xchunked":                      post + "Transfer-Encoding: xchunked\r\n\r\n0\r\n\r\n",
		"chunked behind a vertical tab": post + "Transfer-Encoding: \x0bchunked\r\n\r\n0\r\n\r\n",
		"chunked in 1.0":                "POST / HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
		"space before a colon":          post + "Transfer-Encoding : chunked\r\n\r\n0\r\n\r\n",
		"folded encoding":               post + "Transfer-Encoding:\r\n chunked\r\n\r\n0\r\n\r\n",
		"one bare LF":                   getX + "X: a\nY: b\r\n\r\n",
		"bare LF at the end":            getX + "X: a\r\n\n",
		"bare CR":                       getX + "X: a\rTransfer-Encoding: chunked\r\n\r\n",
		"NUL in a value":                getX + "X: a\x00b\r\n\r\n",
		"no colon":                      getX + "X\r\n\r\n",
		"no name":                       getX + ": a\r\n\r\n",
		"name with a bracket":           getX + "X(: a\r\n\r\n",
		"no Host":                       "GET / HTTP/1.1\r\n\r\n",
		"two Hosts":                     getX + "Host: y\r\n\r\n",
		"Host with a slash":             "GET / HTTP/1.1\r\nHost: x/y\r\n\r\n",
		"two spaces":                    "GET  / HTTP/1.1\r\nHost: x\r\n\r\n",
		"space behind the version":      "GET / HTTP/1.1 \r\nHost: x\r\n\r\n",
		"HTTP/0.9":                      "GET /\r\n\r\n",
		"HTTP/1.2":                      "GET / HTTP/1.2\r\nHost: x\r\n\r\n",
		"HTTP/2":                        "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
		"lower-case version":            "GET / http/1.1\r\nHost: x\r\n\r\n",
		"Host of a dot":                 "GET / HTTP/1.1\r\nHost: .\r\n\r\n",
		"chunked with a Kelvin sign":    post + "Transfer-Encoding: chun\u212aed\r\n\r\n0\r\n\r\n",
		"host with a comma":             "GET http://a,b/ HTTP/1.1\r\nHost: a\r\n\r\n",
		"host with a bracket":           "GET http://a]/ HTTP/1.1\r\nHost: a\r\n\r\n",
		"Authorization twice":           getX + "Authorization: Basic YTpi\r\nAuthorization: Basic YzpkCg==\r\n\r\n",
		"Expect twice":                  getX + "Expect: 100-continue\r\nExpect: x\r\n\r\n",
		"tab before a length":           post + "Content-Length:\t5\r\n\r\nhello",
		"tab behind an encoding":        post + "Transfer-Encoding: chunked\t\r\n\r\n0\r\n\r\n",
		"method behind a body's rest":   "helloGET / HTTP/1.1\r\nHost: x\r\n\r\n",
		"target without a slash":        "GET x HTTP/1.1\r\nHost: x\r\n\r\n",
		"scheme without a host":         "GET http:///x HTTP/1.1\r\nHost: x\r\n\r\n",
		"user in a target":              "GET http://a@x/ HTTP/1.1\r\nHost: x\r\n\r\n",
		"asterisk of GET":               "GET * HTTP/1.1\r\nHost: x\r\n\r\n",
		"empty Host":                    "GET / HTTP/1.1\r\nHost:\r\n\r\n",
		"Host with a port alone":        "GET / HTTP/1.1\r\nHost: :80\r\n\r\n",
		"Host with two dots":            "GET / HTTP/1.1\r\nHost: a..b\r\n\r\n",
		"control character in a target": "GET /\x01 HTTP/1.1\r\nHost: x\r\n\r\n",
		"chunk size with a sign":        post + "Transfer-Encoding: chunked\r\n\r\n+5\r\nhello\r\n0\r\n\r\n",
		"empty chunk size":              post + "Transfer-Encoding: chunked\r\n\r\n\r\nhello\r\n0\r\n\r\n",
		"chunk size beyond 62 bits":     post + "Transfer-Encoding: chunked\r\n\r\nFFFFFFFFFFFFFFFFF\r\nhello\r\n0\r\n\r\n",
		"chunk size line with LF":       post + "Transfer-Encoding: chunked\r\n\r\n5\nhello\r\n0\r\n\r\n",
		"chunk extension with CR":       post + "Transfer-Encoding: chunked\r\n\r\n5;a\rb\r\nhello\r\n0\r\n\r\n",
		"long chunk extension":          post + "Transfer-Encoding: chunked\r\n\r\n5;" + strings.Repeat("a", 300) + "\r\nhello\r\n0\r\n\r\n",
		"chunk without its end":         post + "Transfer-Encoding: chunked\r\n\r\n5\r\nhello!\n0\r\n\r\n",
		"chunk that ends with LF":       post + "Transfer-Encoding: chunked\r\n\r\n5\r\nhello\n0\r\n\r\n",
		"chunk that ends with CR":       post + "Transfer-Encoding: chunked\r\n\r\n5\r\nhello\rX0\r\n\r\n",
		"trailer without a colon":       post + "Transfer-Encoding: chunked\r\n\r\n0\r\nX\r\n\r\n",
		"bad trailer announced":         post + "Transfer-Encoding: chunked\r\nTrailer: Content-Length\r\n\r\n0\r\n\r\n",
	}
	statuses := map[string]int{"xchunked": 501, "something, and chunked": 501, "tab behind an encoding": 501,
		"folded encoding": 501, "chunked with a Kelvin sign": 501, "HTTP/1.2": 505, "HTTP/2": 505} // 400 for the others
	var smuggled atomic.Int32
	addr := startServer(t, &tcp.Server{Handler: &web.HTTP{ErrorLog: silent, Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/smuggled" {
			smuggled.Add(1)
		}
		if _, err := io.Copy(io.Discard, r.Body); err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
		}
	})}})
	for name, payload := range rows {
		t.Run(name, func(t *testing.T) {
			c := testkit.Dial(t, addr)
			c.Send(payload + getRequests("/smuggled"))
			res, body := c.ReadResponse()
			want := cmp.Or(statuses[name], 400)
			if res.StatusCode != want || !res.Close && res.Header.Get("Connection") != "close" {
				t.Errorf("answered with %s %v %q; expected %d and the end", res.Status, res.Header, body, want)
			}
			c.ExpectEOF("")
		})
	}
	if n := smuggled.Load(); n > 0 {
		t.Errorf("%d requests were smuggled through", n)
	}
}

// TestPipelined sends many requests at once. Answers come in order, without waiting for later
// handlers, and a response that closes the connection prevents later handlers from running.
func TestPipelined(t *testing.T) {
	release := make(chan struct{})
	mux := http.NewServeMux()
	mux.HandleFunc("/n/{i}", func(w http.ResponseWriter, r *http.Request) { io.WriteString(w, r.PathValue("i")) })
	mux.HandleFunc("/large", func(w http.ResponseWriter, r *http.Request) { io.WriteString(w, strings.Repeat("large ", 2000)) })
	mux.HandleFunc("/wait", func(w http.ResponseWriter, r *http.Request) { <-release })
	mux.HandleFunc("/panic", func(http.ResponseWriter, *http.Request) { panic("on purpose") })
	exit := http.HandlerFunc(func(http.ResponseWriter, *http.Request) { runtime.Goexit() })
	mux.Handle("/exit", exit)
	mux.Handle("/quick/exit", web.Quick(exit)) // whose goroutine is an event loop's
	mux.Handle("/quick", web.Quick(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { io.WriteString(w, "quick") })))
	mux.HandleFunc("/never", func(http.ResponseWriter, *http.Request) { t.Error("a handler has run behind the end") })
	mux.HandleFunc("/hijack", func(w http.ResponseWriter, r *http.Request) {
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
	})
	forEachModel(t, &web.HTTP{Handler: mux}, func(t *testing.T, addr string) {
		t.Run("before a slow handler", func(t *testing.T) {
			c := testkit.Dial(t, addr)
			c.Send(getRequests("/n/1", "/wait", "/n/2"))
			expectBody(t, c, "1")
			release <- struct{}{}
			expectBody(t, c, "")
			expectBody(t, c, "2")
		})
		t.Run("before the client's end", func(t *testing.T) {
			c := testkit.Dial(t, addr)
			c.Send(getRequests("/n/1", "/large", "/n/2"))
			c.CloseWrite() // all are answered in any case
			expectBody(t, c, "1")
			expectBody(t, c, strings.Repeat("large ", 2000))
			expectBody(t, c, "2")
			c.ExpectEOF("")
		})
		for _, path := range []string{"/panic", "/exit", "/quick/exit"} {
			t.Run(path, func(t *testing.T) {
				other, c := testkit.Dial(t, addr), testkit.Dial(t, addr)
				c.Send(getRequests("/n/1", path, "/never"))
				expectBody(t, c, "1")
				c.ExpectEOF("")
				ask(t, other, "/quick", "quick")
			})
		}
		t.Run("hijacked", func(t *testing.T) {
			c := testkit.Dial(t, addr)
			rest := getRequests("/never", "/never") + "no request"
			c.Send(getRequests("/n/1", "/hijack") + rest)
			expectBody(t, c, "1")
			c.Expect("yours\n")
			c.Send("late")
			c.CloseWrite()
			c.ExpectEOF(rest + "late")
		})
	})
}

// TestBodies sends bodies together with their heads and the next request. All of it arrives in order, even if the
// handler does not read a large body at once.
func TestBodies(t *testing.T) {
	const late = 8 << 20
	read := make(chan struct{})
	h := &web.HTTP{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.ContentLength == late {
			<-read
		}
		_, err := io.Copy(w, r.Body)
		testkit.ExpectNoError(t, err)
	})}
	text := strings.Repeat("0123456789abcdefghijklmnopqrstuvwxyz", late/36+100)
	forEachModel(t, h, func(t *testing.T, addr string) {
		c := testkit.Dial(t, addr)
		for i, size := range []int{1, 16<<10 + 7, 32 << 10, 32<<10 + 1, 64 << 10, 250_000, late} {
			body := text[i:][:size]
			head := fmt.Sprintf("POST / HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n", size)
			go io.WriteString(c, head+body+getRequests("/"))
			if size == late { // whose connection closes, because the response begins before the body has arrived
				read <- struct{}{}
				expectBody(t, c, body)
				break
			}
			expectBody(t, c, body)
			expectBody(t, c, "")
		}
	})
}

// TestResponseAboveMaxUnsent sends a response in pieces that are not larger than MaxUnsent. A Quick handler cannot
// wait, so its connection is closed.
func TestResponseAboveMaxUnsent(t *testing.T) {
	body := strings.Repeat("0123456789abcdef", 16<<10)
	write := func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/length" {
			w.Header().Set("Content-Length", fmt.Sprint(len(body)))
		}
		io.WriteString(w, body)
	}
	mux := http.NewServeMux()
	mux.HandleFunc("/", write)
	mux.Handle("/quick", web.Quick(http.HandlerFunc(write)))
	mux.Handle("/quick/whole", web.Quick(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		io.WriteString(w, body[:8<<10])
	})))
	addr := startServer(t, &tcp.Server{Handler: web.Handler(mux), Limits: tcp.Limits{MaxUnsent: 4 << 10}})
	c := testkit.Dial(t, addr)
	ask(t, c, "/length", body)
	ask(t, c, "/chunked", body)
	for _, path := range []string{"/quick", "/quick/whole"} {
		c := testkit.Dial(t, addr)
		c.Send(getRequests(path))
		if _, err := io.Copy(io.Discard, c.R); err != nil {
			t.Errorf("%s: %v; want a closed connection", path, err)
		}
	}
}

// TestContinueWhileAnswering reads a body while the response begins: a client that waits for 100
// Continue gets it before the response or not at all.
func TestContinueWhileAnswering(t *testing.T) {
	h := &web.HTTP{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		read := make(chan struct{})
		go func() { io.Copy(io.Discard, r.Body); close(read) }()
		w.Header().Set("Content-Length", "4")
		io.WriteString(w, "done")
		http.NewResponseController(w).Flush()
		<-read
	})}
	forEachModel(t, h, func(t *testing.T, addr string) {
		for range 20 {
			c := testkit.Dial(t, addr)
			c.Send("POST / HTTP/1.1\r\nHost: x\r\nExpect: 100-continue\r\nContent-Length: 4\r\n\r\n")
			res, body := c.ReadResponse()
			if res.StatusCode == http.StatusContinue {
				res, body = c.ReadResponse()
			}
			if res.StatusCode != 200 || body != "done" {
				t.Errorf("answered with %s %q", res.Status, body)
			}
			c.Send("body")
			c.Close()
		}
	})
}

// TestContextEnds checks that a request's context ends with its connection and with its handler.
func TestContextEnds(t *testing.T) {
	started, ended := make(chan context.Context, 1), make(chan error, 1)
	h := &web.HTTP{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		started <- r.Context()
		if r.URL.Path == "/wait" {
			<-w.(interface{ CloseNotify() <-chan bool }).CloseNotify() // http.CloseNotifier, which gin requires
			<-r.Context().Done()
			ended <- r.Context().Err()
		}
	})}
	forEachModel(t, h, func(t *testing.T, addr string) {
		c := testkit.Dial(t, addr)
		ask(t, c, "/", "")
		testkit.Receive(t, (<-started).Done(), "the end of a context whose handler has returned")
		c.Send(getRequests("/wait"))
		ctx := <-started
		if a, ok := ctx.Value(http.LocalAddrContextKey).(net.Addr); !ok || a.String() != addr {
			t.Errorf("the context's local address is %v; expected %v", a, addr)
		}
		if err := ctx.Err(); err != nil {
			t.Errorf("the context of a request that is handled has ended with %v", err)
		}
		if s, ok := ctx.Value(http.ServerContextKey).(*http.Server); !ok || s == nil {
			t.Error("the context has no server")
		}
		c.Close()
		if err := testkit.Receive(t, ended, "the end of a context whose connection has closed"); !errors.Is(err, context.Canceled) {
			t.Errorf("the context ended with %v", err)
		}
	})
}

// TestDeadlines checks that a handler's reads and writes end at its deadlines or the server's.
func TestDeadlines(t *testing.T) {
	const short = 10 * time.Millisecond
	got := make(chan error, 2)
	handler := func(own bool) http.HandlerFunc {
		return func(w http.ResponseWriter, r *http.Request) {
			if c := http.NewResponseController(w); own {
				c.SetReadDeadline(time.Now().Add(short))
				c.SetWriteDeadline(time.Now().Add(short))
			}
			_, err := io.ReadAll(r.Body)
			for p := make([]byte, 64<<10); err == nil; {
				_, err = w.Write(p)
			}
			got <- err
		}
	}
	for name, h := range map[string]*web.HTTP{
		"own": {Handler: handler(true)}, "the server's": {Handler: handler(false), ReadTimeout: short, WriteTimeout: short},
	} {
		t.Run(name, func(t *testing.T) {
			forEachModel(t, h, func(t *testing.T, addr string) {
				c := testkit.Dial(t, addr)
				c.Send("POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 10\r\n\r\nhalf")
				if err := testkit.Receive(t, got, "the end of a read"); !errors.Is(err, os.ErrDeadlineExceeded) {
					t.Errorf("a read ended with %v", err)
				}
				c.ExpectClosed()
				c = testkit.Dial(t, addr)
				c.Send(getRequests("/"))
				if err := testkit.Receive(t, got, "the end of a write"); name == "own" && !errors.Is(err, os.ErrDeadlineExceeded) {
					t.Errorf("a write ended with %v", err)
				}
				res, err := http.ReadResponse(c.R, nil)
				testkit.RequireNoError(t, err)
				if _, err := io.Copy(io.Discard, res.Body); !errors.Is(err, io.ErrUnexpectedEOF) {
					t.Errorf("a response that is cut off ends with %v, want %v", err, io.ErrUnexpectedEOF)
				}
			})
		})
	}
}

// TestNoWorker checks that the answer is 503 while the pool is full.
func TestNoWorker(t *testing.T) {
	p := newPool(t, pool.Config{Max: 1, Queue: pool.NoQueue})
	entered, release := make(chan struct{}), make(chan struct{})
	addr := startServer(t, &tcp.Server{Handler: &web.HTTP{Pool: p, Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/hold" {
			entered <- struct{}{}
			<-release
		}
	})}})
	one, two := testkit.Dial(t, addr), testkit.Dial(t, addr)
	one.Send(getRequests("/hold"))
	<-entered
	two.Send("POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 4\r\n\r\nbody")
	if res, _ := two.ReadResponse(); res.StatusCode != 503 || res.Header.Get("Retry-After") == "" {
		t.Errorf("answered with %s %v", res.Status, res.Header)
	}
	release <- struct{}{}
	expectBody(t, one, "")
	testkit.WaitFor(t, "the worker is not free", func() bool { return p.Stats().Running == 0 })
	ask(t, two, "/", "") // the connection that was refused is still served
}

// TestDrain checks that a drain closes idle connections, finishes running requests and closes
// sockets properly.
func TestDrain(t *testing.T) {
	entered, release := make(chan struct{}), make(chan struct{})
	mux := http.NewServeMux()
	mux.HandleFunc("/", func(w http.ResponseWriter, r *http.Request) {
		entered <- struct{}{}
		<-release
		w.Header()["Date"] = nil
		io.WriteString(w, "done")
	})
	mux.Handle("/ws", web.Quick(&web.WebSocket{Handler: echoSocket}))
	s := tcptest.NewServer(t, &tcp.Server{Handler: web.Handler(mux)})
	idle, busy, socket := s.Dial(), s.Dial(), s.Dial()
	busy.Send(getRequests("/"))
	<-entered
	socket.Send(getRequest("/ws"))
	socket.Output()
	s.StartDrain()
	s.Advance(0)
	idle.ExpectClosed(tcp.ErrServerClosed)
	socket.Expect(string([]byte{fin | 8, 17, 1001 >> 8, 1001 & 0xff}))
	close(release)
	busy.Expect("HTTP/1.1 200 OK\r\nContent-Length: 4\r\nContent-Type: text/plain; charset=utf-8\r\nConnection: close\r\n\r\ndone")
	busy.ExpectClosed(nil)
}

// TestEvents streams events to subscribers and detects their end.
func TestEvents(t *testing.T) {
	var g tcp.Group
	closed := make(chan error, 2)
	e := &web.Events{Opened: func(c *tcp.Conn) { g.Add(c.Ref()) }, Closed: func(c *tcp.Conn, why error) { g.Remove(c.Ref()); closed <- why }}
	mux := http.NewServeMux()
	mux.Handle("/pool", e)
	mux.Handle("/quick", web.Quick(e))
	forEachModel(t, &web.HTTP{Handler: mux}, func(t *testing.T, addr string) {
		for _, path := range []string{"/pool", "/quick"} {
			c := testkit.Dial(t, addr)
			c.Send(getRequests(path))
			res, err := http.ReadResponse(c.R, nil)
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
			c.Close()
			testkit.Receive(t, closed, "the stream's end")
		}
	})
}
