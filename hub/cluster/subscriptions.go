package cluster

import (
	"sync"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/myriad-go/myriad/hub"
)

// subscriptions keeps the node subscribed to the NATS subjects of the hub's topics and patterns.
type subscriptions struct {
	hub            *hub.Hub
	natsConn       *nats.Conn
	messages       chan *nats.Msg
	onUnsubscribed func(subject string, covered func(string) bool) // called after unsubscribing
	warn           func(format string, v ...any)
	linger         time.Duration
	maxSubjects    int // limit of subscribed subjects; above it, the node subscribes to all topics
	alwaysAll      bool
	comesByStream  func(hub.Kind, string) bool // reports whether to skip a name
	forceAll       atomic.Bool                 // keeps the node subscribed to all topics during a takeover

	mu       sync.Mutex
	changed  map[topicName]struct{}
	checkAll bool // check all names, because too many have changed
	wake     chan struct{}

	// Only the goroutine of subscribeNeededSubjectsUntilStopped writes the fields below. When it writes a field that
	// other goroutines read, it holds countMu.
	countMu      sync.Mutex
	subjects     map[string]*subjectState
	allTopicSubs []*nats.Subscription // nil unless all topics are subscribed to
	idle         []idleSubject        // ordered by time
	replaced     []*nats.Subscription // superseded subscriptions, to be removed after replaceDelay
	replacedAt   time.Time            // when their replacements took effect
}

// replaceDelay is how long an old NATS subscription stays after a new subscription has replaced it.
const replaceDelay = 250 * time.Millisecond

type topicName struct {
	kind hub.Kind
	text string
}

// subjectState describes a subscribed NATS subject and the topics and patterns that need the subject.
type subjectState struct {
	sub          *nats.Subscription
	names        map[topicName]struct{}
	unusedSince  time.Time // zero while a name needs the subject
	expiryQueued bool      // the subject is in subscriptions.idle
}

type idleSubject struct {
	subject string
	since   time.Time
}

const maxChangedNames = 1 << 16

func (subs *subscriptions) queueSubscriptionCheck(kind hub.Kind, topic string) {
	subs.mu.Lock()
	if len(subs.changed) >= maxChangedNames {
		subs.checkAll = true
		clear(subs.changed)
	}
	if !subs.checkAll {
		if subs.changed == nil {
			subs.changed = make(map[topicName]struct{})
		}
		subs.changed[topicName{kind, topic}] = struct{}{}
	}
	subs.mu.Unlock()
	select {
	case subs.wake <- struct{}{}:
	default:
	}
}

func (subs *subscriptions) subscribeNeededSubjectsUntilStopped(done <-chan struct{}) {
	tick := time.NewTicker(min(max(subs.linger/4, time.Millisecond), replaceDelay))
	defer tick.Stop()
	if subs.alwaysAll {
		subs.switchSubscribeAll(true)
	}
	subs.syncSubjectsOrSubscribeAll()
	for {
		select {
		case <-done:
			return
		case <-subs.wake:
			subs.syncSubjectsWithChangedNames()
		case now := <-tick.C:
			subs.unsubscribeUnneeded(now)
		}
	}
}

func (subs *subscriptions) syncSubjectsWithChangedNames() {
	subs.mu.Lock()
	changed, checkAll := subs.changed, subs.checkAll
	subs.changed, subs.checkAll = nil, false
	subs.mu.Unlock()
	if checkAll {
		subs.syncSubjectsOrSubscribeAll()
		return
	}
	for n := range changed {
		subs.subscribeOrMarkUnused(n, subs.hub.Subscribers(n.kind, n.text) > 0)
	}
}

func (subs *subscriptions) syncSubjectsOrSubscribeAll() {
	subscribed := make(map[topicName]struct{})
	for _, k := range []hub.Kind{hub.Topic, hub.Pattern, hub.Sharded} {
		subs.hub.EachName(k, func(text string, _ int) bool {
			subscribed[topicName{k, text}] = struct{}{}
			return len(subscribed) <= subs.maxSubjects
		})
	}
	if len(subscribed) > subs.maxSubjects {
		subs.switchSubscribeAll(true)
		return
	}
	for n := range subscribed {
		subs.subscribeOrMarkUnused(n, true)
	}
	for _, s := range subs.subjects {
		for n := range s.names {
			if _, ok := subscribed[n]; !ok {
				subs.subscribeOrMarkUnused(n, false)
			}
		}
	}
}

func (subs *subscriptions) subscribeOrMarkUnused(n topicName, hasSubscribers bool) {
	if subs.comesByStream != nil && subs.comesByStream(n.kind, n.text) {
		return
	}
	var subjectName string
	if n.kind == hub.Pattern {
		subjectName = subjectCoveringPattern(n.text)
	} else {
		subjectName, _ = topicSubject(n.kind, n.text)
	}
	s := subs.subjects[subjectName]
	switch {
	case hasSubscribers && s == nil:
		if subs.allTopicSubs != nil {
			return
		}
		if len(subs.subjects) >= subs.maxSubjects {
			subs.switchSubscribeAll(true)
			return
		}
		if s = subs.subscribeNewSubjectOrNil(subjectName); s != nil {
			s.names[n] = struct{}{}
		}
	case hasSubscribers:
		s.names[n] = struct{}{}
		s.unusedSince = time.Time{}
	case s != nil:
		delete(s.names, n)
		if len(s.names) == 0 && s.unusedSince.IsZero() {
			s.unusedSince = time.Now()
			subs.scheduleExpiry(subjectName, s)
		}
	}
}

func (subs *subscriptions) scheduleExpiry(subjectName string, s *subjectState) {
	if !s.expiryQueued {
		s.expiryQueued = true
		subs.idle = append(subs.idle, idleSubject{subjectName, s.unusedSince})
	}
}

func (subs *subscriptions) subscribeNewSubjectOrNil(subjectName string) *subjectState {
	sub, err := subs.natsConn.ChanSubscribe(subjectName, subs.messages)
	if err != nil {
		subs.warn("cannot subscribe to %s: %v", subjectName, err)
		return nil
	}
	s := &subjectState{sub: sub, names: make(map[topicName]struct{}, 1)}
	subs.countMu.Lock()
	subs.subjects[subjectName] = s
	subs.countMu.Unlock()
	return s
}

// unsubscribeUnneeded ends the subscriptions to subjects that nothing has needed for subs.linger. It also ends the
// subscriptions that other subscriptions replaced at least replaceDelay ago. If the node is subscribed to all topics,
// but the hub has at most maxSubjects/2 names, the node changes to a separate subscription for each name.
func (subs *subscriptions) unsubscribeUnneeded(now time.Time) {
	for len(subs.idle) > 0 && now.Sub(subs.idle[0].since) >= subs.linger {
		i := subs.idle[0]
		subs.idle = subs.idle[1:]
		s := subs.subjects[i.subject]
		if s == nil {
			continue
		}
		s.expiryQueued = false
		if s.unusedSince.IsZero() {
			continue
		}
		if now.Sub(s.unusedSince) < subs.linger { // used again since
			subs.scheduleExpiry(i.subject, s)
			continue
		}
		subs.countMu.Lock()
		delete(subs.subjects, i.subject)
		subs.countMu.Unlock()
		subs.unsubscribeAndNotify(s.sub)
	}
	// Without the delay, a NATS server could drop messages that it has already assigned to the old subscription.
	if len(subs.replaced) > 0 && now.Sub(subs.replacedAt) >= replaceDelay {
		for _, sub := range subs.replaced {
			subs.unsubscribeAndNotify(sub)
		}
		subs.replaced = nil
	}
	if subs.allTopicSubs != nil && len(subs.replaced) == 0 && !subs.alwaysAll && !subs.forceAll.Load() && subs.hubNamesFitHalfOfMax() {
		subs.switchSubscribeAll(false)
	}
}

func (subs *subscriptions) hubNamesFitHalfOfMax() bool {
	n := 0
	for _, k := range []hub.Kind{hub.Topic, hub.Pattern, hub.Sharded} {
		subs.hub.EachName(k, func(string, int) bool { n++; return n <= subs.maxSubjects/2 })
	}
	return n <= subs.maxSubjects/2
}

func (subs *subscriptions) unsubscribeAndNotify(sub *nats.Subscription) {
	if err := sub.Unsubscribe(); err != nil {
		subs.warn("cannot unsubscribe from %s: %v", sub.Subject, err)
	}
	subs.onUnsubscribed(sub.Subject, subs.isSubscribedTo)
}

// switchSubscribeAll subscribes to all topics if on is true. If on is false, it subscribes to each of the hub's names
// separately. In this case, subs.replaced must be empty before the call. The method waits until NATS has applied the
// change, but at most a few seconds.
func (subs *subscriptions) switchSubscribeAll(on bool) {
	if on == (subs.allTopicSubs != nil) {
		return
	}
	old := subs.subjects
	subs.countMu.Lock()
	subs.subjects = make(map[string]*subjectState)
	subs.countMu.Unlock()
	if on {
		allSubs := subs.replaced
		subs.replaced = nil
		if allSubs == nil {
			for _, prefix := range []string{topicPrefix, shardedPrefix} {
				if s := subs.subscribeNewSubjectOrNil(prefix + allSuffix); s != nil {
					allSubs = append(allSubs, s.sub)
				}
			}
		}
		subs.countMu.Lock()
		clear(subs.subjects)
		subs.allTopicSubs = allSubs
		subs.countMu.Unlock()
		for _, s := range old {
			subs.replaced = append(subs.replaced, s.sub)
		}
		subs.idle = nil
		subs.waitUntilSubscriptionsApply()
		return
	}
	subs.replaced = subs.allTopicSubs
	subs.countMu.Lock()
	subs.allTopicSubs = nil
	subs.countMu.Unlock()
	subs.syncSubjectsOrSubscribeAll()
	subs.waitUntilSubscriptionsApply()
}

// waitUntilSubscriptionsApply waits until NATS has applied the node's new subscriptions, but at most a few seconds. It
// then sets subs.replacedAt.
func (subs *subscriptions) waitUntilSubscriptionsApply() {
	for range maxPings + 1 {
		if subs.natsConn.FlushTimeout(pingInterval) == nil || !subs.natsConn.IsConnected() {
			break
		}
	}
	// For its routes, nats-server 2.15 may cache a list of subscriptions without the new ones, because
	// getAccAndResultFromCache reads the generation after the list. Any later subscription invalidates that cache.
	if sub, err := subs.natsConn.SubscribeSync(nats.NewInbox()); err == nil {
		_ = sub.Unsubscribe()
	}
	subs.replacedAt = time.Now()
}

func (subs *subscriptions) subjectCount() (n int64, subscribedToAll bool) {
	subs.countMu.Lock()
	defer subs.countMu.Unlock()
	return int64(len(subs.subjects) + len(subs.allTopicSubs)), subs.allTopicSubs != nil
}

func (subs *subscriptions) isWidestSubscriptionFor(subscription, subject string) bool {
	subs.countMu.Lock()
	defer subs.countMu.Unlock()
	// A message without a sequence number arrives once per matching subscription, but must be delivered only once.
	all := subscription == topicPrefix+allSuffix || subscription == shardedPrefix+allSuffix
	if subs.allTopicSubs != nil {
		return all
	}
	if wide := subs.widestSubscribedWildcard(subject); wide != "" {
		return subscription == wide
	}
	return !all // superseded
}

func (subs *subscriptions) widestSubscribedWildcard(subject string) string {
	for i := len("myriad."); i < len(subject); i++ {
		if subject[i-1] == '.' {
			if wide := subject[:i] + allSuffix; subs.subjects[wide] != nil {
				return wide
			}
		}
	}
	return ""
}

func (subs *subscriptions) isSubscribedTo(subject string) bool {
	return subs.allTopicSubs != nil || subs.subjects[subject] != nil || subs.widestSubscribedWildcard(subject) != ""
}
