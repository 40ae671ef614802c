package load

import (
	"sync"
	"time"

	"github.com/myriad-go/myriad/internal/engine"
	"github.com/myriad-go/myriad/tools/internal/match"
	"github.com/myriad-go/myriad/tools/internal/pacer"
	"github.com/myriad-go/myriad/tools/internal/websocket"
)

// connState is the generator's state of one connection. The connection's owner is the loop or goroutine that handles
// its events. Only the owner uses answerPos. All other fields are written under the shard's lock, because the
// engine.Scheduler also uses them.
//
//	             answered            sent = answered + inFlight
//	messages ──────────┼──────────────────┼────────┼──▶
//	                   │                  └────────┘ due: have a time, and will be sent
//	                   └─ answerPos bytes of the next answer have arrived
type connState struct {
	ref       engine.Ref
	answered  uint64
	index     uint32 // index in the connTable
	number    uint32 // connections are numbered in the order of their establishment
	answerPos uint32
	inFlight  uint16
	due       uint16
	resend    uint16 // how many of the due messages were already sent, on the previous socket
	shard     uint16
	flags     uint16
}

const (
	connStarted    uint16 = 1 << iota // the connection may send
	connFinished                      // the connection has exchanged all messages or is closed
	connMismatched                    // an answer was wrong
	connClosed
	connQueued       // the connection is in its shard's ready queue
	connNudged       // a wake-up of the connection (engine.Ref.Nudge) is pending
	connExpired      // the connection has reached Config.Lifetime
	connReplied      // the server has sent something
	connPastFirst    // the traffic that follows Config.First, if any, has begun
	connHasTimer     // a timer is set for the next message of the connection's own plan
	connReconnecting // the server closed the connection cleanly; its next socket is not established yet
)

// connTable contains the states of all connections of a run. Slices that the run's mode does not need are nil.
type connTable struct {
	conns []connState
	// sentTimes and plannedTimes are the times of messages in flight. Each connection has slotsPerConn slots, a power
	// of two. A message has the slot of its number modulo slotsPerConn. In a closed loop, plannedTimes is nil.
	sentTimes, plannedTimes []time.Duration
	messageSizes            []uint32 // sizes of messages in flight, if sizes differ
	slotsPerConn            int
	plans                   []pacer.SendPlan        // with openLoopPerConn, the plan of each connection
	matchStates             []match.StreamState     // parser states of match rules
	frameReaders            []websocket.FrameReader // readers of WebSockets
	openedAt                []time.Duration         // times of establishment

	mu          sync.Mutex
	nextUnused  int      // index of the first connState that is not allocated
	chunkOwners []uint16 // shard of each allocated chunk
}

// connChunk is the number of adjacent connection states that a shard allocates at once.
const connChunk = 64 // enough that loops share no cache line

func newConnTable(maxConns, maxInFlightPerConn, shards int) *connTable {
	s := &connTable{slotsPerConn: 1}
	for s.slotsPerConn < maxInFlightPerConn {
		s.slotsPerConn *= 2
	}
	if maxConns == 0 {
		return s
	}
	// The last chunk of each shard can be incomplete.
	s.conns = make([]connState, maxConns+shards*connChunk)
	s.sentTimes = make([]time.Duration, len(s.conns)*s.slotsPerConn)
	return s
}

// allocStateChunk allocates up to connChunk connection states for a shard. The states have the indexes from first to
// end-1. If the table is full, first equals end.
func (s *connTable) allocStateChunk(shard int) (first, end int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	first = min(s.nextUnused, len(s.conns))
	s.nextUnused = min(first+connChunk, len(s.conns))
	if first < s.nextUnused {
		s.chunkOwners = append(s.chunkOwners, uint16(shard))
	}
	return first, s.nextUnused
}

// allocatedCount returns the number of allocated states, including those that no connection uses yet.
func (s *connTable) allocatedCount() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.nextUnused
}

// forEachOpenOrClosedConnUnderLock calls the function visit for every connection, including closed ones. If visit
// returns false, no further connections are visited. During each call, the lock of the connection's shard is held.
func (s *connTable) forEachOpenOrClosedConnUnderLock(shards []*shard, visit func(*shard, *connState) (goOn bool)) {
	s.mu.Lock()
	owners := s.chunkOwners[:len(s.chunkOwners):len(s.chunkOwners)]
	s.mu.Unlock()
	for i, owner := range owners {
		first := i * connChunk
		if !shards[owner].visitUsedStatesUnderLock(s.conns[first:min(first+connChunk, len(s.conns))], visit) {
			return
		}
	}
}

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

func (s *connTable) resetPlanAndParserState(cs *connState, newOpenedAt time.Duration) {
	if s.plans != nil {
		s.plans[cs.index] = pacer.SendPlan{}
	}
	if s.matchStates != nil {
		s.matchStates[cs.index] = match.StreamState{}
	}
	if s.frameReaders != nil {
		s.frameReaders[cs.index] = websocket.FrameReader{}
	}
	s.openedAt[cs.index] = newOpenedAt
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
