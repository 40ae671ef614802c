package tcp

import (
	"context"
	"errors"
	"net"
	"os"
	"strconv"
	"strings"
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
	srv := Server{Addr: ":0", Handler: Base{}, Model: Goroutine, Limits: Limits{MaxConns: int(soft)}}
	err := srv.ListenAndServe(context.Background())
	if !errors.Is(err, ErrBadConfig) {
		t.Fatalf("%v, want an error that wraps ErrBadConfig", err)
	}
	for _, word := range []string{"RLIMIT_NOFILE", "ulimit -n", "LimitNOFILE", "Server.Processes"} {
		if !strings.Contains(err.Error(), word) {
			t.Errorf("the error %q does not say %q", err, word)
		}
	}
}

// A caller's listener may lack options and be in blocking mode. Its connections, even those made
// before the server started, get the usual options.
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
		early.Exchange("hello", "hello")
		got := map[string]int{}
		for _, o := range []struct {
			name          string
			level, option int
		}{{"TCP_NODELAY", unix.IPPROTO_TCP, unix.TCP_NODELAY}, {"SO_KEEPALIVE", unix.SOL_SOCKET, unix.SO_KEEPALIVE}} {
			open, err := os.ReadDir("/proc/self/fd")
			requireNoError(t, err)
			for _, entry := range open {
				fd, err := strconv.Atoi(entry.Name())
				requireNoError(t, err)
				if name, err := unix.Getsockname(fd); err == nil && isSamePort(name, l.Addr()) && isConnected(fd) {
					got[o.name], _ = unix.GetsockoptInt(fd, o.level, o.option)
				}
			}
		}
		if got["TCP_NODELAY"] != 1 || got["SO_KEEPALIVE"] != 1 {
			t.Errorf("an accepted socket has the options %v, want both set", got)
		}
		srv.Close()
		expectNoError(t, <-ended)
	})
}

func isSamePort(name unix.Sockaddr, addr net.Addr) bool {
	in, ok := name.(*unix.SockaddrInet4)
	return ok && in.Port == addr.(*net.TCPAddr).Port
}

func isConnected(fd int) bool {
	_, err := unix.Getpeername(fd)
	return err == nil
}
