package load

import (
	"sync"
	"time"

	"github.com/myriad-go/myriad/internal/engine"
	"github.com/myriad-go/myriad/tools/internal/pacer"
)

// The counters that connections add to, by their place in counts. A shard counts the
// whole run, and of nSent to nBytesReceived the window, too.
const (
	nSent = iota
	nAnswered
	nBytesSent
	nBytesReceived
	nBytesAnswered // of messages that were answered
	nOpened
	nClosed
	nExpired // of those that are closed: their lifetime was over
	// nDropped are messages that were in flight on a connection when it closed; they
	// will not be answered. nCutOff are those of them whose connection had expired.
	nDropped
	nBytesDropped
	nCutOff
	// nReconnected are sockets that replaced others of a connection, nResent messages
	// that were in flight on those and were sent again.
	nReconnected
	nResent
	// nFinished are connections that are through with their messages, nExchanged those
	// of them that got all their answers.
	nFinished
	nExchanged
	// nPlanned are messages of the window that connections' own plans have had, nEarly
	// those before it, nUnsent those of the window, of either plan, that went down with
	// a connection.
	nPlanned
	nEarly
	nUnsent
	nHeartbeats
	nHeard
	nHeardClosed // of those, closed since
	nHeardAgain
	nUnexpected
	nVerifyWrong
	nVerifyLost
	nDue // messages that have their time and are about to be sent
	// nDelivered and the next two are what subscribers have got. nSlowEnded are those of
	// them that did not read and are gone, nSlowBytes what they read in the end.
	nDelivered
	nDoubled
	nReordered
	nSlowEnded
	nSlowBytes
	// Those from here on are not counted by connections, but added by the run.
	nFailed
	nLost
	nIntended
	nCounts
)

// counts are counters of a run, or of a part of it.
type counts [nCounts]int64

func (c *counts) add(other *counts) {
	for i := range c {
		c[i] += other[i]
	}
}

// counterIndexes are the counters of counts that intervals and results have, by their names.
var counterIndexes = map[string]int{
	"opened": nOpened, "failed": nFailed, "lost": nLost, "closed": nExpired, "cut_off": nCutOff, "reconnected": nReconnected,
	"resent": nResent, "intended": nIntended, "sent": nSent, "answered": nAnswered, "bytes_sent": nBytesSent, "bytes_received": nBytesReceived,
	"exchanged": nExchanged, "delivered": nDelivered, "doubled": nDoubled, "reordered": nReordered, "slow_ended": nSlowEnded,
	"heartbeats": nHeartbeats, "heard": nHeard, "unexpected": nUnexpected,
}

// totals is what connections add up to.
type totals struct {
	run, window counts
	// lastOpened is when the last connection was established, lastAnswer when the last
	// answer came, lastHeard when the last one got the broadcast, since the run's start.
	lastOpened, lastAnswer, lastHeard time.Duration
}

func (s *totals) add(other *totals) {
	s.run.add(&other.run)
	s.window.add(&other.window)
	s.lastOpened = max(s.lastOpened, other.lastOpened)
	s.lastAnswer = max(s.lastAnswer, other.lastAnswer)
	s.lastHeard = max(s.lastHeard, other.lastHeard)
}

// addCount counts what belongs to the window if it is measured.
func (s *totals) addCount(counter int, n int64, inWindow bool) {
	s.run[counter] += n
	if inWindow {
		s.window[counter] += n
	}
}

func (s totals) openConns() int64 { return s.run[nOpened] - s.run[nClosed] }

// openConnsHeard is how many connections that are open have had the broadcast.
func (s totals) openConnsHeard() int64 { return s.run[nHeard] - s.run[nHeardClosed] }

// messagesInFlight is how many messages an answer can still come for.
func (s totals) messagesInFlight() int64 { return s.run[nSent] - s.run[nAnswered] - s.run[nDropped] }

// shard adds up what happens on the connections of one loop, or of some goroutines, and
// paces them.
type shard struct {
	mu     sync.Mutex
	totals totals
	// timeDistributions are the distributions since they were last taken.
	times *timeDistributions
	// nextConn to before end are connections that are not in use yet, free those that are
	// not any more. A connection is its shard's for good.
	nextConn, endConn int
	freeConns         []uint32
	// closedToNew says that the connect phase is over: connections are no longer given.
	closedToNew bool

	ready        connQueue // started connections with room for a message, in an open loop
	timers       timerHeap // what connections wait for
	nudges       []engine.Ref
	nudgeRetries []engine.Ref // calls that found no room

	// unheard and heard are the values of connections that are only held, before
	// and after the broadcast; asked are those whose line of a verification is in
	// flight, at most Config.Check.
	unheard, heard heldConn
	pendingLines   map[engine.Ref]pendingLine
	heldConns      []engine.Ref // all of them, where there are verifications; not changed once shut is
	scan           verifyScan
	lineBuf        [maxVerifyLine]byte // for a line that is about to be sent
	frameBuf       [maxVerifyLine + 14]byte

	_ [64]byte // keeps the next shard off this line
}

// newConnState gives a connection that was established at now its state, nil when the
// connect phase is over or every connection is in use.
func (s *shard) newConnState(table *connTable, ref engine.Ref, shardIndex int, connNumber uint32, now time.Duration) *connState {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closedToNew {
		return nil
	}
	id, ok := s.allocConn(table, shardIndex)
	if !ok {
		return nil
	}
	cs := &table.conns[id]
	// A place in the queue is kept: it is the new connection's, if it has a use for it.
	*cs = connState{index: id, ref: ref, shard: uint16(shardIndex), number: connNumber, flags: cs.flags & connQueued}
	s.totals.run[nOpened]++
	s.totals.lastOpened = now
	return cs
}

func (s *shard) allocConn(table *connTable, shardIndex int) (id uint32, ok bool) {
	if n := len(s.freeConns); n > 0 {
		id, s.freeConns = s.freeConns[n-1], s.freeConns[:n-1]
		return id, true
	}
	if s.nextConn == s.endConn {
		s.nextConn, s.endConn = table.allocChunk(shardIndex)
	}
	if s.nextConn == s.endConn {
		return 0, false
	}
	s.nextConn++
	return uint32(s.nextConn - 1), true
}

// forEachConn calls f for those connections of the shard that are or were in use, while it says so.
func (s *shard) forEachConn(conns []connState, f func(*shard, *connState) bool) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	for i := range conns {
		if conns[i].ref != (engine.Ref{}) && !f(s, &conns[i]) {
			return false
		}
	}
	return true
}

// stopNewConns ends the connect phase for the shard: what newConnState wrote can be
// read afterwards.
func (s *shard) stopNewConns() {
	s.mu.Lock()
	s.closedToNew = true
	s.mu.Unlock()
}

func sumShards(shards []*shard) totals {
	var all totals
	for _, s := range shards {
		s.mu.Lock()
		all.add(&s.totals)
		s.mu.Unlock()
	}
	return all
}

// timer is what a connection waits for: that its time comes.
type timer struct {
	due    time.Duration
	conn   uint32 // its place in the table
	number uint32 // its connection: the place can have been given to another
	kind   timerKind
}

type timerKind uint8

const (
	thinkTimer    timerKind = iota // its think time is over
	planTimer                      // its own plan has a message
	lifetimeTimer                  // its lifetime is over
)

// timerHeap are ordered by time: a heap, the earliest first.
type timerHeap []timer

func (h *timerHeap) push(t timer) {
	*h = append(*h, t)
	s := *h
	i := len(s) - 1
	for i > 0 {
		up := (i - 1) / 2
		if s[up].due <= t.due {
			break
		}
		s[i] = s[up]
		i = up
	}
	s[i] = t
}

func (h timerHeap) earliest() time.Duration {
	if len(h) == 0 {
		return pacer.Never
	}
	return h[0].due
}

// popDue takes the first one, if it is due.
func (h *timerHeap) popDue(now time.Duration) (t timer, ok bool) {
	s := *h
	if len(s) == 0 || s[0].due > now {
		return timer{}, false
	}
	t = s[0]
	last := s[len(s)-1]
	s = s[:len(s)-1]
	*h = s
	if len(s) == 0 {
		return t, true
	}
	i := 0
	for {
		down := 2*i + 1
		if down >= len(s) {
			break
		}
		if down+1 < len(s) && s[down+1].due < s[down].due {
			down++
		}
		if last.due <= s[down].due {
			break
		}
		s[i] = s[down]
		i = down
	}
	s[i] = last
	return t, true
}

// connQueue is a queue of connections, by their places in the table. Each is in it at most
// once, so it is never longer than the table.
type connQueue struct {
	ring []uint32 // its length is a power of two, or 0
	head uint32
	n    uint32
}

func (q *connQueue) enqueue(id uint32) {
	if int(q.n) == len(q.ring) {
		q.grow()
	}
	q.ring[(q.head+q.n)&uint32(len(q.ring)-1)] = id
	q.n++
}

func (q *connQueue) grow() {
	ring := make([]uint32, max(2*len(q.ring), 64))
	for i := range q.n {
		ring[i] = q.ring[(q.head+i)&uint32(len(q.ring)-1)]
	}
	q.ring, q.head = ring, 0
}

func (q *connQueue) dequeue() (id uint32, ok bool) {
	if q.n == 0 {
		return 0, false
	}
	id = q.ring[q.head]
	q.head = (q.head + 1) & uint32(len(q.ring)-1)
	q.n--
	return id, true
}
