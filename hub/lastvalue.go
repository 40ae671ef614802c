package hub

import (
	"hash/maphash"
	"maps"
	"strings"
	"sync"
)

// lastValueCache keeps the newest message of topics, for those who subscribe later.
//
// Who subscribes gets the confirmation, then the value that is the newest at that moment, and
// then each message that is published from then on: none is left out, and none comes twice. For
// that a lock, of the topic and some others, is held while a message becomes the newest and is
// sent to the topic's subscribers, and while somebody is given the newest and joins them.
type lastValueCache struct {
	topicLocks [64]sync.Mutex // by topic; taken before mu

	mu             sync.Mutex // guards what follows
	byName         map[string]*lastValue
	newest, oldest *lastValue // by their use
	bytes          int
	peakCount      int // the most values since indexCommands was made, which does not shrink
	evicted        int64
}

// lastValue is a topic's newest message, in the list of all by their use.
type lastValue struct {
	name         string
	message      []byte // does not change
	newer, older *lastValue
}

// lastValueOverhead is what a value takes beside its name and message: itself, and on average 40 bytes
// of the table.
const lastValueOverhead = 64 + 40

// memoryBytes is how many bytes of memory the value takes.
func (v *lastValue) memoryBytes() int {
	return lastValueOverhead + (len(v.name)+15)&^15 + cap(v.message)
}

// topicLock is the lock of a topic's order.
func (l *lastValueCache) topicLock(topic string) *sync.Mutex {
	return &l.topicLocks[maphash.String(hashSeed, topic)%uint64(len(l.topicLocks))]
}

// storeAndSend makes a message its topic's newest, and calls send before the topic's order goes on.
func (l *lastValueCache) storeAndSend(topic string, message []byte, limits Limits, send func()) {
	lock := l.topicLock(topic)
	lock.Lock()
	defer lock.Unlock()
	l.store(topic, message, limits)
	send()
}

// store makes a message its topic's newest. One that is too large for the limits leaves the
// topic without a value: an older one would be wrong.
func (l *lastValueCache) store(topic string, message []byte, limits Limits) {
	l.mu.Lock()
	defer l.mu.Unlock()
	v := l.byName[topic]
	if v != nil {
		l.remove(v)
	} else {
		v = &lastValue{name: strings.Clone(topic)} // which may be part of a request
	}
	v.message = append([]byte(nil), message...)
	if v.memoryBytes() > limits.lastValueBytes() {
		l.evicted++
		return
	}
	for len(l.byName) >= limits.LastValues || l.bytes+v.memoryBytes() > limits.lastValueBytes() {
		l.remove(l.oldest)
		l.evicted++
	}
	if l.insertNewest(v); len(l.byName) < l.peakCount/2 {
		all := l.byName
		l.byName, l.peakCount = make(map[string]*lastValue, len(all)), len(all)
		maps.Copy(l.byName, all)
	}
}

// get is the newest message of a topic.
func (l *lastValueCache) get(topic string) (message []byte, ok bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	v := l.byName[topic]
	if v == nil {
		return nil, false
	}
	l.remove(v)
	l.insertNewest(v)
	return v.message, true
}

// insertNewest adds a value as the one that was used last.
func (l *lastValueCache) insertNewest(v *lastValue) {
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

func (l *lastValueCache) remove(v *lastValue) {
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
