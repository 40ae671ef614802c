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

// Replay is which topics' newest messages are kept, for those who come again and say what they have
// seen last. Its fields are not changed once the hub serves. The zero value of each but Topics means its
// default; a negative value is an error.
//
// A stream of NATS puts the messages of all of these topics in one order, which is the same on all nodes,
// and keeps them (Cluster.Keep). Each node has them delivered from there, and remembers them as long as
// the stream does: so a replay asks nobody.
type Replay struct {
	// Topics are names, or beginnings that end with a dot, a colon or a slash, and a *: such as
	// news.today, news.* and chat:*. A * alone is all topics.
	Topics []string
	// MaxBytes is the most bytes of the messages that are kept, each with its name and 100 bytes, on
	// each node in memory and in the stream; MaxMessages how many they are, and MaxAge how old.
	// When there are more, the oldest go. The defaults are 64 MiB, 1,000,000 and 1 hour; MaxAge is
	// a second at the least.
	MaxBytes, MaxMessages int
	MaxAge                time.Duration
	// MaxReplays is the number of turns: as many clients are sent what they have missed at a time,
	// and 64 times as many wait for a turn. Further ones have to try again. A client that has missed little needs
	// no turn. One that does not take what it is sent gives its turn back after a second, and waits for another one
	// when it has. The default is 64.
	MaxReplays int
	// MaxReplaysEach is the number of these turns that one user may have at a time, and half of those that one address
	// may have (for IPv6 a network of 64 bits); 64 times as many of its clients wait, but no more than as many as places are free. A hub without Users goes by the
	// address alone. Where all clients have one user, or come through one proxy, MaxReplays is right. The default is a
	// quarter of MaxReplays.
	MaxReplaysEach int
	// Timeout is the most time of a replay, with the wait for its turn. Who has not taken all by
	// then is closed, and comes again for the rest. The default is 30 s.
	Timeout time.Duration

	replayBuffer
}

func (r *Replay) maxReplays() int        { return cmp.Or(r.MaxReplays, 64) }
func (r *Replay) maxReplaysEach() int    { return cmp.Or(r.MaxReplaysEach, (r.maxReplays()+3)/4) }
func (r *Replay) timeout() time.Duration { return cmp.Or(r.Timeout, 30*time.Second) }

// Bounds are MaxBytes, MaxMessages and MaxAge, or their defaults.
func (r *Replay) Bounds() (bytes, messages int, age time.Duration) {
	return cmp.Or(r.MaxBytes, 64<<20), cmp.Or(r.MaxMessages, 1_000_000), cmp.Or(r.MaxAge, time.Hour)
}

// validate says what is wrong.
func (r *Replay) validate(limits Limits) error {
	if len(r.Topics) == 0 {
		return configError{errors.New("hub: Replay.Topics is empty; expected such as news.* or *")}
	}
	for _, topic := range r.Topics {
		name, begins := strings.CutSuffix(topic, "*")
		switch {
		case topic == "" || strings.ContainsAny(name, `*?[\`) || begins && name != "" && !strings.ContainsAny(name[len(name)-1:], ".:/"):
			return configError{fmt.Errorf(`hub: Replay.Topics has %.100q; expected a name, or a beginning that ends with ".", ":" or "/", and "*", such as news.*, or * alone`, topic)}
		case len(topic) > maxReplayTopicBytes:
			return configError{fmt.Errorf("hub: Replay.Topics has one of %d bytes; expected at most %d", len(topic), maxReplayTopicBytes)}
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
	if least := limits.maxMessage() + limits.maxName() + keptMessageOverhead; bytes < least {
		return configError{fmt.Errorf("hub: Replay.MaxBytes is %d; expected %d at the least, in which a message of Limits.MaxMessage fits", bytes, least)}
	}
	if age < time.Second {
		return configError{fmt.Errorf("hub: Replay.MaxAge is %v; expected 1s at the least", age)}
	}
	return nil
}

// maxReplayTopicBytes is the most bytes of one of Topics, so that as a subject of NATS it is whole.
const maxReplayTopicBytes = 256

// keepsAny says whether the messages of a topic are kept, or those of some that a pattern may match.
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

// literalPrefix is what all topics begin with that a pattern matches.
func literalPrefix(pattern string) string {
	if i := strings.IndexAny(pattern, `*?[\`); i >= 0 {
		return pattern[:i]
	}
	return pattern
}

// Keeps says whether all messages of a name are kept: those of a topic, or of all topics that a pattern matches.
func (r *Replay) Keeps(kind Kind, name string) bool {
	if kind != Pattern {
		return r.keepsAny(kind, name)
	}
	return slices.ContainsFunc(r.Topics, func(topic string) bool {
		beginning, begins := strings.CutSuffix(topic, "*")
		return begins && strings.HasPrefix(literalPrefix(name), beginning)
	})
}

// keepsAny says whether the hub keeps messages of a name.
func (h *Hub) keepsAny(kind Kind, name string) bool {
	return h.Replay != nil && h.Cluster != nil && h.Replay.keepsAny(kind, name)
}

// Position is a place in the order of all messages that are kept. Clients have it as a text, their id.
type Position struct {
	// Epoch is the stream's: lower-case letters and digits, at most 32. Another stream has another.
	Epoch string
	// Seq is the message's number in the stream.
	Seq uint64
}

// String is the position as clients have it.
func (p Position) String() string { return p.Epoch + "-" + strconv.FormatUint(p.Seq, 10) }

var errBadPosition = errors.New("no position of a kept message")

// parsePosition reads what String has written.
func parsePosition(text string) (p Position, err error) {
	epoch, digits, ok := strings.Cut(text, "-")
	seq, err := strconv.ParseUint(digits, 10, 64)
	strange := func(r rune) bool { return (r < '0' || r > '9') && (r < 'a' || r > 'z') }
	if !ok || err != nil || epoch == "" || len(epoch) > 32 || strings.ContainsFunc(epoch, strange) {
		return p, fmt.Errorf("%w: %.60q; expected the id of a message, such as k3x9-17", errBadPosition, text)
	}
	return Position{epoch, seq}, nil
}

// parseClientPosition reads an id that a client gives. One that is further ahead of this node than the stream keeps messages
// is of no message, whatever other nodes have seen.
func (r *Replay) parseClientPosition(text string) (Position, error) {
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

// replayBuffer is the messages that are kept. One goroutine of the cluster delivers them, one after the other,
// and holds the lock while it remembers a message and sends it to those who have joined. Who joins
// holds it for reading, while it is sent what it has missed last: so nothing is left out, and
// nothing comes twice.
type replayBuffer struct {
	mu        sync.RWMutex
	ready     bool     // what was there before has been loaded
	newestPos Position // of the newest message
	firstSeq  uint64   // from this number on all are there
	messages  []keptMessage
	head      int // of messages, those before are gone
	bytes     int
	// newestDropped has the newest message that is gone of each topic; of topics that are not there it is at
	// most floor.
	newestDropped map[string]uint64
	droppedFloor  uint64
	advanced      chan struct{} // closed with the next message; nil if nobody waits

	newestMu        sync.Mutex // guards the next
	streamNewest    Position   // of the stream, when it was asked for
	streamNewestErr error
	streamNewestAt  time.Time

	limiters replayLimiters // by Replay.limited alone

	// patternStepMu is held while a goroutine makes a step for a client with patterns, so that all of these together take
	// one processor at the most.
	patternStepMu sync.Mutex

	replays, replayed, gaps, refused, unissued, stalled atomic.Int64
}

// keptMessage is one that is remembered.
type keptMessage struct {
	seq   uint64
	when  time.Time
	topic string
	data  []byte
}

const (
	// keptMessageOverhead is what a message takes beside its name and data.
	keptMessageOverhead = 100
	// maxDroppedTopics is the most topics of which it is known what is gone.
	maxDroppedTopics = 1 << 16
)

func (m *keptMessage) memoryBytes() int { return len(m.topic) + len(m.data) + keptMessageOverhead }

// KeptMessage is one of the stream.
type KeptMessage struct {
	At    Position
	Time  time.Time // when the stream has taken it
	Topic string
	Data  []byte // is not changed any more
	// Old says that it is from before this node: it is remembered, and sent to nobody.
	Old bool
}

// Begin forgets all, for a stream whose messages from first on are going to be delivered. Until
// Ready is called, clients that come again wait.
func (r *Replay) Begin(epoch string, firstSeq uint64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.ready, r.newestPos, r.firstSeq = false, Position{epoch, firstSeq - 1}, firstSeq
	r.messages, r.head, r.bytes, r.newestDropped, r.droppedFloor = nil, 0, 0, nil, firstSeq-1
}

// Ready says that all up to a number has been delivered.
func (r *Replay) Ready(seq uint64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.ready, r.newestPos.Seq = true, max(r.newestPos.Seq, seq)
	r.signalAdvanced()
}

// At is the position of the newest message; ready is false as long as it is not known.
func (r *Replay) At() (at Position, ready bool) {
	r.mu.RLock()
	defer r.mu.RUnlock()
	return r.newestPos, r.ready
}

// DeliverKept is Deliver for the next message of the stream.
func (h *Hub) DeliverKept(m KeptMessage) (receivers int) {
	r := h.Replay
	r.mu.Lock()
	defer r.mu.Unlock()
	if m.At.Seq > r.newestPos.Seq+1 {
		r.skipToSeq(h, m.At.Seq)
	}
	r.add(keptMessage{m.At.Seq, m.Time, strings.Clone(m.Topic), m.Data})
	r.newestPos = m.At
	r.dropExpired(m.Time)
	r.signalAdvanced()
	if m.Old {
		return 0
	}
	return h.deliverLocally(Topic, m.Topic, m.Data, m.At.String())
}

// skipToSeq notes that the numbers up to next have not come, because the stream has thrown them away: nobody
// can have them any more, and those who are there have missed them.
func (r *Replay) skipToSeq(hub *Hub, nextSeq uint64) {
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

func (r *Replay) signalAdvanced() {
	if r.advanced != nil {
		close(r.advanced)
		r.advanced = nil
	}
}

// Forget forgets what is too old.
func (r *Replay) Forget(now time.Time) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.dropExpired(now)
}

func (r *Replay) dropExpired(now time.Time) {
	bytes, messages, age := r.Bounds()
	for n := len(r.messages) - r.head; n > 0 && (n > messages || r.bytes > bytes || now.Sub(r.messages[r.head].when) > age); n-- {
		r.dropOldest()
	}
}

func (m *replayBuffer) add(message keptMessage) {
	m.messages = append(m.messages, message)
	m.bytes += message.memoryBytes()
}

// dropOldest drops the oldest message.
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

// messagesAfter are the messages behind a number.
func (m *replayBuffer) messagesAfter(seq uint64) []keptMessage {
	all := m.messages[m.head:]
	i, _ := slices.BinarySearchFunc(all, seq+1, func(k keptMessage, seq uint64) int { return cmp.Compare(k.seq, seq) })
	return all[i:]
}

// mayLack says whether some of a topic's messages behind a number may be gone, or of a pattern's.
func (m *replayBuffer) mayLack(t *topic, afterSeq uint64) bool {
	if t.kind == Pattern {
		return afterSeq+1 < m.firstSeq
	}
	return afterSeq < max(m.droppedFloor, m.newestDropped[t.name])
}

// ReplayStats are the counters of a Replay.
type ReplayStats struct {
	// Ready says whether the messages that the stream has are there; Seq is the number of the
	// newest one. Messages is how many are remembered now, and Bytes what they take.
	Ready           bool
	Seq             uint64
	Messages, Bytes int64
	// Waiting is how many clients wait for their turn now, or are sent what they have missed.
	// Replays counts those that had to, and Replayed the messages that were sent so; Gaps counts how
	// often a client, or all of them, were told that something is gone, and Refused clients that
	// were to try again.
	Waiting, Replays, Replayed, Gaps, Refused int64
	// Unissued counts clients that came with the id of no message yet, Stalled turns that ended because
	// the client did not take what it was sent.
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
