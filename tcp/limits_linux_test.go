package tcp

import (
	"context"
	"net"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/myriad-go/myriad/internal/sock"
)

func TestMoreConnectionsThanDescriptors(t *testing.T) {
	soft, _, ok := sock.DescriptorLimit()
	if !ok || soft > 1<<30 {
		t.Skip("this process has no limit of descriptors that a test could pass")
	}
	// Loops may have a table each, so it is only too much without.
	srv := &Server{Addr: "127.0.0.1:0", Handler: Base{}, Model: Goroutine, Limits: Limits{MaxConns: int(soft)}}
	expectError(t, "ListenAndServe", srv.ListenAndServe(t.Context()), ErrBadConfig, "RLIMIT_NOFILE", "ulimit -n", "LimitNOFILE", "Server.Processes")
}

// A caller's listener may lack options and be in blocking mode.
func TestServeListenerOptions(t *testing.T) {
	forEachModel(t, func(t *testing.T, model string, loops int) {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		requireNoError(t, err)
		f, err := l.(*net.TCPListener).File()
		requireNoError(t, err)
		f.Fd() // makes the socket a blocking one
		f.Close()
		srv := &Server{Handler: Lines(MessageFunc(echoLine)), Model: model, Loops: loops, Limits: Limits{Linger: 50 * time.Millisecond}}
		ended := make(chan error, 1)
		early := dial(t, l.Addr().String())
		go func() { ended <- srv.Serve(context.Background(), l) }()
		early.ExchangeLine("hello", "hello")
		accepted := 0
		for fd := range 1 << 10 {
			name, err := unix.Getsockname(fd)
			at, ok := name.(*unix.SockaddrInet4)
			if _, noPeer := unix.Getpeername(fd); err != nil || noPeer != nil || !ok || at.Port != l.Addr().(*net.TCPAddr).Port {
				continue
			}
			accepted++
			noDelay, _ := unix.GetsockoptInt(fd, unix.IPPROTO_TCP, unix.TCP_NODELAY)
			keepAlive, _ := unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_KEEPALIVE)
			if noDelay != 1 || keepAlive != 1 {
				t.Errorf("an accepted socket has TCP_NODELAY %d, SO_KEEPALIVE %d; want both", noDelay, keepAlive)
			}
		}
		expectEqual(t, "accepted sockets", accepted, 1)
		srv.Close()
		expectNoError(t, <-ended)
	})
}
