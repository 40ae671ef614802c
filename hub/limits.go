package hub

import "cmp"

// Limits bound what clients may ask of a Hub. Connections and slow subscribers are bounded by
// the server: myriad.Limits and myriad.Server.SlowConsumer. The zero value of each field means
// its default.
type Limits struct {
	// MaxMessage is the most bytes of a message. By the Redis protocol it has less than the
	// server's myriad.Limits.MaxMessage, too, and no message reaches anybody that has, in
	// the form in which it is sent, more than its MaxUnsent. The default is 64 KiB.
	MaxMessage int
	// MaxTopics is the most topics that have subscribers, and as many patterns, at a time.
	// The default is 10,000,000.
	MaxTopics int
	// MaxName is the most bytes of the name of a topic or pattern. The default is 1,024.
	MaxName int
	// MaxSubscriptions is the most topics and patterns that one client is subscribed to.
	// The default is 100,000.
	MaxSubscriptions int
	// MaxSubscribers is the most subscribers of one topic or pattern. The default is 0: no
	// limit but the server's of connections.
	MaxSubscribers int
}

func (l Limits) maxMessage() int       { return cmp.Or(l.MaxMessage, 64<<10) }
func (l Limits) maxTopics() int        { return cmp.Or(l.MaxTopics, 10_000_000) }
func (l Limits) maxName() int          { return cmp.Or(l.MaxName, 1024) }
func (l Limits) maxSubscriptions() int { return cmp.Or(l.MaxSubscriptions, 100_000) }
