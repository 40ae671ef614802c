package hub

import (
	"errors"
	"fmt"
	"time"

	"github.com/myriad-go/myriad/tcp"
)

// Publishing has two steps: authorise decides whether a message may be published, and fanOut sends it
// to the other hubs of the cluster and to the subscribers of this one.
//
// Concurrency: both run on the publisher's goroutine, any number at a time. They hold the lock of a table or
// of the pattern index to look up, that of a group to post to mailboxes, and with last values the topic's
// order lock around the topic's own. During an upgrade the server has messages delivered in both
// processes, so none may begin between fanOut's check and its delivery: fanOut counts a message in begun
// before it loads Server.Upgrading, and in published after the delivery. SaveState, which the server
// calls after that has changed and before connections move, waits until both are equal.

// errUpgradeBacklogFull refuses what is published during an upgrade.
var errUpgradeBacklogFull = errors.New("the hub is being upgraded, and too many messages wait for the end of that")

// Publish sends a message to all subscribers of a topic, and of patterns that match it. It returns how
// many they are on this hub, not on others of a cluster, and does not wait for them. Messages that one
// goroutine publishes to a topic arrive in the order of its calls. While an upgrade moves subscribers, it holds the
// message, and returns how many there are in this process; if too many are held, it fails.
func (h *Hub) Publish(name string, message []byte) (receivers int, err error) {
	if err := h.authorizePublish(anyone, nil, Topic, name, message); err != nil {
		return 0, err
	}
	return h.fanOut(Topic, name, message)
}

// authorizePublish returns why a user may not publish a message: its rights, its rate, the name, or the size.
// withinRate counts one message and reports whether the publisher keeps to rate; nil is no limit.
func (h *Hub) authorizePublish(u *user, withinRate func(now time.Time, rate int) bool, k Kind, topic string, message []byte) error {
	var err error
	switch rate, limit := h.Limits.PublishRate, h.Limits.maxMessage(); {
	case !u.mayPublish(k, topic):
		err = errDenied
	case rate > 0 && withinRate != nil && !withinRate(time.Now(), rate):
		err = fmt.Errorf("%w: at most %d messages a second are allowed", errPublishRate, rate)
	case h.checkName(topic) != nil:
		err = h.checkName(topic)
	case len(message) > limit:
		err = fmt.Errorf("%w: %d bytes, at most %d are allowed", errMessageTooLong, len(message), limit)
	default:
		return nil
	}
	return h.countRefusal(err)
}

// fanOut sends an authorised message to the other hubs, and to the subscribers of this one, whose number it
// returns. During an upgrade it leaves the latter to the server, which may hold the message.
func (h *Hub) fanOut(kind Kind, topic string, message []byte) (receivers int, err error) {
	if h.keepsAny(kind, topic) { // the cluster calls DeliverKept once the message is stored
		if err := h.Cluster.Keep(topic, message); err != nil {
			return 0, h.countRefusal(fmt.Errorf("%w: %w", errCannotKeep, err))
		}
		h.countPublished(1)
		return h.countReceivers(kind, topic), nil
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
	h.publishesStarted.Add(-1) // the server calls SendToGroup, which counts it
	receivers, err = s.Broadcast(tcp.Broadcast{Kind: uint32(kind), Group: topic, Message: message})
	if err != nil {
		return 0, errUpgradeBacklogFull
	}
	if receivers == tcp.Held {
		receivers = h.countReceivers(kind, topic)
	}
	return receivers, nil
}

// deliverLocally posts a message to the subscribers of a topic, and of patterns that match it, in this
// process, and returns their number. id is that of a message that is kept.
func (h *Hub) deliverLocally(kind Kind, topicName string, message []byte, id string) (receivers int) {
	var all deliveryCounts
	toTopic := func() {
		if t := h.tableForKind(kind).find(topicName); t != nil {
			all = t.sendMessage(topicName, message, id)
		}
	}
	if kind == Topic && h.Limits.LastValues > 0 {
		h.lastValues.storeAndSend(topicName, message, h.Limits, toTopic)
	} else {
		toTopic()
	}
	if kind == Topic && h.patterns.count.Load() > 0 {
		h.patternIndex.eachMatch(topicName, func(p *topic) { all.add(p.sendMessage(topicName, message, id)) })
	}
	h.countDelivery(all)
	return all.sent
}

// Deliver sends a message that was published to another hub to the subscribers of this one. It returns
// their number and waits for none; the order is that of the caller's goroutine. k is Topic or Sharded.
func (h *Hub) Deliver(kind Kind, name string, message []byte) (receivers int) {
	return h.deliverLocally(kind, name, message, "")
}

// countReceivers returns how many subscribers in this process would get a message now.
func (h *Hub) countReceivers(kind Kind, topicName string) int {
	n := h.Subscribers(kind, topicName)
	if kind == Topic {
		h.patternIndex.eachMatch(topicName, func(p *topic) { n += h.Subscribers(Pattern, p.name) })
	}
	return n
}

func (h *Hub) checkName(name string) error {
	if name == "" {
		return errEmptyName
	}
	if limit := h.Limits.maxName(); len(name) > limit {
		return fmt.Errorf("%w: %d bytes, at most %d are allowed", errNameTooLong, len(name), limit)
	}
	return nil
}
