package pool

import (
	"runtime"
	"testing"
)

func TestBudget(t *testing.T) {
	b := newMemoryBudget(1000, 500)
	used, cycle := int64(0), uint64(0)
	b.readUsage = func() (int64, uint64) { return used, cycle }
	want := func(when string, last, least, most int) int {
		t.Helper()
		got := b.updateMaxWorkers(last)
		if got < least || got > most {
			t.Errorf("%s: %d workers; expected %d to %d", when, got, least, most)
		}
		return got
	}
	want("without need", 100, 500, 500)
	last := 100
	for used = 800; used > 700; used -= 42 {
		cycle++
		got := want("with 80 % used", last, 1, last-1)
		last = want("at a second look without a garbage collection", last, got, got)
	}
	used = 650
	want("in between", last, last, last)
	used = 990
	for range 20 {
		cycle++
		last = want("although fewer don't help", last, 15, last)
	}
	used = 100
	for range 200 {
		last = b.updateMaxWorkers(last)
	}
	want("long after", last, 500, 500)
	if got := newMemoryBudget(-1, 77).updateMaxWorkers(5); got != 77 {
		t.Errorf("%d workers without a limit; expected 77", got)
	}
	if used, _ := newMemoryBudget(0, 1).readHeapAndStackBytes(); used <= 0 {
		t.Errorf("used %d", used)
	}
}

// The heap counts as full if it exceeds 70 % of the limit, also between collections.
func TestHeapIsFull(t *testing.T) {
	block := make([]byte, 8<<20)
	for limit, full := range map[int64]bool{-1: false, 1 << 40: false, int64(len(block)): true} {
		if got := newMemoryBudget(limit, 1).isHeapAboveHighWater(); got != full {
			t.Errorf("limit %d: full %v, want %v", limit, got, full)
		}
	}
	runtime.KeepAlive(block)
}
