package hub

import (
	"hash/maphash"
	"maps"
	"strings"
	"sync"
)

// lastValueCache stores the newest message of each topic for later subscribers.
type lastValueCache struct {
	topicLocks [64]sync.Mutex // by hash of the topic; locked before mu

	mu             sync.Mutex // guards the fields below
	byName         map[string]*lastValue
	newest, oldest *lastValue // ordered by last use
	bytes          int
	peakCount      int // most entries since byName was allocated; maps don't shrink
	evicted        int64
}

type lastValue struct {
	name         string
	message      []byte // immutable
	newer, older *lastValue
}

// lastValueOverhead is the memory of a lastValue in bytes, excluding its name and message.
const lastValueOverhead = 64 + 40

func (v *lastValue) memoryBytes() int {
	return lastValueOverhead + (len(v.name)+15)&^15 + cap(v.message)
}

// topicLock returns the mutex that orders a topic's messages. The caller must hold the mutex while it sends a message
// and while it adds a subscriber.
func (l *lastValueCache) topicLock(topic string) *sync.Mutex {
	return &l.topicLocks[maphash.String(hashSeed, topic)%uint64(len(l.topicLocks))]
}

func (l *lastValueCache) storeAndSendUnderTopicLock(topic string, message []byte, limits Limits, send func()) {
	lock := l.topicLock(topic)
	lock.Lock()
	defer lock.Unlock()
	l.storeNewestAndEvict(topic, message, limits)
	send()
}

// storeNewestAndEvict stores a topic's newest message. If there is not enough space, it evicts the topics that were
// least recently used. A message that exceeds the limit on its own is not stored.
func (l *lastValueCache) storeNewestAndEvict(topic string, message []byte, limits Limits) {
	l.mu.Lock()
	defer l.mu.Unlock()
	v := l.byName[topic]
	if v != nil {
		l.removeLocked(v)
	} else {
		v = &lastValue{name: strings.Clone(topic)} // topic may be part of a request
	}
	v.message = append([]byte(nil), message...)
	if v.memoryBytes() > limits.lastValueBytes() {
		l.evicted++
		return
	}
	for len(l.byName) >= limits.LastValues || l.bytes+v.memoryBytes() > limits.lastValueBytes() {
		l.removeLocked(l.oldest)
		l.evicted++
	}
	if l.insertMostRecentlyUsedLocked(v); len(l.byName) < l.peakCount/2 {
		all := l.byName
		l.byName, l.peakCount = make(map[string]*lastValue, len(all)), len(all)
		maps.Copy(l.byName, all)
	}
}

func (l *lastValueCache) getAndMarkRecentlyUsed(topic string) (message []byte, ok bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	v := l.byName[topic]
	if v == nil {
		return nil, false
	}
	l.removeLocked(v)
	l.insertMostRecentlyUsedLocked(v)
	return v.message, true
}

func (l *lastValueCache) insertMostRecentlyUsedLocked(v *lastValue) {
	if l.byName == nil {
		l.byName = make(map[string]*lastValue)
	}
	l.byName[v.name] = v
	l.peakCount = max(l.peakCount, len(l.byName))
	l.bytes += v.memoryBytes()
	if v.older = l.newest; v.older != nil {
		v.older.newer = v
	} else {
		l.oldest = v
	}
	v.newer, l.newest = nil, v
}

func (l *lastValueCache) removeLocked(v *lastValue) {
	delete(l.byName, v.name)
	l.bytes -= v.memoryBytes()
	if v.newer != nil {
		v.newer.older = v.older
	} else {
		l.newest = v.older
	}
	if v.older != nil {
		v.older.newer = v.newer
	} else {
		l.oldest = v.newer
	}
}
