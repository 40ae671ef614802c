package sock

import (
	"context"
	"net"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/myriad-go/myriad/internal/testkit"
)

// TestSetDeadPeerTimeout checks the options that accepted connections inherit.
func TestSetDeadPeerTimeout(t *testing.T) {
	for _, test := range []struct {
		name      string
		write     time.Duration
		watched   bool
		keepalive int
		timeout   int // milliseconds
	}{
		{"watched", 30 * time.Second, true, 0, 30_000},
		{"watched, for ever", 0, true, 0, 0},
		{"not watched", 30 * time.Second, false, 1, 180_000},
		{"not watched, long", time.Hour, false, 1, 3_600_000},
		{"not watched, for ever", 0, false, 1, 0},
		{"a moment", time.Microsecond, true, 0, 1},
	} {
		t.Run(test.name, func(t *testing.T) {
			lc := NewKeepaliveListenConfig(false, nil)
			l, err := lc.Listen(context.Background(), "tcp", "127.0.0.1:0")
			testkit.RequireNoError(t, err)
			defer l.Close()
			SetDeadPeerTimeout(l, test.write, test.watched)
			client, err := net.Dial("tcp", l.Addr().String())
			testkit.RequireNoError(t, err)
			defer client.Close()
			conn, err := l.Accept()
			testkit.RequireNoError(t, err)
			defer conn.Close()
			f, err := conn.(*net.TCPConn).File()
			testkit.RequireNoError(t, err)
			defer f.Close()
			fd := int(f.Fd())
			for _, want := range []struct {
				name                 string
				level, option, value int
			}{
				{"SO_KEEPALIVE", unix.SOL_SOCKET, unix.SO_KEEPALIVE, test.keepalive},
				{"TCP_KEEPIDLE", unix.IPPROTO_TCP, unix.TCP_KEEPIDLE, 120},
				{"TCP_USER_TIMEOUT", unix.IPPROTO_TCP, unix.TCP_USER_TIMEOUT, test.timeout},
			} {
				if got, err := unix.GetsockoptInt(fd, want.level, want.option); got != want.value || err != nil {
					t.Errorf("%s is %d (%v), expected %d", want.name, got, err, want.value)
				}
			}
		})
	}
	if KeepaliveTimeout != 3*time.Minute {
		t.Errorf("a peer is given up after %v; the documents say 3 minutes", KeepaliveTimeout)
	}
}
