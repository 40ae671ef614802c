package hub

import (
	"fmt"
	"net/netip"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/myriad-go/myriad/internal/testkit"
	"github.com/myriad-go/myriad/tcp"
)

// TestFrontMemory measures the heap per idle subscriber. Clients are bare descriptors, which need none.
func TestFrontMemory(t *testing.T) {
	const n, warm = 4000, 1000
	testkit.AcquireDescriptorsOrSkip(t, 2*(n+warm)+100)
	rows := []struct {
		name string
		text func(i int) string
		most int64
	}{
		{"Redis/one topic", func(int) string { return "SUBSCRIBE a\r\n" }, 200},
		{"Redis/a topic each", func(i int) string { return fmt.Sprintf("SUBSCRIBE %06d\r\n", i) }, 300},
		{"WebSocket/a topic each", func(i int) string {
			return webSocketHandshake + maskedTextFrame(fmt.Sprintf(`{"op":"subscribe","topic":"%06d"}`, i))
		}, 360},
		{"events/a topic each", func(i int) string {
			return fmt.Sprintf("GET /events?topic=%06d HTTP/1.1\r\nHost: localhost\r\n\r\n", i)
		}, 400},
	}
	for _, model := range tcp.Models() {
		if model == tcp.Goroutine {
			continue // one goroutine each
		}
		for _, row := range rows {
			t.Run(model+"/"+row.name, func(t *testing.T) {
				each := heapPerSubscriber(t, model, row.text, warm, n)
				t.Logf("%d bytes of heap for each of %d", each, n)
				if each > row.most {
					t.Errorf("%d bytes of heap for each; expected at most %d", each, row.most)
				}
			})
		}
	}
}

// connectBatch is the number of simultaneous connects. Each may leave a free buffer of 1 KiB behind.
const connectBatch = 50

func heapPerSubscriber(t *testing.T, model string, text func(i int) string, warm, n int) int64 {
	t.Helper()
	h := &Hub{}
	at, stop := serveHub(t, model, h)
	defer stop()
	addr := netip.MustParseAddrPort(at)
	var fds []int
	defer func() {
		for _, fd := range fds {
			unix.Close(fd)
		}
	}()
	come := func(count int) {
		for range count {
			if len(fds)%connectBatch == 0 {
				h.waitForTotalSubscribers(t, len(fds))
			}
			fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM, 0)
			testkit.RequireNoError(t, err)
			i := len(fds)
			fds = append(fds, fd)
			to := &unix.SockaddrInet4{Port: int(addr.Port()), Addr: addr.Addr().As4()}
			testkit.RequireNoError(t, unix.Connect(fd, to))
			_, err = unix.Write(fd, []byte(text(i)))
			testkit.RequireNoError(t, err)
		}
		h.waitForTotalSubscribers(t, len(fds))
	}
	come(warm)
	before := testkit.LiveHeapBytes()
	come(n)
	return (testkit.LiveHeapBytes() - before) / int64(n)
}
