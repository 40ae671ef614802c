package hub

import (
	"fmt"
	"hash/maphash"
	"slices"
	"sync"
	"sync/atomic"
)

type topicTable struct {
	count  atomic.Int64
	shards [tableShardCount]tableShard
}

const tableShardCount = 64

type tableShard struct {
	mu     sync.RWMutex
	topics topicSet
}

var hashSeed = maphash.MakeSeed()

func (ts *topicTable) shard(hash uint64) *tableShard { return &ts.shards[hash%tableShardCount] }

func (ts *topicTable) findTopic(name string) (topicOrNil *topic, subscribers int) {
	if ts.count.Load() == 0 {
		return nil, 0
	}
	hash := maphash.String(hashSeed, name)
	p := ts.shard(hash)
	p.mu.RLock()
	defer p.mu.RUnlock()
	if t := p.topics.find(name, hash); t != nil {
		return t, int(t.subscribers)
	}
	return nil, 0
}

// addSubscriber adds one subscriber to a topic, and creates the topic if necessary.
func (ts *topicTable) addSubscriber(name string, kind Kind, format messageFormat, limits Limits) (t *topic, first bool, err error) {
	hash := maphash.String(hashSeed, name)
	p := ts.shard(hash)
	p.mu.Lock()
	defer p.mu.Unlock()
	t = p.topics.find(name, hash)
	if t == nil {
		if limit := limits.maxTopics(); ts.count.Add(1) > int64(limit) {
			ts.count.Add(-1)
			return nil, false, fmt.Errorf("%w: at most %d are allowed", errTooManyTopics, limit)
		}
		t = &topic{name: name, kind: kind, firstFormat: format}
		p.topics.add(t, hash)
	}
	if limit := limits.MaxSubscribers; limit > 0 && int(t.subscribers) >= limit {
		return nil, false, fmt.Errorf("%w: at most %d are allowed", errTooManySubscribers, limit)
	}
	t.subscribers++
	return t, t.subscribers == 1, nil
}

// removeSubscriber subtracts one subscriber from t, and removes t if none are left.
func (ts *topicTable) removeSubscriber(t *topic) (topicRemoved bool) {
	hash := maphash.String(hashSeed, t.name)
	p := ts.shard(hash)
	p.mu.Lock()
	defer p.mu.Unlock()
	if t.subscribers--; t.subscribers > 0 {
		return false
	}
	p.topics.remove(t)
	ts.count.Add(-1)
	return true
}

// eachTopic calls f for every topic until f returns false. f must not add or remove subscribers.
func (ts *topicTable) eachTopic(f func(*topic) bool) {
	for i := range ts.shards {
		p := &ts.shards[i]
		p.mu.RLock()
		stopped := slices.ContainsFunc(p.topics.slots, func(t *topic) bool { return t != nil && !f(t) })
		p.mu.RUnlock()
		if stopped {
			return
		}
	}
}

// topicSet is a hash table of topics with linear probing. It takes about 12 bytes per topic.
type topicSet struct {
	slots []*topic
	tags  []uint8 // of the topics in slots; 0 means free
	count int
}

const minSlots = 8

func (s *topicSet) homeSlot(hash uint32) int { return int(uint64(hash) * uint64(len(s.slots)) >> 32) }

// splitHash divides a topic's hash into slotHash and tag. slotHash determines the topic's slot. tag is never 0, because
// 0 marks a free slot.
func splitHash(hash uint64) (slotHash uint32, tag uint8) {
	return uint32(hash >> 32), uint8(hash>>8) | 1
}

func (s *topicSet) nextSlot(slot int) int {
	if slot++; slot == len(s.slots) {
		return 0
	}
	return slot
}

func (s *topicSet) find(name string, hash uint64) *topic {
	if s.count == 0 {
		return nil
	}
	slotHash, tag := splitHash(hash)
	for i := s.homeSlot(slotHash); s.tags[i] != 0; i = s.nextSlot(i) {
		if s.tags[i] == tag && s.slots[i].name == name {
			return s.slots[i]
		}
	}
	return nil
}

func (s *topicSet) add(t *topic, hash uint64) {
	var tag uint8
	t.slotHash, tag = splitHash(hash)
	if s.count >= len(s.slots)*7/8 {
		s.resize(len(s.slots) * 3 / 2)
	}
	s.insertInFreeSlot(t, tag)
	s.count++
}

func (s *topicSet) insertInFreeSlot(t *topic, tag uint8) {
	i := s.homeSlot(t.slotHash)
	for s.tags[i] != 0 {
		i = s.nextSlot(i)
	}
	s.slots[i], s.tags[i] = t, tag
}

func (s *topicSet) resize(size int) {
	slots, tags := s.slots, s.tags
	size = max(size, minSlots)
	s.slots, s.tags = make([]*topic, size), make([]uint8, size)
	for i, t := range slots {
		if t != nil {
			s.insertInFreeSlot(t, tags[i])
		}
	}
}

func (s *topicSet) remove(t *topic) {
	gap := s.homeSlot(t.slotHash)
	for s.slots[gap] != t {
		gap = s.nextSlot(gap)
	}
	for i := s.nextSlot(gap); s.tags[i] != 0; i = s.nextSlot(i) {
		if s.slotDistance(s.homeSlot(s.slots[i].slotHash), i) >= s.slotDistance(gap, i) {
			s.slots[gap], s.tags[gap] = s.slots[i], s.tags[i]
			gap = i
		}
	}
	s.slots[gap], s.tags[gap] = nil, 0
	if s.count--; s.count < len(s.slots)/4 && len(s.slots) > minSlots {
		s.resize(len(s.slots) / 2)
	}
}

func (s *topicSet) slotDistance(fromSlot, toSlot int) int {
	if toSlot < fromSlot {
		toSlot += len(s.slots)
	}
	return toSlot - fromSlot
}
