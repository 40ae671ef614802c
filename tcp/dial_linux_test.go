package tcp

import (
	"fmt"
	"net"
	"testing"
	"time"
)

// A dial to a listener with a full queue ends after its timeout.
func TestDialTimeout(t *testing.T) {
	t.Parallel() // mostly waits
	_, addr := listenRaw(t, 0)
	for range 4 { // until the queue is full
		if c, err := net.DialTimeout("tcp", addr, 50*time.Millisecond); err == nil {
			defer c.Close()
		}
	}
	forEachModel(t, func(t *testing.T, model string, loops int) {
		s := startServer(t, &Server{Model: model, Loops: loops})
		h := newDialRecorder()
		requireNoError(t, s.Dial(Dial{Addr: addr, Handler: h, Timeout: 10 * time.Millisecond}))
		h.expectEvents(t, fmt.Sprintf("failed %s <nil>: %v", addr, ErrDialTimeout))
		s.waitOpen(t, 0)
		dial(t, s.addr).ExchangeLine("still there", "still there")
	})
}
