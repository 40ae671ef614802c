package engine

import (
	"slices"
	"sync/atomic"
)

// This file is how one message is sent to many connections: as a single piece of mail
// for each chunk of them, which names all of it. Messages to the same ones, with
// nothing in between but such mail to others of their set, become one.

// Many is a chunk of a set: connections of one owner. It is not changed any more once it
// was sent to.
type Many struct {
	list
	set   *set
	round uint64 // of the set, when it was made
	// Under the lock of the owner's mailbox: where the last mail for them is, and the run that
	// it is of; see Mailbox.run.
	at  int
	run uint64
}

// ManyPoster is a Poster that takes mail for many connections, all of them its own.
type ManyPoster interface {
	PostMany(to *Many, s *Shared) Tally
}

// Tally is what has become of a message.
type Tally struct {
	sent, full int
	closed     []Ref // those that have begun to close
	slow       []Ref // those whose own output has no room, of all that are full
}

// Sent is to how many it was posted.
func (t *Tally) Sent() int { return t.sent }

// count counts what has become of so many bytes for a connection.
func (t *Tally) count(r Ref, size int, err error) {
	switch err {
	case nil:
		t.sent++
	case ErrClosed:
		t.closed = append(t.closed, r)
	case errLeft:
	default:
		if most := r.c.host.Limits.MaxUnsent; size <= most && size > most-r.c.mark.posted() {
			t.slow = append(t.slow, r)
		}
		t.full++
	}
}

// punish has happen to those that are slow what is to happen to such peers. Where their owner's
// mailbox has no room for that, it happens to them another time.
func (t *Tally) punish() {
	for _, r := range t.slow {
		_ = r.Do((*Conn).missShared)
	}
}

// missShared is told of a message to many that had no room.
func (c *Conn) missShared() {
	if c.host.DropMessages {
		c.miss()
	} else {
		c.fail(ErrSlowConsumer)
	}
}

// send posts a message to each, as Ref.SendShared does, but not to those who have left.
func (m *Many) send(s *Shared) (t Tally) {
	h := m.refs[0].c.host
	if p, ok := h.Poster.(ManyPoster); ok && len(s.Bytes) > 0 && len(s.Bytes) <= h.Limits.MaxUnsent {
		return p.PostMany(m, s)
	}
	for _, r := range m.refs {
		t.count(r, len(s.Bytes), r.post(Request{Kind: MailSend, Shared: s, left: &m.set.left}))
	}
	return t
}

// manyMail is what mail for many carries: messages with a buffer's bytes at the most,
// but for one.
type manyMail struct {
	to     *Many
	parts  []manyPart
	size   int
	joined *Shared // of all parts, once it is given out
	// holders counts the mail of its connections that is not done, and one until all of
	// that is given out.
	holders atomic.Int32
}

// manyPart is a message, and who does not get it, by place.
type manyPart struct {
	*Shared
	without []int
}

// PutMany leaves a message of some bytes, no more than MaxUnsent, for connections of
// this mailbox.
func (b *Mailbox) PutMany(to *Many, s *Shared) (t Tally) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.closed {
		t.closed = to.refs
		return t
	}
	size, left := len(s.Bytes), to.set.left.some.Load()
	more := b.adds(s, size)
	room := b.n < b.Max && (more == 0 || b.bytes == 0 || more <= b.MaxBytes-b.bytes)
	var without []int
	for i, r := range to.refs {
		err := ErrFull
		switch {
		case r.Closed():
			err = ErrClosed
		case left && to.set.left.has(r):
			err = errLeft
		case room:
			err = r.c.mark.reserve(r.gen, size, r.c.host.Limits.MaxUnsent)
		}
		if err != nil {
			without = append(without, i)
			t.count(r, size, err)
			continue
		}
		t.sent++
	}
	if t.sent > 0 {
		b.n++ // it is one, and there once
		b.bytes += more
		b.last = s
		s.hold()
		b.manyMail(to, size).add(manyPart{s, without})
	}
	return t
}

// manyMail gives the mail that a message for many becomes part of. Mail behind that is for
// other chunks of the set as it was since then, which have none of their connections.
func (b *Mailbox) manyMail(to *Many, size int) *manyMail {
	if b.runOf != to.set {
		b.endRun()
		b.runOf = to.set
	}
	if to.run == b.run {
		if last := b.mail[to.at].many; last.size+size <= pieceSize {
			return last
		}
	}
	m := &manyMail{to: to}
	m.holders.Store(1)
	to.at, to.run = len(b.mail), b.run
	b.makeRoom(0)
	b.mail = append(b.mail, Mail{many: m})
	return m
}

// endRun says that no mail that waits is joined by more.
func (b *Mailbox) endRun() {
	b.run++
	b.runOf = nil
}

func (m *manyMail) add(p manyPart) {
	m.parts = append(m.parts, p)
	m.size += len(p.Bytes)
}

// Some gives what mail is for each of its connections, for n of them from one on, and
// says which one is next; 0 if there is none.
func (m Mail) Some(from, n int, give func(Mail)) (next int) {
	if m.Conn != nil {
		give(m)
		return 0
	}
	if m.many.joined == nil {
		m.many.join()
	}
	refs := m.many.to.refs
	end := min(len(refs), from+n)
	for i, r := range refs[from:end] {
		m.many.give(from+i, Mail{Conn: r.c, many: m.many, gen: r.gen, Kind: MailSend}, give)
	}
	if end == len(refs) {
		m.many.to = nil // the mail behind it may take long
		m.many.release()
		return 0
	}
	return end
}

// release counts one holder less. The last one releases the messages.
func (m *manyMail) release() {
	if m.holders.Add(-1) > 0 {
		return
	}
	for _, p := range m.parts {
		p.release()
	}
	if len(m.parts) > 1 {
		m.joined.release()
	}
	m.parts, m.joined = nil, nil
}

func (m *manyMail) join() {
	if len(m.parts) == 1 {
		m.joined = m.parts[0].Shared
		return
	}
	all := make([]byte, 0, m.size)
	for _, p := range m.parts {
		all = append(all, p.Bytes...)
	}
	m.joined = &Shared{Bytes: all, counters: m.parts[0].counters}
	m.joined.hold()
}

// give gives the connection at a place its mail: in one piece if it gets all.
func (m *manyMail) give(place int, mail Mail, give func(Mail)) {
	gets := func(p manyPart) bool {
		_, not := slices.BinarySearch(p.without, place)
		return !not
	}
	if !slices.ContainsFunc(m.parts, func(p manyPart) bool { return !gets(p) }) {
		mail.shared = m.joined
		m.holders.Add(1)
		give(mail)
		return
	}
	for _, p := range m.parts {
		if gets(p) {
			mail.shared = p.Shared
			m.holders.Add(1)
			give(mail)
		}
	}
}
