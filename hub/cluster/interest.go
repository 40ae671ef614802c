package cluster

import (
	"sync"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/myriad-go/myriad/hub"
)

// interest subscribes to the subjects of those names that the hub has subscribers for. Event
// loops note names that have got their first subscriber or lost their last; a goroutine looks
// what is the case by then, and does it. A subject whose last subscriber has gone stays
// for the time of the linger, so that one that comes and goes is no burden.
type interest struct {
	hub    *hub.Hub
	nc     *nats.Conn
	to     chan *nats.Msg
	left   func(subject string, covered func(string) bool) // is not subscribed to any more
	warn   func(format string, v ...any)
	linger time.Duration
	most   int // subjects; with more, all are subscribed to
	always bool
	kept   func(hub.Kind, string) bool // what comes by the stream
	wide   atomic.Bool                 // for now

	mu      sync.Mutex
	changed map[name]struct{}
	all     bool // there were too many changes: look at all names
	wake    chan struct{}

	// What follows is the goroutine's, but for the lock of those who count.
	counts   sync.Mutex
	subjects map[string]*subject
	every    []*nats.Subscription // for all topics: nil if they are not subscribed to
	idle     []idle               // in the order of their time
	replaced []*nats.Subscription // those to all topics if every is nil, otherwise those to each
	settled  time.Time            // when those that have replaced them were in effect
}

// overlap is how long a subscription stays when the one that replaces it is in effect. A server of NATS looks up
// which subscriptions a message is for, and then delivers it to each, but not to one that has been unsubscribed in
// between. So a message is lost if all that it was looked up for have been, even if others are in effect. That a new
// subscription is in effect tells nothing of such a message: it may come by a route, whose
// goroutine in the server is another one. So no subscription is left within this time, even if there is another switch.
const overlap = 250 * time.Millisecond

// name is that of a topic or pattern.
type name struct {
	kind hub.Kind
	text string
}

// subject is one that is subscribed to, for names of which there are several if they are patterns.
type subject struct {
	sub   *nats.Subscription
	names map[name]struct{}
	since time.Time // nobody is there for it; zero if somebody is
	idle  bool      // it is in that list
}

// idle is a subject that nobody is there for, since a time.
type idle struct {
	subject string
	since   time.Time
}

// maxChanged is the most names that wait to be looked at.
const maxChanged = 1 << 16

// note has a name looked at.
func (in *interest) note(k hub.Kind, text string) {
	in.mu.Lock()
	if len(in.changed) >= maxChanged {
		in.all = true
		clear(in.changed)
	}
	if !in.all {
		if in.changed == nil {
			in.changed = make(map[name]struct{})
		}
		in.changed[name{k, text}] = struct{}{}
	}
	in.mu.Unlock()
	select {
	case in.wake <- struct{}{}:
	default:
	}
}

// run does so until done is closed.
func (in *interest) run(done <-chan struct{}) {
	tick := time.NewTicker(min(max(in.linger/4, time.Millisecond), overlap))
	defer tick.Stop()
	if in.always {
		in.everything(true)
	}
	in.lookAtAll()
	for {
		select {
		case <-done:
			return
		case <-in.wake:
			in.look()
		case now := <-tick.C:
			in.expire(now)
		}
	}
}

// look looks at the names that were noted.
func (in *interest) look() {
	in.mu.Lock()
	changed, all := in.changed, in.all
	in.changed, in.all = nil, false
	in.mu.Unlock()
	if all {
		in.lookAtAll()
		return
	}
	for n := range changed {
		in.set(n, in.hub.Subscribers(n.kind, n.text) > 0)
	}
}

// lookAtAll looks at the names that the hub has, and those that it had.
func (in *interest) lookAtAll() {
	here := make(map[name]struct{})
	for _, k := range []hub.Kind{hub.Topic, hub.Pattern, hub.Sharded} {
		in.hub.EachName(k, func(text string, _ int) bool {
			here[name{k, text}] = struct{}{}
			return len(here) <= in.most
		})
	}
	if len(here) > in.most {
		in.everything(true)
		return
	}
	var gone []name
	for _, s := range in.subjects {
		for n := range s.names {
			if _, ok := here[n]; !ok {
				gone = append(gone, n)
			}
		}
	}
	for n := range here {
		in.set(n, true)
	}
	for _, n := range gone {
		in.set(n, false)
	}
}

// set says whether a name has subscribers.
func (in *interest) set(n name, here bool) {
	if in.kept != nil && in.kept(n.kind, n.text) {
		return
	}
	var to string
	if n.kind == hub.Pattern {
		to = subjectOfPattern(n.text)
	} else {
		to, _ = subjectOf(n.kind, n.text)
	}
	s := in.subjects[to]
	switch {
	case here && s == nil:
		if in.every != nil {
			return
		}
		if len(in.subjects) >= in.most {
			in.everything(true)
			return
		}
		if s = in.subscribe(to); s != nil {
			s.names[n] = struct{}{}
		}
	case here:
		s.names[n] = struct{}{}
		s.since = time.Time{}
	case s != nil:
		delete(s.names, n)
		if len(s.names) == 0 && s.since.IsZero() {
			s.since = time.Now()
			in.rest(to, s)
		}
	}
}

// rest has expire look at a subject, once.
func (in *interest) rest(to string, s *subject) {
	if !s.idle {
		s.idle = true
		in.idle = append(in.idle, idle{to, s.since})
	}
}

func (in *interest) subscribe(to string) *subject {
	sub, err := in.nc.ChanSubscribe(to, in.to)
	if err != nil {
		in.warn("cannot subscribe to %s: %v", to, err)
		return nil
	}
	s := &subject{sub: sub, names: make(map[name]struct{}, 1)}
	in.counts.Lock()
	in.subjects[to] = s
	in.counts.Unlock()
	return s
}

// expire unsubscribes from subjects that nobody has been there for, for the time of the linger,
// and from everything when that is not needed any more.
func (in *interest) expire(now time.Time) {
	for len(in.idle) > 0 && now.Sub(in.idle[0].since) >= in.linger {
		i := in.idle[0]
		in.idle = in.idle[1:]
		s := in.subjects[i.subject]
		if s == nil {
			continue
		}
		s.idle = false
		if s.since.IsZero() {
			continue
		}
		if now.Sub(s.since) < in.linger { // somebody has been there since
			in.rest(i.subject, s)
			continue
		}
		in.counts.Lock()
		delete(in.subjects, i.subject)
		in.counts.Unlock()
		in.leave(s.sub)
	}
	if len(in.replaced) > 0 && now.Sub(in.settled) >= overlap {
		in.leaveReplaced()
	}
	if in.every != nil && len(in.replaced) == 0 && !in.always && !in.wide.Load() && in.fewAgain() {
		in.everything(false)
	}
}

// fewAgain says whether the hub's names are, by half of the bound, few enough to be subscribed to
// one by one.
func (in *interest) fewAgain() bool {
	n := 0
	for _, k := range []hub.Kind{hub.Topic, hub.Pattern, hub.Sharded} {
		in.hub.EachName(k, func(string, int) bool { n++; return n <= in.most/2 })
	}
	return n <= in.most/2
}

func (in *interest) leave(sub *nats.Subscription) {
	if err := sub.Unsubscribe(); err != nil {
		in.warn("cannot unsubscribe from %s: %v", sub.Subject, err)
	}
	in.left(sub.Subject, in.covers)
}

// leaveReplaced unsubscribes from all that others have taken the place of, at the same time.
func (in *interest) leaveReplaced() {
	for _, sub := range in.replaced {
		in.leave(sub)
	}
	in.replaced = nil
}

// everything subscribes to all topics, instead of to each, or to each again. The first may be at any time, and
// takes subscriptions back that are still there; the second is for when nothing is replaced.
func (in *interest) everything(on bool) {
	if on == (in.every != nil) {
		return
	}
	old := in.subjects
	in.counts.Lock()
	in.subjects = make(map[string]*subject)
	in.counts.Unlock()
	if on {
		every := in.replaced
		in.replaced = nil
		if every == nil {
			for _, prefix := range []string{topicPrefix, shardedPrefix} {
				if s := in.subscribe(prefix + everything); s != nil {
					every = append(every, s.sub)
				}
			}
		}
		in.counts.Lock()
		clear(in.subjects)
		in.every = every
		in.counts.Unlock()
		for _, s := range old {
			in.replaced = append(in.replaced, s.sub)
		}
		in.idle = nil
		in.settle()
		return
	}
	in.replaced = in.every
	in.counts.Lock()
	in.every = nil
	in.counts.Unlock()
	in.lookAtAll()
	in.settle()
}

// settle waits until the new subscriptions are in effect, and what came by the old ones before has been read: what
// is on its way when these are left is dropped. A connection on which that takes longer than its bound has
// been given up. Meanwhile the hub gets all topics, by a new subscription or by an old one.
func (in *interest) settle() {
	for range maxPings + 1 {
		if in.nc.FlushTimeout(pingInterval) == nil || !in.nc.IsConnected() {
			break
		}
	}
	// nats-server 2.15 may keep a list that it looked up before the new subscriptions for its routes (in
	// getAccAndResultFromCache the generation is read behind the list). Any later subscription has it drop that.
	if sub, err := in.nc.SubscribeSync(nats.NewInbox()); err == nil {
		_ = sub.Unsubscribe()
	}
	in.settled = time.Now()
}

// count says how many subjects are subscribed to, and whether they are all.
func (in *interest) count() (n int64, all bool) {
	in.counts.Lock()
	defer in.counts.Unlock()
	return int64(len(in.subjects) + len(in.every)), in.every != nil
}

// widest says whether, of the subjects that are subscribed to and match one, a subscription is the
// one with the fewest tokens: a message without a number is passed on for that one alone.
func (in *interest) widest(subscribed, message string) bool {
	in.counts.Lock()
	defer in.counts.Unlock()
	all := subscribed == topicPrefix+everything || subscribed == shardedPrefix+everything
	if in.every != nil {
		return all
	}
	if wide := in.widestOf(message); wide != "" {
		return subscribed == wide
	}
	return !all // which is replaced
}

// widestOf is the wildcard with the fewest tokens that is subscribed to and matches a subject; "" if there is none.
func (in *interest) widestOf(subject string) string {
	for i := len("myriad."); i < len(subject); i++ {
		if subject[i-1] == '.' {
			if wide := subject[:i] + everything; in.subjects[wide] != nil {
				return wide
			}
		}
	}
	return ""
}

// covers reports whether a subject is subscribed to, by itself or by a wildcard, not counting replaced subscriptions.
func (in *interest) covers(subject string) bool {
	return in.every != nil || in.subjects[subject] != nil || in.widestOf(subject) != ""
}
