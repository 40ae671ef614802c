package sock

import (
	"net"
	"net/netip"
	"slices"
	"testing"

	"golang.org/x/sys/unix"
)

// listenQuietly listens on a free port with room for so many, without accepting.
func listenQuietly(t testing.TB, network, host string, backlog int) netip.AddrPort {
	t.Helper()
	ln, err := net.Listen(network, net.JoinHostPort(host, "0"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { ln.Close() })
	raw, err := ln.(*net.TCPListener).SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	if err := raw.Control(func(fd uintptr) { err = unix.Listen(int(fd), backlog) }); err != nil {
		t.Fatal(err)
	}
	return ln.Addr().(*net.TCPAddr).AddrPort()
}

func dialSome(t testing.TB, to netip.AddrPort, n int) {
	t.Helper()
	for range n {
		c, err := net.Dial("tcp", to.String())
		if err != nil {
			t.Fatal(err)
		}
		c.(*net.TCPConn).SetLinger(0)
		t.Cleanup(func() { c.Close() })
	}
}

// TestQueues counts who waits to be accepted, and how many may.
func TestQueues(t *testing.T) {
	for _, test := range []struct{ network, host string }{{"tcp4", "127.0.0.1"}, {"tcp6", "::1"}} {
		const backlog, waiting = 7, 3
		at := listenQuietly(t, test.network, test.host, backlog)
		dialSome(t, at, waiting)
		got, err := Queues()
		i := slices.IndexFunc(got, func(q Queue) bool { return q.At == at })
		if err != nil || i < 0 || got[i].Waiting != waiting || got[i].Most != backlog || got[i].Inode == 0 {
			t.Errorf("%s: queues %+v, %v; want %d of %d at %s among them", test.network, got, err, waiting, backlog, at)
		}
	}
}

// TestSegmentsOf has a server accept connections, get and send data, and others that are not counted: those
// that nobody has accepted, and those of other ports.
func TestSegmentsOf(t *testing.T) {
	for _, test := range []struct{ network, host string }{{"tcp4", "127.0.0.1"}, {"tcp6", "::1"}} {
		ln, err := net.Listen(test.network, net.JoinHostPort(test.host, "0"))
		if err != nil {
			t.Fatal(err)
		}
		defer ln.Close()
		at := ln.Addr().(*net.TCPAddr).AddrPort()
		const n, in, out = 3, 5, 2
		for range n {
			c, err := net.Dial(test.network, at.String())
			if err != nil {
				t.Fatal(err)
			}
			defer c.Close()
			s, err := ln.Accept()
			if err != nil {
				t.Fatal(err)
			}
			defer s.Close()
			pass(t, c, s, in)
			pass(t, s, c, out)
		}
		dialSome(t, at, 2)
		dialSome(t, listenQuietly(t, test.network, test.host, 100), 2)
		got, err := SegmentsOf(at.Port(), n)
		if want := (Segments{n, n * in, n * out}); err != nil || got != want {
			t.Errorf("%s: segments %+v, %v; want %+v", test.network, got, err, want)
		}
		if got, err := SegmentsOf(at.Port(), n-1); err == nil {
			t.Errorf("%s: segments %+v of at most %d, want an error", test.network, got, n-1)
		}
		if got, err := Accepted(at.Port(), n); err != nil || got != n {
			t.Errorf("%s: %d accepted, %v; want %d", test.network, got, err, n)
		}
		if got, err := Accepted(at.Port(), n-1); err == nil {
			t.Errorf("%s: %d accepted of at most %d, want an error", test.network, got, n-1)
		}
	}
}

// pass sends a byte at a time, each in a segment of its own.
func pass(t *testing.T, from, to net.Conn, n int) {
	t.Helper()
	for range n {
		if _, err := from.Write([]byte("x")); err != nil {
			t.Fatal(err)
		}
		if _, err := to.Read(make([]byte, 1)); err != nil {
			t.Fatal(err)
		}
	}
}

// FuzzDiagMessages goes through anything without failing but by an error.
func FuzzDiagMessages(f *testing.F) {
	f.Add([]byte{16, 0, 0, 0, 3, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0})
	f.Add(diagQuery{family: unix.AF_INET, at: 80}.request())
	f.Fuzz(func(t *testing.T, in []byte) {
		_, _ = diagMessages(in, func(m []byte) error {
			parseQueue(m)
			attribute(m[diagMessage:], diagInfo)
			parseTalk(m)
			return nil
		})
	})
}

func BenchmarkQueues(b *testing.B) {
	for b.Loop() {
		if _, err := Queues(); err != nil {
			b.Fatal(err)
		}
	}
}
