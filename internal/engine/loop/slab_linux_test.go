package loop

import (
	"log/slog"
	"math/rand/v2"
	"testing"

	"github.com/myriad-go/myriad/internal/admission"
	"github.com/myriad-go/myriad/internal/engine"
)

// TestSlabGivesBack has chunks given back and made anew: entries keep their places, slots are
// not given twice, and no generation of a slot comes again.
func TestSlabGivesBack(t *testing.T) {
	random := rand.New(rand.NewPCG(3, 4))
	cfg := engine.Config{Handler: idler{}, Log: slog.New(slog.DiscardHandler)}
	s := slab{host: &engine.Host{Counters: new(engine.Counters)}}
	s.host.SetUp(&cfg, admission.New(admission.Config{}))
	used := make(map[uint32]*engine.Conn)
	seen := make(map[[2]uint32]bool)
	given := 0
	for step := range 200 {
		for range random.IntN(5 * chunkSize) {
			c := s.take()
			name := [2]uint32{c.Slot(), c.Generation()}
			if used[c.Slot()] != nil || seen[name] || s.at(c.Slot()) != c {
				t.Fatalf("step %d: slot %d in generation %d: in use %v, seen before %v", step, name[0], name[1], used[c.Slot()] != nil, seen[name])
			}
			seen[name] = true
			c.SetFD(int32(c.Slot()) + 7)
			used[c.Slot()] = c
		}
		low := uint32(random.IntN(4)) * chunkSize
		for slot, c := range used {
			if slot >= low || random.IntN(3) == 0 {
				delete(used, slot)
				c.Abort(nil) // which begins another generation
				c.Finish()
				s.put(c)
			}
		}
		s.recycle()
		given += s.giveBack()
		for slot, c := range used {
			if s.at(slot) != c {
				t.Fatalf("step %d: slot %d is another one's", step, slot)
			}
		}
		n := 0
		if s.each(0, s.made, func(*engine.Conn) { n++ }); n != len(used) || s.used != n {
			t.Fatalf("step %d: %d are seen, and counted %d; want %d", step, n, s.used, len(used))
		}
	}
	if given == 0 || len(s.chunks) > 12 {
		t.Errorf("%d chunks were given back, there are %d", given, len(s.chunks))
	}
}

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
