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
	format format
	// ordered says that replies go the way of messages, so that they keep their order.
	ordered  bool
	mistakes uint8 // of a WebSocket, or failed logins, in a row
	user     *user // nil until it is known
	first    *topic
	more     *more // nil as long as there is no more
}

// more is what few clients have.
type more struct {
	topics [kinds]map[string]*topic // subscriptions but for the first
	pace   pace
	cost   int        // of the client's patterns
	from   netip.Addr // the address that is charged with cost
	// stop ends the resumption by which the client is sent what it has missed; nil if there is none.
	stop context.CancelFunc
}

func (m *more) empty() bool {
	for _, topics := range m.topics {
		if topics != nil {
			return false
		}
	}
	return m.pace == (pace{}) && m.cost == 0 && m.stop == nil
}

// find is the client's subscription to a name, or nil.
func (c *client) find(k Kind, name string) *topic {
	if c.first != nil && c.first.kind == k && c.first.name == name {
		return c.first
	}
	if c.more == nil {
		return nil
	}
	return c.more.topics[k][name]
}

func (c *client) subscribed(k Kind, name string) bool { return c.find(k, name) != nil }

// count is how many subscriptions the client has, of all kinds.
func (c *client) count() (n int) {
	for k := range Kind(kinds) {
		n += c.number(k)
	}
	return n
}

// number is how many it has of a kind.
func (c *client) number(k Kind) (n int) {
	if c.first != nil && c.first.kind == k {
		n++
	}
	if c.more != nil {
		n += len(c.more.topics[k])
	}
	return n
}

// counted is how many are told with those of a kind: shards are counted apart.
func (c *client) counted(k Kind) int {
	if k == Sharded {
		return c.number(Sharded)
	}
	return c.number(Topic) + c.number(Pattern)
}

// patternCost is what the client's patterns cost, of Limits.MaxPatternCost.
func (c *client) patternCost() int {
	if c.more == nil {
		return 0
	}
	return c.more.cost
}

// chargePattern adds to what the patterns of the client and of its address cost.
func (h *Hub) chargePattern(c *client, ref tcp.Ref, cost int) {
	if cost == 0 {
		return
	}
	m := c.withMore()
	if m.cost == 0 { // an address stays charged with what it was charged with
		if addr, _ := ref.RemoteAddr(); addr.IsValid() {
			m.from = sourceOf(addr.Addr())
		}
	}
	m.cost += cost
	h.patternCosts.add(m.from, cost)
	if m.cost == 0 {
		m.from = netip.Addr{}
	}
	if m.empty() {
		c.more = nil
	}
}

// patternCostLeft returns what one more pattern of the client may cost: of Limits.MaxPatternCost, of twice as
// much for all clients of its address, and of what is free of Limits.MaxPatternWork less what its address has. So
// a few addresses can't take all of it (see fairLimit).
func (h *Hub) patternCostLeft(c *client, ref tcp.Ref, l Limits) int {
	left := l.maxPatternCost() - c.patternCost()
	if addr, _ := ref.RemoteAddr(); addr.IsValid() {
		held := h.patternCosts.of(sourceOf(addr.Addr()))
		left = min(left, 2*l.maxPatternCost()-held, l.maxPatternWork()-int(h.index.work.Load())-held)
	}
	return left
}

// addressCosts are the costs of the patterns of the clients of each address that has any. Its methods are safe for
// concurrent use.
type addressCosts struct {
	mu    sync.Mutex
	costs map[netip.Addr]int
}

func (a *addressCosts) of(from netip.Addr) int {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.costs[from]
}

func (a *addressCosts) add(from netip.Addr, cost int) {
	if !from.IsValid() {
		return
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.costs == nil {
		a.costs = make(map[netip.Addr]int)
	}
	if a.costs[from] += cost; a.costs[from] == 0 {
		delete(a.costs, from)
	}
}

func (c *client) withMore() *more {
	if c.more == nil {
		c.more = new(more)
	}
	return c.more
}

// mayPublishNow reports whether the client has not used up rate messages a second, and counts one.
func (c *client) mayPublishNow(now time.Time, rate int) bool {
	return c.withMore().pace.take(now, rate, time.Second)
}

func (c *client) resumes() bool { return c.more != nil && c.more.stop != nil }

// resumed says that the client has been sent what it has missed.
func (c *client) resumed() {
	if c.more.stop = nil; c.more.empty() {
		c.more = nil
	}
}

func (c *client) add(t *topic) {
	if c.first == nil {
		c.first = t
		return
	}
	topics := &c.withMore().topics[t.kind]
	if *topics == nil {
		*topics = make(map[string]*topic)
	}
	(*topics)[t.name] = t
}

// remove takes a subscription out and returns it; nil if there is none.
func (c *client) remove(k Kind, name string) *topic {
	t := c.find(k, name)
	switch {
	case t == nil:
	case t == c.first:
		c.first = nil
	default:
		if delete(c.more.topics[k], name); len(c.more.topics[k]) == 0 {
			c.more.topics[k] = nil
		}
		if c.more.empty() {
			c.more = nil
		}
	}
	return t
}

// names are the client's subscriptions of a kind, in no order.
func (c *client) names(k Kind) (names []string) {
	if c.first != nil && c.first.kind == k {
		names = append(names, c.first.name)
	}
	if c.more != nil {
		for name := range c.more.topics[k] {
			names = append(names, name)
		}
	}
	return names
}
