package hub

import (
	"fmt"
	"hash/maphash"
	"math/rand/v2"
	"testing"
)

// collidingHash returns hashes with few home slots.
func collidingHash(name string) uint64 { return maphash.String(hashSeed, name) & 0xf00000000000ffff }

// TestTopicSet adds and removes colliding topics and checks that memory is released.
func TestTopicSet(t *testing.T) {
	r := rand.New(rand.NewPCG(3, 4))
	for _, hash := range []func(string) uint64{collidingHash, func(name string) uint64 { return maphash.String(hashSeed, name) }} {
		var s topicSet
		all := make(map[string]*topic)
		names := make([]string, 500)
		for i := range names {
			names[i] = fmt.Sprint(i)
		}
		step := func(adds bool) {
			name := names[r.IntN(len(names))]
			switch have := s.find(name, hash(name)); {
			case have != all[name]:
				t.Fatalf("topic %s is %v, want %v", name, have, all[name])
			case have == nil && adds:
				all[name] = &topic{name: name}
				s.add(all[name], hash(name))
			case have != nil && !adds:
				s.remove(have)
				delete(all, name)
			}
			if s.count != len(all) {
				t.Fatalf("%d topics, want %d", s.count, len(all))
			}
		}
		for _, percent := range []int{90, 50, 10} {
			for range 3000 {
				step(r.IntN(100) < percent)
			}
		}
		for len(all) > 0 {
			step(false)
		}
		if len(s.slots) != minSlots {
			t.Errorf("an empty set keeps %d slots, want %d", len(s.slots), minSlots)
		}
		for i, slot := range s.slots {
			if slot != nil || s.tags[i] != 0 {
				t.Errorf("slot %d of an empty set has %v, %d", i, slot, s.tags[i])
			}
		}
	}
}
