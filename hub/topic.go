package hub

import (
	"sync/atomic"

	"github.com/myriad-go/myriad/tcp"
)

// Kind tells what a name is of.
type Kind uint8

// The kinds of names.
const (
	Topic Kind = iota
	Pattern
	Sharded // a topic of SSUBSCRIBE and SPUBLISH: a name space of its own
	kinds   = iota
)

// topic is a topic, or a pattern, that has subscribers: a group for each format in which
// they get messages. Most have one format.
type topic struct {
	name string

	// first is the format of the first subscriber, whose group is inline; others has the
	// groups of the other formats. A group that is there stays.
	inline  tcp.Group
	others  atomic.Pointer[[formats]*tcp.Group]
	hash    uint32 // of the name: where it is in its table
	members int32  // subscribers; guarded by the table's lock
	cost    uint32 // of a pattern that is in the index; guarded by its lock
	kind    Kind
	first   format
	indexed bool // a pattern is in the index; guarded by its lock
}

// group is the topic's group for a format. It is made if it is not there.
func (t *topic) group(f format) *tcp.Group {
	if f == t.first {
		return &t.inline
	}
	for {
		old := t.others.Load()
		var groups [formats]*tcp.Group
		if old != nil {
			groups = *old
		}
		if groups[f] == nil {
			groups[f] = new(tcp.Group)
			if !t.others.CompareAndSwap(old, &groups) {
				continue
			}
		}
		return groups[f]
	}
}

// tally is to how many subscribers a message is on its way, with how many bytes in all, and for how many there was
// no room.
type tally struct{ sent, bytes, full int }

func (t *tally) add(more tally) {
	t.sent += more.sent
	t.bytes += more.bytes
	t.full += more.full
}

// count adds a message to the counters.
func (c *counters) count(t tally) {
	c.delivered.Add(int64(t.sent))
	c.deliveredBytes.Add(int64(t.bytes))
	if t.full > 0 {
		c.dropped.Add(int64(t.full))
	}
}

// send sends a message of a topic, which may be t or one that t matches.
func (t *topic) send(name string, message []byte, id string) tally {
	return t.broadcast(func(f format, to []byte) []byte { return f.append(to, t, name, message, id) })
}

// tellGap tells all subscribers that some of what was published up to a position is gone.
func (t *topic) tellGap(at Position) {
	t.broadcast(func(f format, to []byte) []byte { return f.appendGap(to, []*topic{t}, at) })
}

// broadcast sends what encode appends for each format, if it appends something.
func (t *topic) broadcast(encode func(f format, to []byte) []byte) (all tally) {
	b := buffers.Get().(*[]byte)
	defer putBuffer(b)
	to := func(f format, g *tcp.Group) {
		if *b = encode(f, (*b)[:0]); len(*b) > 0 {
			sent, full := g.Broadcast(*b)
			all.add(tally{sent, sent * len(*b), full})
		}
	}
	to(t.first, &t.inline)
	if others := t.others.Load(); others != nil {
		for f, g := range others {
			if g != nil {
				to(format(f), g)
			}
		}
	}
	return all
}
