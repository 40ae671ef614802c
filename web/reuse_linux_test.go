package web_test

import (
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"

	"github.com/myriad-go/myriad/internal/testkit"
	"github.com/myriad-go/myriad/internal/testkit/testserver"
	"github.com/myriad-go/myriad/tcp"
	"github.com/myriad-go/myriad/web"
)

// A handler may keep the request, its header, its context and the header of the response. Later requests, which reuse the
// memory of the connection, do not change them.
func TestHandlerKeepsRequest(t *testing.T) {
	type keptRequest struct {
		r      *http.Request
		header http.Header
		body   string
	}
	describe := func(k keptRequest) string {
		return fmt.Sprintf("%s %s %v %v %s %v %q", k.r.Method, k.r.URL, k.r.Header, k.header, k.r.RemoteAddr, k.r.Context().Value(http.LocalAddrContextKey), k.body)
	}
	for place, onLoop := range map[string]bool{"workers": false, "loop": true} {
		t.Run(place, func(t *testing.T) {
			kept := make(chan keptRequest, 100)
			h := &web.HTTP{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				body, err := io.ReadAll(r.Body)
				testkit.ExpectNoError(t, err)
				w.Header().Set("Content-Type", r.Header.Get("X"))
				kept <- keptRequest{r, w.Header(), string(body)}
				_, _ = io.WriteString(w, r.URL.Path)
			})}
			if onLoop {
				web.MoveRoutesToLoop(h)
			}
			addr := startServer(t, &tcp.Server{Model: tcp.Epoll, Loops: 1, Handler: h})
			c := testkit.Dial(t, addr)
			var all []keptRequest
			var want []string
			for i := range 30 {
				c.Send(fmt.Sprintf("POST /%d?q=%d HTTP/1.1\r\nHost: x\r\nX: text/%d\r\nContent-Length: 2\r\n\r\n%02d", i%7, i, i, i) + getRequests("/a", "/a"))
				for _, path := range []string{fmt.Sprint("/", i%7), "/a", "/a"} {
					expectBody(t, c, path)
					k := <-kept
					all, want = append(all, k), append(want, describe(k))
				}
			}
			for i, k := range all {
				if got := describe(k); got != want[i] {
					t.Errorf("later requests have changed the kept request %d to\n%s, from\n%s", i, got, want[i])
				}
				if k.r.Context().Err() == nil {
					t.Errorf("the context of request %d has not ended", i)
				}
				if _, err := k.r.Body.Read(make([]byte, 1)); k.r.Method == http.MethodPost && err != http.ErrBodyReadAfterClose {
					t.Errorf("reading the body of request %d after the handler has returned fails with %v; want http.ErrBodyReadAfterClose", i, err)
				}
			}
		})
	}
}

// The responses to pipelined requests that an event loop handles leave in one write.
func TestPipelinedResponsesShareWrite(t *testing.T) {
	h := &web.HTTP{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { _, _ = io.WriteString(w, r.URL.Path) })}
	web.MoveRoutesToLoop(h)
	s := &tcp.Server{Model: tcp.Epoll, Loops: 1, Handler: h}
	addr, _ := testserver.Start(t, s)
	c := testkit.Dial(t, addr)
	for n := 1; n <= 3; n++ {
		c.Send(getRequests(strings.Split(strings.Repeat("/a ", 15)+"/b", " ")...))
		for range 15 {
			expectBody(t, c, "/a")
		}
		expectBody(t, c, "/b")
		testkit.WaitForFunc(t, func() bool { return s.Stats().Writes >= int64(n) }, func() string { return fmt.Sprintf("%d writes were counted; want %d", s.Stats().Writes, n) })
		if w := s.Stats().Writes; w != int64(n) {
			t.Errorf("%d times 16 responses took %d writes; want as many", n, w)
		}
	}
}
