package sock

import (
	"fmt"
	"net"
	"net/netip"
	"slices"
	"testing"
	"time"
)

// TestTalks has connections of which one says much, and one is told much that it does
// not take.
func TestTalks(t *testing.T) {
	for _, test := range []struct{ network, host, to string }{{"tcp4", "127.0.0.1", ""}, {"tcp6", "::1", ""}, {"tcp", "", "127.0.0.1"}} {
		ln, err := net.Listen(test.network, net.JoinHostPort(test.host, "0"))
		if err != nil {
			t.Skip(err)
		}
		defer ln.Close()
		port := ln.Addr().(*net.TCPAddr).AddrPort().Port()
		if test.to == "" {
			test.to = test.host
		}
		const n, said, heard = 4, 3000, 500
		var clients, served []net.Conn
		for range n {
			c, err := net.Dial("tcp", net.JoinHostPort(test.to, fmt.Sprint(port)))
			if err != nil {
				t.Fatal(err)
			}
			defer c.Close()
			s, err := ln.Accept()
			if err != nil {
				t.Fatal(err)
			}
			defer s.Close()
			clients, served = append(clients, c), append(served, s)
		}
		clients[1].Write(make([]byte, said))
		served[2].Write(make([]byte, heard))
		find := func(talks []Talk, c net.Conn) Talk {
			at := c.LocalAddr().(*net.TCPAddr).AddrPort()
			i := slices.IndexFunc(talks, func(t Talk) bool { return t.Remote == netip.AddrPortFrom(at.Addr().Unmap(), at.Port()) })
			if i < 0 {
				t.Fatalf("%s: %v is not in %+v", test.network, at, talks)
			}
			return talks[i]
		}
		var talks []Talk
		for deadline := time.Now().Add(time.Minute); ; time.Sleep(time.Millisecond) {
			if talks, err = Talks(port, n); err != nil || len(talks) != n {
				t.Fatalf("%s: %+v, %v; want %d", test.network, talks, err, n)
			}
			loud, told := find(talks, clients[1]), find(talks, clients[2])
			if loud.In == said && loud.Unread == said && told.Out == heard {
				break
			}
			if time.Now().After(deadline) {
				t.Fatalf("%s: the loud one is %+v, the one that was told %+v", test.network, loud, told)
			}
		}
		if quiet := find(talks, clients[0]); quiet.In != 0 || quiet.Out != 0 || quiet.Unread != 0 || quiet.Local.Port() != port {
			t.Errorf("%s: the quiet one is %+v", test.network, quiet)
		}
		cookies := map[uint64]bool{}
		for _, talk := range talks {
			cookies[talk.Cookie] = true
		}
		if len(cookies) != n {
			t.Errorf("%s: %d connections have %d cookies", test.network, n, len(cookies))
		}
		if talks, err := Talks(port, n-1); err == nil {
			t.Errorf("%s: %d of at most %d, want an error", test.network, len(talks), n-1)
		}
	}
}

func FuzzAttribute(f *testing.F) {
	f.Add([]byte{8, 0, 2, 0, 1, 2, 3, 4}, uint16(2))
	f.Add([]byte{5, 0, 1, 0, 9, 0, 0, 0, 8, 0, 2, 0, 1, 2, 3, 4}, uint16(2))
	f.Fuzz(func(t *testing.T, in []byte, kind uint16) {
		if got := attribute(in, kind); len(got) > len(in) {
			t.Errorf("%d bytes of %d", len(got), len(in))
		}
	})
}
