package hub

import (
	"hash/maphash"
	"maps"
	"strings"
	"sync"
)

// lastValues keeps the newest message of topics, for those who subscribe later.
//
// Who subscribes gets the confirmation, then the value that is the newest at that moment, and
// then each message that is published from then on: none is left out, and none comes twice. For
// that a lock, of the topic and some others, is held while a message becomes the newest and is
// sent to the topic's subscribers, and while somebody is given the newest and joins them.
type lastValues struct {
	order [64]sync.Mutex // by topic; taken before mu

	mu             sync.Mutex // guards what follows
	byName         map[string]*lastValue
	newest, oldest *lastValue // by their use
	bytes          int
	peak           int // the most values since byName was made, which does not shrink
	evicted        int64
}

// lastValue is a topic's newest message, in the list of all by their use.
type lastValue struct {
	name         string
	message      []byte // does not change
	newer, older *lastValue
}

// lastValueMemory is what a value takes beside its name and message: itself, and on average 40 bytes
// of the table.
const lastValueMemory = 64 + 40

// size is how many bytes of memory the value takes.
func (v *lastValue) size() int { return lastValueMemory + (len(v.name)+15)&^15 + cap(v.message) }

// orderOf is the lock of a topic's order.
func (l *lastValues) orderOf(name string) *sync.Mutex {
	return &l.order[maphash.String(seed, name)%uint64(len(l.order))]
}

// replace makes a message its topic's newest, and calls send before the topic's order goes on.
func (l *lastValues) replace(name string, message []byte, limits Limits, send func()) {
	order := l.orderOf(name)
	order.Lock()
	defer order.Unlock()
	l.keep(name, message, limits)
	send()
}

// keep makes a message its topic's newest. One that is too large for the limits leaves the
// topic without a value: an older one would be wrong.
func (l *lastValues) keep(name string, message []byte, limits Limits) {
	l.mu.Lock()
	defer l.mu.Unlock()
	v := l.byName[name]
	if v != nil {
		l.remove(v)
	} else {
		v = &lastValue{name: strings.Clone(name)} // which may be part of a request
	}
	v.message = append([]byte(nil), message...)
	if v.size() > limits.lastValueBytes() {
		l.evicted++
		return
	}
	for len(l.byName) >= limits.LastValues || l.bytes+v.size() > limits.lastValueBytes() {
		l.remove(l.oldest)
		l.evicted++
	}
	if l.add(v); len(l.byName) < l.peak/2 {
		all := l.byName
		l.byName, l.peak = make(map[string]*lastValue, len(all)), len(all)
		maps.Copy(l.byName, all)
	}
}

// of is the newest message of a topic.
func (l *lastValues) of(name string) (message []byte, ok bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	v := l.byName[name]
	if v == nil {
		return nil, false
	}
	l.remove(v)
	l.add(v)
	return v.message, true
}

// add adds a value as the one that was used last.
func (l *lastValues) add(v *lastValue) {
	if l.byName == nil {
		l.byName = make(map[string]*lastValue)
	}
	l.byName[v.name] = v
	l.peak = max(l.peak, len(l.byName))
	l.bytes += v.size()
	if v.older = l.newest; v.older != nil {
		v.older.newer = v
	} else {
		l.oldest = v
	}
	v.newer, l.newest = nil, v
}

func (l *lastValues) remove(v *lastValue) {
	delete(l.byName, v.name)
	l.bytes -= v.size()
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
