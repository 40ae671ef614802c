package loop

import (
	"log/slog"
	"math/rand/v2"
	"testing"

	"github.com/myriad-go/myriad/internal/admission"
	"github.com/myriad-go/myriad/internal/engine"
)

// A slab gives entries, and takes them back: entries keep their places, slots are not given twice
// before they are recycled, no generation of a slot comes again, and chunks that nobody uses are
// given back where that is asked for.
func TestSlab(t *testing.T) {
	for _, givesBack := range []bool{false, true} {
		random := rand.New(rand.NewPCG(1, 2))
		cfg := engine.Config{Handler: idler{}, Log: slog.New(slog.DiscardHandler)}
		s := slab{host: &engine.Runtime{Counters: new(engine.Counters)}}
		s.host.Configure(&cfg, admission.New(admission.Config{}))
		used := make(map[uint32]*engine.Conn)
		resting := make(map[uint32]bool) // freed, not yet recycled
		seen := make(map[[2]uint32]bool)
		most, given := 0, 0
		take := func() {
			c := s.take()
			name := [2]uint32{c.Slot(), c.Generation()}
			if used[c.Slot()] != nil || resting[c.Slot()] || seen[name] || s.at(c.Slot()) != c || c.FD() >= 0 {
				t.Fatalf("got slot %d in generation %d: in use %v, resting %v, seen before %v, descriptor %d",
					name[0], name[1], used[c.Slot()] != nil, resting[c.Slot()], seen[name], c.FD())
			}
			c.SetFD(int32(c.Slot()) + 7)
			used[c.Slot()], seen[name] = c, true
			most = max(most, len(used)+len(resting))
		}
		put := func(slot uint32, c *engine.Conn) {
			delete(used, slot)
			resting[slot] = true
			c.Abort(nil) // which begins another generation
			c.OnClosed()
			s.put(c)
		}
		for step := range 200 {
			for range random.IntN(5 * chunkSize) {
				take()
			}
			low := uint32(random.IntN(4)) * chunkSize
			for slot, c := range used {
				if slot >= low || random.IntN(3) == 0 {
					put(slot, c)
				}
			}
			for range random.IntN(10) {
				take() // while others rest
			}
			s.recycle()
			clear(resting)
			if givesBack {
				given += s.giveBack()
			}
			n := 0
			s.each(0, s.made, func(c *engine.Conn) {
				if n++; used[c.Slot()] != c || s.at(c.Slot()) != c || c.FD() != int32(c.Slot())+7 {
					t.Fatalf("step %d: slot %d with descriptor %d is seen", step, c.Slot(), c.FD())
				}
			})
			if n != len(used) || s.used != n {
				t.Fatalf("step %d: %d are seen, and counted %d; want %d", step, n, s.used, len(used))
			}
		}
		if givesBack && (given == 0 || len(s.chunks) > 12) {
			t.Errorf("%d chunks were given back, there are %d", given, len(s.chunks))
		}
		if !givesBack && (int(s.made) != most || len(s.chunks)*chunkSize >= most+chunkSize) {
			t.Errorf("%d entries have been used of %d chunks, for at most %d", s.made, len(s.chunks), most)
		}
	}
}
