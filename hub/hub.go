// Package hub is publish/subscribe for a million subscribers on one machine: clients of the
// Redis protocol, WebSockets and server-sent events meet on the same topics, on one port.
//
// It is an application of package myriad's public API. A subscriber takes no goroutine, and
// a message is encoded once for all who get it in the same form:
//
//	h := &hub.Hub{}
//	srv := &myriad.Server{Addr: ":6379", Handler: h.Handler()}
//	err := srv.ListenAndServe(ctx)
//
// Messages are kept for nobody: who is not subscribed when one is published does not get it,
// but for the last value of a topic where Limits.LastValues asks for it.
package hub

import (
	"errors"
	"fmt"
	"sync/atomic"

	"github.com/myriad-go/myriad"
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

	topics, patterns table
	index            patternIndex // of patterns
	published        atomic.Int64
	delivered        atomic.Int64
	front            front
}

// Errors of subscribing and publishing. Front ends tell them to their clients.
var (
	errNoName        = errors.New("a topic needs a name")
	errLongName      = errors.New("the name of the topic is too long")
	errLongMessage   = errors.New("the message is too long")
	errSubscriptions = errors.New("the client has too many subscriptions")
	errSubscribers   = errors.New("the topic has too many subscribers")
	errTopics        = errors.New("there are too many topics")
)

// Publish sends a message to all subscribers of a topic, and of patterns that match it. It
// says to how many it is on its way. It does not wait for them.
func (h *Hub) Publish(name string, message []byte) (receivers int, err error) {
	if err := h.checkName(name); err != nil {
		return 0, err
	}
	if most := h.Limits.maxMessage(); len(message) > most {
		return 0, fmt.Errorf("%w: %d bytes, at most %d are allowed", errLongMessage, len(message), most)
	}
	h.published.Add(1)
	if t := h.topics.find(name); t != nil {
		receivers = t.send(name, message)
	}
	h.index.match(name, func(p *topic) { receivers += p.send(name, message) })
	h.delivered.Add(int64(receivers))
	return receivers, nil
}

// publish is Publish for a client.
func (h *Hub) publish(c *client, name string, message []byte) (receivers int, err error) {
	if !c.user.mayPublish(name) {
		return 0, errDenied
	}
	return h.Publish(name, message)
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

// subscribe has a client get what is published to a topic. joined is called, with the number
// of the client's subscriptions, before any message can be on its way to it, whether it is a
// new subscription or not. It is for one call at a time of each client.
func (h *Hub) subscribe(c *client, ref myriad.Ref, k kind, name string, joined func(count int)) error {
	if c.subscribed(k, name) {
		joined(c.count())
		return nil
	}
	if err := h.checkName(name); err != nil {
		return err
	}
	if !c.user.maySubscribe(k, name) {
		return errDenied
	}
	if most := h.Limits.maxSubscriptions(); c.count() >= most {
		return fmt.Errorf("%w: at most %d are allowed", errSubscriptions, most)
	}
	t, err := h.tableOf(k).join(name, k, c.format, h.Limits)
	if err != nil {
		return err
	}
	if k == patternKind {
		h.index.add(t)
	}
	c.add(t)
	joined(c.count())
	t.group(c.format).Add(ref)
	return nil
}

// unsubscribe ends a subscription. It reports whether there was one.
func (h *Hub) unsubscribe(c *client, ref myriad.Ref, k kind, name string) bool {
	t := c.remove(k, name)
	if t == nil {
		return false
	}
	t.group(c.format).Remove(ref)
	if h.tableOf(k).leave(t) && k == patternKind {
		h.index.remove(t)
	}
	return true
}

// closed ends all subscriptions of a client.
func (h *Hub) closed(c *client, ref myriad.Ref) {
	for _, k := range []kind{topicKind, patternKind} {
		for _, name := range c.names(k) {
			h.unsubscribe(c, ref, k, name)
		}
	}
}

func (h *Hub) tableOf(k kind) *table {
	if k == patternKind {
		return &h.patterns
	}
	return &h.topics
}
