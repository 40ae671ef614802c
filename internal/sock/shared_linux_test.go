package sock

import (
	"context"
	"errors"
	"net"
	"syscall"
	"testing"

	"github.com/myriad-go/myriad/internal/testkit"
)

// flakyListener listens for ListenReusePort. In the first failures attempts, the last shared socket
// finds its port taken.
type flakyListener struct {
	sockets, failures int
	sharedSockets     int // sockets of this attempt
	attempts          int
	listeners         []net.Listener
}

func (r *flakyListener) listen(addr string, shared bool) (net.Listener, error) {
	if !shared {
		r.attempts, r.sharedSockets = r.attempts+1, 0
	} else if r.sharedSockets++; r.sharedSockets == r.sockets && r.attempts <= r.failures {
		return nil, &net.OpError{Op: "listen", Err: syscall.EADDRINUSE}
	}
	lc := NewKeepaliveListenConfig(shared, nil)
	l, err := lc.Listen(context.Background(), "tcp", addr)
	if err == nil {
		r.listeners = append(r.listeners, l)
	}
	return l, err
}

func (r *flakyListener) countOpen() (n int) {
	for _, l := range r.listeners {
		if fd, err := DupConnDescriptor(l); err == nil {
			Close(fd)
			n++
		}
	}
	return n
}

// TestListenShared checks that a taken free port is replaced by another one, within limits, that a
// given port fails, and that failed attempts leave nothing open.
func TestListenShared(t *testing.T) {
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	testkit.RequireNoError(t, err)
	fixed := taken.Addr().String()
	taken.Close()
	for _, c := range []struct {
		addr               string
		n, takes, attempts int
		inUse              bool
	}{
		{"127.0.0.1:0", 1, 9, 1, false},
		{"127.0.0.1:0", 3, 0, 1, false},
		{"127.0.0.1:0", 3, maxBindAttempts - 1, maxBindAttempts, false},
		{"127.0.0.1:0", 3, maxBindAttempts, maxBindAttempts, true},
		{fixed, 3, 1, 1, true},
	} {
		r := &flakyListener{sockets: c.n, failures: c.takes}
		all, err := retryListenReusePortIfAnyPort(c.addr, c.n, r.listen)
		if errors.Is(err, syscall.EADDRINUSE) != c.inUse || r.attempts != c.attempts {
			t.Errorf("%d at %s, a port taken %d times: %v after %d attempts; want %d", c.n, c.addr, c.takes, err, r.attempts, c.attempts)
		}
		want := c.n
		if c.inUse {
			want = 0
		}
		if open := r.countOpen(); len(all) != want || open != want {
			t.Errorf("%d at %s, a port taken %d times: %d listeners, and %d are open; want %d", c.n, c.addr, c.takes, len(all), open, want)
		}
		for _, l := range all {
			if l.Addr().String() != all[0].Addr().String() {
				t.Errorf("listens at %v and %v", all[0].Addr(), l.Addr())
			}
			l.Close()
		}
	}
}
