// Package hub implements publish/subscribe for a million subscribers on one machine. Redis clients, WebSockets and
// server-sent events share topics on one port.
//
// The package uses only the public API of package tcp. Subscribers need no goroutine. A message is encoded only once
// for all receivers that use the same format. A hub serves the clients of a tcp.Server:
//
//	h := &hub.Hub{}
//	srv := &tcp.Server{Addr: ":6379", Handler: h.Handler()}
//	err := srv.ListenAndServe(ctx)
//
// Only current subscribers receive a message, with two exceptions: Limits.LastValues stores a topic's last message for
// later subscribers, and Hub.Replay stores messages for clients that reconnect.
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
	// Limits limits the resources that clients may use.
	Limits Limits
	// Users contains the accounts that may use the hub. With the default nil, every client may do everything.
	Users *Users
	// Origins lists other sites whose web pages may use the hub, such as "https://example.com".
	Origins []string
	// Compression compresses messages of 1 KiB and more for WebSockets that accept compression. A message is compressed
	// once for all subscribers of its topic. See web.WebSocket.Compression for the costs.
	Compression bool
	// Cluster connects the hub with other hubs. With the default nil, the hub stands alone.
	Cluster Cluster
	// Replay stores messages for clients that reconnect. With the default nil, no messages are stored.
	Replay *Replay

	topics, patterns, sharded topicTable
	patternIndex              patternIndex
	patternCosts              patternCostByAddr
	lastValues                lastValueCache
	httpPublishRates          addrRateLimits
	failedLogins              failedLoginLimiter
	counters
	slowScanMu        sync.Mutex // held during Hub.Slow
	commandsRun       atomic.Int64
	backgroundReplies atomic.Int32 // number of replies that run or wait
	backgroundReplyMu sync.Mutex   // held while a background reply is made
	libraries         libraryTable
	api               httpAPI
	server            atomic.Pointer[tcp.Server] // the first server; nil before it starts
}

// Check returns an error that wraps tcp.ErrBadConfig if a field of h is invalid. Call it before h serves clients.
func (h *Hub) Check() error {
	if err := h.Limits.validate(); err != nil {
		return err
	}
	if h.Replay != nil {
		if err := h.Replay.validateConfig(h.Limits); err != nil {
			return err
		}
	}
	return new(httpAPI).allowOrigins(h.Origins)
}

// Errors that clients receive when a subscription or a message is rejected.
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

// subscribe subscribes a client to a topic or pattern, and calls confirm with the client's number of subscriptions. A
// new subscriber then receives the topic's last value. Calls for the same client must not overlap.
func (h *Hub) subscribe(c *client, ref tcp.Ref, kind Kind, name string, confirm func(count int)) error {
	if c.isSubscribed(kind, name) {
		confirm(c.subscriptionCountForConfirmation(kind))
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
	confirm(c.subscriptionCountForConfirmation(kind))
	if kind == Topic && h.Limits.LastValues > 0 {
		h.sendLastValueIfAny(c, ref, t)
	}
	t.getOrCreateGroup(c.format).Add(ref)
	return nil
}

// authorizeAndRecordSubscription checks rights and limits, and counts c as a subscriber. The caller must then add ref
// to the topic's group for clients that have the message format of c.
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
		h.notifyClusterSubscribersChanged(kind, name)
	}
	if kind == Pattern {
		cost, err := h.patternIndex.addPatternWithinBudget(t, limits, h.remainingPatternBudget(c, ref, limits))
		if err != nil {
			h.removeSubscriberAndUnusedTopic(t)
			return nil, err
		}
		h.adjustPatternCost(c, ref, cost)
	}
	c.addSubscribedTopic(t)
	h.subscriptions.Add(1)
	return t, nil
}

func (h *Hub) removeSubscriberAndUnusedTopic(t *topic) {
	if h.tableForKind(t.kind).removeSubscriber(t) {
		if t.kind == Pattern {
			h.patternIndex.removeIndexedPattern(t, h.Limits)
		}
		h.notifyClusterSubscribersChanged(t.kind, t.name)
	}
}

func (h *Hub) sendLastValueIfAny(c *client, ref tcp.Ref, t *topic) {
	message, ok := h.lastValues.getAndMarkRecentlyUsed(t.name)
	if !ok {
		return
	}
	b := bufferPool.Get().(*[]byte)
	defer returnBufferToPoolUnlessLarge(b)
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
	h.removeSubscriberAndUnusedTopic(t)
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
