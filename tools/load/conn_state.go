package load

import (
	"sync"
	"time"

	"github.com/myriad-go/myriad/internal/engine"
	"github.com/myriad-go/myriad/tools/internal/match"
	"github.com/myriad-go/myriad/tools/internal/pacer"
	"github.com/myriad-go/myriad/tools/internal/websocket"
)

// connState is the generator's state of a connection. It belongs to the connection's owner.
// Exceptions: number is written once, under the shard's lock; ref, inFlight, due, resend and flags
// are written under the shard's lock.
//
//	             answered            sent = answered + inFlight
//	messages ──────────┼──────────────────┼────────┼──▶
//	                   │                  └────────┘ due: have a time, and will be sent
//	                   └─ answerPos bytes of the next answer have arrived
type connState struct {
	ref       engine.Ref
	answered  uint64
	index     uint32 // in the table
	number    uint32 // of the connection, in the order of establishment
	answerPos uint32
	inFlight  uint16
	due       uint16
	resend    uint16 // of the due messages: they were already sent on the previous socket
	shard     uint16
	flags     uint16
}

// The flags of a connState.
const (
	connStarted    uint16 = 1 << iota // the traffic has begun
	connFinished                      // all messages have been exchanged, or the connection is closed
	connMismatched                    // an answer was wrong
	connClosed
	connQueued       // in its shard's ready queue
	connNudged       // about to be nudged by the pacing
	connExpired      // its lifetime is over
	connReplied      // the server has sent something
	connPastFirst    // its regular traffic, after a first message, has begun
	connHasTimer     // a timer is set for its plan
	connReconnecting // the server has closed cleanly, and the next socket is not established
)

// connTable is the memory of all connections of a run. It is allocated once, because the number of
// connections is known; pages that no connection uses are never touched. Slices that only some
// modes need are nil in others.
type connTable struct {
	conns []connState
	// plannedTimes has when messages in flight were planned, sentTimes when they were sent:
	// slotsPerConn slots for each connection, a power of two. A closed loop has only sentTimes.
	sentTimes, plannedTimes []time.Duration
	messageSizes            []uint32 // of messages in flight, if they differ
	slotsPerConn            int
	plans                   []pacer.SendPlan        // of connections with plans of their own
	matchStates             []match.StreamState     // of answers that a rule delimits
	frameReaders            []websocket.FrameReader // of WebSockets
	openedAt                []time.Duration         // when connections were established

	mu          sync.Mutex
	nextUnused  int      // the first state that has not been allocated
	chunkOwners []uint16 // the shard of each allocated chunk
}

// connChunk is the number of states that a shard allocates at once, so that the connections of two
// loops do not share a cache line.
const connChunk = 64

func newConnTable(connections, pipeline, shards int) *connTable {
	s := &connTable{slotsPerConn: 1}
	for s.slotsPerConn < pipeline {
		s.slotsPerConn *= 2
	}
	if connections == 0 {
		return s
	}
	// The last chunk of each shard can be incomplete.
	s.conns = make([]connState, connections+shards*connChunk)
	s.sentTimes = make([]time.Duration, len(s.conns)*s.slotsPerConn)
	return s
}

// allocStatesForShard allocates states for a shard: those from first to before end, none when the table is
// used up.
func (s *connTable) allocStatesForShard(shard int) (first, end int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	first = min(s.nextUnused, len(s.conns))
	s.nextUnused = min(first+connChunk, len(s.conns))
	if first < s.nextUnused {
		s.chunkOwners = append(s.chunkOwners, uint16(shard))
	}
	return first, s.nextUnused
}

// allocatedCount returns how many states have been allocated; some may not be in use.
func (s *connTable) allocatedCount() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.nextUnused
}

// forEachUsedConn calls f for all connections that are or were in use, under their shards' locks, until
// it returns false.
func (s *connTable) forEachConn(shards []*shard, f func(*shard, *connState) bool) {
	s.mu.Lock()
	owners := s.chunkOwners[:len(s.chunkOwners):len(s.chunkOwners)]
	s.mu.Unlock()
	for i, owner := range owners {
		first := i * connChunk
		if !shards[owner].forEachUsedConn(s.conns[first:min(first+connChunk, len(s.conns))], f) {
			return
		}
	}
}

// slotIndex returns the index of a message's slot in sentTimes, plannedTimes and messageSizes.
func (s *connTable) slotIndex(cs *connState, msgNumber uint64) int {
	return int(cs.index)*s.slotsPerConn + int(msgNumber)&(s.slotsPerConn-1)
}

func (s *connTable) sentTime(cs *connState, msgNumber uint64) *time.Duration {
	return &s.sentTimes[s.slotIndex(cs, msgNumber)]
}

func (s *connTable) allocSlicesForMode(gen *generator) {
	n, ring := len(s.conns), len(s.sentTimes)
	if gen.isOpenLoop() {
		s.plannedTimes = make([]time.Duration, ring)
	}
	if gen.mode == openLoopPerConn {
		s.plans = make([]pacer.SendPlan, n)
	}
	if gen.script.fixedSize == 0 {
		s.messageSizes = make([]uint32, ring)
	}
	if gen.script.usesRule() {
		s.matchStates = make([]match.StreamState, n)
	}
	if gen.script.frames != nil {
		s.frameReaders = make([]websocket.FrameReader, n)
	}
	s.openedAt = make([]time.Duration, n)
}

// resetConnData prepares the table's data for a connection that was established at establishedAt.
func (s *connTable) resetConnData(cs *connState, establishedAt time.Duration) {
	if s.plans != nil {
		s.plans[cs.index] = pacer.SendPlan{}
	}
	if s.matchStates != nil {
		s.matchStates[cs.index] = match.StreamState{}
	}
	if s.frameReaders != nil {
		s.frameReaders[cs.index] = websocket.FrameReader{}
	}
	s.openedAt[cs.index] = establishedAt
}

func (s *connTable) totalMessageBytes(cs *connState, firstMessage uint64, messageCount int, messageScript *trafficScript) (bytes int64) {
	if messageScript.fixedSize > 0 {
		return int64(messageCount * messageScript.fixedSize)
	}
	for i := range uint64(messageCount) {
		bytes += int64(s.messageSizes[s.slotIndex(cs, firstMessage+i)])
	}
	return bytes
}
