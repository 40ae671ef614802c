package hub

import (
	"fmt"
	"hash/maphash"
	"sync"
	"sync/atomic"

	"github.com/myriad-go/myriad"
)

// kind tells topics and patterns of topics apart.
type kind uint8

const (
	topicKind kind = iota
	patternKind
	kinds = iota
)

// topic is a topic, or a pattern, that has subscribers: a group for each format in which
// they get messages. Most have one format.
type topic struct {
	name string
	kind kind

	// first is the format of the first subscriber, whose group is inline; others has the
	// groups of the other formats. A group that is there stays.
	first   format
	inline  myriad.Group
	others  atomic.Pointer[[formats]*myriad.Group]
	members int  // subscribers; guarded by the table's lock
	indexed bool // a pattern is in the index; guarded by its lock
}

// group is the topic's group for a format. It is made if it is not there.
func (t *topic) group(f format) *myriad.Group {
	if f == t.first {
		return &t.inline
	}
	for {
		old := t.others.Load()
		var groups [formats]*myriad.Group
		if old != nil {
			groups = *old
		}
		if groups[f] == nil {
			groups[f] = new(myriad.Group)
			if !t.others.CompareAndSwap(old, &groups) {
				continue
			}
		}
		return groups[f]
	}
}

// send sends a message of a topic, which may be t or one that t matches. It says to how many
// it is on its way, and for how many there was no room.
func (t *topic) send(name string, message []byte) (sent, full int) {
	b := buffers.Get().(*[]byte)
	defer putBuffer(b)
	to := func(f format, g *myriad.Group) {
		*b = f.append((*b)[:0], t, name, message)
		n, no := g.Broadcast(*b)
		sent, full = sent+n, full+no
	}
	to(t.first, &t.inline)
	if others := t.others.Load(); others != nil {
		for f, g := range others {
			if g != nil {
				to(format(f), g)
			}
		}
	}
	return sent, full
}

// table is all topics, or all patterns, that have subscribers, in parts by name.
type table struct {
	n     atomic.Int64
	parts [tableParts]part
}

const tableParts = 64

type part struct {
	mu     sync.RWMutex
	topics map[string]*topic
}

var seed = maphash.MakeSeed()

func (ts *table) part(name string) *part {
	return &ts.parts[maphash.String(seed, name)%tableParts]
}

// find is the topic of a name, or nil if nobody has subscribed to it.
func (ts *table) find(name string) *topic {
	if ts.n.Load() == 0 {
		return nil
	}
	p := ts.part(name)
	p.mu.RLock()
	defer p.mu.RUnlock()
	return p.topics[name]
}

// subscribers is how many a name has.
func (ts *table) subscribers(name string) int {
	p := ts.part(name)
	p.mu.RLock()
	defer p.mu.RUnlock()
	if t := p.topics[name]; t != nil {
		return t.members
	}
	return 0
}

// join counts a subscriber of a name in, and gives its topic.
func (ts *table) join(name string, k kind, f format, l Limits) (*topic, error) {
	p := ts.part(name)
	p.mu.Lock()
	defer p.mu.Unlock()
	t := p.topics[name]
	if t == nil {
		if most := l.maxTopics(); ts.n.Add(1) > int64(most) {
			ts.n.Add(-1)
			return nil, fmt.Errorf("%w: at most %d are allowed", errTopics, most)
		}
		if p.topics == nil {
			p.topics = make(map[string]*topic)
		}
		t = &topic{name: name, kind: k, first: f}
		p.topics[name] = t
	}
	if most := l.MaxSubscribers; most > 0 && t.members >= most {
		return nil, fmt.Errorf("%w: at most %d are allowed", errSubscribers, most)
	}
	t.members++
	return t, nil
}

// leave counts a subscriber out. It reports whether it was the last.
func (ts *table) leave(t *topic) (last bool) {
	p := ts.part(t.name)
	p.mu.Lock()
	defer p.mu.Unlock()
	if t.members--; t.members > 0 {
		return false
	}
	delete(p.topics, t.name)
	ts.n.Add(-1)
	return true
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
	for name, t := range p.topics {
		if !f(name, t.members) {
			return false
		}
	}
	return true
}
