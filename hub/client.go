package hub

import (
	"context"
	"net/netip"
	"sync"
	"time"

	"github.com/myriad-go/myriad/tcp"
)

// client is the state of a connection that can subscribe to topics. Only the connection's handler may use a client.
type client struct {
	format messageFormat
	// repliesInMessageOrder sends replies through the mailbox, in order with messages.
	repliesInMessageOrder bool
	consecutiveErrors     uint8  // bad WebSocket requests, or failed logins
	since                 uint32 // start of the session; see secondsSinceStart
	user                  *user  // nil until authenticated
	firstTopic            *topic
	extra                 *clientExtra // nil if unused
}

type clientExtra struct {
	topics          [kindCount]map[string]*topic // all subscriptions except firstTopic
	publishRate     rateLimit
	patternCost     int        // units of Limits.MaxPatternCost
	patternCostAddr netip.Addr // address charged with patternCost
	// stopReplay cancels the running replay. It is nil if none runs.
	stopReplay context.CancelFunc
}

func (m *clientExtra) isEmpty() bool {
	for _, topics := range m.topics {
		if topics != nil {
			return false
		}
	}
	return m.publishRate == (rateLimit{}) && m.patternCost == 0 && m.stopReplay == nil
}

func (c *client) findSubscription(kind Kind, name string) *topic {
	if c.firstTopic != nil && c.firstTopic.kind == kind && c.firstTopic.name == name {
		return c.firstTopic
	}
	if c.extra == nil {
		return nil
	}
	return c.extra.topics[kind][name]
}

func (c *client) isSubscribed(kind Kind, name string) bool {
	return c.findSubscription(kind, name) != nil
}

func (c *client) subscriptionCount() (n int) {
	for k := range Kind(kindCount) {
		n += c.subscriptionCountOfKind(k)
	}
	return n
}

func (c *client) subscriptionCountOfKind(kind Kind) (n int) {
	if c.firstTopic != nil && c.firstTopic.kind == kind {
		n++
	}
	if c.extra != nil {
		n += len(c.extra.topics[kind])
	}
	return n
}

// subscriptionCountForConfirmation returns the number of subscriptions that the confirmation of a subscribe or
// unsubscribe command contains. As in Redis, sharded topics are counted separately from topics and patterns.
func (c *client) subscriptionCountForConfirmation(kind Kind) int {
	if kind == Sharded {
		return c.subscriptionCountOfKind(Sharded)
	}
	return c.subscriptionCountOfKind(Topic) + c.subscriptionCountOfKind(Pattern)
}

func (c *client) patternCost() int {
	if c.extra == nil {
		return 0
	}
	return c.extra.patternCost
}

func (h *Hub) adjustPatternCost(c *client, ref tcp.Ref, delta int) {
	if delta == 0 {
		return
	}
	m := c.ensureExtra()
	if m.patternCost == 0 { // charge the same address until the cost is 0 again
		if addr, _ := ref.RemoteAddr(); addr.IsValid() {
			m.patternCostAddr = addrOrIPv6Network(addr.Addr())
		}
	}
	m.patternCost += delta
	h.patternCosts.adjust(m.patternCostAddr, delta)
	if m.patternCost == 0 {
		m.patternCostAddr = netip.Addr{}
	}
	if m.isEmpty() {
		c.extra = nil
	}
}

// remainingPatternBudget returns the highest cost that the client's next pattern may have. The result is negative if
// the client or its address already exceeds a limit.
func (h *Hub) remainingPatternBudget(c *client, ref tcp.Ref, limits Limits) int {
	remaining := limits.maxPatternCost() - c.patternCost()
	if addr, _ := ref.RemoteAddr(); addr.IsValid() {
		held := h.patternCosts.cost(addrOrIPv6Network(addr.Addr()))
		remaining = min(remaining, 2*limits.maxPatternCost()-held, limits.maxPatternWork()-int(h.patternIndex.maxPublishWork.Load())-held)
	}
	return remaining
}

// patternCostByAddr maps each address to the total pattern cost of its clients. It is safe for concurrent use.
type patternCostByAddr struct {
	mu    sync.Mutex
	costs map[netip.Addr]int
}

func (a *patternCostByAddr) cost(addr netip.Addr) int {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.costs[addr]
}

func (a *patternCostByAddr) adjust(addr netip.Addr, delta int) {
	if !addr.IsValid() {
		return
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.costs == nil {
		a.costs = make(map[netip.Addr]int)
	}
	if a.costs[addr] += delta; a.costs[addr] == 0 {
		delete(a.costs, addr)
	}
}

func (c *client) ensureExtra() *clientExtra {
	if c.extra == nil {
		c.extra = new(clientExtra)
	}
	return c.extra
}

// countPublishWithinRate reports whether the client may publish a message now. If so, it counts the message.
func (c *client) countPublishWithinRate(now time.Time, maxPerSecond int) bool {
	return c.ensureExtra().publishRate.allow(now, maxPerSecond, time.Second)
}

func (c *client) isReplaying() bool { return c.extra != nil && c.extra.stopReplay != nil }

func (c *client) markReplayFinished() {
	if c.extra.stopReplay = nil; c.extra.isEmpty() {
		c.extra = nil
	}
}

func (c *client) addSubscribedTopic(t *topic) {
	if c.firstTopic == nil {
		c.firstTopic = t
		return
	}
	topics := &c.ensureExtra().topics[t.kind]
	if *topics == nil {
		*topics = make(map[string]*topic)
	}
	(*topics)[t.name] = t
}

func (c *client) removeSubscribedTopic(kind Kind, name string) (removed *topic) {
	t := c.findSubscription(kind, name)
	switch {
	case t == nil:
	case t == c.firstTopic:
		c.firstTopic = nil
	default:
		if delete(c.extra.topics[kind], name); len(c.extra.topics[kind]) == 0 {
			c.extra.topics[kind] = nil
		}
		if c.extra.isEmpty() {
			c.extra = nil
		}
	}
	return t
}

func (c *client) subscriptionNames(kind Kind) (names []string) {
	if c.firstTopic != nil && c.firstTopic.kind == kind {
		names = append(names, c.firstTopic.name)
	}
	if c.extra != nil {
		for name := range c.extra.topics[kind] {
			names = append(names, name)
		}
	}
	return names
}
