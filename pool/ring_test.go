package pool

import (
	"context"
	"math/rand/v2"
	"slices"
	"testing"
)

// A ring keeps what it is given, from both ends, whatever comes in between.
func TestRing(t *testing.T) {
	type key struct{}
	for seed := range uint64(50) {
		rnd := rand.New(rand.NewPCG(seed, 0))
		var r ring
		var want []stamped
		next := int64(0)
		for range 3000 {
			if len(want) == 0 || rnd.IntN(100) < 52 {
				next++
				s := stamped{Task: Task{Job: number(next)}, at: next}
				if rnd.IntN(3) == 0 {
					s.Ctx = context.WithValue(context.Background(), key{}, next)
				}
				if rnd.IntN(3) == 0 {
					s.Key = uint64(next)
				}
				if s.Ctx != nil || s.Key != 0 || !r.append(s.Job, s.at) {
					r.push(&s.Task, s.at)
				}
				want = append(want, s)
			} else {
				newest := rnd.IntN(2) == 0
				at := 0
				if newest {
					at = len(want) - 1
				}
				var got stamped
				if r.oldest() != want[0].at {
					t.Fatalf("seed %d: the oldest came at %d, want %d", seed, r.oldest(), want[0].at)
				}
				if r.pop(newest, &got); got != want[at] {
					t.Fatalf("seed %d: got %v (newest %v), want %v", seed, got, newest, want[at])
				}
				want = slices.Delete(want, at, at+1)
			}
			if r.n != len(want) {
				t.Fatalf("seed %d: %d tasks, want %d", seed, r.n, len(want))
			}
		}
		for i, j := range r.jobs {
			if used := (i-r.first)&(len(r.jobs)-1) < r.n; !used && (j != nil || r.ctxs != nil && r.ctxs[i] != nil) {
				t.Fatalf("seed %d: place %d still holds what was taken", seed, i)
			}
		}
	}
}

// number is a job that does nothing.
type number int64

func (number) Run(context.Context) {}

// A large ring gives its memory back when it is empty.
func TestRingShrinks(t *testing.T) {
	var r ring
	for i := range keptRing + 1 {
		r.push(&Task{Job: number(i)}, 1)
	}
	var s stamped
	for r.n > 0 {
		r.pop(false, &s)
	}
	if len(r.jobs) > keptRing {
		t.Errorf("an empty ring has room for %d tasks, want at most %d", len(r.jobs), keptRing)
	}
}
