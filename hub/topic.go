package hub

import (
	"sync/atomic"

	"github.com/myriad-go/myriad/tcp"
)

// Kind distinguishes topics, patterns and sharded topics. Each kind has its own namespace.
type Kind uint8

const (
	Topic Kind = iota
	Pattern
	Sharded   // a topic of SSUBSCRIBE and SPUBLISH
	kindCount = iota
)

// topic is a topic or pattern with at least one subscriber.
type topic struct {
	name string

	// firstGroup contains the subscribers with firstFormat, and otherGroups all others. Groups are never removed.
	firstGroup  tcp.Group
	otherGroups atomic.Pointer[[formatCount]*tcp.Group]
	slotHash    uint32 // determines its slot in the table
	subscribers int32  // guarded by the table shard's lock
	cost        uint32 // of an indexed pattern; guarded by the index's lock
	kind        Kind
	firstFormat messageFormat
	indexed     bool // the pattern is in the index; guarded by the index's lock
}

func (t *topic) getOrCreateGroup(format messageFormat) *tcp.Group {
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

// deliveryCounts counts the messages that were sent to subscribers, their bytes, and the messages that were dropped
// because a subscriber's queue was full.
type deliveryCounts struct{ sent, bytes, dropped int }

func (t *deliveryCounts) add(more deliveryCounts) {
	t.sent += more.sent
	t.bytes += more.bytes
	t.dropped += more.dropped
}

func (c *counters) countDelivery(delivery deliveryCounts) {
	c.delivered.Add(int64(delivery.sent))
	c.deliveredBytes.Add(int64(delivery.bytes))
	if delivery.dropped > 0 {
		c.dropped.Add(int64(delivery.dropped))
	}
}

func (t *topic) sendMessage(publishedTopic string, message []byte, id string) deliveryCounts {
	return t.broadcastEncoded(func(f messageFormat, dst []byte) []byte {
		if id == keptByOtherProcess && f.hasIDs() {
			return dst
		}
		return f.appendMessage(dst, t, publishedTopic, message, id)
	})
}

// broadcastEncoded sends a message to the topic's subscribers. It calls encode once for each format in use. If encode
// appends nothing, the subscribers with this format receive nothing.
func (t *topic) broadcastEncoded(encode func(format messageFormat, dst []byte) []byte) (all deliveryCounts) {
	b := bufferPool.Get().(*[]byte)
	defer returnBufferToPoolUnlessLarge(b)
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
