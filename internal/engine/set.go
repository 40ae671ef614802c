package engine

import (
	"errors"
	"math/bits"
	"slices"
	"sync"
	"sync/atomic"
)

// This file is how a group keeps many connections, so that a message to a million does not
// begin with a copy of the list, whoever joins and leaves meanwhile.
//
// A set has a linear hash table for each owner, by slot. Its buckets are chunks, and mail for
// many names a chunk. Who walks over a set gets the chunks as they are and begins a new round;
// a chunk of an older round is copied before it is changed. A table grows and shrinks by one
// chunk at a time, so that nobody who adds or removes a connection waits for all to be moved.
//
// A set belongs to whoever holds its group's lock; chunks of older rounds are for everyone.

// list is connections, with their parts in a topic if there is one.
type list struct {
	refs   []Ref
	latest []*Latest // as many, or none
}

// find gives a connection's place, whatever its generation; -1 if it has none.
func (l *list) find(c *Conn) int {
	for i := range l.refs {
		if l.refs[i].c == c {
			return i
		}
	}
	return -1
}

// has says whether there is nothing to add: r is at the place that find gave for its
// connection, or another generation that is open, so that r is not.
func (l *list) has(place int, r Ref) bool {
	return place >= 0 && (l.refs[place] == r || !l.refs[place].Closed())
}

func (l *list) add(r Ref, latest *Latest) {
	l.refs = append(l.refs, r)
	if latest != nil {
		l.latest = append(l.latest, latest)
	}
}

// drop has the last one take a place.
func (l *list) drop(place int) {
	last := len(l.refs) - 1
	l.refs[place], l.refs[last] = l.refs[last], Ref{}
	l.refs = l.refs[:last]
	if l.latest != nil {
		l.latest[place], l.latest[last] = l.latest[last], nil
		l.latest = l.latest[:last]
	}
}

// part is the topic's part at a place; nil if there is none.
func (l *list) part(place int) *Latest {
	if l.latest == nil {
		return nil
	}
	return l.latest[place]
}

// dropClosed lets those go that have closed.
func (l *list) dropClosed() {
	for i := len(l.refs) - 1; i >= 0; i-- {
		if l.refs[i].Closed() {
			l.drop(i)
		}
	}
}

// follow gives each of them a part in a topic.
func (l *list) follow(t *Topic) {
	l.latest = make([]*Latest, len(l.refs), cap(l.refs))
	for i := range l.latest {
		l.latest[i] = NewLatest(t)
	}
}

const (
	// fillChunk is how many connections the chunks of an owner have on average before there is
	// one more; a quarter of it makes one fewer. The largest have two to four times as many.
	fillChunk = 128
	// sameChunk is how many slots, one behind the other, have the same chunk: who visits
	// those visits memory in order.
	sameChunk = 16
)

// set is many connections, each of them once.
type set struct {
	owners []*owner
	n      int
	round  uint64
	left   leavers
	walked bool // by a broadcast: then left has those who are removed
}

// owner is the table of one owner's connections.
type owner struct {
	host   *Host
	chunks []*Many
	n      int
	look   int // the chunk that is searched next for closed ones
	paid   int // how many looks are paid for
}

func (s *set) owner(h *Host) *owner {
	for _, o := range s.owners {
		if o.host == h {
			return o
		}
	}
	return nil
}

// chunk numbers the chunk of a connection: by as many bits of its hash as number the
// chunks, or one fewer where that is a chunk that is still to come.
func (o *owner) chunk(c *Conn) int {
	n := uint32(len(o.chunks))
	size := uint32(1) << bits.Len32(n-1)
	i := bits.Reverse32(c.slot/sameChunk*0x9E3779B1) & (size - 1)
	if i >= n {
		i -= size / 2
	}
	return int(i)
}

// add takes in a connection that is open, with a part in a topic if there is one.
func (s *set) add(r Ref, t *Topic) {
	if o := s.owner(r.c.host); o != nil {
		i := o.chunk(r.c)
		place := o.chunks[i].find(r.c)
		if o.chunks[i].has(place, r) {
			return
		}
		if place >= 0 {
			s.drop(o, i, place)
		}
	}
	var latest *Latest
	if t != nil {
		latest = NewLatest(t)
	}
	s.put(r, latest)
}

// put takes in one that is not there.
func (s *set) put(r Ref, latest *Latest) {
	o := s.owner(r.c.host)
	if o == nil {
		o = &owner{host: r.c.host, chunks: []*Many{s.newChunk()}}
		s.owners = append(s.owners, o)
	}
	s.own(o, o.chunk(r.c)).add(r, latest)
	o.n++
	s.n++
	if o.n > fillChunk*len(o.chunks) {
		s.grow(o)
	}
	s.dropSomeClosed(o)
}

// remove lets a connection go, and gives its part in the topic. It says whether it was there.
func (s *set) remove(r Ref) (latest *Latest, ok bool) {
	o := s.owner(r.c.host)
	if o == nil {
		return nil, false
	}
	i := o.chunk(r.c)
	place := o.chunks[i].find(r.c)
	if place < 0 || o.chunks[i].refs[place] != r {
		return nil, false
	}
	latest = o.chunks[i].part(place)
	s.drop(o, i, place)
	return latest, true
}

func (s *set) drop(o *owner, chunk, place int) {
	s.own(o, chunk).drop(place)
	s.less(o, 1)
}

// less says that an owner has some fewer.
func (s *set) less(o *owner, n int) {
	o.n -= n
	s.n -= n
	for 4*o.n < fillChunk*len(o.chunks) && len(o.chunks) > 1 {
		s.shrink(o)
	}
	if o.n == 0 {
		s.owners = slices.DeleteFunc(s.owners, func(other *owner) bool { return other == o })
	}
}

func (s *set) newChunk() *Many { return &Many{set: s, round: s.round} }

// own gives a chunk that may be changed.
func (s *set) own(o *owner, i int) *Many {
	old := o.chunks[i]
	if old.round == s.round {
		return old
	}
	m := s.newChunk()
	m.refs = append(slices.Grow(m.refs, len(old.refs)+1), old.refs...)
	if old.latest != nil {
		m.latest = append(slices.Grow(m.latest, len(old.refs)+1), old.latest...)
	}
	o.chunks[i] = m
	return m
}

// half is the chunk that is divided into itself and the last one, or was.
func (o *owner) half() int {
	last := len(o.chunks) - 1
	return last - 1<<(bits.Len(uint(last))-1)
}

// grow divides one chunk in two.
func (s *set) grow(o *owner) {
	o.chunks = append(o.chunks, nil)
	i := o.half()
	both, parts := o.chunks[i], [2]*Many{s.newChunk(), s.newChunk()}
	o.chunks[i], o.chunks[len(o.chunks)-1] = parts[0], parts[1]
	for _, m := range parts {
		m.refs = slices.Grow(m.refs, len(both.refs)/2+1)
	}
	for place, r := range both.refs {
		o.chunks[o.chunk(r.c)].add(r, both.part(place))
	}
}

// shrink makes one chunk of two.
func (s *set) shrink(o *owner) {
	i, last := o.half(), len(o.chunks)-1
	m := s.own(o, i)
	for place, r := range o.chunks[last].refs {
		m.add(r, o.chunks[last].part(place))
	}
	o.chunks[last] = nil
	o.chunks = o.chunks[:last]
}

// dropSomeClosed searches a chunk for closed ones when it is paid for: each that is added
// pays for a look at two.
func (s *set) dropSomeClosed(o *owner) {
	o.paid += 2
	i := o.look % len(o.chunks)
	m := o.chunks[i]
	if o.paid < len(m.refs) {
		return
	}
	o.look, o.paid = i+1, 0
	if !slices.ContainsFunc(m.refs, Ref.Closed) {
		return
	}
	m = s.own(o, i)
	n := len(m.refs)
	m.dropClosed()
	s.less(o, n-len(m.refs))
}

// follow gives each connection a part in a topic.
func (s *set) follow(t *Topic) {
	for _, o := range s.owners {
		for i := range o.chunks {
			s.own(o, i).follow(t)
		}
	}
}

// chunks are all that are not empty, as they are now. They are not changed any more.
func (s *set) chunks() []*Many {
	n := 0
	for _, o := range s.owners {
		n += len(o.chunks)
	}
	all := make([]*Many, 0, n)
	for _, o := range s.owners {
		for _, m := range o.chunks {
			if len(m.refs) > 0 {
				all = append(all, m)
			}
		}
	}
	s.round++
	return all
}

// list is all of the set.
func (s *set) list() (l list) {
	for _, o := range s.owners {
		for _, m := range o.chunks {
			for place, r := range m.refs {
				l.add(r, m.part(place))
			}
		}
	}
	return l
}

// leavers are connections that have left a group while a message was on its way to all: it
// does not reach them any more. Mailboxes ask under their locks; so what is posted to a
// connection after it has left is behind all that it gets of the group.
type leavers struct {
	some atomic.Bool
	mu   sync.Mutex
	refs map[Ref]struct{}
}

// errLeft is why something was not posted to a leaver.
var errLeft = errors.New("myriad: connection has left the group")

func (l *leavers) add(r Ref) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.refs == nil {
		l.refs = make(map[Ref]struct{})
	}
	l.refs[r] = struct{}{}
	l.some.Store(true)
}

func (l *leavers) has(r Ref) bool {
	if !l.some.Load() {
		return false
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	_, ok := l.refs[r]
	return ok
}

func (l *leavers) forget() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.refs = nil
	l.some.Store(false)
}
