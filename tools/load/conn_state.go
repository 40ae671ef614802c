package load

import (
	"sync"
	"time"

	"github.com/myriad-go/myriad/internal/engine"
	"github.com/myriad-go/myriad/tools/internal/match"
	"github.com/myriad-go/myriad/tools/internal/pacer"
	"github.com/myriad-go/myriad/tools/internal/websocket"
)

// connState is the generator's part of a connection. It belongs to the connection's
// owner, but for number, which is written once, under the shard's lock, and for ref,
// messagesInFlight, due, resend and state, which are written under it.
//
//	             answered            sent = answered + messagesInFlight
//	messages ──────────┼──────────────────┼────────┼──▶
//	                   │                  └────────┘ due: have a time, and are to be sent
//	                   └─ pos bytes of the next answer have come
type connState struct {
	ref       engine.Ref
	answered  uint64
	index     uint32 // its place in the table
	number    uint32 // of the connection, in the order in which they were established
	answerPos uint32
	inFlight  uint16
	due       uint16
	resend    uint16 // of those that are due: they were sent on the last socket, too
	shard     uint16
	flags     uint16
}

// The bits of a connection's state.
const (
	connStarted      uint16 = 1 << iota // the traffic has begun
	connFinished                        // it has exchanged all its messages, or is closed
	connMismatched                      // an answer was wrong
	connClosed                          // it is closed
	connQueued                          // it is in its shard's queue of those with room
	connNudged                          // it is about to be nudged by the pacing
	connExpired                         // its lifetime is over
	connReplied                         // the server has sent something
	connPastFirst                       // it is past its first message
	connHasTimer                        // a timer tells it of its plan
	connReconnecting                    // its server has closed in order, and no other socket is established
)

// connTable is the memory of all connections of a run, made once: the number of
// connections is known, so nothing grows and nothing is copied. Pages that no
// connection uses are never touched. What only some kinds of load need lies in
// slices of its own, nil where it is not needed.
type connTable struct {
	conns []connState
	// plannedTimes are when messages in flight were to be sent, times when they
	// were: ring places for each connection, a power of two. In a closed loop there
	// are only times.
	sentTimes, plannedTimes []time.Duration
	messageSizes            []uint32 // of those messages, where they differ
	slotsPerConn            int
	plans                   []pacer.Plan       // of connections that have plans of their own
	matchStates             []match.State      // of answers, where a rule delimits them
	frameReaders            []websocket.Reader // of WebSockets
	openedAt                []time.Duration    // when they were, until the first byte comes

	mu          sync.Mutex
	nextUnused  int      // connections from here on have never been used
	chunkOwners []uint16 // the shards of the runs that have been taken
}

// A shard takes connections from the table in runs of connChunk, so that the connections of
// two loops do not lie in one cache line.
const connChunk = 64

func newConnTable(connections, pipeline, shards int) *connTable {
	s := &connTable{slotsPerConn: 1}
	for s.slotsPerConn < pipeline {
		s.slotsPerConn *= 2
	}
	if connections == 0 {
		return s
	}
	// Each shard can leave a run unfinished.
	s.conns = make([]connState, connections+shards*connChunk)
	s.sentTimes = make([]time.Duration, len(s.conns)*s.slotsPerConn)
	return s
}

// allocChunk takes connections from the table for a shard, which keeps them: those from first to
// before end, none when it is used up.
func (s *connTable) allocChunk(shard int) (first, end int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	first = min(s.nextUnused, len(s.conns))
	s.nextUnused = min(first+connChunk, len(s.conns))
	if first < s.nextUnused {
		s.chunkOwners = append(s.chunkOwners, uint16(shard))
	}
	return first, s.nextUnused
}

// allocated is how many connections have been taken, some of them perhaps not in use.
func (s *connTable) allocated() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.nextUnused
}

// forEachConn calls f for all connections that are or were in use, under their shards' locks, while
// it says so.
func (s *connTable) forEachConn(shards []*shard, f func(*shard, *connState) bool) {
	s.mu.Lock()
	owners := s.chunkOwners[:len(s.chunkOwners):len(s.chunkOwners)]
	s.mu.Unlock()
	for i, owner := range owners {
		first := i * connChunk
		if !shards[owner].forEachConn(s.conns[first:min(first+connChunk, len(s.conns))], f) {
			return
		}
	}
}

// slotIndex is where things of message number k of a connection are kept.
func (s *connTable) slotIndex(cs *connState, msgNumber uint64) int {
	return int(cs.index)*s.slotsPerConn + int(msgNumber)&(s.slotsPerConn-1)
}

// sentTime is where the time of message number k of a connection is kept.
func (s *connTable) sentTime(cs *connState, msgNumber uint64) *time.Duration {
	return &s.sentTimes[s.slotIndex(cs, msgNumber)]
}

// allocForMode makes what a kind of load needs of its connections.
func (s *connTable) allocForMode(gen *generator) {
	n, ring := len(s.conns), len(s.sentTimes)
	if gen.isOpenLoop() {
		s.plannedTimes = make([]time.Duration, ring)
	}
	if gen.mode == openLoopPerConn {
		s.plans = make([]pacer.Plan, n)
	}
	if gen.script.fixedSize == 0 {
		s.messageSizes = make([]uint32, ring)
	}
	if gen.script.usesRule() {
		s.matchStates = make([]match.State, n)
	}
	if gen.script.frames != nil {
		s.frameReaders = make([]websocket.Reader, n)
	}
	s.openedAt = make([]time.Duration, n)
}

// resetConn makes a connection's place ready for it.
func (s *connTable) resetConn(cs *connState, now time.Duration) {
	if s.plans != nil {
		s.plans[cs.index] = pacer.Plan{}
	}
	if s.matchStates != nil {
		s.matchStates[cs.index] = match.State{}
	}
	if s.frameReaders != nil {
		s.frameReaders[cs.index] = websocket.Reader{}
	}
	s.openedAt[cs.index] = now
}

// messageBytes is how many bytes n messages of a connection have, from number k on.
func (s *connTable) messageBytes(cs *connState, msgNumber uint64, n int, of *script) (bytes int64) {
	if of.fixedSize > 0 {
		return int64(n * of.fixedSize)
	}
	for i := range uint64(n) {
		bytes += int64(s.messageSizes[s.slotIndex(cs, msgNumber+i)])
	}
	return bytes
}
