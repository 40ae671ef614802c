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

func (c *counts) add(d *counts) {
	for i := range c {
		c[i] += d[i]
	}
}

// places are the counters of counts that intervals and results have, by their names.
var places = map[string]int{
	"opened": nOpened, "failed": nFailed, "lost": nLost, "closed": nExpired, "cut_off": nCutOff, "reconnected": nReconnected,
	"resent": nResent, "intended": nIntended, "sent": nSent, "answered": nAnswered, "bytes_sent": nBytesSent, "bytes_received": nBytesReceived,
	"exchanged": nExchanged, "delivered": nDelivered, "doubled": nDoubled, "reordered": nReordered, "slow_ended": nSlowEnded,
	"heartbeats": nHeartbeats, "heard": nHeard, "unexpected": nUnexpected,
}

// sum is what connections add up to.
type sum struct {
	run, window counts
	// lastOpened is when the last connection was established, lastAnswer when the last
	// answer came, lastHeard when the last one got the broadcast, since the run's start.
	lastOpened, lastAnswer, lastHeard time.Duration
}

func (s *sum) add(t *sum) {
	s.run.add(&t.run)
	s.window.add(&t.window)
	s.lastOpened = max(s.lastOpened, t.lastOpened)
	s.lastAnswer = max(s.lastAnswer, t.lastAnswer)
	s.lastHeard = max(s.lastHeard, t.lastHeard)
}

// count counts what belongs to the window if it is measured.
func (s *sum) count(what int, n int64, measured bool) {
	s.run[what] += n
	if measured {
		s.window[what] += n
	}
}

func (s sum) open() int64 { return s.run[nOpened] - s.run[nClosed] }

// heardOpen is how many connections that are open have had the broadcast.
func (s sum) heardOpen() int64 { return s.run[nHeard] - s.run[nHeardClosed] }

// inFlight is how many messages an answer can still come for.
func (s sum) inFlight() int64 { return s.run[nSent] - s.run[nAnswered] - s.run[nDropped] }

// shard adds up what happens on the connections of one loop, or of some goroutines, and
// paces them.
type shard struct {
	mu  sync.Mutex
	sum sum
	// times are the distributions since they were last taken.
	times *times
	// next to before end are connections that are not in use yet, free those that are
	// not any more. A connection is its shard's for good.
	next, end int
	free      []uint32
	// shut says that the connect phase is over: connections are no longer given.
	shut bool

	ready  fifo   // started connections with room for a message, in an open loop
	timers timers // what connections wait for
	calls  []engine.Ref
	again  []engine.Ref // calls that found no room

	// unheard and heard are the values of connections that are only held, before
	// and after the broadcast; asked are those whose line of a verification is in
	// flight, at most Config.Check.
	unheard, heard held
	asked          map[engine.Ref]asked
	held           []engine.Ref // all of them, where there are verifications; not changed once shut is
	walk           walk
	room           [verifyLine]byte // for a line that is about to be sent
	frame          [verifyLine + 14]byte

	_ [64]byte // keeps the next shard off this line
}

// newConn gives a connection that was established at now its state, nil when the
// connect phase is over or every connection is in use.
func (s *shard) newConn(from *connTable, ref engine.Ref, shard int, number uint32, now time.Duration) *connState {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.shut {
		return nil
	}
	id, ok := s.place(from, shard)
	if !ok {
		return nil
	}
	l := &from.conns[id]
	// A place in the queue is kept: it is the new connection's, if it has a use for it.
	*l = connState{id: id, ref: ref, shard: uint16(shard), number: number, state: l.state & queued}
	s.sum.run[nOpened]++
	s.sum.lastOpened = now
	return l
}

func (s *shard) place(from *connTable, shard int) (id uint32, ok bool) {
	if n := len(s.free); n > 0 {
		id, s.free = s.free[n-1], s.free[:n-1]
		return id, true
	}
	if s.next == s.end {
		s.next, s.end = from.takeRun(shard)
	}
	if s.next == s.end {
		return 0, false
	}
	s.next++
	return uint32(s.next - 1), true
}

// each calls f for those connections of the shard that are or were in use, while it says so.
func (s *shard) each(links []connState, f func(*shard, *connState) bool) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	for i := range links {
		if links[i].ref != (engine.Ref{}) && !f(s, &links[i]) {
			return false
		}
	}
	return true
}

// shutConns ends the connect phase for the shard: what newConn wrote can be
// read afterwards.
func (s *shard) shutConns() {
	s.mu.Lock()
	s.shut = true
	s.mu.Unlock()
}

func sumOf(shards []*shard) sum {
	var all sum
	for _, s := range shards {
		s.mu.Lock()
		all.add(&s.sum)
		s.mu.Unlock()
	}
	return all
}

// timer is what a connection waits for: that its time comes.
type timer struct {
	at     time.Duration
	conn   uint32 // its place in the table
	number uint32 // its connection: the place can have been given to another
	kind   timerKind
}

type timerKind uint8

const (
	thought  timerKind = iota // its think time is over
	planned                   // its own plan has a message
	outlived                  // its lifetime is over
)

// timers are ordered by time: a heap, the earliest first.
type timers []timer

func (h *timers) push(t timer) {
	*h = append(*h, t)
	s := *h
	i := len(s) - 1
	for i > 0 {
		up := (i - 1) / 2
		if s[up].at <= t.at {
			break
		}
		s[i] = s[up]
		i = up
	}
	s[i] = t
}

func (h timers) next() time.Duration {
	if len(h) == 0 {
		return pacer.Never
	}
	return h[0].at
}

// pop takes the first one, if it is due.
func (h *timers) pop(now time.Duration) (t timer, ok bool) {
	s := *h
	if len(s) == 0 || s[0].at > now {
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
		if down+1 < len(s) && s[down+1].at < s[down].at {
			down++
		}
		if last.at <= s[down].at {
			break
		}
		s[i] = s[down]
		i = down
	}
	s[i] = last
	return t, true
}

// fifo is a queue of connections, by their places in the table. Each is in it at most
// once, so it is never longer than the table.
type fifo struct {
	ring []uint32 // its length is a power of two, or 0
	head uint32
	n    uint32
}

func (q *fifo) push(id uint32) {
	if int(q.n) == len(q.ring) {
		q.grow()
	}
	q.ring[(q.head+q.n)&uint32(len(q.ring)-1)] = id
	q.n++
}

func (q *fifo) grow() {
	ring := make([]uint32, max(2*len(q.ring), 64))
	for i := range q.n {
		ring[i] = q.ring[(q.head+i)&uint32(len(q.ring)-1)]
	}
	q.ring, q.head = ring, 0
}

func (q *fifo) pop() (id uint32, ok bool) {
	if q.n == 0 {
		return 0, false
	}
	id = q.ring[q.head]
	q.head = (q.head + 1) & uint32(len(q.ring)-1)
	q.n--
	return id, true
}
