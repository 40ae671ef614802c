package tcp

import (
	"fmt"
	"net"
	"syscall"
	"testing"
	"time"
)

// A dial to a listener with a full queue ends after its timeout.
func TestDialTimeout(t *testing.T) {
	fd, err := syscall.Socket(syscall.AF_INET, syscall.SOCK_STREAM|syscall.SOCK_CLOEXEC, 0)
	requireNoError(t, err)
	defer syscall.Close(fd)
	requireNoError(t, syscall.Bind(fd, &syscall.SockaddrInet4{Addr: [4]byte{127, 0, 0, 1}}))
	if err := syscall.Listen(fd, 0); err != nil {
		t.Fatal(err)
	}
	at, err := syscall.Getsockname(fd)
	requireNoError(t, err)
	addr := fmt.Sprintf("127.0.0.1:%d", at.(*syscall.SockaddrInet4).Port)
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
		waitFor(t, "it stays open", func() bool { return s.Stats().Open == 0 })
		dial(t, s.addr).Exchange("still there", "still there")
	})
}
