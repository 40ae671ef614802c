package deque

import (
	"math/rand/v2"
	"slices"
	"testing"
)

// A Deque keeps the order of its elements, whichever end they were added to, and keeps no reference to a removed one.
func TestDeque(t *testing.T) {
	values := make([]int, 100)
	for seed := range uint64(100) {
		random := rand.New(rand.NewPCG(seed, 0))
		var q Deque[*int]
		var want []*int
		some := func(most int) (vs []*int) {
			for range random.IntN(most + 1) {
				vs = append(vs, &values[random.IntN(len(values))])
			}
			return vs
		}
		for step := range 300 {
			switch random.IntN(4) {
			case 0:
				for _, v := range some(5) {
					q.PushBack(v)
					want = append(want, v)
				}
			case 1:
				vs := some(40)
				q.PushAllFront(vs)
				want = append(vs, want...)
			case 2:
				for range random.IntN(len(want) + 1) {
					if v := q.PopFront(); v != want[0] {
						t.Fatalf("seed %d, step %d: PopFront returned another element", seed, step)
					}
					want = want[1:]
				}
			default:
				for range random.IntN(len(want) + 1) {
					if v := q.PopBack(); v != want[len(want)-1] {
						t.Fatalf("seed %d, step %d: PopBack returned another element", seed, step)
					}
					want = want[:len(want)-1]
				}
			}
			var got []*int
			for i := range q.Len() {
				got = append(got, *q.At(i))
			}
			if !slices.Equal(got, want) || q.Len() > 0 && q.Front() != want[0] {
				t.Fatalf("seed %d, step %d: got %d elements, which differ from the %d wanted", seed, step, q.Len(), len(want))
			}
			if left := len(slices.DeleteFunc(slices.Clone(q.ring), func(v *int) bool { return v == nil })); left != q.Len() {
				t.Fatalf("seed %d, step %d: the ring holds %d references for %d elements", seed, step, left, q.Len())
			}
		}
	}
}
