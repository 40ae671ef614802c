// Package hub is publish/subscribe for a million subscribers on one machine: clients of the
// Redis protocol, WebSockets and server-sent events meet on the same topics, on one port.
//
// It is an application of package tcp's public API. A subscriber takes no goroutine, and
// a message is encoded once for all who get it in the same form:
//
//	h := &hub.Hub{}
//	srv := &tcp.Server{Addr: ":6379", Handler: h.Handler()}
//	err := srv.ListenAndServe(ctx)
//
// Messages are kept for nobody: who is not subscribed when one is published does not get it,
// but for the last value of a topic where Limits.LastValues asks for it, and what a Cluster keeps, where
// Hub.Replay says so.
package hub

import (
	"errors"
	"fmt"
	"sync"
	"sync/atomic"

	"github.com/myriad-go/myriad/tcp"
)

// Hub is a set of topics and their subscribers. Its fields are not changed once it serves.
// The zero value is useful. Its methods are safe for concurrent use.
type Hub struct {
	// Limits bound what clients may ask for.
	Limits Limits
	// Users are who may come in. The default is nil: everybody may, and may do everything.
	Users *Users
	// Origins are sites whose pages may use the hub from a browser, such as
	// "https://example.com", beside the pages that it serves itself.
	Origins []string
	// Cluster joins the hub with others. The default is nil: it is alone.
	Cluster Cluster
	// Replay keeps messages of a hub in a cluster for those who come again. The default is nil: none
	// are kept, nor by a hub that is alone.
	Replay *Replay

	topics, patterns, shards table
	index                    patternIndex // of patterns
	patternCosts             addressCosts
	last                     lastValues
	posts                    paces // of addresses that publish by HTTP
	failures                 failures
	counters
	looking sync.Mutex   // for slow subscribers
	ran     atomic.Int64 // commands
	walks   walks
	front   front
	server  atomic.Pointer[tcp.Server] // by which it is served first; nil if by none
}

// Check says what is wrong with the hub's fields: its error wraps tcp.ErrBadConfig. A hub
// of which it says something does not serve.
func (h *Hub) Check() error {
	if err := h.Limits.check(); err != nil {
		return err
	}
	if h.Replay != nil {
		if err := h.Replay.check(h.Limits); err != nil {
			return err
		}
	}
	return new(front).trust(h.Origins)
}

// Errors of subscribing and publishing. Front ends tell them to their clients.
var (
	errNoName        = errors.New("a topic needs a name")
	errLongName      = errors.New("the name of the topic is too long")
	errLongMessage   = errors.New("the message is too long")
	errSubscriptions = errors.New("the client has too many subscriptions")
	errSubscribers   = errors.New("the topic has too many subscribers")
	errTopics        = errors.New("there are too many topics")
	errPatterns      = errors.New("the pattern takes too long to match, with those that there are")
	errRate          = errors.New("the client publishes too fast")
	errUnkept        = errors.New("the message can't be kept")
)

// subscribe has a client get what is published to a topic. joined is called, with the number
// of the client's subscriptions, before any message can be on its way to it, whether it is a
// new subscription or not. Right behind it goes the topic's newest message, if it is kept and
// the subscription is new. It is for one call at a time of each client.
func (h *Hub) subscribe(c *client, ref tcp.Ref, k Kind, name string, joined func(count int)) error {
	if c.subscribed(k, name) {
		joined(c.counted(k))
		return nil
	}
	t, err := h.join(c, ref, k, name, h.Limits)
	if err != nil {
		return h.refuse(err)
	}
	if k == Topic && h.Limits.LastValues > 0 {
		order := h.last.orderOf(name)
		order.Lock()
		defer order.Unlock()
	}
	joined(c.counted(k))
	if k == Topic && h.Limits.LastValues > 0 {
		h.sendLast(c, ref, t)
	}
	t.group(c.format).Add(ref)
	return nil
}

// join counts a client in among a topic's subscribers, if it may be one, and notes its subscription.
func (h *Hub) join(c *client, ref tcp.Ref, k Kind, name string, l Limits) (*topic, error) {
	if err := h.checkName(name); err != nil {
		return nil, err
	}
	if !c.user.maySubscribe(k, name) {
		return nil, errDenied
	}
	if most := l.maxSubscriptions(); c.count() >= most {
		return nil, fmt.Errorf("%w: at most %d are allowed", errSubscriptions, most)
	}
	t, first, err := h.tableOf(k).join(name, k, c.format, l)
	if err != nil {
		return nil, err
	}
	if first {
		h.changed(k, name)
	}
	if k == Pattern {
		cost, err := h.index.add(t, l, h.patternCostLeft(c, ref, l))
		if err != nil {
			h.leave(t)
			return nil, err
		}
		h.chargePattern(c, ref, cost)
	}
	c.add(t)
	h.subscriptions.Add(1)
	return t, nil
}

// leave counts a client out among a topic's subscribers.
func (h *Hub) leave(t *topic) {
	if h.tableOf(t.kind).leave(t) {
		if t.kind == Pattern {
			h.index.remove(t, h.Limits)
		}
		h.changed(t.kind, t.name)
	}
}

// sendLast sends a topic's newest message to a client.
func (h *Hub) sendLast(c *client, ref tcp.Ref, t *topic) {
	message, ok := h.last.of(t.name)
	if !ok {
		return
	}
	b := buffers.Get().(*[]byte)
	defer putBuffer(b)
	*b = c.format.append((*b)[:0], t, t.name, message, "")
	switch err := ref.Send(*b); {
	case err == nil:
		h.count(tally{sent: 1, bytes: len(*b)})
	case !errors.Is(err, tcp.ErrClosed):
		h.dropped.Add(1)
	}
}

// unsubscribe ends a subscription. It reports whether there was one.
func (h *Hub) unsubscribe(c *client, ref tcp.Ref, k Kind, name string) bool {
	t := c.remove(k, name)
	if t == nil {
		return false
	}
	h.subscriptions.Add(-1)
	t.group(c.format).Remove(ref)
	if k == Pattern {
		h.chargePattern(c, ref, -int(t.cost))
	}
	h.leave(t)
	return true
}

// closed ends all subscriptions of a client.
func (h *Hub) closed(c *client, ref tcp.Ref) {
	if c.resumes() {
		c.more.stop()
	}
	for k := range Kind(kinds) {
		for _, name := range c.names(k) {
			h.unsubscribe(c, ref, k, name)
		}
	}
}

func (h *Hub) tableOf(k Kind) *table {
	return [kinds]*table{Topic: &h.topics, Pattern: &h.patterns, Sharded: &h.shards}[k]
}
