package hub

import (
	"errors"
	"sync/atomic"
)

// counters are what is counted of a Hub.
type counters struct {
	publishesStarted, published       atomic.Int64 // messages: see fanOut
	subscriptions, delivered, dropped atomic.Int64
	deliveredBytes, lost, lostBytes   atomic.Int64
	refused                           [refusalCauseCount]atomic.Int64
}

// countPublished counts messages that fanOut has not delivered itself.
func (c *counters) countPublished(n int64) {
	c.publishesStarted.Add(n)
	c.published.Add(n)
}

// Stats are a Hub's counters at one moment. They count since its first use, but for those that
// say "now".
type Stats struct {
	// Topics and Patterns are how many have subscribers now, Subscriptions how many of both all
	// clients have now.
	Topics, Patterns, Subscriptions int64
	// PatternWork is the most work that a publish may have with patterns now: see Limits.MaxPatternWork.
	PatternWork int64
	// Published counts messages that were published. Delivered counts, for each subscriber,
	// those that were on their way to it, and Dropped those for which there was no room. With
	// DropMessage a subscriber that reads too slowly may lose others later: see tcp.Stats.Dropped.
	Published, Delivered, Dropped int64
	// LostBytes counts the bytes that still waited in this process for subscribers that were closed because
	// they read too slowly (Closed.SlowConsumer, WriteTimeout and OverBudget of tcp.Stats), and Lost
	// the messages of Delivered that these are: as many as messages of the mean size. What had gone to the
	// kernel is not known, nor what was in a loop's mailbox yet, and counts as delivered.
	Lost, LostBytes int64
	// Refused counts what clients were refused, by cause.
	Refused Refused
	// LastValues is how many topics' newest messages are kept now, LastValueBytes the
	// memory that they take. Evicted counts those that were given up because of
	// Limits.LastValues or LastValueBytes.
	LastValues, LastValueBytes, Evicted int64
	// Replay is of the messages that are kept; nil if none are.
	Replay *ReplayStats `json:",omitempty"`
	// Cluster is of what joins the hub with others; nil if nothing does.
	Cluster *ClusterStats `json:",omitempty"`
}

// Refused counts what clients were refused.
type Refused struct {
	// Credentials are logins with a wrong user name, password or token, Denied what the
	// user had no right for, Logins connections that were closed for too many failed logins.
	Credentials, Denied, Logins int64
	// Names are topics without a name or with one beyond Limits.MaxName, Messages those
	// beyond MaxMessage, Rate those beyond PublishRate.
	Names, Messages, Rate int64
	// Subscriptions are those beyond Limits.MaxSubscriptions, Subscribers those beyond
	// MaxSubscribers, Topics those beyond MaxTopics, Patterns those beyond MaxPatternWork and MaxPatternCost.
	Subscriptions, Subscribers, Topics, Patterns int64
	// Unkept are messages of a topic of Hub.Replay for which the cluster has no room.
	Unkept int64
}

// refusalCauses are those of Refused, by the errors that say them.
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
	{errCannotKeep, func(r *Refused) *int64 { return &r.Unkept }},
}

const refusalCauseCount = len(refusalCauses)

// countRefusal counts an error by which a client is refused something, and gives it back.
func (c *counters) countRefusal(err error) error {
	for i := range refusalCauses {
		if errors.Is(err, refusalCauses[i].err) {
			c.refused[i].Add(1)
			break
		}
	}
	return err
}

// Stats gives the counters. It is safe for concurrent use.
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
		s.Replay = h.Replay.stats()
	}
	h.lastValues.mu.Lock()
	defer h.lastValues.mu.Unlock()
	s.LastValues, s.LastValueBytes, s.Evicted = int64(len(h.lastValues.byName)), int64(h.lastValues.bytes), h.lastValues.evicted
	return s
}
