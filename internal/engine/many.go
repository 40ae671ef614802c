package engine

import "slices"

// This file is how one message is sent to many connections: as a single piece of mail
// for each owner of some, which names all of them. Messages to the same ones, with
// nothing in between, become one.

// Many are connections of one owner. It is not changed any more.
type Many struct{ refs []Ref }

// ManyPoster is a Poster that takes mail for many connections, all of them its own. It
// says for how many, and for how many it had no room; closed are those that have begun
// to close.
type ManyPoster interface {
	PostMany(to *Many, s *Shared) (sent, full int, closed []Ref)
}

// ByOwner sorts connections.
func ByOwner(refs []Ref) (all []*Many) {
	host := func(r Ref) *Host {
		if r.c == nil {
			return nil
		}
		return r.c.host
	}
	count := make(map[*Host]int)
	for _, r := range refs {
		count[host(r)]++
	}
	of := make(map[*Host]*Many)
	for _, r := range refs {
		h := host(r)
		if of[h] == nil {
			of[h] = &Many{make([]Ref, 0, count[h])}
			all = append(all, of[h])
		}
		of[h].refs = append(of[h].refs, r)
	}
	return all
}

// Send posts a message to each, as Ref.SendShared does.
func (m *Many) Send(s *Shared) (sent, full int, closed []Ref) {
	if c := m.refs[0].c; c != nil && len(s.Bytes) > 0 && len(s.Bytes) <= c.host.Limits.MaxUnsent {
		if p, ok := c.host.Poster.(ManyPoster); ok {
			return p.PostMany(m, s)
		}
	}
	for _, r := range m.refs {
		switch r.SendShared(s) {
		case nil:
			sent++
		case ErrClosed:
			closed = append(closed, r)
		default:
			full++
		}
	}
	return sent, full, closed
}

// manyMail is what mail for many carries: messages with a buffer's bytes at the most,
// but for one.
type manyMail struct {
	to     *Many
	parts  []manyPart
	size   int
	joined *Shared // of all parts, once it is given out
}

// manyPart is a message, and who does not get it, by place.
type manyPart struct {
	*Shared
	without []int
}

// PutMany leaves a message of some bytes, no more than MaxUnsent, for connections of
// this mailbox.
func (b *Mailbox) PutMany(to *Many, s *Shared) (sent, full int, closed []Ref) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.closed {
		return 0, 0, to.refs
	}
	size := len(s.Bytes)
	var without []int
	for i, r := range to.refs {
		err := ErrFull
		switch {
		case r.Closed():
			err = ErrClosed
		case b.n < b.Max && (b.bytes == 0 || size <= b.MaxBytes-b.bytes):
			err = r.c.mark.reserve(r.gen, size, r.c.host.Limits.MaxUnsent)
		}
		if err == nil {
			sent++
			b.n++
			b.bytes += size
			continue
		}
		without = append(without, i)
		if err == ErrClosed {
			closed = append(closed, r)
		} else {
			full++
		}
	}
	if sent == 0 {
		return sent, full, closed
	}
	var last *manyMail
	if n := len(b.mail); n > 0 {
		last = b.mail[n-1].many
	}
	if last == nil || last.to != to || last.size+size > pieceSize {
		last = &manyMail{to: to}
		b.mail = append(b.mail, Mail{many: last})
	}
	last.parts = append(last.parts, manyPart{s, without})
	last.size += size
	b.nonEmpty.Store(true)
	return sent, full, closed
}

// Some gives what mail is for each of its connections, for n of them from one on, and
// says which one is next; 0 if there is none.
func (m Mail) Some(from, n int, give func(Mail)) (next int) {
	if m.many == nil {
		give(m)
		return 0
	}
	if m.many.joined == nil {
		m.many.join()
	}
	refs := m.many.to.refs
	end := min(len(refs), from+n)
	for i, r := range refs[from:end] {
		m.many.give(from+i, Mail{Conn: r.c, gen: r.gen, Kind: MailSend}, give)
	}
	if end == len(refs) {
		return 0
	}
	return end
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
	m.joined = &Shared{Bytes: all}
}

// give gives the connection at a place its mail: in one piece if it gets all.
func (m *manyMail) give(place int, mail Mail, give func(Mail)) {
	gets := func(p manyPart) bool {
		_, not := slices.BinarySearch(p.without, place)
		return !not
	}
	if !slices.ContainsFunc(m.parts, func(p manyPart) bool { return !gets(p) }) {
		mail.shared = m.joined
		give(mail)
		return
	}
	for _, p := range m.parts {
		if gets(p) {
			mail.shared = p.Shared
			give(mail)
		}
	}
}
