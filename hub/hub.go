// Package hub implements publish/subscribe for a million subscribers on one machine. Redis clients, WebSockets and
// server-sent events share topics on one port.
//
// The package uses only the public API of package tcp. Subscribers need no goroutine. A message is encoded only once
// for all receivers that use the same format:
//
//	h := &hub.Hub{}
//	srv := &tcp.Server{Addr: ":6379", Handler: h.Handler()}
//	err := srv.ListenAndServe(ctx)
//
// Only current subscribers receive a message, with two exceptions: Limits.LastValues keeps a topic's last message for
// later subscribers, and Hub.Replay keeps messages in a Cluster for clients that reconnect.
package hub

import (
	"errors"
	"fmt"
	"sync"
	"sync/atomic"

	"github.com/myriad-go/myriad/tcp"
)

// Hub is a set of topics and their subscribers. The zero value is ready to use. The fields must not change after the
// hub starts to serve. Methods are safe for concurrent use.
type Hub struct {
	// Limits limit the resources that clients may use.
	Limits Limits
	// Users contains the accounts that may use the hub. The default is nil: anyone may do anything.
	Users *Users
	// Origins lists the other sites whose web pages may use the hub, such as "https://example.com".
	Origins []string
	// Cluster connects the hub with other hubs. The default is nil: a single hub.
	Cluster Cluster
	// Replay keeps messages for clients that reconnect. It needs a Cluster. The default is nil: no messages are kept.
	Replay *Replay

	topics, patterns, sharded topicTable
	patternIndex              patternIndex
	patternCosts              patternCostByAddr
	lastValues                lastValueCache
	httpPublishRates          addrRateLimits // by address, for HTTP
	failedLogins              failedLoginLimiter
	counters
	slowScanMu  sync.Mutex // held during Slow
	commandsRun atomic.Int64
	scans       scanLimiter
	api         httpAPI
	server      atomic.Pointer[tcp.Server] // the first server; nil before it starts
}

// Check validates the fields. Its errors wrap tcp.ErrBadConfig. A hub that fails the check must not serve.
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

// Errors of subscribing and publishing. Clients receive the error texts.
var (
	errEmptyName            = errors.New("a topic needs a name")
	errNameTooLong          = errors.New("the name of the topic is too long")
	errMessageTooLong       = errors.New("the message is too long")
	errTooManySubscriptions = errors.New("the client has too many subscriptions")
	errTooManySubscribers   = errors.New("the topic has too many subscribers")
	errTooManyTopics        = errors.New("there are too many topics")
	errPatternTooCostly     = errors.New("the pattern is too expensive")
	errPublishRate          = errors.New("the client publishes too fast")
	errCannotKeep           = errors.New("the message can't be kept")
)

// subscribe subscribes a client to a name. Before any message is sent, it calls confirm with the client's number of
// subscriptions, even if the client was already subscribed. If a topic has a last value, a new subscriber then receives
// this value. Calls for the same client must not overlap.
func (h *Hub) subscribe(c *client, ref tcp.Ref, kind Kind, name string, confirm func(count int)) error {
	if c.isSubscribed(kind, name) {
		confirm(c.confirmationCount(kind))
		return nil
	}
	t, err := h.authorizeAndRecordSubscription(c, ref, kind, name, h.Limits)
	if err != nil {
		return h.countRefusal(err)
	}
	if kind == Topic && h.Limits.LastValues > 0 {
		lock := h.lastValues.topicLock(name)
		lock.Lock()
		defer lock.Unlock()
	}
	confirm(c.confirmationCount(kind))
	if kind == Topic && h.Limits.LastValues > 0 {
		h.sendLastValue(c, ref, t)
	}
	t.getOrCreateGroup(c.format).Add(ref)
	return nil
}

// authorizeAndRecordSubscription checks rights and limits, and records a subscription. The caller must then add ref to
// the topic's group.
func (h *Hub) authorizeAndRecordSubscription(c *client, ref tcp.Ref, kind Kind, name string, limits Limits) (*topic, error) {
	if err := h.checkNameLength(name); err != nil {
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
		h.notifyClusterOfSubscribers(kind, name)
	}
	if kind == Pattern {
		cost, err := h.patternIndex.addPatternWithinBudget(t, limits, h.remainingPatternCost(c, ref, limits))
		if err != nil {
			h.removeSubscriberAndNotifyIfLast(t)
			return nil, err
		}
		h.adjustPatternCost(c, ref, cost)
	}
	c.addSubscribedTopic(t)
	h.subscriptions.Add(1)
	return t, nil
}

// removeSubscriberAndNotifyIfLast removes one subscriber from the topic's table. If it was the last one, the topic is
// removed from the pattern index and the cluster is notified.
func (h *Hub) removeSubscriberAndNotifyIfLast(t *topic) {
	if h.tableForKind(t.kind).removeSubscriber(t) {
		if t.kind == Pattern {
			h.patternIndex.removeIndexedPattern(t, h.Limits)
		}
		h.notifyClusterOfSubscribers(t.kind, t.name)
	}
}

func (h *Hub) sendLastValue(c *client, ref tcp.Ref, t *topic) {
	message, ok := h.lastValues.getAndMarkRecentlyUsed(t.name)
	if !ok {
		return
	}
	b := bufferPool.Get().(*[]byte)
	defer returnBufferToPool(b)
	*b = c.format.appendMessage((*b)[:0], t, t.name, message, "")
	switch err := ref.Send(*b); {
	case err == nil:
		h.countDelivery(deliveryCounts{sent: 1, bytes: len(*b)})
	case !errors.Is(err, tcp.ErrClosed):
		h.dropped.Add(1)
	}
}

func (h *Hub) unsubscribe(c *client, ref tcp.Ref, kind Kind, name string) (wasSubscribed bool) {
	t := c.removeSubscribedTopic(kind, name)
	if t == nil {
		return false
	}
	h.subscriptions.Add(-1)
	t.getOrCreateGroup(c.format).Remove(ref)
	if kind == Pattern {
		h.adjustPatternCost(c, ref, -int(t.cost))
	}
	h.removeSubscriberAndNotifyIfLast(t)
	return true
}

func (h *Hub) unsubscribeAllAndStopReplay(c *client, ref tcp.Ref) {
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
