package web_test

import (
	"io"
	"net/http"
	"sync"
	"testing"

	"github.com/myriad-go/myriad/internal/testkit"
	"github.com/myriad-go/myriad/pool"
	"github.com/myriad-go/myriad/tcp"
	"github.com/myriad-go/myriad/web"
)

// TestOverloadShedsQueuedRequests has a pool that sheds nothing itself.
func TestOverloadShedsQueuedRequests(t *testing.T) {
	p := newPool(t, pool.Config{Max: 1, Queue: 100, KeepQueued: true, FIFO: true})
	entered, release := make(chan struct{}), make(chan struct{})
	open := sync.OnceFunc(func() { close(release) })
	mux := http.NewServeMux()
	mux.HandleFunc("/hold", func(http.ResponseWriter, *http.Request) { close(entered); <-release })
	ok := http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { io.WriteString(w, "ok") })
	mux.Handle("/", web.Blocking(ok))
	mux.Handle("/health", web.Critical(web.Blocking(ok)))
	s := &tcp.Server{Handler: &web.HTTP{Pool: p, Handler: mux}}
	addr := startServer(t, s)
	t.Cleanup(open)
	var conns []*testkit.Conn
	for range 40 {
		conns = append(conns, testkit.Dial(t, addr))
	}
	conns[0].Send(getRequests("/hold"))
	<-entered
	queued := 2
	testkit.WaitFor(t, "nothing is shed though requests wait for a second", func() bool {
		if queued < len(conns) {
			conns[queued].Send(getRequests("/"))
			queued++
		}
		return s.Stats().Overload.ShedRequests == 1
	})
	conns[1].Send(getRequests("/", "/", "/")) // are shed at once
	for range 3 {
		if res, body := conns[1].ReadResponse(); res.StatusCode != 503 || res.Header.Get("Retry-After") != "1" || res.Close || body != "503 Service Unavailable\n" {
			t.Errorf("answered with %s, %v, %q; expected 503 with a Retry-After", res.Status, res.Header, body)
		}
	}
	conns[1].Send("HEAD / HTTP/1.1\r\nHost: x\r\n\r\n")
	if res, err := http.ReadResponse(conns[1].R, &http.Request{Method: http.MethodHead}); err != nil || res.StatusCode != 503 {
		t.Errorf("HEAD is answered with %v, %v; expected 503", res, err)
	}
	before := p.Stats().Queued
	conns[1].Send(getRequests("/health"))
	testkit.WaitFor(t, "the critical one is not queued", func() bool { return p.Stats().Queued == before+1 })
	open()
	expectBody(t, conns[0], "")
	expectBody(t, conns[1], "ok")
	shed := 4
	for _, c := range conns[2:queued] {
		if res, _ := c.ReadResponse(); res.StatusCode == 503 {
			shed++
		}
	}
	if n := s.Stats().Overload.ShedQueueDelay; n != int64(shed) || shed < 5 {
		t.Errorf("%d are counted as shed and %d were; expected the same number, at least 5", n, shed)
	}
	testkit.WaitFor(t, "it does not recover", func() bool {
		conns[0].Send(getRequests("/"))
		res, _ := conns[0].ReadResponse()
		return res.StatusCode == 200
	})
}

// TestOverloadOfMemory checks that requests are shed and connections closed when the memory is nearly exhausted.
func TestOverloadOfMemory(t *testing.T) {
	mux := http.NewServeMux()
	ok := http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { io.WriteString(w, "ok") })
	mux.Handle("/", ok)
	mux.Handle("/quick", web.Quick(ok))
	mux.Handle("/health", web.Critical(web.Quick(ok)))
	fill := testkit.LimitMemory(t, 64<<20)
	s := &tcp.Server{Handler: &web.HTTP{Handler: mux, UnencryptedHTTP2: true}}
	addr := startServer(t, s)
	http2 := newHTTP2Client(t, nil)
	getHTTP2 := func(path string) int {
		res, err := http2.Get("http://" + addr + path)
		testkit.RequireNoError(t, err)
		_, _ = io.Copy(io.Discard, res.Body)
		res.Body.Close()
		return res.StatusCode
	}
	if status := getHTTP2("/"); status != 200 {
		t.Errorf("before, HTTP/2 is answered with %d", status)
	}
	conns := []*testkit.Conn{testkit.Dial(t, addr), testkit.Dial(t, addr), testkit.Dial(t, addr)}
	for _, c := range conns {
		ask(t, c, "/", "ok")
	}
	fill()
	testkit.WaitFor(t, "the action does not begin", func() bool { return s.Stats().Overload.ShedRequests == 1 })
	for i, c := range []struct {
		path string
		want int
	}{{"/", 503}, {"/quick", 503}, {"/health", 200}} {
		conns[i].Send(getRequests(c.path))
		if res, _ := conns[i].ReadResponse(); res.StatusCode != c.want || !res.Close {
			t.Errorf("%s is answered with %s, and the connection closes: %v; expected %d and true", c.path, res.Status, res.Close, c.want)
		}
	}
	if a, b := getHTTP2("/"), getHTTP2("/health"); a != 503 || b != 200 {
		t.Errorf("HTTP/2 is answered with %d and, if critical, with %d; expected 503 and 200", a, b)
	}
}
