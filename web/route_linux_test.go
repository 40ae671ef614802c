package web_test

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"runtime"
	"sync/atomic"
	"testing"
	"time"

	"github.com/myriad-go/myriad/internal/testkit"
	"github.com/myriad-go/myriad/internal/testkit/testserver"
	"github.com/myriad-go/myriad/tcp"
	"github.com/myriad-go/myriad/web"
)

// Calls that are quick move to the event loop; others, and those of Blocking handlers, do not.
func TestQuickRouteMovesToLoop(t *testing.T) {
	mux := http.NewServeMux()
	mux.HandleFunc("/quick", func(w http.ResponseWriter, r *http.Request) { _, _ = io.WriteString(w, "quick") })
	mux.HandleFunc("/waits", func(w http.ResponseWriter, r *http.Request) {
		time.Sleep(200 * time.Microsecond)
		_, _ = io.WriteString(w, "waits")
	})
	mux.Handle("/blocking", web.Blocking(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { _, _ = io.WriteString(w, "blocking") })))
	h := &web.HTTP{Handler: mux}
	c := testkit.Dial(t, startServer(t, &tcp.Server{Model: tcp.Epoll, Handler: h}))
	for _, path := range []string{"waits", "blocking"} {
		for range 300 {
			ask(t, c, "/"+path, path)
		}
	}
	testkit.WaitForFunc(t, func() bool {
		ask(t, c, "/quick", "quick")
		routes := h.Routes()
		return len(routes) == 2 && routes[0].Pattern == "/quick" && routes[0].OnLoop && !routes[1].OnLoop
	}, func() string { return fmt.Sprintf("the routes are %+v", h.Routes()) })
}

// The rate of reading also limits a handler that could receive a large body from the socket itself.
func TestReadRateOfUpload(t *testing.T) {
	const rate, size = 500_000, 800_000 // a second's allowance is free
	h := web.Handler(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { _, _ = io.Copy(io.Discard, r.Body) }))
	c := testkit.Dial(t, startServer(t, &tcp.Server{Model: tcp.Epoll, Handler: h, Limits: tcp.Limits{ReadRate: rate}}))
	start := time.Now()
	c.Send(fmt.Sprintf("POST / HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n%s", size, make([]byte, size)))
	expectBody(t, c, "")
	if took, least := time.Since(start), (size-rate-64<<10)*time.Second/rate; took < least {
		t.Errorf("%d bytes were read in %v at %d bytes a second; want at least %v", size, took, rate, least)
	}
}

// newBlockingMux returns a mux whose handler /block signals blocked and then blocks its event loop until release is
// closed.
func newBlockingMux() (mux *http.ServeMux, blocked, release chan struct{}) {
	mux, blocked, release = http.NewServeMux(), make(chan struct{}), make(chan struct{})
	mux.Handle("/block", web.Quick(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {
		close(blocked)
		<-release
	})))
	return mux, blocked, release
}

// A handler receives a large body from the socket itself, even while the only event loop is blocked.
func TestUploadWithoutLoop(t *testing.T) {
	const size, half = 96 << 10, 48 << 10
	called, started, mayFinish, received := make(chan bool), make(chan bool), make(chan bool), make(chan int64)
	mux, blocked, release := newBlockingMux()
	mux.Handle("/upload", web.Blocking(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		close(called)
		first, _ := io.CopyN(io.Discard, r.Body, half)
		close(started)
		<-mayFinish
		rest, _ := io.Copy(io.Discard, r.Body)
		received <- first + rest
	})))
	addr := startServer(t, &tcp.Server{Model: tcp.Epoll, Loops: 1, Handler: web.Handler(mux)})
	uploading, other := testkit.Dial(t, addr), testkit.Dial(t, addr)
	uploading.Send(fmt.Sprintf("POST /upload HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n", size))
	<-called
	uploading.Send(string(make([]byte, half)))
	<-started // the loop has passed the body to the handler
	other.Send(getRequests("/block"))
	<-blocked
	uploading.Send(string(make([]byte, size-half)))
	close(mayFinish)
	if n := <-received; n != size {
		t.Errorf("%d bytes were received; want %d", n, size)
	}
	close(release)
	expectBody(t, uploading, "")
	expectBody(t, other, "")
}

// A worker sends responses itself, even while the only event loop is blocked. What the kernel does not accept from the
// worker, the loop sends, in order.
func TestResponseWithoutLoop(t *testing.T) {
	large := make([]byte, 16<<20)
	for i := range large {
		large[i] = byte(i >> 8)
	}
	called := make(chan struct{}, 3)
	mux, blocked, release := newBlockingMux()
	handle := func(path string, f func(w http.ResponseWriter)) {
		mux.Handle(path, web.Blocking(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			called <- struct{}{}
			<-blocked
			f(w)
		})))
	}
	handle("/small", func(w http.ResponseWriter) { _, _ = io.WriteString(w, "small") })
	handle("/flushed", func(w http.ResponseWriter) {
		for range 3 {
			_, _ = w.Write(large[:10<<10])
			w.(http.Flusher).Flush()
		}
	})
	handle("/large", func(w http.ResponseWriter) {
		_, _ = w.Write(large[:len(large)/2])
		_, _ = w.Write(large[len(large)/2:])
	})
	addr := startServer(t, &tcp.Server{Model: tcp.Epoll, Loops: 1, Handler: web.Handler(mux)})
	conns := map[string]*testkit.Conn{}
	for _, path := range []string{"/small", "/flushed", "/large"} {
		conns[path] = testkit.Dial(t, addr)
		conns[path].Send(getRequests(path))
		<-called
	}
	other := testkit.Dial(t, addr)
	other.Send(getRequests("/block"))
	<-blocked
	expectBody(t, conns["/small"], "small")
	expectBody(t, conns["/flushed"], string(large[:10<<10])+string(large[:10<<10])+string(large[:10<<10]))
	close(release)
	if _, body := conns["/large"].ReadResponse(); body != string(large) {
		t.Errorf("the large response has %d bytes that differ from the %d bytes sent", len(body), len(large))
	}
	expectBody(t, other, "")
	ask(t, conns["/small"], "/small", "small") // the connection is still usable
}

// While a handler blocks on the only event loop, the loop's other connections are served. The server ends only when the
// handler has returned, and the handler's response is still sent.
func TestHandlerBlocksLoop(t *testing.T) {
	release := make(chan struct{})
	mux := http.NewServeMux()
	mux.HandleFunc("/block", func(w http.ResponseWriter, r *http.Request) {
		<-release
		_, _ = io.WriteString(w, "released")
	})
	mux.HandleFunc("/exit", func(w http.ResponseWriter, r *http.Request) {
		<-release
		runtime.Goexit()
	})
	mux.HandleFunc("/large", func(w http.ResponseWriter, r *http.Request) { _, _ = w.Write(make([]byte, 8<<20)) })
	mux.HandleFunc("/quick", func(w http.ResponseWriter, r *http.Request) { _, _ = io.WriteString(w, "quick") })
	h := &web.HTTP{Handler: mux, ErrorLog: silent}
	web.MoveRoutesToLoop(h)
	s := &tcp.Server{Model: tcp.Epoll, Loops: 1, Handler: h}
	addr, _ := testserver.Start(t, s)
	blocked, exits, unread, other := testkit.Dial(t, addr), testkit.Dial(t, addr), testkit.Dial(t, addr), testkit.Dial(t, addr)
	blocked.Send(getRequests("/block"))
	exits.Send(getRequests("/exit"))
	unread.Send(getRequests("/large")) // more than a connection may have unsent
	for range 1000 {
		ask(t, other, "/quick", "quick")
	}
	if n := s.Stats().LoopsMovedToThread; n < 3 {
		t.Errorf("%d goroutines have continued the loop; want at least 3, for two handlers that block and one that waits for its client", n)
	}
	close(release)
	expectBody(t, blocked, "released")
	exits.ExpectClosed()
	if _, body := unread.ReadResponse(); len(body) != 8<<20 {
		t.Errorf("the large response has %d bytes; want %d", len(body), 8<<20)
	}
	ask(t, other, "/quick", "quick")
}

// Handlers that block move to workers before they have returned, so that they take few threads and hold up the event
// loop for a short time only.
func TestBlockedCallsMoveRoute(t *testing.T) {
	const requests = 100
	release := make(chan struct{})
	for name, block := range map[string]func(tcp.Ref){
		"channel": func(tcp.Ref) { <-release },
		"SendWait": func(receiver tcp.Ref) {
			for receiver.SendWait(context.Background(), make([]byte, 100_000)) == nil {
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			var running atomic.Int64
			refs := make(chan tcp.Ref, 1)
			mux := http.NewServeMux()
			mux.HandleFunc("/receive", func(w http.ResponseWriter, r *http.Request) {
				ref, _ := web.Ref(r)
				refs <- ref
			})
			mux.HandleFunc("/block", func(w http.ResponseWriter, r *http.Request) {
				running.Add(1)
				receiver := <-refs
				refs <- receiver
				block(receiver)
				_, _ = io.WriteString(w, "released")
			})
			h := &web.HTTP{Handler: mux}
			web.MoveRoutesToLoop(h)
			s := &tcp.Server{Model: tcp.Epoll, Loops: 1, Handler: h}
			addr, _ := testserver.Start(t, s)
			c := testkit.Dial(t, addr)
			ask(t, c, "/receive", "")
			var clients [requests]*testkit.Conn
			for i := range clients {
				clients[i] = testkit.Dial(t, addr)
				clients[i].Send(getRequests("/block"))
			}
			testkit.WaitFor(t, "calls of all handlers", func() bool { return running.Load() == requests })
			if n := s.Stats().LoopsMovedToThread; n > requests/2 {
				t.Errorf("%d of %d handlers have taken a thread from the loop; want at most %d", n, requests, requests/2)
			}
			if name == "channel" {
				close(release)
			}
			c.Close()
			for _, c := range clients {
				expectBody(t, c, "released")
			}
		})
	}
}
