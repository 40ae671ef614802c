package hub

import (
	"fmt"
	"hash/maphash"
	"sync"
	"sync/atomic"
)

// table is all topics, or all patterns, that have subscribers, in parts by the hash of the
// name, each with a lock of its own.
type table struct {
	n     atomic.Int64
	parts [tableParts]part
}

const tableParts = 64

type part struct {
	mu     sync.RWMutex
	topics topicSet
}

var seed = maphash.MakeSeed()

func (ts *table) part(hash uint64) *part { return &ts.parts[hash%tableParts] }

// find is the topic of a name, or nil if nobody has subscribed to it.
func (ts *table) find(name string) *topic {
	if ts.n.Load() == 0 {
		return nil
	}
	hash := maphash.String(seed, name)
	p := ts.part(hash)
	p.mu.RLock()
	defer p.mu.RUnlock()
	return p.topics.find(name, hash)
}

// subscribers is how many a name has.
func (ts *table) subscribers(name string) int {
	hash := maphash.String(seed, name)
	p := ts.part(hash)
	p.mu.RLock()
	defer p.mu.RUnlock()
	if t := p.topics.find(name, hash); t != nil {
		return int(t.members)
	}
	return 0
}

// join counts a subscriber of a name in, and gives its topic. It reports whether it is the first.
func (ts *table) join(name string, k Kind, f format, l Limits) (t *topic, first bool, err error) {
	hash := maphash.String(seed, name)
	p := ts.part(hash)
	p.mu.Lock()
	defer p.mu.Unlock()
	t = p.topics.find(name, hash)
	if t == nil {
		if most := l.maxTopics(); ts.n.Add(1) > int64(most) {
			ts.n.Add(-1)
			return nil, false, fmt.Errorf("%w: at most %d are allowed", errTopics, most)
		}
		t = &topic{name: name, kind: k, first: f}
		p.topics.add(t, hash)
	}
	if most := l.MaxSubscribers; most > 0 && int(t.members) >= most {
		return nil, false, fmt.Errorf("%w: at most %d are allowed", errSubscribers, most)
	}
	t.members++
	return t, t.members == 1, nil
}

// leave counts a subscriber out. It reports whether it was the last.
func (ts *table) leave(t *topic) (last bool) {
	hash := maphash.String(seed, t.name)
	p := ts.part(hash)
	p.mu.Lock()
	defer p.mu.Unlock()
	if t.members--; t.members > 0 {
		return false
	}
	p.topics.remove(t)
	ts.n.Add(-1)
	return true
}

// eachTopic calls f for every topic, in no order. f must not subscribe.
func (ts *table) eachTopic(f func(*topic)) {
	for i := range ts.parts {
		p := &ts.parts[i]
		p.mu.RLock()
		for _, t := range p.topics.slots {
			if t != nil {
				f(t)
			}
		}
		p.mu.RUnlock()
	}
}

// each calls f for every topic, in no order, until it returns false. f must not subscribe.
func (ts *table) each(f func(name string, subscribers int) bool) {
	for i := range ts.parts {
		if !ts.parts[i].each(f) {
			return
		}
	}
}

func (p *part) each(f func(name string, subscribers int) bool) bool {
	p.mu.RLock()
	defer p.mu.RUnlock()
	for _, t := range p.topics.slots {
		if t != nil && !f(t.name, int(t.members)) {
			return false
		}
	}
	return true
}

// topicSet is a hash table of topics by their names, with linear probing: each is at the slot
// that its hash means, or as close behind it as there was room. A topic takes some 12 bytes in
// it, where a map takes 40.
type topicSet struct {
	slots []*topic
	tags  []uint8 // of the topics in the slots; 0 if there is none
	n     int
}

// minSlots is how many slots there are at the least.
const minSlots = 8

// place is where a search for a hash begins.
func (s *topicSet) place(hash uint32) int { return int(uint64(hash) * uint64(len(s.slots)) >> 32) }

// halves gives what the place and the tag of a hash come from. The rest tells the part.
func halves(hash uint64) (place uint32, tag uint8) { return uint32(hash >> 32), uint8(hash>>8) | 1 }

func (s *topicSet) next(i int) int {
	if i++; i == len(s.slots) {
		return 0
	}
	return i
}

func (s *topicSet) find(name string, hash uint64) *topic {
	if s.n == 0 {
		return nil
	}
	place, tag := halves(hash)
	for i := s.place(place); s.tags[i] != 0; i = s.next(i) {
		if s.tags[i] == tag && s.slots[i].name == name {
			return s.slots[i]
		}
	}
	return nil
}

// add adds a topic that is not there.
func (s *topicSet) add(t *topic, hash uint64) {
	var tag uint8
	t.hash, tag = halves(hash)
	if s.n >= len(s.slots)*7/8 {
		s.resize(len(s.slots) * 3 / 2)
	}
	s.put(t, tag)
	s.n++
}

// put puts a topic in a free slot.
func (s *topicSet) put(t *topic, tag uint8) {
	i := s.place(t.hash)
	for s.tags[i] != 0 {
		i = s.next(i)
	}
	s.slots[i], s.tags[i] = t, tag
}

func (s *topicSet) resize(size int) {
	slots, tags := s.slots, s.tags
	size = max(size, minSlots)
	s.slots, s.tags = make([]*topic, size), make([]uint8, size)
	for i, t := range slots {
		if t != nil {
			s.put(t, tags[i])
		}
	}
}

// remove takes a topic out that is there. Those behind it close the gap, as far as they may
// be there.
func (s *topicSet) remove(t *topic) {
	gap := s.place(t.hash)
	for s.slots[gap] != t {
		gap = s.next(gap)
	}
	for i := s.next(gap); s.tags[i] != 0; i = s.next(i) {
		if s.distance(s.place(s.slots[i].hash), i) >= s.distance(gap, i) {
			s.slots[gap], s.tags[gap] = s.slots[i], s.tags[i]
			gap = i
		}
	}
	s.slots[gap], s.tags[gap] = nil, 0
	if s.n--; s.n < len(s.slots)/4 && len(s.slots) > minSlots {
		s.resize(len(s.slots) / 2)
	}
}

// distance is how far b is behind a.
func (s *topicSet) distance(a, b int) int {
	if b < a {
		b += len(s.slots)
	}
	return b - a
}
