package hub

import (
	"context"
	"net/netip"
	"sync"
	"time"

	"github.com/myriad-go/myriad/tcp"
)

// client is what the hub knows of one connection. It belongs to the connection's handler,
// whose calls come one at a time, and needs no lock. Most clients have one subscription, so
// the first takes no map.
type client struct {
	format messageFormat
	// repliesInMessageOrder says that replies go the way of messages, so that they keep their order.
	repliesInMessageOrder bool
	consecutiveErrors     uint8 // of a WebSocket, or failed logins, in a row
	user                  *user // nil until it is known
	firstTopic            *topic
	extra                 *clientExtra // nil as long as there is no more
}

// clientExtra is what few clients have.
type clientExtra struct {
	topics          [kindCount]map[string]*topic // subscriptions but for the first
	publishRate     rateLimit
	patternCost     int        // of the client's patterns
	patternCostAddr netip.Addr // the address that is charged with cost
	// stopReplay ends the resumption by which the client is sent what it has missed; nil if there is none.
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

// subscription is the client's subscription to a name, or nil.
func (c *client) subscription(kind Kind, name string) *topic {
	if c.firstTopic != nil && c.firstTopic.kind == kind && c.firstTopic.name == name {
		return c.firstTopic
	}
	if c.extra == nil {
		return nil
	}
	return c.extra.topics[kind][name]
}

func (c *client) isSubscribed(kind Kind, name string) bool { return c.subscription(kind, name) != nil }

// subscriptionCount is how many subscriptions the client has, of all kinds.
func (c *client) subscriptionCount() (n int) {
	for k := range Kind(kindCount) {
		n += c.subscriptionCountOfKind(k)
	}
	return n
}

// subscriptionCountOfKind is how many it has of a kind.
func (c *client) subscriptionCountOfKind(kind Kind) (n int) {
	if c.firstTopic != nil && c.firstTopic.kind == kind {
		n++
	}
	if c.extra != nil {
		n += len(c.extra.topics[kind])
	}
	return n
}

// confirmedCount is how many are told with those of a kind: shards are counted apart.
func (c *client) confirmedCount(kind Kind) int {
	if kind == Sharded {
		return c.subscriptionCountOfKind(Sharded)
	}
	return c.subscriptionCountOfKind(Topic) + c.subscriptionCountOfKind(Pattern)
}

// patternCost is what the client's patterns cost, of Limits.MaxPatternCost.
func (c *client) patternCost() int {
	if c.extra == nil {
		return 0
	}
	return c.extra.patternCost
}

// addPatternCost adds to what the patterns of the client and of its address cost.
func (h *Hub) addPatternCost(c *client, ref tcp.Ref, cost int) {
	if cost == 0 {
		return
	}
	m := c.ensureExtra()
	if m.patternCost == 0 { // an address stays charged with what it was charged with
		if addr, _ := ref.RemoteAddr(); addr.IsValid() {
			m.patternCostAddr = clientNetwork(addr.Addr())
		}
	}
	m.patternCost += cost
	h.patternCosts.add(m.patternCostAddr, cost)
	if m.patternCost == 0 {
		m.patternCostAddr = netip.Addr{}
	}
	if m.isEmpty() {
		c.extra = nil
	}
}

// remainingPatternCost returns what one more pattern of the client may cost: of Limits.MaxPatternCost, of twice as
// much for all clients of its address, and of what is free of Limits.MaxPatternWork less what its address has. So
// a few addresses can't take all of it (see fairLimit).
func (h *Hub) remainingPatternCost(c *client, ref tcp.Ref, limits Limits) int {
	remaining := limits.maxPatternCost() - c.patternCost()
	if addr, _ := ref.RemoteAddr(); addr.IsValid() {
		held := h.patternCosts.cost(clientNetwork(addr.Addr()))
		remaining = min(remaining, 2*limits.maxPatternCost()-held, limits.maxPatternWork()-int(h.patternIndex.maxPublishWork.Load())-held)
	}
	return remaining
}

// patternCostByAddr are the costs of the patterns of the clients of each address that has any. Its methods are safe for
// concurrent use.
type patternCostByAddr struct {
	mu    sync.Mutex
	costs map[netip.Addr]int
}

func (a *patternCostByAddr) cost(addr netip.Addr) int {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.costs[addr]
}

func (a *patternCostByAddr) add(addr netip.Addr, cost int) {
	if !addr.IsValid() {
		return
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.costs == nil {
		a.costs = make(map[netip.Addr]int)
	}
	if a.costs[addr] += cost; a.costs[addr] == 0 {
		delete(a.costs, addr)
	}
}

func (c *client) ensureExtra() *clientExtra {
	if c.extra == nil {
		c.extra = new(clientExtra)
	}
	return c.extra
}

// allowPublish reports whether the client has not used up rate messages a second, and counts one.
func (c *client) allowPublish(now time.Time, rate int) bool {
	return c.ensureExtra().publishRate.allow(now, rate, time.Second)
}

func (c *client) isReplaying() bool { return c.extra != nil && c.extra.stopReplay != nil }

// finishReplay says that the client has been sent what it has missed.
func (c *client) finishReplay() {
	if c.extra.stopReplay = nil; c.extra.isEmpty() {
		c.extra = nil
	}
}

func (c *client) addTopic(t *topic) {
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

// removeTopic takes a subscription out and returns it; nil if there is none.
func (c *client) removeTopic(kind Kind, name string) *topic {
	t := c.subscription(kind, name)
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

// subscriptionNames are the client's subscriptions of a kind, in no order.
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
