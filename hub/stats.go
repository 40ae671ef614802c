package hub

import (
	"errors"
	"sync/atomic"
	"time"
)

type counters struct {
	publishesStarted, published       atomic.Int64 // see authorizeAndPublish
	subscriptions, delivered, dropped atomic.Int64
	deliveredBytes, lost, lostBytes   atomic.Int64
	refused                           [refusalCauseCount]atomic.Int64
}

func (c *counters) countPublished(n int64) {
	c.publishesStarted.Add(n)
	c.published.Add(n)
}

// Stats contains a Hub's counters since its first use, and some current values.
type Stats struct {
	// Topics and Patterns are the current numbers of topics and patterns with subscribers. Subscriptions is the
	// current number of subscriptions of all clients.
	Topics, Patterns, Subscriptions int64
	// PatternWork is the maximum work of matching one message against the current patterns (see Limits.MaxPatternWork).
	PatternWork int64
	// Published counts published messages. Delivered counts messages queued to subscribers, once per subscriber.
	// Dropped counts messages that did not fit into a subscriber's queue. With the SlowConsumer policy DropMessage,
	// slow subscribers may lose further messages; see tcp.Stats.Dropped.
	Published, Delivered, Dropped int64
	// LostBytes counts unsent bytes of subscribers that were closed for being slow (see SlowConsumer, WriteTimeout and
	// OverBudget in tcp.Stats.Closed). Lost estimates the number of messages in these bytes from the mean size of a
	// message. Bytes in the kernel or in a mailbox are unknown and count as delivered.
	Lost, LostBytes int64
	// Refused counts rejected requests by cause.
	Refused Refused
	// LastValues is the current number of topics whose last message is stored, and LastValueBytes the memory of these
	// messages. Evicted counts messages that were removed because of Limits.LastValues or Limits.LastValueBytes.
	LastValues, LastValueBytes, Evicted int64
	// Replay is nil without Hub.Replay.
	Replay *ReplayStats `json:",omitempty"`
	// Cluster is nil without Hub.Cluster.
	Cluster *ClusterStats `json:",omitempty"`
}

// Refused counts rejected requests by cause.
type Refused struct {
	// Credentials counts logins with a wrong user name, password or token. Denied counts requests without the necessary
	// rights. Logins counts connections that were closed after too many failed logins.
	Credentials, Denied, Logins int64
	// Names counts requests with a name that is empty or exceeds Limits.MaxName. Messages counts messages that exceed
	// Limits.MaxMessage. Rate counts messages that exceed Limits.PublishRate.
	Names, Messages, Rate int64
	// Subscriptions, Subscribers and Topics count subscriptions that would have exceeded Limits.MaxSubscriptions,
	// MaxSubscribers or MaxTopics. Patterns counts those that would have exceeded MaxPatternWork or MaxPatternCost.
	Subscriptions, Subscribers, Topics, Patterns int64
	// NotStored counts messages that the replay stream could not accept, for example because the cluster's queue was
	// full.
	NotStored int64
}

var refusalCauses = [...]struct {
	err error
	of  func(*Refused) *int64
}{
	{errWrongCredentials, func(r *Refused) *int64 { return &r.Credentials }},
	{errTooManyFailedLogins, func(r *Refused) *int64 { return &r.Logins }},
	{errDenied, func(r *Refused) *int64 { return &r.Denied }},
	{errEmptyName, func(r *Refused) *int64 { return &r.Names }},
	{errNameTooLong, func(r *Refused) *int64 { return &r.Names }},
	{errMessageTooLong, func(r *Refused) *int64 { return &r.Messages }},
	{errPublishRate, func(r *Refused) *int64 { return &r.Rate }},
	{errTooManySubscriptions, func(r *Refused) *int64 { return &r.Subscriptions }},
	{errTooManySubscribers, func(r *Refused) *int64 { return &r.Subscribers }},
	{errTooManyTopics, func(r *Refused) *int64 { return &r.Topics }},
	{errPatternTooCostly, func(r *Refused) *int64 { return &r.Patterns }},
	{errCannotKeep, func(r *Refused) *int64 { return &r.NotStored }},
}

const refusalCauseCount = len(refusalCauses)

func (c *counters) countRefusal(err error) (sameErr error) {
	for i := range refusalCauses {
		if errors.Is(err, refusalCauses[i].err) {
			c.refused[i].Add(1)
			break
		}
	}
	return err
}

// Stats returns the current counters and values of the hub.
func (h *Hub) Stats() Stats {
	s := Stats{
		Topics: h.topics.count.Load(), Patterns: h.patterns.count.Load(), Subscriptions: h.subscriptions.Load(), PatternWork: h.patternIndex.maxPublishWork.Load(),
		Published: h.published.Load(), Delivered: h.delivered.Load(), Dropped: h.dropped.Load(),
		Lost: h.lost.Load(), LostBytes: h.lostBytes.Load(),
	}
	for i := range refusalCauses {
		*refusalCauses[i].of(&s.Refused) += h.refused[i].Load()
	}
	if h.Cluster != nil {
		c := h.Cluster.Stats()
		s.Cluster = &c
	}
	if h.Replay != nil {
		h.Replay.DropExpired(time.Now())
		s.Replay = h.Replay.stats()
	}
	h.lastValues.mu.Lock()
	defer h.lastValues.mu.Unlock()
	s.LastValues, s.LastValueBytes, s.Evicted = int64(len(h.lastValues.byName)), int64(h.lastValues.bytes), h.lastValues.evicted
	return s
}
