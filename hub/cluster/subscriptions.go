package cluster

import (
	"sync"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/myriad-go/myriad/hub"
)

// subscriptions subscribes to the subjects of those names that the hub has subscribers for. Event
// loops note names that have got their first subscriber or lost their last; a goroutine looks
// what is the case by then, and does it. A subject whose last subscriber has gone stays
// for the time of the linger, so that one that comes and goes is no burden.
type subscriptions struct {
	hub            *hub.Hub
	natsConn       *nats.Conn
	messages       chan *nats.Msg
	onUnsubscribed func(subject string, covered func(string) bool) // is not subscribed to any more
	warn           func(format string, v ...any)
	linger         time.Duration
	maxSubjects    int // subjects; with more, all are subscribed to
	alwaysAll      bool
	comesByStream  func(hub.Kind, string) bool // what comes by the stream
	forceAll       atomic.Bool                 // for now

	mu       sync.Mutex
	changed  map[topicName]struct{}
	checkAll bool // there were too many changes: look at all names
	wake     chan struct{}

	// What follows is the goroutine's, but for the lock of those who count.
	countMu      sync.Mutex
	subjects     map[string]*subjectState
	allTopicSubs []*nats.Subscription // for all topics: nil if they are not subscribed to
	idle         []idleSubject        // in the order of their time
	replaced     []*nats.Subscription // those to all topics if every is nil, otherwise those to each
	replacedAt   time.Time            // when those that have replaced them were in effect
}

// replaceDelay is how long a subscription stays when the one that replaces it is in effect. A server of NATS looks up
// which subscriptions a message is for, and then delivers it to each, but not to one that has been unsubscribed in
// between. So a message is lost if all that it was looked up for have been, even if others are in effect. That a new
// subscription is in effect tells nothing of such a message: it may come by a route, whose
// goroutine in the server is another one. So no subscription is left within this time, even if there is another switch.
const replaceDelay = 250 * time.Millisecond

// topicName is that of a topic or pattern.
type topicName struct {
	kind hub.Kind
	text string
}

// subjectState is one that is subscribed to, for names of which there are several if they are patterns.
type subjectState struct {
	sub          *nats.Subscription
	names        map[topicName]struct{}
	unusedSince  time.Time // nobody is there for it; zero if somebody is
	expiryQueued bool      // it is in that list
}

// idleSubject is a subject that nobody is there for, since a time.
type idleSubject struct {
	subject string
	since   time.Time
}

// maxChangedNames is the most names that wait to be looked at.
const maxChangedNames = 1 << 16

// queueNameCheck has a name looked at.
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

// maintain does so until done is closed.
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

// checkChangedNames looks at the names that were noted.
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

// checkAllNames looks at the names that the hub has, and those that it had.
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

// setHasSubscribers says whether a name has subscribers.
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

// scheduleExpiry has expire look at a subject, once.
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

// unsubscribeExpired unsubscribes from subjects that nobody has been there for, for the time of the linger,
// and from everything when that is not needed any more.
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
		if now.Sub(s.unusedSince) < in.linger { // somebody has been there since
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

// fitsPerTopicSubscriptions says whether the hub's names are, by half of the bound, few enough to be subscribed to
// one by one.
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

// unsubscribeReplaced unsubscribes from all that others have taken the place of, at the same time.
func (in *subscriptions) unsubscribeReplaced() {
	for _, sub := range in.replaced {
		in.unsubscribe(sub)
	}
	in.replaced = nil
}

// setSubscribeAll subscribes to all topics, instead of to each, or to each again. The first may be at any time, and
// takes subscriptions back that are still there; the second is for when nothing is replaced.
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

// waitUntilEffective waits until the new subscriptions are in effect, and what came by the old ones before has been read: what
// is on its way when these are left is dropped. A connection on which that takes longer than its bound has
// been given up. Meanwhile the hub gets all topics, by a new subscription or by an old one.
func (in *subscriptions) waitUntilEffective() {
	for range maxPings + 1 {
		if in.natsConn.FlushTimeout(pingInterval) == nil || !in.natsConn.IsConnected() {
			break
		}
	}
	// nats-server 2.15 may keep a list that it looked up before the new subscriptions for its routes (in
	// getAccAndResultFromCache the generation is read behind the list). Any later subscription has it drop that.
	if sub, err := in.natsConn.SubscribeSync(nats.NewInbox()); err == nil {
		_ = sub.Unsubscribe()
	}
	in.replacedAt = time.Now()
}

// subjectCount says how many subjects are subscribed to, and whether they are all.
func (in *subscriptions) subjectCount() (n int64, all bool) {
	in.countMu.Lock()
	defer in.countMu.Unlock()
	return int64(len(in.subjects) + len(in.allTopicSubs)), in.allTopicSubs != nil
}

// isWidestMatch says whether, of the subjects that are subscribed to and match one, a subscription is the
// one with the fewest tokens: a message without a number is passed on for that one alone.
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
	return !all // which is replaced
}

// widestWildcard is the wildcard with the fewest tokens that is subscribed to and matches a subject; "" if there is none.
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

// isSubscribedTo reports whether a subject is subscribed to, by itself or by a wildcard, not counting replaced subscriptions.
func (in *subscriptions) isSubscribedTo(subject string) bool {
	return in.allTopicSubs != nil || in.subjects[subject] != nil || in.widestWildcard(subject) != ""
}
