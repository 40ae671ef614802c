package loop

import (
	"log/slog"
	"math/rand/v2"
	"testing"

	"github.com/myriad-go/myriad/internal/admission"
	"github.com/myriad-go/myriad/internal/engine"
)

// A table acquires and releases entries: entries never move, slots are not reused before they are recycled,
// no generation of a slot repeats, and unused chunks are freed on request.
func TestConnTable(t *testing.T) {
	for _, freesChunks := range []bool{false, true} {
		random := rand.New(rand.NewPCG(1, 2))
		cfg := engine.Config{Handler: noopHandler{}, Log: slog.New(slog.DiscardHandler)}
		s := connTable{host: &engine.Runtime{Counters: new(engine.Counters)}}
		s.host.Configure(&cfg, admission.NewController(admission.Config{}))
		used := make(map[uint32]*engine.Conn)
		notRecycled := make(map[uint32]bool) // released, not yet recycled
		seen := make(map[[2]uint32]bool)
		maxUsed, freedChunks := 0, 0
		acquire := func() {
			c := s.acquireConn()
			name := [2]uint32{c.Slot(), c.Generation()}
			if used[c.Slot()] != nil || notRecycled[c.Slot()] || seen[name] || s.conn(c.Slot()) != c || c.FD() >= 0 {
				t.Fatalf("got slot %d in generation %d: in use %v, not recycled %v, seen before %v, descriptor %d",
					name[0], name[1], used[c.Slot()] != nil, notRecycled[c.Slot()], seen[name], c.FD())
			}
			c.SetFD(int32(c.Slot()) + 7)
			used[c.Slot()], seen[name] = c, true
			maxUsed = max(maxUsed, len(used)+len(notRecycled))
		}
		release := func(slot uint32, c *engine.Conn) {
			delete(used, slot)
			notRecycled[slot] = true
			c.Abort(nil) // which starts another generation
			c.OnClosed()
			s.releaseForLaterReuse(c)
		}
		for step := range 200 {
			for range random.IntN(5 * chunkSize) {
				acquire()
			}
			low := uint32(random.IntN(4)) * chunkSize
			for slot, c := range used {
				if slot >= low || random.IntN(3) == 0 {
					release(slot, c)
				}
			}
			for range random.IntN(10) {
				acquire() // while others are not recycled
			}
			s.makeReleasedReusable()
			clear(notRecycled)
			if freesChunks {
				freedChunks += s.freeChunksWithoutConns()
			}
			n := 0
			s.forEachConnInUse(0, s.slotCount, func(c *engine.Conn) {
				if n++; used[c.Slot()] != c || s.conn(c.Slot()) != c || c.FD() != int32(c.Slot())+7 {
					t.Fatalf("step %d: forEach visits slot %d with descriptor %d", step, c.Slot(), c.FD())
				}
			})
			if n != len(used) || s.used != n {
				t.Fatalf("step %d: %d entries visited, %d counted; want %d", step, n, s.used, len(used))
			}
		}
		if freesChunks && (freedChunks == 0 || len(s.chunks) > 12) {
			t.Errorf("%d chunks freed, %d left", freedChunks, len(s.chunks))
		}
		if !freesChunks && (int(s.slotCount) != maxUsed || len(s.chunks)*chunkSize >= maxUsed+chunkSize) {
			t.Errorf("%d slots used in %d chunks; want %d slots", s.slotCount, len(s.chunks), maxUsed)
		}
	}
}
