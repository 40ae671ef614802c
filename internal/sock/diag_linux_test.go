package sock

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"net/netip"
	"slices"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/myriad-go/myriad/internal/testkit"
)

func listenWithoutAccepting(t testing.TB, network, host string, backlog int) netip.AddrPort {
	t.Helper()
	ln, err := net.Listen(network, net.JoinHostPort(host, "0"))
	testkit.RequireNoError(t, err)
	t.Cleanup(func() { ln.Close() })
	raw, err := ln.(*net.TCPListener).SyscallConn()
	testkit.RequireNoError(t, err)
	testkit.RequireNoError(t, raw.Control(func(fd uintptr) { err = unix.Listen(int(fd), backlog) }))
	return ln.Addr().(*net.TCPAddr).AddrPort()
}

func dialConns(t testing.TB, to netip.AddrPort, n int) {
	t.Helper()
	for range n {
		c, err := net.Dial("tcp", to.String())
		testkit.RequireNoError(t, err)
		c.(*net.TCPConn).SetLinger(0)
		t.Cleanup(func() { c.Close() })
	}
}

func connectAndAccept(t testing.TB, network, host, to string, n int) (at netip.AddrPort, clients, served []net.Conn) {
	t.Helper()
	// The kernel counts all connections with this local port, so it must not be one that other programs get as clients.
	var ln net.Listener
	err := errors.New("no attempt")
	for range 100 {
		if ln, err = net.Listen(network, net.JoinHostPort(host, fmt.Sprint(10_000+rand.IntN(20_000)))); err == nil {
			break
		}
	}
	testkit.RequireNoError(t, err)
	t.Cleanup(func() { ln.Close() })
	at = ln.Addr().(*net.TCPAddr).AddrPort()
	for range n {
		c, err := net.Dial("tcp", net.JoinHostPort(to, fmt.Sprint(at.Port())))
		testkit.RequireNoError(t, err)
		s, err := ln.Accept()
		testkit.RequireNoError(t, err)
		t.Cleanup(func() { c.Close(); s.Close() })
		clients, served = append(clients, c), append(served, s)
	}
	return at, clients, served
}

// loopback has the address to dial for each network and host to listen at.
var loopback = []struct{ network, host, to string }{
	{"tcp4", "127.0.0.1", "127.0.0.1"}, {"tcp6", "::1", "::1"}, {"tcp", "", "127.0.0.1"},
}

func TestListAcceptQueues(t *testing.T) {
	for _, test := range loopback[:2] {
		const backlog, waiting = 7, 3
		at := listenWithoutAccepting(t, test.network, test.host, backlog)
		dialConns(t, at, waiting)
		got, err := ListAcceptQueues()
		i := slices.IndexFunc(got, func(q AcceptQueue) bool { return q.Addr == at })
		if err != nil || i < 0 || got[i].Waiting != waiting || got[i].Max != backlog || got[i].Inode == 0 {
			t.Errorf("%s: queues %+v, %v; want %d of %d at %s among them", test.network, got, err, waiting, backlog, at)
		}
	}
}

// TestSumSegments counts the segments of accepted connections, and ignores connections that are not
// accepted or belong to other ports.
func TestSumSegments(t *testing.T) {
	for _, test := range loopback[:2] {
		const n, in, out = 3, 5, 2
		at, clients, served := connectAndAccept(t, test.network, test.host, test.host, n)
		for i, c := range clients {
			sendSegments(t, c, served[i], in)
			sendSegments(t, served[i], c, out)
		}
		dialConns(t, at, 2)
		dialConns(t, listenWithoutAccepting(t, test.network, test.host, 100), 2)
		for _, most := range []int{n, n - 1} {
			got, err := SumAcceptedConnSegments(at.Port(), most)
			if want := (Segments{n, n * in, n * out}); (err != nil) != (most < n) || err == nil && got != want {
				t.Errorf("%s: segments %+v, %v, with at most %d; want %+v", test.network, got, err, most, want)
			}
			if got, err := CountAcceptedConns(at.Port(), most); (err != nil) != (most < n) || err == nil && got != n {
				t.Errorf("%s: %d accepted, %v, with at most %d; want %d", test.network, got, err, most, n)
			}
		}
	}
}

func sendSegments(t *testing.T, from, to net.Conn, n int) {
	t.Helper()
	for range n {
		_, err := from.Write([]byte("x"))
		testkit.RequireNoError(t, err)
		_, err = to.Read(make([]byte, 1))
		testkit.RequireNoError(t, err)
	}
}

// FuzzParseDiagMessages checks that arbitrary input does not panic.
func FuzzParseDiagMessages(f *testing.F) {
	f.Add([]byte{16, 0, 0, 0, 3, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0})
	f.Add(diagQuery{family: unix.AF_INET, localPort: 80}.encodeRequest())
	f.Fuzz(func(t *testing.T, in []byte) {
		_, _ = parseDiagMessages(in, func(m []byte) error {
			parseAcceptQueue(m)
			findNetlinkAttribute(m[diagMessageSize:], tcpInfoAttribute)
			parseConnInfo(m)
			return nil
		})
	})
}

func TestCheckPrivateTables(t *testing.T) { testkit.ExpectNoError(t, CheckPrivateTables()) }

// TestListConns checks a connection with much input and one with output that the client does not read.
func TestListConns(t *testing.T) {
	for _, test := range loopback {
		const n, said, heard = 4, 3000, 500
		at, clients, served := connectAndAccept(t, test.network, test.host, test.to, n)
		port := at.Port()
		clients[1].Write(make([]byte, said))
		served[2].Write(make([]byte, heard))
		find := func(talks []ConnInfo, c net.Conn) ConnInfo {
			at := c.LocalAddr().(*net.TCPAddr).AddrPort()
			i := slices.IndexFunc(talks, func(t ConnInfo) bool { return t.Remote == netip.AddrPortFrom(at.Addr().Unmap(), at.Port()) })
			if i < 0 {
				t.Fatalf("%s: %v is not in %+v", test.network, at, talks)
			}
			return talks[i]
		}
		var talks []ConnInfo
		var loud, told ConnInfo
		testkit.WaitForFunc(t, func() bool {
			var err error
			if talks, err = ListAcceptedConns(port, n); err != nil || len(talks) != n {
				t.Fatalf("%s: %+v, %v; want %d", test.network, talks, err, n)
			}
			loud, told = find(talks, clients[1]), find(talks, clients[2])
			return loud.BytesIn == said && loud.Unread == said && told.BytesOut == heard
		}, func() string {
			return fmt.Sprintf("%s: the loud one is %+v, the one that was told %+v", test.network, loud, told)
		})
		if quiet := find(talks, clients[0]); quiet.BytesIn != 0 || quiet.BytesOut != 0 || quiet.Unread != 0 || quiet.Local.Port() != port {
			t.Errorf("%s: the quiet one is %+v", test.network, quiet)
		}
		if loud.Cookie == told.Cookie {
			t.Errorf("%s: two connections have the cookie %d", test.network, loud.Cookie)
		}
		if talks, err := ListAcceptedConns(port, n-1); err == nil {
			t.Errorf("%s: %d of at most %d, want an error", test.network, len(talks), n-1)
		}
	}
}
