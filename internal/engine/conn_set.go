package engine

import (
	"errors"
	"math/bits"
	"slices"
	"sync"
	"sync/atomic"
)

// This file stores the connections of a large group, so that a message to a million connections need not begin with a
// copy of the list.
//
// A connSet has a linear hash table for each owner, keyed by slot. The buckets are chunks. A request for many
// connections refers to a chunk. A snapshot returns the current chunks without copying them, and begins a new version.
// A chunk of an older version is copied before it is changed. A table grows and shrinks by one chunk at a time, so that
// no change moves all connections.
//
// The group's lock guards a connSet. Chunks of older versions are immutable.

// connList is a list of connections in a group.
type connList struct {
	refs          []Ref
	subscriptions []*LatestSubscription // one per ref; nil if the group has no latest value
}

// indexOf returns the index of the entry for c, or -1 if there is none. The generation of the entry's Ref does not
// matter.
func (l *connList) indexOf(c *Conn) int {
	for i := range l.refs {
		if l.refs[i].c == c {
			return i
		}
	}
	return -1
}

// hasSameOrNewerRefAt reports whether the entry at index is r or a newer Ref to the same connection. A negative index
// means that there is no entry.
func (l *connList) hasSameOrNewerRefAt(index int, r Ref) bool {
	return index >= 0 && (l.refs[index] == r || !l.refs[index].IsClosed())
}

func (l *connList) add(r Ref, sub *LatestSubscription) {
	l.refs = append(l.refs, r)
	if sub != nil {
		l.subscriptions = append(l.subscriptions, sub)
	}
}

func (l *connList) swapRemoveAt(index int) {
	last := len(l.refs) - 1
	l.refs[index], l.refs[last] = l.refs[last], Ref{}
	l.refs = l.refs[:last]
	if l.subscriptions != nil {
		l.subscriptions[index], l.subscriptions[last] = l.subscriptions[last], nil
		l.subscriptions = l.subscriptions[:last]
	}
}

func (l *connList) subscriptionAt(index int) *LatestSubscription {
	if l.subscriptions == nil {
		return nil
	}
	return l.subscriptions[index]
}

func (l *connList) removeClosed() {
	for i := len(l.refs) - 1; i >= 0; i-- {
		if l.refs[i].IsClosed() {
			l.swapRemoveAt(i)
		}
	}
}

func (l *connList) replaceSubscriptions(value *LatestValue) {
	l.subscriptions = make([]*LatestSubscription, len(l.refs), cap(l.refs))
	for i := range l.subscriptions {
		l.subscriptions[i] = NewSubscriptionToLaterValues(value)
	}
}

const (
	// chunkFill is the average number of connections per chunk at which a table grows.
	chunkFill = 128
	// slotsPerHash is the number of consecutive slots with the same hash. They are in one chunk, so that iteration
	// accesses memory in order.
	slotsPerHash = 16
)

type connSet struct {
	tables       []*ownerTable
	count        int
	version      uint64
	removed      removedDuringBroadcast
	broadcasting bool // a broadcast is in progress, so removed connections must be recorded
}

type ownerTable struct {
	runtime      *Runtime
	chunks       []*GroupChunk
	count        int
	nextSearched int // chunk to search next for closed connections
	searchCredit int // number of entries that removeSomeClosed may search
}

func (s *connSet) findTable(rt *Runtime) (tableOrNil *ownerTable) {
	for _, o := range s.tables {
		if o.runtime == rt {
			return o
		}
	}
	return nil
}

func (o *ownerTable) chunkIndex(c *Conn) int {
	n := uint32(len(o.chunks))
	size := uint32(1) << bits.Len32(n-1)
	i := bits.Reverse32(c.slot/slotsPerHash*0x9E3779B1) & (size - 1)
	if i >= n {
		i -= size / 2
	}
	return int(i)
}

func (s *connSet) addAndSubscribe(r Ref, valueOrNil *LatestValue) {
	if o := s.findTable(r.c.runtime); o != nil {
		i := o.chunkIndex(r.c)
		index := o.chunks[i].indexOf(r.c)
		if o.chunks[i].hasSameOrNewerRefAt(index, r) {
			return
		}
		if index >= 0 {
			s.removeAt(o, i, index)
		}
	}
	var sub *LatestSubscription
	if valueOrNil != nil {
		sub = NewSubscriptionToLaterValues(valueOrNil)
	}
	s.insertGrowAndRemoveSomeClosed(r, sub)
}

func (s *connSet) insertGrowAndRemoveSomeClosed(r Ref, sub *LatestSubscription) {
	o := s.findTable(r.c.runtime)
	if o == nil {
		o = &ownerTable{runtime: r.c.runtime, chunks: []*GroupChunk{s.newChunk()}}
		s.tables = append(s.tables, o)
	}
	s.writableChunk(o, o.chunkIndex(r.c)).add(r, sub)
	o.count++
	s.count++
	if o.count > chunkFill*len(o.chunks) {
		s.splitNextChunkInTwo(o)
	}
	s.removeSomeClosed(o)
}

// remove removes r from the set. sub is the subscription of r to the group's latest value, or nil if r has none. If r
// is not in the set, found is false.
func (s *connSet) remove(r Ref) (sub *LatestSubscription, found bool) {
	o := s.findTable(r.c.runtime)
	if o == nil {
		return nil, false
	}
	i := o.chunkIndex(r.c)
	index := o.chunks[i].indexOf(r.c)
	if index < 0 || o.chunks[i].refs[index] != r {
		return nil, false
	}
	sub = o.chunks[i].subscriptionAt(index)
	s.removeAt(o, i, index)
	return sub, true
}

func (s *connSet) removeAt(table *ownerTable, chunkIndex, connIndex int) {
	s.writableChunk(table, chunkIndex).swapRemoveAt(connIndex)
	s.decreaseCountAndShrink(table, 1)
}

func (s *connSet) decreaseCountAndShrink(table *ownerTable, n int) {
	table.count -= n
	s.count -= n
	for 4*table.count < chunkFill*len(table.chunks) && len(table.chunks) > 1 {
		s.mergeLastChunkIntoOrigin(table)
	}
	if table.count == 0 {
		s.tables = slices.DeleteFunc(s.tables, func(other *ownerTable) bool { return other == table })
	}
}

func (s *connSet) newChunk() *GroupChunk { return &GroupChunk{set: s, version: s.version} }

// writableChunk returns the chunk at chunkIndex for modification. If a snapshot contains the chunk, writableChunk first
// replaces the chunk in the table with a copy, so that the snapshot does not change.
func (s *connSet) writableChunk(table *ownerTable, chunkIndex int) *GroupChunk {
	old := table.chunks[chunkIndex]
	if old.version == s.version {
		return old
	}
	m := s.newChunk()
	m.refs = append(slices.Grow(m.refs, len(old.refs)+1), old.refs...)
	if old.subscriptions != nil {
		m.subscriptions = append(slices.Grow(m.subscriptions, len(old.refs)+1), old.subscriptions...)
	}
	table.chunks[chunkIndex] = m
	return m
}

// splitIndex returns the index of the chunk from which the table's last chunk was split off. When a table grows, the
// connections of that chunk are divided between that chunk and the new last chunk.
func (o *ownerTable) splitIndex() int {
	last := len(o.chunks) - 1
	return last - 1<<(bits.Len(uint(last))-1)
}

func (s *connSet) splitNextChunkInTwo(table *ownerTable) {
	table.chunks = append(table.chunks, nil)
	i := table.splitIndex()
	both, parts := table.chunks[i], [2]*GroupChunk{s.newChunk(), s.newChunk()}
	table.chunks[i], table.chunks[len(table.chunks)-1] = parts[0], parts[1]
	for _, m := range parts {
		m.refs = slices.Grow(m.refs, len(both.refs)/2+1)
	}
	for place, r := range both.refs {
		table.chunks[table.chunkIndex(r.c)].add(r, both.subscriptionAt(place))
	}
}

func (s *connSet) mergeLastChunkIntoOrigin(table *ownerTable) {
	i, last := table.splitIndex(), len(table.chunks)-1
	m := s.writableChunk(table, i)
	for place, r := range table.chunks[last].refs {
		m.add(r, table.chunks[last].subscriptionAt(place))
	}
	table.chunks[last] = nil
	table.chunks = table.chunks[:last]
}

func (s *connSet) removeSomeClosed(table *ownerTable) {
	table.searchCredit += 2
	i := table.nextSearched % len(table.chunks)
	m := table.chunks[i]
	if table.searchCredit < len(m.refs) {
		return
	}
	table.nextSearched, table.searchCredit = i+1, 0
	if !slices.ContainsFunc(m.refs, Ref.IsClosed) {
		return
	}
	m = s.writableChunk(table, i)
	n := len(m.refs)
	m.removeClosed()
	s.decreaseCountAndShrink(table, n-len(m.refs))
}

func (s *connSet) replaceAllSubscriptions(value *LatestValue) {
	for _, o := range s.tables {
		for i := range o.chunks {
			s.writableChunk(o, i).replaceSubscriptions(value)
		}
	}
}

// snapshotChunks returns all non-empty chunks. The returned chunks never change.
func (s *connSet) snapshotChunks() []*GroupChunk {
	n := 0
	for _, o := range s.tables {
		n += len(o.chunks)
	}
	all := make([]*GroupChunk, 0, n)
	for _, o := range s.tables {
		for _, m := range o.chunks {
			if len(m.refs) > 0 {
				all = append(all, m)
			}
		}
	}
	s.version++
	return all
}

func (s *connSet) toConnList() (l connList) {
	for _, o := range s.tables {
		for _, m := range o.chunks {
			for place, r := range m.refs {
				l.add(r, m.subscriptionAt(place))
			}
		}
	}
	return l
}

// removedDuringBroadcast lists connections that were removed from a group during a broadcast.
type removedDuringBroadcast struct {
	nonEmpty atomic.Bool
	mu       sync.Mutex
	refs     map[Ref]struct{}
}

// errRemoved means that a message was not queued because the connection has left the group.
var errRemoved = errors.New("myriad: connection was removed from the group")

func (l *removedDuringBroadcast) add(r Ref) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.refs == nil {
		l.refs = make(map[Ref]struct{})
	}
	l.refs[r] = struct{}{}
	l.nonEmpty.Store(true)
}

func (l *removedDuringBroadcast) has(r Ref) bool {
	if !l.nonEmpty.Load() {
		return false
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	_, ok := l.refs[r]
	return ok
}

func (l *removedDuringBroadcast) clear() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.refs = nil
	l.nonEmpty.Store(false)
}
