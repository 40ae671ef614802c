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
	Sharded   // a topic of SSUBSCRIBE and SPUBLISH: a name space of its own
	kindCount = iota
)

// topic is a topic, or a pattern, that has subscribers: a group for each format in which
// they get messages. Most have one format.
type topic struct {
	name string

	// first is the format of the first subscriber, whose group is inline; others has the
	// groups of the other formats. A group that is there stays.
	firstGroup  tcp.Group
	otherGroups atomic.Pointer[[formatCount]*tcp.Group]
	slotHash    uint32 // of the name: where it is in its table
	subscribers int32  // subscribers; guarded by the table's lock
	cost        uint32 // of a pattern that is in the index; guarded by its lock
	kind        Kind
	firstFormat messageFormat
	indexed     bool // a pattern is in the index; guarded by its lock
}

// groupFor is the topic's group for a format. It is made if it is not there.
func (t *topic) groupFor(format messageFormat) *tcp.Group {
	if format == t.firstFormat {
		return &t.firstGroup
	}
	for {
		old := t.otherGroups.Load()
		var groups [formatCount]*tcp.Group
		if old != nil {
			groups = *old
		}
		if groups[format] == nil {
			groups[format] = new(tcp.Group)
			if !t.otherGroups.CompareAndSwap(old, &groups) {
				continue
			}
		}
		return groups[format]
	}
}

// deliveryCounts is to how many subscribers a message is on its way, with how many bytes in all, and for how many there was
// no room.
type deliveryCounts struct{ sent, bytes, dropped int }

func (t *deliveryCounts) add(more deliveryCounts) {
	t.sent += more.sent
	t.bytes += more.bytes
	t.dropped += more.dropped
}

// countDelivery adds a message to the counters.
func (c *counters) countDelivery(delivery deliveryCounts) {
	c.delivered.Add(int64(delivery.sent))
	c.deliveredBytes.Add(int64(delivery.bytes))
	if delivery.dropped > 0 {
		c.dropped.Add(int64(delivery.dropped))
	}
}

// sendMessage sends a message of a topic, which may be t or one that t matches.
func (t *topic) sendMessage(name string, message []byte, id string) deliveryCounts {
	return t.broadcastEncoded(func(f messageFormat, to []byte) []byte { return f.appendMessage(to, t, name, message, id) })
}

// sendGap tells all subscribers that some of what was published up to a position is gone.
func (t *topic) sendGap(upTo Position) {
	t.broadcastEncoded(func(f messageFormat, to []byte) []byte { return f.appendGap(to, []*topic{t}, upTo) })
}

// broadcastEncoded sends what encode appends for each format, if it appends something.
func (t *topic) broadcastEncoded(encode func(format messageFormat, sendTo []byte) []byte) (all deliveryCounts) {
	b := bufferPool.Get().(*[]byte)
	defer releaseBuffer(b)
	sendTo := func(format messageFormat, g *tcp.Group) {
		if *b = encode(format, (*b)[:0]); len(*b) > 0 {
			sent, full := g.Broadcast(*b)
			all.add(deliveryCounts{sent, sent * len(*b), full})
		}
	}
	sendTo(t.firstFormat, &t.firstGroup)
	if otherGroups := t.otherGroups.Load(); otherGroups != nil {
		for format, g := range otherGroups {
			if g != nil {
				sendTo(messageFormat(format), g)
			}
		}
	}
	return all
}
