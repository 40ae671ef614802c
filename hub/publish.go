package hub

import (
	"crypto/rand"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/myriad-go/myriad/tcp"
)

// Publishing runs on the publisher's goroutine. It briefly holds locks: of a topic table or the pattern index, of a
// group while it posts to mailboxes, and, with last values, of the topic. Without a cluster, messages that Replay
// stores are sent one at a time, because a client may resume several topics with one id.
//
// During an upgrade, the server delivers messages in both processes, so authorizeAndPublish must not deliver them
// itself. It increments publishesStarted before it calls Server.Upgrading, and increments published after the delivery.
// SaveState runs after Upgrading has become true and before connections move. It waits until both counters are equal,
// that is, until no earlier delivery is in progress.

// errUpgradeBacklogFull rejects a message because too many messages are queued during an upgrade.
var errUpgradeBacklogFull = errors.New("an upgrade is in progress and too many messages are queued; try again later")

// Publish sends a message to all subscribers of a topic and of matching patterns. It returns the number of receivers on
// this hub and does not wait for delivery. Messages that one goroutine publishes to a topic arrive in order. During an
// upgrade, messages may be queued. If the queue is full, Publish fails.
func (h *Hub) Publish(name string, message []byte) (receivers int, err error) {
	return h.authorizeAndPublish(unrestrictedUser, nil, Topic, name, message)
}

// rateCheck reports whether the publisher may send one more message now. If so, it counts the message. rate is the
// limit in messages per second.
type rateCheck func(now time.Time, rate int) bool

// authorizePublish returns an error if the user may not publish the message. It checks the user's rights, the topic
// name and the size of the message. If withinRate is not nil, it also checks the publisher's rate. It counts each
// refusal.
func (h *Hub) authorizePublish(u *user, withinRate rateCheck, kind Kind, topic string, message []byte) error {
	var err error
	switch rate, limit := h.Limits.PublishRate, h.Limits.maxMessage(); {
	case !u.mayPublish(kind, topic):
		err = errDenied
	case rate > 0 && withinRate != nil && !withinRate(time.Now(), rate):
		err = fmt.Errorf("%w: at most %d messages per second are allowed", errPublishRate, rate)
	case h.checkNameLength(topic) != nil:
		err = h.checkNameLength(topic)
	case len(message) > limit:
		err = fmt.Errorf("%w: %d bytes; at most %d are allowed", errMessageTooLong, len(message), limit)
	default:
		return nil
	}
	return h.countRefusal(err)
}

// authorizeAndPublish publishes a message on all hubs, and returns the number of receivers on this hub.
func (h *Hub) authorizeAndPublish(u *user, withinRate rateCheck, kind Kind, topic string, message []byte) (
	receivers int, err error) {
	if err := h.authorizePublish(u, withinRate, kind, topic, message); err != nil {
		return 0, err
	}
	if h.Cluster != nil && h.keepsAny(kind, topic) { // the cluster calls KeepAndDeliver once it is stored
		if err := h.Cluster.QueueForReplay(topic, message); err != nil {
			return 0, h.countRefusal(fmt.Errorf("%w: %w", errCannotKeep, err))
		}
		h.countPublished(1)
		return h.countLocalReceivers(kind, topic), nil
	}
	if h.Cluster != nil {
		if err := h.Cluster.PublishOrCountLost(kind, topic, message); err != nil {
			return 0, h.countRefusal(fmt.Errorf("%w: %w", errMessageTooLong, err))
		}
	}
	h.publishesStarted.Add(1)
	s := h.server.Load()
	if s == nil || !s.Upgrading() {
		defer h.published.Add(1)
		return h.keepIfSingleHubAndDeliver(kind, topic, message), nil
	}
	h.publishesStarted.Add(-1) // SendToGroup will count it
	receivers, err = s.Broadcast(tcp.Broadcast{Kind: uint32(kind), Group: topic, Message: message})
	if err != nil {
		return 0, errUpgradeBacklogFull
	}
	if receivers == tcp.BroadcastQueued {
		receivers = h.countLocalReceivers(kind, topic)
	}
	return receivers, nil
}

func newEpoch() string { return strings.ToLower(rand.Text()[:13]) }

func (m *replayBuffer) beginNewStreamLocked() {
	m.clearAndBeginStreamLocked(newEpoch(), 1)
	m.readyLocked(0)
}

// keepsLocally reports whether this hub stores messages itself, without a cluster.
func (h *Hub) keepsLocally() bool { return h.Replay != nil && h.Cluster == nil }

// keptByOtherProcess is a special value that takes the place of a message id. During an upgrade, it marks a message
// that only the new process stores. This process does not send such a message to clients whose protocol has ids.
const keptByOtherProcess = "-"

// keepIfSingleHubAndDeliver sends a message to this process's subscribers. Without a cluster, it also stores the
// message if Replay selects the topic. After another process has taken over in an upgrade, only that process stores
// messages.
func (h *Hub) keepIfSingleHubAndDeliver(kind Kind, topic string, message []byte) (receivers int) {
	if h.Cluster != nil || !h.keepsAny(kind, topic) {
		return h.deliverAndStoreLastValue(kind, topic, message, "")
	}
	r := h.Replay
	r.mu.Lock()
	defer r.mu.Unlock()
	switch {
	case h.isHandedOver():
		r.handedOver = true
		return h.deliverAndStoreLastValue(kind, topic, message, keptByOtherProcess)
	case r.handedOver: // the new process has died; its ids must not be issued again
		r.handedOver = false
		r.clearAndSendGapNoticeLocked(h, Position{Epoch: newEpoch()})
	case !r.ready:
		r.beginNewStreamLocked()
	}
	at := Position{r.newestPos.Epoch, r.newestPos.Seq + 1}
	return h.keepAndDeliverLocked(KeptMessage{At: at, Time: time.Now(), Topic: topic, Data: slices.Clone(message)})
}

func (h *Hub) isHandedOver() bool {
	s := h.server.Load()
	return h.keepsLocally() && s != nil && s.HandedOver()
}

// ensureLocalStreamAndDropExpired begins a stream of stored messages if none exists, and drops expired messages. With a
// cluster, it does nothing, because the messages are in a NATS stream.
func (h *Hub) ensureLocalStreamAndDropExpired() {
	if !h.keepsLocally() {
		return
	}
	r, s := h.Replay, h.server.Load()
	r.mu.Lock()
	if !r.ready && (s == nil || !s.Upgrading()) {
		r.beginNewStreamLocked()
	}
	r.mu.Unlock()
	r.DropExpired(time.Now())
}

// deliverAndStoreLastValue sends a message to this process's subscribers. If last values are enabled, it also stores
// the message as the topic's last value. If the message is not stored for replays, id is "".
func (h *Hub) deliverAndStoreLastValue(kind Kind, topicName string, message []byte, id string) (receivers int) {
	var all deliveryCounts
	toTopic := func() {
		if t, _ := h.tableForKind(kind).findTopic(topicName); t != nil {
			all = t.sendMessage(topicName, message, id)
		}
	}
	if kind == Topic && h.Limits.LastValues > 0 {
		h.lastValues.storeAndSendUnderTopicLock(topicName, message, h.Limits, toTopic)
	} else {
		toTopic()
	}
	if kind == Topic && h.patterns.count.Load() > 0 {
		h.patternIndex.eachMatchingPattern(topicName, func(p *topic) { all.add(p.sendMessage(topicName, message, id)) })
	}
	h.countDelivery(all)
	return all.sent
}

// Deliver sends a message from another hub to this hub's subscribers. It returns the number of receivers and does not
// wait for delivery. Messages that one goroutine delivers arrive in order. kind is Topic or Sharded.
func (h *Hub) Deliver(kind Kind, name string, message []byte) (receivers int) {
	return h.deliverAndStoreLastValue(kind, name, message, "")
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
		return fmt.Errorf("%w: %d bytes; at most %d are allowed", errNameTooLong, len(name), limit)
	}
	return nil
}
