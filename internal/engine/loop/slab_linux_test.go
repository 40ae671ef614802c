package loop

import (
	"math/rand/v2"
	"testing"

	"github.com/myriad-go/myriad/internal/engine"
)

// TestSlab takes and frees entries at random, and holds the slab against a plain
// account of them.
func TestSlab(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	var s slab
	used := make(map[uint32]*engine.Conn)
	resting := make(map[uint32]bool) // freed, not yet recycled
	most := 0
	for step := range 20_000 {
		switch n := random.IntN(10); {
		case n == 0:
			s.recycle()
			clear(resting)
		case n < 6 && len(used) < 4*chunkSize:
			c := s.take()
			slot := c.Slot()
			if used[slot] != nil || resting[slot] || s.at(slot) != c || c.FD() >= 0 {
				t.Fatalf("step %d: got slot %d (in use %v, resting %v, descriptor %d)", step, slot, used[slot] != nil, resting[slot], c.FD())
			}
			c.SetFD(int32(slot) + 7)
			used[slot] = c
		default:
			for slot, c := range used {
				delete(used, slot)
				resting[slot] = true
				s.put(c)
				break
			}
		}
		most = max(most, len(used)+len(resting))
		if s.used != len(used) {
			t.Fatalf("step %d: %d in use, the slab says %d", step, len(used), s.used)
		}
	}
	seen := 0
	s.each(0, s.made, func(c *engine.Conn) {
		seen++
		if used[c.Slot()] != c || c.FD() != int32(c.Slot())+7 {
			t.Errorf("slot %d with descriptor %d is seen", c.Slot(), c.FD())
		}
	})
	if seen != len(used) {
		t.Errorf("%d entries are seen, expected %d", seen, len(used))
	}
	if int(s.made) != most || len(s.chunks)*chunkSize >= most+chunkSize {
		t.Errorf("%d entries have been used of %d chunks, for at most %d", s.made, len(s.chunks), most)
	}
}
