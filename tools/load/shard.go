package load

import (
	"sync"
	"time"

	"github.com/myriad-go/myriad/internal/engine"
	"github.com/myriad-go/myriad/tools/internal/pacer"
)

// Indexes of the counters in counts. Each shard has counts for the whole run, and counts for the measurement window.
const (
	nSent = iota
	nAnswered
	nBytesSent
	nBytesReceived
	nBytesAnswered // bytes of answered messages
	nOpened
	nClosed
	nExpired // connections that were closed because their lifetime was over
	// nDropped counts sent messages whose answers are no longer awaited, such as when their connection has closed.
	// nCutOff counts those of them whose connection was closed because its lifetime was over.
	nDropped
	nBytesDropped
	nCutOff
	// nReconnected counts replacement sockets. nResent counts messages that were sent again on them.
	nReconnected
	nResent
	// nFinished counts connections that will send no more. nExchanged counts those that received all answers.
	nFinished
	nExchanged
	// nPlanned and nEarly count messages that were taken from connections' own plans: nPlanned those planned for the
	// window, nEarly earlier ones. nUnsent counts planned messages of the window that were lost with their connection.
	nPlanned
	nEarly
	nUnsent
	nHeartbeats
	nHeard
	nHeardClosed // connections of nHeard that have closed
	nHeardAgain
	nUnexpected
	nVerifyWrong
	nVerifyLost
	nDue // due messages that their connection's owner has not sent yet
	// nDelivered, nDoubled and nReordered count deliveries. nSlowEnded counts closed slow subscribers. nSlowBytes
	// counts the bytes that slow subscribers read at the end.
	nDelivered
	nDoubled
	nReordered
	nSlowEnded
	nSlowBytes
	// The run itself, not a connection, increases the following counters.
	nFailed
	nLost
	nIntended
	nCounts
)

type counts [nCounts]int64

func (c *counts) add(other *counts) {
	for i := range c {
		c[i] += other[i]
	}
}

var counterIndexes = map[string]int{
	"opened": nOpened, "failed": nFailed, "lost": nLost, "closed": nExpired, "cut_off": nCutOff, "reconnected": nReconnected,
	"resent": nResent, "intended": nIntended, "sent": nSent, "answered": nAnswered, "bytes_sent": nBytesSent, "bytes_received": nBytesReceived,
	"exchanged": nExchanged, "delivered": nDelivered, "doubled": nDoubled, "reordered": nReordered, "slow_ended": nSlowEnded,
	"heartbeats": nHeartbeats, "heard": nHeard, "unexpected": nUnexpected,
}

type totals struct {
	run, window counts
	// lastOpened is the time, since the run's start, at which the last connection was established. lastAnswer is the
	// time of the last answer, and lastHeard the time at which the last connection received the broadcast.
	lastOpened, lastAnswer, lastHeard time.Duration
}

func (s *totals) add(other *totals) {
	s.run.add(&other.run)
	s.window.add(&other.window)
	s.lastOpened = max(s.lastOpened, other.lastOpened)
	s.lastAnswer = max(s.lastAnswer, other.lastAnswer)
	s.lastHeard = max(s.lastHeard, other.lastHeard)
}

func (s *totals) addToRunAndWindow(counter int, n int64, inWindow bool) {
	s.run[counter] += n
	if inWindow {
		s.window[counter] += n
	}
}

func (s totals) openConns() int64 { return s.run[nOpened] - s.run[nClosed] }

func (s totals) openConnsHeardBroadcast() int64 { return s.run[nHeard] - s.run[nHeardClosed] }

func (s totals) messagesInFlight() int64 { return s.run[nSent] - s.run[nAnswered] - s.run[nDropped] }

// shard contains the counters and the pacing of a part of the connections. If the model has event loops, each loop has
// one shard, which contains the connections of the loop.
type shard struct {
	mu     sync.Mutex
	totals totals
	times  *timeDistributions
	// The connTable indexes from nextConn to endConn-1 are unused. The indexes in freeConns belonged to closed
	// connections and can be used again. A connState never changes its shard.
	nextConn, endConn int
	freeConns         []uint32
	// closedToNew is set after the connect phase. The shard then accepts no more connections.
	closedToNew bool

	ready        connQueue // open loop: started connections that can have another message in flight
	timers       timerHeap
	nudges       []engine.Ref
	nudgeRetries []engine.Ref // nudges that met a full mailbox

	// unheard is the value of held connections before they receive the broadcast, heard the value after that.
	// pendingLines contains the verification lines in flight, at most Config.Check.
	unheard, heard heldConn
	pendingLines   map[engine.Ref]pendingLine
	heldConns      []engine.Ref // all held connections if they are verified; fixed once closedToNew is set
	scan           verifyScan
	lineBuf        [maxVerifyLine]byte // buffer for a line about to be sent
	frameBuf       [maxVerifyLine + 14]byte

	_ [64]byte // keeps the next shard off this cache line
}

func (s *shard) initAndCountEstablishedConn(table *connTable, ref engine.Ref, shardIndex int, connNumber uint32, now time.Duration) (nilIfFullOrLate *connState) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closedToNew {
		return nil
	}
	id, ok := s.allocConnIndexLocked(table, shardIndex)
	if !ok {
		return nil
	}
	cs := &table.conns[id]
	// Keep the queued flag: the new connection takes its predecessor's place in the ready queue.
	*cs = connState{index: id, ref: ref, shard: uint16(shardIndex), number: connNumber, flags: cs.flags & connQueued}
	s.totals.run[nOpened]++
	s.totals.lastOpened = now
	return cs
}

// allocConnIndexLocked returns the index of an unused connState. ok is false if the table is full. The caller holds
// s.mu.
func (s *shard) allocConnIndexLocked(table *connTable, shardIndex int) (index uint32, ok bool) {
	if n := len(s.freeConns); n > 0 {
		index, s.freeConns = s.freeConns[n-1], s.freeConns[:n-1]
		return index, true
	}
	if s.nextConn == s.endConn {
		s.nextConn, s.endConn = table.allocStateChunk(shardIndex)
	}
	if s.nextConn == s.endConn {
		return 0, false
	}
	s.nextConn++
	return uint32(s.nextConn - 1), true
}

func (s *shard) visitUsedStatesUnderLock(states []connState, visit func(*shard, *connState) (goOn bool)) (completed bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for i := range states {
		if states[i].ref != (engine.Ref{}) && !visit(s, &states[i]) {
			return false
		}
	}
	return true
}

// refuseNewConns ends the connect phase of the shard. Afterwards, initAndCountEstablishedConn returns nil and changes
// nothing. The fields that initAndCountEstablishedConn sets can therefore be read without a lock.
func (s *shard) refuseNewConns() {
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

type timer struct {
	due    time.Duration
	conn   uint32 // index of the connection in the table
	number uint32 // connection number; detects a reused state
	kind   timerKind
}

type timerKind uint8

const (
	thinkTimer    timerKind = iota // the think time is over
	planTimer                      // a message of the connection's own plan is due
	lifetimeTimer                  // the lifetime is over
)

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

func (h timerHeap) earliestOrNever() time.Duration {
	if len(h) == 0 {
		return pacer.Never
	}
	return h[0].due
}

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

// connQueue is a FIFO queue of connection indexes. The caller must not add an index that is already in the queue.
type connQueue struct {
	ring []uint32 // the length is a power of two, or 0
	head uint32
	n    uint32
}

func (q *connQueue) enqueue(index uint32) {
	if int(q.n) == len(q.ring) {
		q.grow()
	}
	q.ring[(q.head+q.n)&uint32(len(q.ring)-1)] = index
	q.n++
}

func (q *connQueue) grow() {
	ring := make([]uint32, max(2*len(q.ring), 64))
	for i := range q.n {
		ring[i] = q.ring[(q.head+i)&uint32(len(q.ring)-1)]
	}
	q.ring, q.head = ring, 0
}

func (q *connQueue) dequeue() (index uint32, ok bool) {
	if q.n == 0 {
		return 0, false
	}
	index = q.ring[q.head]
	q.head = (q.head + 1) & uint32(len(q.ring)-1)
	q.n--
	return index, true
}
