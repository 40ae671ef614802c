package hub

import (
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/myriad-go/myriad/tcp"
)

// This file publishes in two steps: authorise decides whether a message may be published, and
// fanOut sends it to the other hubs of the cluster and to the subscribers of this one.
//
// Concurrency: both run on the publisher's goroutine, and any number of goroutines publish at a
// time. The locks are those of the parts: of the topic's table while the topic is found, of the
// pattern index while patterns are matched, of a group while it posts to mailboxes, and, if last values
// are kept, the topic's order lock from before the table's lock until the topic's groups have the message.
//
// During an upgrade the server, not the publisher, has messages delivered, in both processes. The
// moment at which that begins must not fall between the check of Server.Upgrading and the delivery.
// So fanOut counts a publication as begun before the check and as completed after the delivery.
// The server reports an upgrade before it calls SaveState, and moves no connection before
// SaveState has returned; SaveState waits until all that has begun is completed. It never waits long, because
// a delivery waits for no subscriber.

// publications counts messages that were published here.
type publications struct{ begun, completed atomic.Int64 }

func (p *publications) add(n int64) {
	p.begun.Add(n)
	p.completed.Add(n)
}

// wait returns once no publication is in progress. It polls, so that publishers need not signal.
func (p *publications) wait() {
	for p.completed.Load() != p.begun.Load() { // in this order: begun may run ahead, completed may not
		time.Sleep(50 * time.Microsecond)
	}
}

// errHeld refuses what is published during an upgrade.
var errHeld = errors.New("the hub is being upgraded, and too many messages wait for the end of that")

// Publish sends a message to all subscribers of a topic, and of patterns that match it. It
// returns to how many of this hub it is on its way, without those of others in a cluster, and does not wait for
// them. Messages that one goroutine publishes to a topic arrive in the order of its calls. While
// an upgrade hands the subscribers over, the message is held and sent afterwards, and the number is that of
// the subscribers in this process; if too many messages are held, Publish fails.
func (h *Hub) Publish(name string, message []byte) (receivers int, err error) {
	if err := h.authorise(anyone, nil, Topic, name, message); err != nil {
		return 0, err
	}
	return h.fanOut(Topic, name, message)
}

// authorise returns why a user may not publish a message: its rights, Limits.PublishRate, the name,
// or the size. withinRate counts one message of the publisher, and reports whether it comes in time; nil means no limit.
func (h *Hub) authorise(u *user, withinRate func(now time.Time, rate int) bool, k Kind, name string, message []byte) error {
	if !u.mayPublish(k, name) {
		return h.refuse(errDenied)
	}
	if rate := h.Limits.PublishRate; rate > 0 && withinRate != nil && !withinRate(time.Now(), rate) {
		return h.refuse(fmt.Errorf("%w: at most %d messages a second are allowed", errRate, rate))
	}
	if err := h.checkName(name); err != nil {
		return h.refuse(err)
	}
	if most := h.Limits.maxMessage(); len(message) > most {
		return h.refuse(fmt.Errorf("%w: %d bytes, at most %d are allowed", errLongMessage, len(message), most))
	}
	return nil
}

// fanOut sends a message that is authorised to the other hubs, and to the subscribers of this one, of
// which it returns the number. During an upgrade it leaves the latter to the server; while the
// server holds the message, the subscribers in this process stand for the receivers.
func (h *Hub) fanOut(k Kind, name string, message []byte) (receivers int, err error) {
	if h.keeps(k, name) { // the cluster calls DeliverKept once the message is stored
		if err := h.Cluster.Keep(name, message); err != nil {
			return 0, h.refuse(fmt.Errorf("%w: %w", errUnkept, err))
		}
		h.published.add(1)
		return h.receivers(k, name), nil
	}
	if h.Cluster != nil {
		if err := h.Cluster.Publish(k, name, message); err != nil {
			return 0, h.refuse(fmt.Errorf("%w: %w", errLongMessage, err))
		}
	}
	h.published.begun.Add(1)
	s := h.server.Load()
	if s == nil || !s.Upgrading() {
		defer h.published.completed.Add(1)
		return h.deliver(k, name, message, ""), nil
	}
	h.published.begun.Add(-1) // the server calls Published, which counts it
	receivers, err = s.Publish(tcp.Publication{Kind: uint32(k), Topic: name, Message: message})
	if err != nil {
		return 0, errHeld
	}
	if receivers == tcp.Held {
		receivers = h.receivers(k, name)
	}
	return receivers, nil
}

// deliver posts a message to the subscribers of a topic, and of patterns that match it, in this
// process, and returns their number. id is that of a message that is kept.
func (h *Hub) deliver(k Kind, name string, message []byte, id string) (receivers int) {
	var all tally
	toTopic := func() {
		if t := h.tableOf(k).find(name); t != nil {
			all = t.send(name, message, id)
		}
	}
	if k == Topic && h.Limits.LastValues > 0 {
		h.last.replace(name, message, h.Limits, toTopic)
	} else {
		toTopic()
	}
	if k == Topic && h.patterns.n.Load() > 0 {
		h.index.match(name, func(p *topic) { all.add(p.send(name, message, id)) })
	}
	h.count(all)
	return all.sent
}

// Deliver sends a message that was published to another hub to the subscribers of this one, and
// returns to how many it is on its way. Messages that one goroutine delivers arrive in the order of
// its calls. It does not wait for the subscribers. k is Topic or Sharded.
func (h *Hub) Deliver(k Kind, name string, message []byte) (receivers int) {
	return h.deliver(k, name, message, "")
}

// receivers returns how many subscribers in this process would get a message now.
func (h *Hub) receivers(k Kind, name string) int {
	n := h.Subscribers(k, name)
	if k == Topic {
		h.index.match(name, func(p *topic) { n += h.Subscribers(Pattern, p.name) })
	}
	return n
}

func (h *Hub) checkName(name string) error {
	switch most := h.Limits.maxName(); {
	case name == "":
		return errNoName
	case len(name) > most:
		return fmt.Errorf("%w: %d bytes, at most %d are allowed", errLongName, len(name), most)
	}
	return nil
}
