package web

import (
	"context"
	"io"
	"net/http"
	"os"
	"slices"
	"testing"

	"github.com/myriad-go/myriad/internal/engine"
	"github.com/myriad-go/myriad/internal/testkit"
	"github.com/myriad-go/myriad/internal/testkit/testserver"
	"github.com/myriad-go/myriad/tcp"
)

// takenHold is the hold of a goroutine that loses the event loop during each CallAndSendLater.
type takenHold struct{ engine.LoopHold }

func (takenHold) CallAndSendLater(r engine.Ref, f engine.ConnCallback) (accepted bool) {
	called := make(chan struct{})
	if r.Do(func(c *engine.Conn) {
		f.CallWith(c)
		close(called)
	}) != nil {
		return false
	}
	<-called
	return true
}

// If the event loop finishes an exchange before the handler's goroutine proceeds, the pipelined requests after it are
// served.
func TestLoopTakenBetweenPipelinedRequests(t *testing.T) {
	h := Blocking(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		r.Context().(*requestContext).x.loop.hold = takenHold{}
		_, _ = io.WriteString(w, r.URL.Path)
	}))
	addr, _ := testserver.Start(t, &tcp.Server{Handler: &HTTP{Handler: h}})
	c := testkit.Dial(t, addr)
	c.Send("GET /1 HTTP/1.1\r\nHost: x\r\n\r\nGET /2 HTTP/1.1\r\nHost: x\r\n\r\nGET /3 HTTP/1.1\r\nHost: x\r\n\r\n")
	for _, want := range []string{"/1", "/2", "/3"} {
		if _, body := c.ReadResponse(); body != want {
			t.Errorf("the response is %q; want %q", body, want)
		}
	}
}

// lostHold is the hold of a goroutine whose event loop another goroutine has continued.
type lostHold struct{ engine.LoopHold }

func (lostHold) Call(engine.Ref, func(*engine.Conn)) (calledOrClosed bool) { return false }

func (lostHold) CallAndSendLater(engine.Ref, engine.ConnCallback) (stillOnLoop bool) { return false }

func (lostHold) Leave() (left bool) { return false }

// A call that has lost its event loop may write a large response. This does not move its route to workers.
func TestLargeResponseAfterLosingLoop(t *testing.T) {
	h := &HTTP{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		r.Context().(*requestContext).x.loop.hold = lostHold{}
		_, _ = w.Write(make([]byte, 64<<10))
	})}
	MoveRoutesToLoop(h)
	addr, _ := testserver.Start(t, &tcp.Server{Model: tcp.Goroutine, Handler: h}) // runs no jobs
	c := testkit.Dial(t, addr)
	c.Send("GET / HTTP/1.1\r\nHost: x\r\n\r\n")
	if _, body := c.ReadResponse(); len(body) != 64<<10 {
		t.Errorf("the response has %d bytes; want %d", len(body), 64<<10)
	}
	if got, want := h.Routes(), []RouteStats{{OnLoop: true}}; !slices.Equal(got, want) {
		t.Errorf("the routes are %+v; want %+v", got, want)
	}
}

// A ResponseWriter fails after its handler has returned. It does not panic, because that would end the process.
func TestResponseWriterAfterReturn(t *testing.T) {
	kept, contexts := make(chan http.ResponseWriter, 10), make(chan context.Context, 10)
	h := Blocking(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		kept <- w
		contexts <- r.Context()
		w.Header().Set("Content-Type", "text/plain")
		w.Header().Set("Content-Length", "0")
	}))
	addr, _ := testserver.Start(t, &tcp.Server{Handler: &HTTP{Handler: h}})
	c := testkit.Dial(t, addr)
	const request = "GET / HTTP/1.1\r\nHost: x\r\n\r\n"
	for range 2 { // so that the first exchange is done
		c.Send(request)
		c.ReadResponse()
	}
	f, err := os.Open(os.Args[0])
	testkit.RequireNoError(t, err)
	defer f.Close()
	w := <-kept
	if err := (<-contexts).Err(); err != context.Canceled { // orders the following after the end of the request
		t.Errorf("the context's error is %v; want context.Canceled", err)
	}
	if x := w.(*response).x; x.state != stateDone {
		t.Errorf("the exchange is %v; want done", x.state)
	}
	for name, use := range map[string]func() error{
		"Write":    func() error { _, err := w.Write([]byte("x")); return err },
		"Flush":    func() error { return http.NewResponseController(w).Flush() },
		"Hijack":   func() error { _, _, err := http.NewResponseController(w).Hijack(); return err },
		"ReadFrom": func() error { _, err := w.(io.ReaderFrom).ReadFrom(f); return err },
	} {
		if use() == nil {
			t.Errorf("%s succeeds after the handler has returned", name)
		}
	}
	c.Send(request)
	c.ReadResponse()
}
