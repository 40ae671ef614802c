package admin

import (
	"net"
	"net/netip"
	"testing"
	"time"

	"github.com/myriad-go/myriad/internal/sock"
)

var tcpAddr = &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1), Port: 1}

// TestTake finds the loudest of many, by what was said between two looks.
func TestTake(t *testing.T) {
	const n = 200
	at := time.Now()
	talk := func(i, in, out int64) sock.Talk {
		return sock.Talk{Cookie: uint64(i + 1), Remote: netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 0, 0, byte(i)}), 1), In: in, Out: out}
	}
	var first, second []sock.Talk
	for i := range int64(n) {
		first = append(first, talk(i, 1000*i, 0)) // who said most before
		second = append(second, talk(i, 1000*i+2*(n-i), 0))
	}
	second[77].Out = 1 << 20
	second = append(second, talk(n, 0, 1<<30)) // one that is new
	var l talkers
	l.take(at, first)
	if len(l.top) != topTalks || l.top[0].Cookie != n || l.over != 0 {
		t.Errorf("at the first look there are %d, the loudest is %+v", len(l.top), l.top[0])
	}
	l.take(at.Add(2*time.Second), second)
	if len(l.top) != topTalks || l.all != n+1 || l.over != 2*time.Second {
		t.Errorf("%d of %d over %v", len(l.top), l.all, l.over)
	}
	for i, want := range []struct {
		cookie  uint64
		in, out float64
	}{{n + 1, 0, 1 << 29}, {78, n - 77, 1 << 19}, {1, n, 0}, {2, n - 1, 0}} {
		if got := l.top[i]; got.Cookie != want.cookie || got.inRate != want.in || got.outRate != want.out {
			t.Errorf("number %d is %+v, want %+v", i, got, want)
		}
	}
	if len(l.counts) != n+1 {
		t.Errorf("%d are remembered of %d", len(l.counts), n+1)
	}
}
