package web_test

import (
	"net/http"
	"net/netip"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/myriad-go/myriad/internal/testkit"
	"github.com/myriad-go/myriad/tcp"
	"github.com/myriad-go/myriad/web"
)

// TestIdleMemory measures the heap memory of idle connections. Clients are mere descriptors,
// which take none.
func TestIdleMemory(t *testing.T) {
	const n, warm = 2000, 200
	testkit.AcquireDescriptorsOrSkip(t, 2*(n+warm)+100)
	mux := http.NewServeMux()
	mux.Handle("/plain", web.Quick(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {})))
	mux.HandleFunc("/pool", func(http.ResponseWriter, *http.Request) {})
	mux.Handle("/ws", web.Quick(&web.WebSocket{Handler: echoSocket}))
	mux.Handle("/events", &web.Events{})
	rows := []struct {
		name, request string
		most          int64
	}{
		{"keep-alive, quick", getRequests("/plain"), 120},
		{"keep-alive", getRequests("/pool"), 120},
		{"WebSocket", getRequest("/ws"), 200},
		{"events", getRequests("/events"), 200},
	}
	for _, model := range tcp.Models() {
		if model == tcp.Goroutine {
			continue // a goroutine each
		}
		for _, r := range rows {
			t.Run(model+"/"+strings.ReplaceAll(r.name, ", ", " "), func(t *testing.T) {
				addr := netip.MustParseAddrPort(startServer(t, &tcp.Server{Model: model, Handler: web.Handler(mux)}))
				fds := make([]int, 0, n+warm)
				defer func() {
					for _, fd := range fds {
						unix.Close(fd)
					}
				}()
				ask := func(count int) {
					var answer [1024]byte
					for range count {
						fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM, 0)
						testkit.RequireNoError(t, err)
						fds = append(fds, fd)
						testkit.RequireNoError(t, unix.Connect(fd, &unix.SockaddrInet4{Port: int(addr.Port()), Addr: addr.Addr().As4()}))
						_, err = unix.Write(fd, []byte(r.request))
						testkit.RequireNoError(t, err)
						if n, err := unix.Read(fd, answer[:]); n <= 0 {
							t.Fatalf("%d bytes of a response, %v", n, err)
						}
					}
				}
				ask(warm)
				before := testkit.LiveHeapBytes()
				ask(n)
				each := (testkit.LiveHeapBytes() - before) / n
				t.Logf("%d bytes of heap for each of %d", each, n)
				if each > r.most {
					t.Errorf("%d bytes of heap for each; expected at most %d", each, r.most)
				}
			})
		}
	}
}
