package cluster

import (
	"sync"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/myriad-go/myriad/hub"
)

// subscriptions subscribes to the subjects of all names with subscribers on the hub. Event loops
// queue names that have got their first subscriber or lost their last; a goroutine then checks
// their current state. A subject without subscribers stays subscribed for the linger time, to avoid
// churn.
type subscriptions struct {
	hub            *hub.Hub
	natsConn       *nats.Conn
	messages       chan *nats.Msg
	onUnsubscribed func(subject string, covered func(string) bool) // called after unsubscribing
	warn           func(format string, v ...any)
	linger         time.Duration
	maxSubjects    int // beyond it, all topics are subscribed to
	alwaysAll      bool
	comesByStream  func(hub.Kind, string) bool // names to skip
	forceAll       atomic.Bool                 // temporarily

	mu       sync.Mutex
	changed  map[topicName]struct{}
	checkAll bool // too many changed names: check all
	wake     chan struct{}

	// Only the maintain goroutine writes the fields below, holding countMu where others read them.
	countMu      sync.Mutex
	subjects     map[string]*subjectState
	allTopicSubs []*nats.Subscription // nil unless all topics are subscribed to
	idle         []idleSubject        // ordered by time
	replaced     []*nats.Subscription // superseded subscriptions, to be removed after replaceDelay
	replacedAt   time.Time            // when their replacements took effect
}

// replaceDelay is how long a superseded subscription stays after its replacement has taken effect.
// A NATS server looks up a message's subscriptions and then delivers to each, skipping those
// unsubscribed meanwhile. A message is lost if all that were found have been, even if newer ones
// exist. That a new subscription is in effect says nothing about such a message, because routes
// have goroutines of their own. Therefore no subscription is removed earlier, even if the mode
// switches again.
const replaceDelay = 250 * time.Millisecond

type topicName struct {
	kind hub.Kind
	text string
}

// subjectState is a subscribed subject with the names that need it, several in case of patterns.
type subjectState struct {
	sub          *nats.Subscription
	names        map[topicName]struct{}
	unusedSince  time.Time // zero if it has names
	expiryQueued bool      // it is in subscriptions.idle
}

// idleSubject is a subject that became unused at a time.
type idleSubject struct {
	subject string
	since   time.Time
}

// maxChangedNames limits the queue of changed names.
const maxChangedNames = 1 << 16

// queueNameCheck queues a name whose first subscriber has come or whose last has left.
func (in *subscriptions) queueNameCheck(kind hub.Kind, topic string) {
	in.mu.Lock()
	if len(in.changed) >= maxChangedNames {
		in.checkAll = true
		clear(in.changed)
	}
	if !in.checkAll {
		if in.changed == nil {
			in.changed = make(map[topicName]struct{})
		}
		in.changed[topicName{kind, topic}] = struct{}{}
	}
	in.mu.Unlock()
	select {
	case in.wake <- struct{}{}:
	default:
	}
}

// maintain updates the subscriptions until done is closed.
func (in *subscriptions) maintain(done <-chan struct{}) {
	tick := time.NewTicker(min(max(in.linger/4, time.Millisecond), replaceDelay))
	defer tick.Stop()
	if in.alwaysAll {
		in.setSubscribeAll(true)
	}
	in.checkAllNames()
	for {
		select {
		case <-done:
			return
		case <-in.wake:
			in.checkChangedNames()
		case now := <-tick.C:
			in.unsubscribeExpired(now)
		}
	}
}

// checkChangedNames updates the subscriptions for the queued names.
func (in *subscriptions) checkChangedNames() {
	in.mu.Lock()
	changed, checkAll := in.changed, in.checkAll
	in.changed, in.checkAll = nil, false
	in.mu.Unlock()
	if checkAll {
		in.checkAllNames()
		return
	}
	for n := range changed {
		in.setHasSubscribers(n, in.hub.Subscribers(n.kind, n.text) > 0)
	}
}

// checkAllNames updates the subscriptions for all names, current and former.
func (in *subscriptions) checkAllNames() {
	subscribed := make(map[topicName]struct{})
	for _, k := range []hub.Kind{hub.Topic, hub.Pattern, hub.Sharded} {
		in.hub.EachName(k, func(text string, _ int) bool {
			subscribed[topicName{k, text}] = struct{}{}
			return len(subscribed) <= in.maxSubjects
		})
	}
	if len(subscribed) > in.maxSubjects {
		in.setSubscribeAll(true)
		return
	}
	var gone []topicName
	for _, s := range in.subjects {
		for n := range s.names {
			if _, ok := subscribed[n]; !ok {
				gone = append(gone, n)
			}
		}
	}
	for n := range subscribed {
		in.setHasSubscribers(n, true)
	}
	for _, n := range gone {
		in.setHasSubscribers(n, false)
	}
}

// setHasSubscribers updates the subscription for a name.
func (in *subscriptions) setHasSubscribers(n topicName, hasSubscribers bool) {
	if in.comesByStream != nil && in.comesByStream(n.kind, n.text) {
		return
	}
	var subjectName string
	if n.kind == hub.Pattern {
		subjectName = patternSubject(n.text)
	} else {
		subjectName, _ = topicSubject(n.kind, n.text)
	}
	s := in.subjects[subjectName]
	switch {
	case hasSubscribers && s == nil:
		if in.allTopicSubs != nil {
			return
		}
		if len(in.subjects) >= in.maxSubjects {
			in.setSubscribeAll(true)
			return
		}
		if s = in.subscribe(subjectName); s != nil {
			s.names[n] = struct{}{}
		}
	case hasSubscribers:
		s.names[n] = struct{}{}
		s.unusedSince = time.Time{}
	case s != nil:
		delete(s.names, n)
		if len(s.names) == 0 && s.unusedSince.IsZero() {
			s.unusedSince = time.Now()
			in.scheduleExpiry(subjectName, s)
		}
	}
}

// scheduleExpiry queues a subject for unsubscribeExpired, once.
func (in *subscriptions) scheduleExpiry(subjectName string, s *subjectState) {
	if !s.expiryQueued {
		s.expiryQueued = true
		in.idle = append(in.idle, idleSubject{subjectName, s.unusedSince})
	}
}

func (in *subscriptions) subscribe(subjectName string) *subjectState {
	sub, err := in.natsConn.ChanSubscribe(subjectName, in.messages)
	if err != nil {
		in.warn("cannot subscribe to %s: %v", subjectName, err)
		return nil
	}
	s := &subjectState{sub: sub, names: make(map[topicName]struct{}, 1)}
	in.countMu.Lock()
	in.subjects[subjectName] = s
	in.countMu.Unlock()
	return s
}

// unsubscribeExpired unsubscribes from subjects that have been unused for the linger time, from
// superseded subscriptions, and from all topics when that is no longer needed.
func (in *subscriptions) unsubscribeExpired(now time.Time) {
	for len(in.idle) > 0 && now.Sub(in.idle[0].since) >= in.linger {
		i := in.idle[0]
		in.idle = in.idle[1:]
		s := in.subjects[i.subject]
		if s == nil {
			continue
		}
		s.expiryQueued = false
		if s.unusedSince.IsZero() {
			continue
		}
		if now.Sub(s.unusedSince) < in.linger { // used again since
			in.scheduleExpiry(i.subject, s)
			continue
		}
		in.countMu.Lock()
		delete(in.subjects, i.subject)
		in.countMu.Unlock()
		in.unsubscribe(s.sub)
	}
	if len(in.replaced) > 0 && now.Sub(in.replacedAt) >= replaceDelay {
		in.unsubscribeReplaced()
	}
	if in.allTopicSubs != nil && len(in.replaced) == 0 && !in.alwaysAll && !in.forceAll.Load() && in.fitsPerTopicSubscriptions() {
		in.setSubscribeAll(false)
	}
}

// fitsPerTopicSubscriptions reports whether the hub has at most half of maxSubjects names.
func (in *subscriptions) fitsPerTopicSubscriptions() bool {
	n := 0
	for _, k := range []hub.Kind{hub.Topic, hub.Pattern, hub.Sharded} {
		in.hub.EachName(k, func(string, int) bool { n++; return n <= in.maxSubjects/2 })
	}
	return n <= in.maxSubjects/2
}

func (in *subscriptions) unsubscribe(sub *nats.Subscription) {
	if err := sub.Unsubscribe(); err != nil {
		in.warn("cannot unsubscribe from %s: %v", sub.Subject, err)
	}
	in.onUnsubscribed(sub.Subject, in.isSubscribedTo)
}

func (in *subscriptions) unsubscribeReplaced() {
	for _, sub := range in.replaced {
		in.unsubscribe(sub)
	}
	in.replaced = nil
}

// setSubscribeAll switches between subscribing to all topics and to each. Switching on is always
// allowed and reuses superseded subscriptions; switching off requires that none is superseded.
func (in *subscriptions) setSubscribeAll(on bool) {
	if on == (in.allTopicSubs != nil) {
		return
	}
	old := in.subjects
	in.countMu.Lock()
	in.subjects = make(map[string]*subjectState)
	in.countMu.Unlock()
	if on {
		every := in.replaced
		in.replaced = nil
		if every == nil {
			for _, prefix := range []string{topicPrefix, shardedPrefix} {
				if s := in.subscribe(prefix + allSuffix); s != nil {
					every = append(every, s.sub)
				}
			}
		}
		in.countMu.Lock()
		clear(in.subjects)
		in.allTopicSubs = every
		in.countMu.Unlock()
		for _, s := range old {
			in.replaced = append(in.replaced, s.sub)
		}
		in.idle = nil
		in.waitUntilEffective()
		return
	}
	in.replaced = in.allTopicSubs
	in.countMu.Lock()
	in.allTopicSubs = nil
	in.countMu.Unlock()
	in.checkAllNames()
	in.waitUntilEffective()
}

// waitUntilEffective waits until new subscriptions are in effect and messages that arrived by the
// old ones have been read, because unsubscribing drops messages in flight. A connection that takes
// longer has been given up. Meanwhile the old or the new subscriptions receive all topics.
func (in *subscriptions) waitUntilEffective() {
	for range maxPings + 1 {
		if in.natsConn.FlushTimeout(pingInterval) == nil || !in.natsConn.IsConnected() {
			break
		}
	}
	// nats-server 2.15 may cache subscriptions looked up before the new ones for its routes,
	// because getAccAndResultFromCache reads the generation after the list. Any later subscription
	// invalidates that cache.
	if sub, err := in.natsConn.SubscribeSync(nats.NewInbox()); err == nil {
		_ = sub.Unsubscribe()
	}
	in.replacedAt = time.Now()
}

// subjectCount returns the number of subscribed subjects, and whether they cover all topics.
func (in *subscriptions) subjectCount() (n int64, all bool) {
	in.countMu.Lock()
	defer in.countMu.Unlock()
	return int64(len(in.subjects) + len(in.allTopicSubs)), in.allTopicSubs != nil
}

// isWidestMatch reports whether subscription has the fewest tokens of those that match subject. A
// message without a sequence number is delivered for that one only.
func (in *subscriptions) isWidestMatch(subscription, subject string) bool {
	in.countMu.Lock()
	defer in.countMu.Unlock()
	all := subscription == topicPrefix+allSuffix || subscription == shardedPrefix+allSuffix
	if in.allTopicSubs != nil {
		return all
	}
	if wide := in.widestWildcard(subject); wide != "" {
		return subscription == wide
	}
	return !all // superseded
}

// widestWildcard returns the subscribed wildcard with the fewest tokens that matches a subject, or
// "".
func (in *subscriptions) widestWildcard(subject string) string {
	for i := len("myriad."); i < len(subject); i++ {
		if subject[i-1] == '.' {
			if wide := subject[:i] + allSuffix; in.subjects[wide] != nil {
				return wide
			}
		}
	}
	return ""
}

// isSubscribedTo reports whether a subject is covered by a subscription that is not superseded.
func (in *subscriptions) isSubscribedTo(subject string) bool {
	return in.allTopicSubs != nil || in.subjects[subject] != nil || in.widestWildcard(subject) != ""
}
