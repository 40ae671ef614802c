package loop

import (
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/myriad-go/myriad/internal/engine"
)

// A deque keeps the order of its elements, whichever end they were added to, and keeps no reference to a
// removed one.
func TestDeque(t *testing.T) {
	conns := make([]engine.Conn, 100)
	for seed := range uint64(100) {
		random := rand.New(rand.NewPCG(seed, 0))
		var q deque[*engine.Conn]
		var want []*engine.Conn
		some := func(most int) (cs []*engine.Conn) {
			for range random.IntN(most + 1) {
				cs = append(cs, &conns[random.IntN(len(conns))])
			}
			return cs
		}
		for step := range 300 {
			switch random.IntN(3) {
			case 0:
				for _, c := range some(5) {
					q.pushBack(c)
					want = append(want, c)
				}
			case 1:
				cs := some(40)
				q.pushAllFront(cs)
				want = append(cs, want...)
			default:
				for range random.IntN(len(want) + 1) {
					q.popFront()
					want = want[1:]
				}
			}
			var got []*engine.Conn
			for i := range q.n {
				got = append(got, *q.at(i))
			}
			if !slices.Equal(got, want) || q.n > 0 && q.front() != want[0] {
				t.Fatalf("seed %d, step %d: got %d elements, which differ from the %d wanted", seed, step, q.n, len(want))
			}
			if left := len(slices.DeleteFunc(slices.Clone(q.ring), func(c *engine.Conn) bool { return c == nil })); left != q.n {
				t.Fatalf("seed %d, step %d: the ring holds %d references for %d elements", seed, step, left, q.n)
			}
		}
	}
}
