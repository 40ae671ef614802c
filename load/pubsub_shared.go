package load

import (
	"context"
	"fmt"
)

// This file has the end of a publish/subscribe run whose topics several generators share.

// settle tells how much has been published, and waits until the subscribers have what all
// publishers have published, on Run's goroutine.
func (h *pubsub) settle(ctx context.Context, r *run) error {
	own := make([]int64, h.Publishers)
	h.mu.Lock()
	for i := range own {
		own[i] = int64(h.publishers[i].issued)
	}
	h.mu.Unlock()
	r.tell(Event{Phase: Published, Published: own})
	all := []int64(nil)
	err := r.await(ctx, wait{done: func(sum) bool {
		select {
		case all = <-r.cfg.Published:
			return true
		default:
			return false
		}
	}})
	if err != nil {
		return err
	}
	if len(all) != h.AllPublishers {
		return fmt.Errorf("load: told of %d publishers; expected %d", len(all), h.AllPublishers)
	}
	h.mu.Lock()
	h.published, h.each = all, h.byTopic(all)
	h.mu.Unlock()
	return r.await(ctx, wait{
		done:  func(sum) bool { return h.undelivered() == 0 },
		stall: r.cfg.Drain,
		moved: func(s sum) int64 { return s.run[nDelivered] },
	})
}

// byTopic is how many messages there are on each topic, by what publishers have published.
func (h *pubsub) byTopic(published []int64) []int64 {
	each, rounds := make([]int64, h.Topics), int64(0)
	for p, n := range published {
		n = max(n, 0)
		rounds += n / int64(h.Topics)
		for k := range uint64(n % int64(h.Topics)) {
			each[h.topicOf(uint32(p), k)]++
		}
	}
	for i := range each {
		each[i] += rounds
	}
	return each
}

// missing is how many deliveries are missing of what all publishers have published. Of one of which that
// isn't known, only those that were left out are. The caller holds mu.
func (h *pubsub) missing() int64 {
	n := h.gone + h.gaps
	for topic, subscribers := range h.subscribed {
		n += h.each[topic] * int64(subscribers)
	}
	for _, s := range h.shards {
		s.mu.Lock()
		defer s.mu.Unlock()
		n -= s.sum.run[nDelivered]
	}
	for p, published := range h.published {
		for i := p; published < 0 && i < len(h.next); i += h.AllPublishers {
			n += int64(h.next[i])
		}
	}
	return n
}
