package sock

import (
	"context"
	"errors"
	"net"
	"syscall"
	"testing"
)

// rival listens for ListenShared, and has somebody take the port of the first takes
// attempts before the last of the sockets that are to share it.
type rival struct {
	n, takes int
	shared   int // sockets of this attempt
	attempts int
	all      []net.Listener
}

func (r *rival) listen(addr string, shared bool) (net.Listener, error) {
	if !shared {
		r.attempts, r.shared = r.attempts+1, 0
	} else if r.shared++; r.shared == r.n && r.attempts <= r.takes {
		return nil, &net.OpError{Op: "listen", Err: syscall.EADDRINUSE}
	}
	lc := ListenConfig(shared, nil)
	l, err := lc.Listen(context.Background(), "tcp", addr)
	if err == nil {
		r.all = append(r.all, l)
	}
	return l, err
}

// open counts the listeners that are open.
func (r *rival) open() (n int) {
	for _, l := range r.all {
		if fd, err := Detach(l); err == nil {
			Close(fd)
			n++
		}
	}
	return n
}

// Where somebody else takes a port that was free another one is taken, some times, and
// an address that was asked for is an error; nothing stays open of an attempt.
func TestListenShared(t *testing.T) {
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	fixed := taken.Addr().String()
	taken.Close()
	for _, c := range []struct {
		addr               string
		n, takes, attempts int
		inUse              bool
	}{
		{"127.0.0.1:0", 1, 9, 1, false},
		{"127.0.0.1:0", 3, 0, 1, false},
		{"127.0.0.1:0", 3, bindTries - 1, bindTries, false},
		{"127.0.0.1:0", 3, bindTries, bindTries, true},
		{fixed, 3, 1, 1, true},
	} {
		r := &rival{n: c.n, takes: c.takes}
		all, err := listenShared(c.addr, c.n, r.listen)
		if errors.Is(err, syscall.EADDRINUSE) != c.inUse || r.attempts != c.attempts {
			t.Errorf("%d at %s, a port taken %d times: %v after %d attempts; want %d", c.n, c.addr, c.takes, err, r.attempts, c.attempts)
		}
		want := c.n
		if c.inUse {
			want = 0
		}
		if open := r.open(); len(all) != want || open != want {
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
