package overload

import (
	"math"
	"math/rand/v2"
	"net/netip"
	"testing"
	"time"
	"unsafe"
)

func testSource(n int) netip.Addr {
	return netip.AddrFrom4([4]byte{10, byte(n >> 16), byte(n >> 8), byte(n)})
}

// startClosedLoop starts clients that send a request, wait for its end, and send the next one. After a rejection, they
// wait for retryAfter. The returned counter contains the finished requests.
func (s *server) startClosedLoop(source netip.Addr, clients int, finished map[netip.Addr]int) {
	for range clients {
		s.after(time.Duration(s.random.Int64N(int64(retryAfter))), func() { s.arrive(&request{source: source}, Normal) })
	}
	s.finished = func(r *request) {
		finished[r.source]++
		s.arrive(&request{source: r.source}, Normal)
	}
	s.shed = func(r *request) {
		s.after(retryAfter/2+time.Duration(s.random.Int64N(int64(retryAfter))), func() { s.arrive(&request{source: r.source}, Normal) })
	}
}

const retryAfter = 200 * time.Millisecond

func TestHeavySourceGetsOnlyItsShare(t *testing.T) {
	for _, h := range handlers {
		for _, weight := range []int{0, 1, 50} {
			s := newServer(h.workers, h.service, 11)
			heavy := testSource(0)
			if weight != 1 {
				s.gate.shares.weights = newSourceWeights(map[netip.Prefix]int{netip.PrefixFrom(heavy, 24): weight})
			}
			finished := make(map[netip.Addr]int)
			s.startClosedLoop(heavy, 10_000, finished)
			for i := range 100 {
				s.startClosedLoop(testSource(1000+i), 10, finished)
			}
			s.runUntil(3 * time.Second)
			clear(finished)
			s.runUntil(10 * time.Second)
			all := 0
			for _, n := range finished {
				all += n
			}
			share := float64(all) / float64(100+weight)
			minimum := math.Inf(1)
			lights := 0
			for i := range 100 {
				n := float64(finished[testSource(1000+i)])
				lights += int(n)
				minimum = min(minimum, n)
			}
			capacity := 7 * float64(h.workers) / h.service.Seconds()
			t.Logf("%s weight %d: goodput %.2f heavy %.2f shares, lights mean %.2f shares, min %.2f", h.name, weight, float64(all)/capacity, float64(finished[heavy])/share, float64(lights)/100/share, minimum/share)
		}
	}
}

var _ = rand.N[int]
var _ = unsafe.Sizeof(0)
