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

	topics, patterns, sharded topicTable
	patternIndex              patternIndex // of patterns
	patternCosts              patternCostByAddr
	lastValues                lastValueCache
	httpPublishRates          addrRateLimits // of addresses that publish by HTTP
	failedLogins              failedLoginLimiter
	counters
	slowScanMu  sync.Mutex   // for slow subscribers
	commandsRun atomic.Int64 // commands
	scans       scanLimiter
	api         httpAPI
	server      atomic.Pointer[tcp.Server] // by which it is served first; nil if by none
}

// Check says what is wrong with the hub's fields: its error wraps tcp.ErrBadConfig. A hub
// of which it says something does not serve.
func (h *Hub) Check() error {
	if err := h.Limits.validate(); err != nil {
		return err
	}
	if h.Replay != nil {
		if err := h.Replay.validate(h.Limits); err != nil {
			return err
		}
	}
	return new(httpAPI).allowOrigins(h.Origins)
}

// Errors of subscribing and publishing. Front ends tell them to their clients.
var (
	errEmptyName            = errors.New("a topic needs a name")
	errNameTooLong          = errors.New("the name of the topic is too long")
	errMessageTooLong       = errors.New("the message is too long")
	errTooManySubscriptions = errors.New("the client has too many subscriptions")
	errTooManySubscribers   = errors.New("the topic has too many subscribers")
	errTooManyTopics        = errors.New("there are too many topics")
	errPatternTooCostly     = errors.New("the pattern takes too long to match, with those that there are")
	errPublishRate          = errors.New("the client publishes too fast")
	errCannotKeep           = errors.New("the message can't be kept")
)

// subscribe has a client get what is published to a topic. joined is called, with the number
// of the client's subscriptions, before any message can be on its way to it, whether it is a
// new subscription or not. Right behind it goes the topic's newest message, if it is kept and
// the subscription is new. It is for one call at a time of each client.
func (h *Hub) subscribe(c *client, ref tcp.Ref, kind Kind, name string, confirm func(count int)) error {
	if c.isSubscribed(kind, name) {
		confirm(c.confirmedCount(kind))
		return nil
	}
	t, err := h.addSubscription(c, ref, kind, name, h.Limits)
	if err != nil {
		return h.countRefusal(err)
	}
	if kind == Topic && h.Limits.LastValues > 0 {
		lock := h.lastValues.topicLock(name)
		lock.Lock()
		defer lock.Unlock()
	}
	confirm(c.confirmedCount(kind))
	if kind == Topic && h.Limits.LastValues > 0 {
		h.sendLastValue(c, ref, t)
	}
	t.groupFor(c.format).Add(ref)
	return nil
}

// addSubscription counts a client in among a topic's subscribers, if it may be one, and notes its subscription.
func (h *Hub) addSubscription(c *client, ref tcp.Ref, kind Kind, name string, limits Limits) (*topic, error) {
	if err := h.checkName(name); err != nil {
		return nil, err
	}
	if !c.user.maySubscribe(kind, name) {
		return nil, errDenied
	}
	if limit := limits.maxSubscriptions(); c.subscriptionCount() >= limit {
		return nil, fmt.Errorf("%w: at most %d are allowed", errTooManySubscriptions, limit)
	}
	t, first, err := h.tableForKind(kind).addSubscriber(name, kind, c.format, limits)
	if err != nil {
		return nil, err
	}
	if first {
		h.notifyCluster(kind, name)
	}
	if kind == Pattern {
		cost, err := h.patternIndex.add(t, limits, h.remainingPatternCost(c, ref, limits))
		if err != nil {
			h.removeSubscriber(t)
			return nil, err
		}
		h.addPatternCost(c, ref, cost)
	}
	c.addTopic(t)
	h.subscriptions.Add(1)
	return t, nil
}

// removeSubscriber counts a client out among a topic's subscribers.
func (h *Hub) removeSubscriber(t *topic) {
	if h.tableForKind(t.kind).removeSubscriber(t) {
		if t.kind == Pattern {
			h.patternIndex.remove(t, h.Limits)
		}
		h.notifyCluster(t.kind, t.name)
	}
}

// sendLastValue sends a topic's newest message to a client.
func (h *Hub) sendLastValue(c *client, ref tcp.Ref, t *topic) {
	message, ok := h.lastValues.get(t.name)
	if !ok {
		return
	}
	b := bufferPool.Get().(*[]byte)
	defer releaseBuffer(b)
	*b = c.format.appendMessage((*b)[:0], t, t.name, message, "")
	switch err := ref.Send(*b); {
	case err == nil:
		h.countDelivery(deliveryCounts{sent: 1, bytes: len(*b)})
	case !errors.Is(err, tcp.ErrClosed):
		h.dropped.Add(1)
	}
}

// unsubscribe ends a subscription. It reports whether there was one.
func (h *Hub) unsubscribe(c *client, ref tcp.Ref, kind Kind, name string) bool {
	t := c.removeTopic(kind, name)
	if t == nil {
		return false
	}
	h.subscriptions.Add(-1)
	t.groupFor(c.format).Remove(ref)
	if kind == Pattern {
		h.addPatternCost(c, ref, -int(t.cost))
	}
	h.removeSubscriber(t)
	return true
}

// unsubscribeAll ends all subscriptions of a client.
func (h *Hub) unsubscribeAll(c *client, ref tcp.Ref) {
	if c.isReplaying() {
		c.extra.stopReplay()
	}
	for k := range Kind(kindCount) {
		for _, name := range c.subscriptionNames(k) {
			h.unsubscribe(c, ref, k, name)
		}
	}
}

func (h *Hub) tableForKind(kind Kind) *topicTable {
	return [kindCount]*topicTable{Topic: &h.topics, Pattern: &h.patterns, Sharded: &h.sharded}[kind]
}
