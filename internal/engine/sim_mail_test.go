package engine

import (
	"bytes"
	"errors"
	"fmt"
)

// post is a request that the mailbox has accepted.
type post struct {
	to     *life
	kind   RequestKind
	data   []byte
	shared bool
	own    bool // posted by the engine, for a relay or a layer
	sub    *sub // of RequestLatest
	calls  int  // calls of the requested function
	lost   int  // calls of its alternative
	do     bool // posted by DoOrElse, so that lost is called
}

func (s *sim) postToRandomConn() {
	if len(s.past) == 0 {
		return
	}
	l := s.past[len(s.past)-1-s.dice.intN(min(len(s.past), 2*simSlots))]
	if !l.known {
		return // nobody has its Ref yet
	}
	p := &post{to: l}
	s.posting = p
	defer func() { s.posting = nil }()
	var err error
	switch s.dice.intN(10) {
	case 0:
		p.kind = RequestClose
		err = l.ref.Close()
	case 1:
		p.kind = RequestNudge
		err = l.ref.Nudge()
	case 2, 3:
		p.kind, p.do = RequestDo, true
		err = l.ref.DoOrElse(func(*Conn) { s.runPostedFunc(p) }, func() { s.recordLost(p) })
	default:
		err = s.postBytes(l, p)
	}
	s.log("%v: post kind %d, %d bytes: %v", l, p.kind, len(p.data), err)
	s.checkPosted(l, p, err)
}

func (s *sim) postBytes(l *life, p *post) error {
	p.data = fmt.Appendf(nil, "<%d:%d>", l.id, s.dice.intN(1000))
	p.data = p.data[:s.dice.intN(len(p.data)+1)]
	if s.dice.intN(8) == 0 {
		p.data = bytes.Repeat([]byte("M"), simMaxUnsent+1-s.dice.intN(3))
	}
	switch shared := (&Shared{Bytes: p.data, counters: &s.counters}); {
	case s.dice.intN(4) == 0:
		i := s.dice.intN(len(p.data) + 1)
		return l.ref.Sendv([][]byte{p.data[:i], nil, p.data[i:]})
	case s.dice.intN(4) > 0:
		return l.ref.Send(p.data)
	case s.dice.intN(2) > 0 && s.acceptsRequests(l) && len(p.data) <= simMaxUnsent:
		p.kind, p.shared = RequestBroadcast, true
		err := s.box.PutShared(l.conn, RequestBroadcast, shared)
		if err == nil {
			s.recordAccepted(p)
		}
		return err
	default:
		p.shared = true
		return l.ref.SendShared(shared)
	}
}

func (s *sim) checkPosted(l *life, p *post, err error) {
	bytes := p.kind == RequestSend || p.kind == RequestBroadcast
	switch takes := s.acceptsRequests(l); {
	case err == nil:
		s.check(takes, "%v: takes a post after it has closed", l)
		most := simMaxMail
		if !bytes {
			most *= 2
		}
		s.check(len(s.posts) <= most, "%v: takes a post of kind %d with %d in the box", l, p.kind, len(s.posts)-1)
	case errors.Is(err, ErrClosed):
		s.check(!takes, "%v: refuses a post as closed while it is open", l)
	case errors.Is(err, ErrTooLarge):
		s.check(takes && len(p.data) > simMaxUnsent, "%v: refuses %d bytes as too large", l, len(p.data))
	case errors.Is(err, ErrFull):
		s.check(len(p.data) <= simMaxUnsent, "%v: says that there may be room for %d bytes later", l, len(p.data))
		owes := l.conn.refState.postedBytes()+len(p.data) > simMaxUnsent
		full := len(s.posts) >= simMaxMail && (bytes || len(s.posts) >= 2*simMaxMail)
		s.check(takes && (owes && bytes || full), "%v: full with %d messages and %d bytes posted", l, len(s.posts), l.conn.refState.postedBytes())
	default:
		s.fail("%v: post failed: %v", l, err)
	}
}

// Post implements Poster. Requests that the simulation has not posted come from the engine.
func (s *sim) Post(c *Conn, gen uint32, r Request) error {
	p := s.posting
	s.posting = nil
	err := s.box.Put(c, gen, r)
	if err != nil {
		return err
	}
	if p == nil {
		p = &post{to: s.lives[c.Slot()], kind: r.Kind, data: r.Bytes, own: true}
		if r.Kind == RequestSend {
			p.data = bytes.Clone(r.Bytes)
			s.takeRelayedRequests(p.to, p.data)
		}
	}
	s.recordAccepted(p)
	return nil
}

func (s *sim) recordAccepted(p *post) {
	p.to.waiting++
	s.posts = append(s.posts, p)
}

func (s *sim) acceptsRequests(l *life) bool {
	return s.lives[l.conn.Slot()] == l && !l.conn.is(closing)
}

// deliverRequests takes and delivers the requests, and drives connections after each or after all.
func (s *sim) deliverRequests() {
	s.check(s.box.HasRequests() == (len(s.posts) > 0), "Waiting is %v with %d messages in the box", s.box.HasRequests(), len(s.posts))
	mail, data := s.box.TakeQueued()
	rest := data
	s.check(len(mail) == len(s.posts), "took %d messages, want %d", len(mail), len(s.posts))
	posts, each := s.posts, s.dice.intN(2) == 0
	s.posts = nil
	for i, m := range mail {
		p := posts[i]
		body := rest[:m.Size]
		rest = rest[m.Size:]
		s.check(m.Conn == p.to.conn && m.Kind == p.kind && (p.shared || bytes.Equal(body, p.data)), "message %d is for slot %d: %q, want %v: %q", i, m.Conn.slot, body, p.to, p.data)
		s.checkDelivered(p, m, body)
		if each {
			s.driveSlot(m.Conn)
		}
	}
	for _, m := range mail {
		s.driveSlot(m.Conn)
	}
	s.counters.Add(Buffered, -int64(s.box.Recycle(mail, data)))
}

func (s *sim) driveSlot(c *Conn) {
	if l := s.lives[c.Slot()]; l != nil {
		s.driveConnAndTouched(l)
	}
}

// checkDelivered delivers a request and checks its effect.
func (s *sim) checkDelivered(p *post, m QueuedRequest, body []byte) {
	l := p.to
	takes := s.acceptsRequests(l)
	if takes && l.upgrading && p.kind != RequestResumeLayer && p.kind != RequestBroadcast {
		s.log("%v: mail of kind %d waits for the layer", l, p.kind)
		if len(l.kept) < 2*simMaxMail {
			l.kept = append(l.kept, p)
			l.conn.HandleOrDeferForPendingLayer(m, body)
			return
		}
		l.waiting--
		l.allowReasons(ErrFull)
		l.conn.HandleOrDeferForPendingLayer(m, body)
		s.checkCalled(p, false)
		return
	}
	switch l.waiting--; {
	case !takes:
		s.log("%v: mail of kind %d comes too late", l, p.kind)
	case p.kind == RequestBroadcast:
		s.expectBroadcast(l, p.data)
	default:
		s.expectPosted(p)
	}
	s.mailing = p
	l.conn.HandleOrDeferForPendingLayer(m, body)
	s.mailing = nil
	s.checkCalled(p, takes)
	s.findJoinedRelays()
}

// expectPosted records the effect that a request must have.
func (s *sim) expectPosted(p *post) {
	l := p.to
	s.log("%v: mail of kind %d, %d bytes", l, p.kind, len(p.data))
	switch p.kind {
	case RequestSend:
		if l.hasStoppedSending() {
			s.check(!p.own, "%v: is shut, and %d bytes of a relay come", l, len(p.data))
			s.drops++
			return
		}
		l.expectWritten(s, p.data)
		if p.own {
			l.heard = s.now
		}
	case RequestClose:
		l.allowReasons(nil)
	case RequestLatest:
		s.expectLatest(l, p.sub)
	}
}

// checkCalled checks that the function of a request was called exactly once, or its alternative.
func (s *sim) checkCalled(p *post, takes bool) {
	switch {
	case p.own || p.kind != RequestNudge && p.kind != RequestDo:
	case takes:
		s.check(p.calls == 1 && p.lost == 0, "%v: mail of kind %d was called %d times, and lost %d times", p.to, p.kind, p.calls, p.lost)
	default:
		lost := 0
		if p.do {
			lost = 1
		}
		s.check(p.calls == 0 && p.lost == lost, "%v: late mail of kind %d was called %d times, and lost %d times", p.to, p.kind, p.calls, p.lost)
	}
}

// runPostedFunc is called by DoOrElse and makes random calls.
func (s *sim) runPostedFunc(p *post) {
	l := p.to
	s.expectHandlerCall(l, p)
	s.log("%v: does", l)
	if s.dice.intN(4) == 0 && l.isReadingOff() {
		l.deaf = false
		l.conn.SetReading(true)
	}
	s.act(l, "done")
}

func (s *sim) recordLost(p *post) {
	s.log("%v: what was to be done is lost", p.to)
	s.check(p.calls == 0 && p.lost == 0, "%v: is called %d times, and lost again", p.to, p.calls)
	p.lost++
}

// expectHandlerCall records that a request calls the handler.
func (s *sim) expectHandlerCall(l *life, p *post) {
	s.check(s.life(l.conn) == l && !l.closed && !l.conn.is(closing|failed), "%v: is called by mail after the end: state %b", l, l.conn.state)
	if len(l.kept) > 0 && !l.upgrading {
		p = s.flushDeferredTo(l, p)
	} else if p == nil {
		p = s.mailing
	}
	s.check(p != nil && p.to == l && p.calls == 0, "%v: is called without mail", l)
	p.calls++
}

// flushDeferredTo applies deferred requests up to a handler call: of p, or a nudge if p is nil.
// Without one it applies all.
func (s *sim) flushDeferredTo(l *life, p *post) *post {
	l.flushing = true
	defer func() { l.flushing = false }()
	for len(l.kept) > 0 {
		k := l.kept[0]
		l.kept = l.kept[1:]
		l.waiting--
		if k.kind == RequestNudge || k.kind == RequestDo && !k.own {
			s.check(p == nil || p == k, "%v: is called by mail out of turn", l)
			return k
		}
		s.expectPosted(k)
	}
	return nil
}

// flushDeferred applies the deferred requests after the last handler call.
func (s *sim) flushDeferred(l *life) {
	l.flushing = true
	defer func() { l.flushing = false }()
	for len(l.kept) > 0 && !l.dead {
		k := l.kept[0]
		calls := k.kind == RequestNudge || k.kind == RequestDo && !k.own
		s.check(!calls, "%v: kept mail of kind %d has not called", l, k.kind)
		l.kept = l.kept[1:]
		l.waiting--
		s.expectPosted(k)
		l.dead = k.kind == RequestClose || k.own && l.conn.is(closing) && l.conn.extra.closeReason != nil && len(l.wire)+l.conn.UnsentAndDroppedBytes() == len(l.wrote)
	}
	s.dropDeferred(l)
}

func (s *sim) dropDeferred(l *life) {
	for _, k := range l.kept {
		l.waiting--
		s.checkCalled(k, false)
	}
	l.kept = nil
}

func (s *sim) broadcast() {
	var each []*Shared
	var all []byte
	for i := range 1 + s.dice.intN(2) {
		p := fmt.Appendf(nil, "{%d:%d}", i, s.dice.intN(1000))
		if s.dice.intN(4) == 0 {
			p = bytes.Repeat([]byte("C"), 1+s.dice.intN(simMaxUnsent))
		}
		each, all = append(each, &Shared{Bytes: p}), append(all, p...)
	}
	s.log("a message of %d bytes to all", len(all))
	for _, l := range s.lives {
		if l == nil {
			continue
		}
		s.broadcastTo(l, all, each)
		s.driveConnAndTouched(l)
	}
}

func (s *sim) broadcastTo(l *life, all []byte, each []*Shared) {
	c := l.conn
	room := simMaxUnsent - (c.unsentInMemoryBytes() - c.postedBytesInOutput())
	switch {
	case !s.acceptsBroadcasts(l):
	case len(all) <= room:
		l.expectWritten(s, all)
	default:
		for _, m := range each {
			if n := len(m.Bytes); n <= room {
				room -= n
				l.expectWritten(s, m.Bytes)
			} else if s.expectDropped(l); !s.host.DropMessages {
				break
			}
		}
	}
	c.WriteBroadcasts(all, each)
}

func (s *sim) acceptsBroadcasts(l *life) bool {
	return !l.finishing && !l.conn.is(handshaking|openPending|relayed|closing) && !l.upgrading
}

func (s *sim) expectDropped(l *life) {
	if s.host.DropMessages {
		s.drops++
		l.fewer++
	} else {
		l.allowReasons(ErrSlowConsumer)
	}
}

// expectBroadcast records the effect of a broadcast.
func (s *sim) expectBroadcast(l *life, p []byte) {
	c := l.conn
	inBox := c.postedBytesInOutput()
	tooMuch := c.unsentInMemoryBytes()-inBox+s.host.directSent+len(p) > simMaxUnsent
	s.log("%v: broadcast of %d bytes", l, len(p))
	switch {
	case !s.acceptsBroadcasts(l):
	case tooMuch:
		s.expectDropped(l)
	default:
		l.expectWritten(s, p)
	}
}

type topic struct {
	LatestValue
	values [][]byte
}

type sub struct {
	topic    *topic
	latest   *LatestSubscription
	told     int  // number of the last value announced
	taken    int  // number of the last value taken
	due      bool // a request is posted or the value queued
	replaced int  // announced values that were replaced
	left     bool
}

func (s *sim) setLatestValue() {
	t := s.topics[s.dice.intN(simTopics)]
	p := fmt.Appendf(nil, "[%d]", len(t.values))
	if s.dice.intN(4) == 0 {
		p = bytes.Repeat([]byte("V"), 1+s.dice.intN(simMaxUnsent+1))
	}
	t.values = append(t.values, p)
	t.Set(p)
	s.log("value %d of a topic, %d bytes", len(t.values), len(p))
	for _, l := range s.past[max(0, len(s.past)-2*simSlots):] {
		if l.known && s.dice.intN(4) > 0 {
			s.sendLatestTo(l, t, len(p))
		}
	}
}

func (s *sim) sendLatestTo(l *life, t *topic, size int) {
	u := l.subs[t]
	if u == nil {
		u = &sub{topic: t, latest: NewSubscriptionToLaterValues(&t.LatestValue)}
		l.subs[t] = u
	} else if s.dice.intN(20) == 0 && !u.left {
		s.log("%v: leaves a topic", l)
		u.left = true
		u.latest.Unsubscribe()
	}
	if u.left {
		return
	}
	p := &post{to: l, kind: RequestLatest, shared: true, sub: u}
	waits := len(s.posts)
	s.posting = p
	err := l.ref.AnnounceLatest(u.latest, size)
	s.posting = nil
	s.log("%v: is told of the value: %v", l, err)
	if u.due && s.acceptsRequests(l) && size <= simMaxUnsent {
		s.check(err == nil && len(s.posts) == waits, "%v: publishing what replaces a value gives %v", l, err)
		u.told, u.replaced = len(t.values), u.replaced+1
		s.replaced++
		return
	}
	if err == nil {
		s.check(len(s.posts) == waits+1, "%v: is told of a value without mail", l)
		u.due = true
	}
	if s.acceptsRequests(l) && size <= simMaxUnsent {
		u.told = len(t.values)
	}
	p.data = make([]byte, size)
	if errors.Is(err, ErrTooLarge) || err == nil || errors.Is(err, ErrClosed) {
		s.checkPosted(l, p, err)
	} else {
		s.check(errors.Is(err, ErrFull) && len(s.posts) >= 2*simMaxMail, "%v: publishing gives %v with %d in the box", l, err, len(s.posts))
	}
	p.data = nil
}

func (s *sim) expectLatest(l *life, u *sub) {
	if l.hasStoppedSending() {
		s.drops++
		l.fewer++
		s.skipLatestValue(l, u)
		return
	}
	l.takes = append(l.takes, u)
}

func (s *sim) takeLatestValues(l *life) {
	if len(l.takes) == 0 || l.conn.is(failed) || l.upgrading || len(l.wire) < len(l.wrote) {
		return
	}
	takes := l.takes
	l.takes = nil
	for _, u := range takes {
		if u.left {
			continue
		}
		s.skipLatestValue(l, u)
		if p := u.topic.values[u.taken-1]; len(p) <= simMaxUnsent {
			s.log("%v: takes value %d", l, u.taken)
			l.expectWritten(s, p)
		}
	}
}

func (s *sim) skipLatestValue(l *life, u *sub) {
	newest := len(u.topic.values)
	s.check(u.due && newest > u.taken, "%v: takes value %d again", l, newest)
	s.replaced += newest - u.told
	l.fewer += int64(u.replaced + newest - u.told)
	u.told, u.taken, u.due, u.replaced = newest, newest, false, 0
}
