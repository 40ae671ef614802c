package pool

import (
	"runtime"
	"testing"
)

func TestBudget(t *testing.T) {
	b := newMemoryBudgetOrCgroupLimit(1000, 500)
	used, cycle := int64(0), uint64(0)
	b.readUsage = func() (int64, uint64) { return used, cycle }
	if got := b.updateMaxWorkers(100); got != 500 {
		t.Errorf("%d workers without need; expected 500", got)
	}
	used = 800
	last := 100
	for range 3 {
		cycle++
		got := b.updateMaxWorkers(last)
		if got >= last {
			t.Errorf("%d workers with %d of 1,000 used; expected fewer than %d", got, used, last)
		}
		if again := b.updateMaxWorkers(last); again != got {
			t.Errorf("%d workers at a second look without a garbage collection; expected %d", again, got)
		}
		last = got
		used -= 42
	}
	used = 650
	if got := b.updateMaxWorkers(last); got != last {
		t.Errorf("%d workers in between; expected %d as before", got, last)
	}
	used = 990
	for range 20 {
		cycle++
		last = b.updateMaxWorkers(last)
	}
	if last < 15 {
		t.Errorf("%d workers although fewer don't help; expected no more cuts than %d", last, maxFutile)
	}
	used = 100
	for i := 0; last < 500; i++ {
		if i > 200 {
			t.Fatalf("%d workers long after", last)
		}
		last = b.updateMaxWorkers(last)
	}
	if got := newMemoryBudgetOrCgroupLimit(-1, 77).updateMaxWorkers(5); got != 77 {
		t.Errorf("%d workers without a limit; expected 77", got)
	}
	if used, _ := newMemoryBudgetOrCgroupLimit(0, 1).readHeapAndStackBytes(); used <= 0 {
		t.Errorf("used %d", used)
	}
}

// The heap counts as full if it exceeds 70 % of the limit, also between collections.
func TestHeapIsFull(t *testing.T) {
	block := make([]byte, 8<<20)
	for limit, full := range map[int64]bool{-1: false, 1 << 40: false, int64(len(block)): true} {
		if got := newMemoryBudgetOrCgroupLimit(limit, 1).isHeapFull(); got != full {
			t.Errorf("limit %d: full %v, want %v", limit, got, full)
		}
	}
	runtime.KeepAlive(block)
}
