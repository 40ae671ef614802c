package hub

import (
	"cmp"
	"errors"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

// Replay configures message retention. A client that reconnects with the id of its last message receives the messages
// that it missed. The fields must not change after the hub starts to serve. Topics must not be empty. Any other field
// that is zero has its default. Negative values are errors.
//
// A NATS stream stores the messages in one order that is the same on all nodes (see Cluster.Keep). Every node keeps a
// copy of the stream in memory, so a replay involves no other node.
type Replay struct {
	// Topics selects the topics whose messages are kept. An entry is a topic's name, or a prefix followed by "*". The
	// prefix must end with ".", ":" or "/". Examples are news.today, news.* and chat:*. The entry "*" selects all
	// topics.
	Topics []string
	// MaxBytes, MaxMessages and MaxAge limit the messages kept in the stream and in the memory of each node. A
	// message's size includes its topic's name and 100 bytes of overhead. When a limit is exceeded, the oldest messages
	// are dropped. The defaults are 64 MiB, 1,000,000 and 1 hour. The minimum of MaxAge is 1 s.
	MaxBytes, MaxMessages int
	MaxAge                time.Duration
	// MaxReplays is the number of slots for replays. The default is 64. A client that has missed few messages needs no
	// slot. At most 64 times MaxReplays clients wait for a slot; further clients must try again. A client that does not
	// read for a second loses its slot and waits for a new one.
	MaxReplays int
	// MaxReplaysEach limits the slots of one user. An IPv4 address or IPv6 /64 network may have twice as many slots.
	// Without Users, only the limit per address applies. At most 64 times MaxReplaysEach clients of a user may wait. If
	// all clients share a user or a proxy, set MaxReplaysEach to MaxReplays. The default is a quarter of MaxReplays.
	MaxReplaysEach int
	// Timeout limits a replay, including the wait for a slot. After Timeout, the client is disconnected. It may
	// reconnect to get the remaining messages. The default is 30 s.
	Timeout time.Duration

	replayBuffer
}

func (r *Replay) maxReplays() int        { return cmp.Or(r.MaxReplays, 64) }
func (r *Replay) maxReplaysEach() int    { return cmp.Or(r.MaxReplaysEach, (r.maxReplays()+3)/4) }
func (r *Replay) timeout() time.Duration { return cmp.Or(r.Timeout, 30*time.Second) }

// Bounds returns MaxBytes, MaxMessages and MaxAge with defaults applied.
func (r *Replay) Bounds() (bytes, messages int, age time.Duration) {
	return cmp.Or(r.MaxBytes, 64<<20), cmp.Or(r.MaxMessages, 1_000_000), cmp.Or(r.MaxAge, time.Hour)
}

func (r *Replay) validate(limits Limits) error {
	if len(r.Topics) == 0 {
		return configError{errors.New("hub: Replay.Topics is empty; expected entries such as news.* or *")}
	}
	for _, topic := range r.Topics {
		name, begins := strings.CutSuffix(topic, "*")
		switch {
		case topic == "" || strings.ContainsAny(name, `*?[\`) || begins && name != "" && !strings.ContainsAny(name[len(name)-1:], ".:/"):
			return configError{fmt.Errorf(`hub: Replay.Topics has %.100q; expected a name, or a prefix that ends with ".", ":" or "/" followed by "*", such as news.*, or *`, topic)}
		case len(topic) > maxReplayTopicBytes:
			return configError{fmt.Errorf("hub: an entry of Replay.Topics has %d bytes; expected at most %d", len(topic), maxReplayTopicBytes)}
		}
	}
	for _, n := range []struct {
		name       string
		value, max int
	}{
		{"MaxBytes", r.MaxBytes, math.MaxInt}, {"MaxMessages", r.MaxMessages, math.MaxInt32}, {"MaxAge", int(r.MaxAge), math.MaxInt},
		{"MaxReplays", r.MaxReplays, 1 << 20}, {"MaxReplaysEach", r.MaxReplaysEach, 1 << 20}, {"Timeout", int(r.Timeout), math.MaxInt},
	} {
		if n.value < 0 || n.value > n.max {
			return configError{fmt.Errorf("hub: Replay.%s is %d; expected 0 (the default) to %d", n.name, n.value, n.max)}
		}
	}
	bytes, _, age := r.Bounds()
	if minBytes := limits.maxMessage() + limits.maxName() + keptMessageOverhead; bytes < minBytes {
		return configError{fmt.Errorf("hub: Replay.MaxBytes is %d; expected at least %d, the size of a message of Limits.MaxMessage", bytes, minBytes)}
	}
	if age < time.Second {
		return configError{fmt.Errorf("hub: Replay.MaxAge is %v; expected at least 1s", age)}
	}
	return nil
}

// maxReplayTopicBytes limits the bytes of an entry of Topics. The NATS subject of an entry then never needs a hash.
const maxReplayTopicBytes = 256

// keepsAny reports whether Topics selects the named topic. For a pattern, it reports whether Topics selects some topic
// that the pattern may match.
func (r *Replay) keepsAny(kind Kind, name string) bool {
	return slices.ContainsFunc(r.Topics, func(topic string) bool {
		beginning, begins := strings.CutSuffix(topic, "*")
		switch {
		case kind == Sharded:
			return false
		case kind == Pattern && begins:
			literal := literalPrefix(name)
			return strings.HasPrefix(beginning, literal[:min(len(literal), len(beginning))])
		case kind == Pattern:
			return compileGlob(name).matches(topic)
		case begins:
			return strings.HasPrefix(name, beginning)
		}
		return name == topic
	})
}

func literalPrefix(pattern string) string {
	if i := strings.IndexAny(pattern, `*?[\`); i >= 0 {
		return pattern[:i]
	}
	return pattern
}

// Keeps reports whether messages are kept for the named topic. For a pattern, it reports whether messages are kept for
// every topic that the pattern matches.
func (r *Replay) Keeps(kind Kind, name string) bool {
	if kind != Pattern {
		return r.keepsAny(kind, name)
	}
	return slices.ContainsFunc(r.Topics, func(topic string) bool {
		beginning, begins := strings.CutSuffix(topic, "*")
		return begins && strings.HasPrefix(literalPrefix(name), beginning)
	})
}

func (h *Hub) keepsAny(kind Kind, name string) bool {
	return h.Replay != nil && h.Cluster != nil && h.Replay.keepsAny(kind, name)
}

// Position is a place in the order of all kept messages. Its text form is the message id that clients use.
type Position struct {
	// Epoch identifies the stream. It consists of at most 32 lower-case letters and digits.
	Epoch string
	// Seq is the message's sequence number in the stream.
	Seq uint64
}

// String returns the message id, such as k3x9-17.
func (p Position) String() string { return p.Epoch + "-" + strconv.FormatUint(p.Seq, 10) }

var errBadPosition = errors.New("invalid message id")

func parsePosition(text string) (p Position, err error) {
	epoch, digits, ok := strings.Cut(text, "-")
	seq, err := strconv.ParseUint(digits, 10, 64)
	strange := func(r rune) bool { return (r < '0' || r > '9') && (r < 'a' || r > 'z') }
	if !ok || err != nil || epoch == "" || len(epoch) > 32 || strings.ContainsFunc(epoch, strange) {
		return p, fmt.Errorf("%w: %.60q; expected the id of a message, such as k3x9-17", errBadPosition, text)
	}
	return Position{epoch, seq}, nil
}

// parseIssuedPosition parses an id from a client. A node lags by at most the number of messages in the stream.
// Therefore an id that is further ahead cannot have been issued and is rejected.
func (r *Replay) parseIssuedPosition(text string) (Position, error) {
	p, err := parsePosition(text)
	if err != nil {
		return p, err
	}
	_, maxMessages, _ := r.Bounds()
	if newest, ready := r.At(); ready && p.Epoch == newest.Epoch && p.Seq > newest.Seq && p.Seq-newest.Seq > uint64(maxMessages) {
		r.unissued.Add(1)
		return p, fmt.Errorf("%w: %s has not been issued; the newest is %s", errBadPosition, p, newest)
	}
	return p, nil
}

// replayBuffer contains the kept messages. One goroutine of the cluster delivers the messages. It holds mu while it
// stores a message and sends it to the groups. A joining client holds mu for reading during the last step of its
// replay, so that no message is missed or sent twice.
type replayBuffer struct {
	mu        sync.RWMutex
	ready     bool     // the messages from before the start are loaded
	newestPos Position // of the newest message
	firstSeq  uint64   // all later messages are present
	messages  []keptMessage
	head      int // index of the oldest message; earlier elements are free
	bytes     int
	// newestDropped contains, for each topic, the sequence number of the newest dropped message. For topics that it
	// does not contain, that number is at most droppedFloor.
	newestDropped map[string]uint64
	droppedFloor  uint64
	advanced      chan struct{} // closed with the next message; nil if nobody waits

	newestMu        sync.Mutex // guards the next three
	streamNewest    Position   // cached result of Cluster.Newest
	streamNewestErr error
	streamNewestAt  time.Time

	limiters replayLimiters // access by initLimiters only

	// patternStepMu lets only one replay step with patterns run at a time, so that together they use one processor at
	// most.
	patternStepMu sync.Mutex

	replays, replayed, gaps, refused, unissued, stalled atomic.Int64
}

type keptMessage struct {
	seq   uint64
	when  time.Time
	topic string
	data  []byte
}

const (
	keptMessageOverhead = 100
	maxDroppedTopics    = 1 << 16
)

func (m *keptMessage) memoryBytes() int { return len(m.topic) + len(m.data) + keptMessageOverhead }

// KeptMessage is a message of the stream.
type KeptMessage struct {
	At    Position
	Time  time.Time // when the stream stored it
	Topic string
	Data  []byte // must not change
	// Old marks a message that was stored before this node started. Such a message is kept but not delivered.
	Old bool
}

// Begin clears the buffer for a new stream. Call it before delivering the stream's first message, number firstSeq.
// Reconnecting clients wait until Ready is called.
func (r *Replay) Begin(epoch string, firstSeq uint64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.ready, r.newestPos, r.firstSeq = false, Position{epoch, firstSeq - 1}, firstSeq
	r.messages, r.head, r.bytes, r.newestDropped, r.droppedFloor = nil, 0, 0, nil, firstSeq-1
}

// Ready reports to the replay that all messages up to number seq have been delivered. Waiting clients then continue.
func (r *Replay) Ready(seq uint64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.ready, r.newestPos.Seq = true, max(r.newestPos.Seq, seq)
	r.wakeAllPositionWaiters()
}

// At returns the position of the newest message. Until Ready is called, the result ready is false.
func (r *Replay) At() (newest Position, ready bool) {
	r.mu.RLock()
	defer r.mu.RUnlock()
	return r.newestPos, r.ready
}

// DeliverKept stores the next message of the stream. Unless m.Old is set, it also sends the message, like Deliver.
func (h *Hub) DeliverKept(m KeptMessage) (receivers int) {
	r := h.Replay
	r.mu.Lock()
	defer r.mu.Unlock()
	if m.At.Seq > r.newestPos.Seq+1 {
		r.clearAndSendGapNotice(h, m.At.Seq)
	}
	r.add(keptMessage{m.At.Seq, m.Time, strings.Clone(m.Topic), m.Data})
	r.newestPos = m.At
	r.dropBeyondLimits(m.Time)
	r.wakeAllPositionWaiters()
	if m.Old {
		return 0
	}
	return h.deliverLocally(Topic, m.Topic, m.Data, m.At.String())
}

// clearAndSendGapNotice clears the buffer and sends a gap notice, because stream messages before nextSeq are lost.
func (r *Replay) clearAndSendGapNotice(hub *Hub, nextSeq uint64) {
	for r.head < len(r.messages) {
		r.dropOldest()
	}
	r.firstSeq, r.droppedFloor, r.newestDropped = nextSeq, nextSeq-1, nil
	if !r.ready {
		return
	}
	r.gaps.Add(1)
	r.newestPos.Seq = nextSeq - 1
	for _, k := range []Kind{Topic, Pattern} {
		hub.tableForKind(k).eachTopic(func(t *topic) {
			if r.keepsAny(k, t.name) {
				t.sendGap(r.newestPos)
			}
		})
	}
}

func (r *Replay) wakeAllPositionWaiters() {
	if r.advanced != nil {
		close(r.advanced)
		r.advanced = nil
	}
}

// Forget drops messages that are older than MaxAge.
func (r *Replay) Forget(now time.Time) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.dropBeyondLimits(now)
}

func (r *Replay) dropBeyondLimits(now time.Time) {
	bytes, messages, age := r.Bounds()
	for n := len(r.messages) - r.head; n > 0 && (n > messages || r.bytes > bytes || now.Sub(r.messages[r.head].when) > age); n-- {
		r.dropOldest()
	}
}

func (m *replayBuffer) add(message keptMessage) {
	m.messages = append(m.messages, message)
	m.bytes += message.memoryBytes()
}

func (m *replayBuffer) dropOldest() {
	old := &m.messages[m.head]
	m.bytes -= old.memoryBytes()
	m.firstSeq = old.seq + 1
	if m.newestDropped == nil || len(m.newestDropped) >= maxDroppedTopics {
		m.newestDropped = make(map[string]uint64)
		m.droppedFloor = old.seq
	}
	m.newestDropped[old.topic] = old.seq
	*old = keptMessage{}
	if m.head++; m.head > len(m.messages)/2 {
		n := copy(m.messages, m.messages[m.head:])
		clear(m.messages[n:])
		m.messages, m.head = m.messages[:n], 0
	}
}

func (m *replayBuffer) messagesAfter(seq uint64) []keptMessage {
	all := m.messages[m.head:]
	i, _ := slices.BinarySearchFunc(all, seq+1, func(k keptMessage, seq uint64) int { return cmp.Compare(k.seq, seq) })
	return all[i:]
}

// mayHaveDropped reports whether the buffer may have dropped a message that matches t and has a number above afterSeq.
func (m *replayBuffer) mayHaveDropped(t *topic, afterSeq uint64) bool {
	if t.kind == Pattern {
		return afterSeq+1 < m.firstSeq
	}
	return afterSeq < max(m.droppedFloor, m.newestDropped[t.name])
}

// ReplayStats are the counters of a Replay.
type ReplayStats struct {
	// Ready reports whether the stream's messages are loaded. Seq is the newest sequence number. Messages and Bytes
	// are the current size of the buffer.
	Ready           bool
	Seq             uint64
	Messages, Bytes int64
	// Waiting is the current number of clients in a replay or waiting for one. Replays counts replays that needed a
	// slot. Replayed counts messages sent in replays. Gaps counts notices about messages that are no longer available.
	// Refused counts clients that were told to try again.
	Waiting, Replays, Replayed, Gaps, Refused int64
	// Unissued counts clients with an id that no node has issued. Stalled counts clients that lost their slot because
	// they did not read.
	Unissued, Stalled int64
}

func (r *Replay) stats() *ReplayStats {
	limits := r.initLimiters()
	r.mu.RLock()
	defer r.mu.RUnlock()
	return &ReplayStats{
		Ready: r.ready, Seq: r.newestPos.Seq, Messages: int64(len(r.messages) - r.head), Bytes: int64(r.bytes),
		Waiting: int64(limits.queue.holderCount() + limits.early.holderCount()), Replays: r.replays.Load(), Replayed: r.replayed.Load(),
		Gaps: r.gaps.Load(), Refused: r.refused.Load(), Unissued: r.unissued.Load(), Stalled: r.stalled.Load(),
	}
}
