package hub

import (
	"errors"
	"fmt"
	"time"

	"github.com/myriad-go/myriad/tcp"
)

// Publishing has two steps: authorizePublish checks whether a message may be published, and publishAuthorized sends the
// message to the other hubs and to the subscribers of this hub.
//
// Concurrency: both steps run on the publisher's goroutine. They briefly hold the lock of a table or of the pattern
// index, a group's lock while posting to mailboxes, and, with last values, the topic's lock.
//
// During an upgrade, the server delivers messages in both processes, and publishAuthorized must no longer deliver them
// itself. For this purpose, publishAuthorized increments publishesStarted before it loads Server.Upgrading, and
// increments published after the delivery. SaveState waits until both counters are equal. It runs after Upgrading has
// changed and before connections move.

// errUpgradeBacklogFull rejects a message because the upgrade in progress has already queued too many messages.
var errUpgradeBacklogFull = errors.New("an upgrade is in progress, and too many messages are held")

// Publish sends a message to all subscribers of a topic and of matching patterns. It returns the number of receivers on
// this hub and does not wait for delivery. If one goroutine publishes several messages to a topic, they arrive in
// order. While an upgrade moves subscribers, messages are queued. If the queue is full, Publish fails.
func (h *Hub) Publish(name string, message []byte) (receivers int, err error) {
	if err := h.authorizePublish(anyone, nil, Topic, name, message); err != nil {
		return 0, err
	}
	return h.publishAuthorized(Topic, name, message)
}

// authorizePublish checks the user's rights and rate, the name and the size. withinRate counts one message and reports
// whether the publisher has not exceeded the rate. If withinRate is nil, the rate is not limited.
func (h *Hub) authorizePublish(u *user, withinRate func(now time.Time, rate int) bool, kind Kind, topic string, message []byte) error {
	var err error
	switch rate, limit := h.Limits.PublishRate, h.Limits.maxMessage(); {
	case !u.mayPublish(kind, topic):
		err = errDenied
	case rate > 0 && withinRate != nil && !withinRate(time.Now(), rate):
		err = fmt.Errorf("%w: at most %d messages a second are allowed", errPublishRate, rate)
	case h.checkNameLength(topic) != nil:
		err = h.checkNameLength(topic)
	case len(message) > limit:
		err = fmt.Errorf("%w: %d bytes, at most %d are allowed", errMessageTooLong, len(message), limit)
	default:
		return nil
	}
	return h.countRefusal(err)
}

// publishAuthorized sends an authorized message to the other hubs and to this hub's subscribers. It returns the number
// of receivers on this hub. During an upgrade, it leaves delivery on this hub to the server, which may queue the
// message.
func (h *Hub) publishAuthorized(kind Kind, topic string, message []byte) (receivers int, err error) {
	if h.keepsAny(kind, topic) { // the cluster calls DeliverKept once it is stored
		if err := h.Cluster.Keep(topic, message); err != nil {
			return 0, h.countRefusal(fmt.Errorf("%w: %w", errCannotKeep, err))
		}
		h.countPublished(1)
		return h.countLocalReceivers(kind, topic), nil
	}
	if h.Cluster != nil {
		if err := h.Cluster.Publish(kind, topic, message); err != nil {
			return 0, h.countRefusal(fmt.Errorf("%w: %w", errMessageTooLong, err))
		}
	}
	h.publishesStarted.Add(1)
	s := h.server.Load()
	if s == nil || !s.Upgrading() {
		defer h.published.Add(1)
		return h.deliverLocally(kind, topic, message, ""), nil
	}
	h.publishesStarted.Add(-1) // SendToGroup will count it
	receivers, err = s.Broadcast(tcp.Broadcast{Kind: uint32(kind), Group: topic, Message: message})
	if err != nil {
		return 0, errUpgradeBacklogFull
	}
	if receivers == tcp.Held {
		receivers = h.countLocalReceivers(kind, topic)
	}
	return receivers, nil
}

// deliverLocally sends a message to this process's subscribers of a topic and of matching patterns. It returns the
// number of receivers. If the message is not kept, id is "".
func (h *Hub) deliverLocally(kind Kind, topicName string, message []byte, id string) (receivers int) {
	var all deliveryCounts
	toTopic := func() {
		if t := h.tableForKind(kind).findTopic(topicName); t != nil {
			all = t.sendMessage(topicName, message, id)
		}
	}
	if kind == Topic && h.Limits.LastValues > 0 {
		h.lastValues.storeAndSend(topicName, message, h.Limits, toTopic)
	} else {
		toTopic()
	}
	if kind == Topic && h.patterns.count.Load() > 0 {
		h.patternIndex.eachMatchingPattern(topicName, func(p *topic) { all.add(p.sendMessage(topicName, message, id)) })
	}
	h.countDelivery(all)
	return all.sent
}

// Deliver sends a message from another hub to this hub's subscribers and returns the number of receivers. It does not
// wait for delivery. Messages that one goroutine delivers arrive in order. The argument kind is Topic or Sharded.
func (h *Hub) Deliver(kind Kind, name string, message []byte) (receivers int) {
	return h.deliverLocally(kind, name, message, "")
}

func (h *Hub) countLocalReceivers(kind Kind, topicName string) int {
	n := h.Subscribers(kind, topicName)
	if kind == Topic {
		h.patternIndex.eachMatchingPattern(topicName, func(p *topic) { n += h.Subscribers(Pattern, p.name) })
	}
	return n
}

func (h *Hub) checkNameLength(name string) error {
	if name == "" {
		return errEmptyName
	}
	if limit := h.Limits.maxName(); len(name) > limit {
		return fmt.Errorf("%w: %d bytes, at most %d are allowed", errNameTooLong, len(name), limit)
	}
	return nil
}
