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

	memory
}

func (r *Replay) maxReplays() int        { return cmp.Or(r.MaxReplays, 64) }
func (r *Replay) maxReplaysEach() int    { return cmp.Or(r.MaxReplaysEach, (r.maxReplays()+3)/4) }
func (r *Replay) timeout() time.Duration { return cmp.Or(r.Timeout, 30*time.Second) }

// Bounds are MaxBytes, MaxMessages and MaxAge, or their defaults.
func (r *Replay) Bounds() (bytes, messages int, age time.Duration) {
	return cmp.Or(r.MaxBytes, 64<<20), cmp.Or(r.MaxMessages, 1_000_000), cmp.Or(r.MaxAge, time.Hour)
}

// check says what is wrong.
func (r *Replay) check(l Limits) error {
	if len(r.Topics) == 0 {
		return badConfig{errors.New("hub: Replay.Topics is empty; expected such as news.* or *")}
	}
	for _, topic := range r.Topics {
		name, begins := strings.CutSuffix(topic, "*")
		switch {
		case topic == "" || strings.ContainsAny(name, `*?[\`) || begins && name != "" && !strings.ContainsAny(name[len(name)-1:], ".:/"):
			return badConfig{fmt.Errorf(`hub: Replay.Topics has %.100q; expected a name, or a beginning that ends with ".", ":" or "/", and "*", such as news.*, or * alone`, topic)}
		case len(topic) > maxKeptName:
			return badConfig{fmt.Errorf("hub: Replay.Topics has one of %d bytes; expected at most %d", len(topic), maxKeptName)}
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
			return badConfig{fmt.Errorf("hub: Replay.%s is %d; expected 0 (the default) to %d", n.name, n.value, n.max)}
		}
	}
	bytes, _, age := r.Bounds()
	if least := l.maxMessage() + l.maxName() + keptSize; bytes < least {
		return badConfig{fmt.Errorf("hub: Replay.MaxBytes is %d; expected %d at the least, in which a message of Limits.MaxMessage fits", bytes, least)}
	}
	if age < time.Second {
		return badConfig{fmt.Errorf("hub: Replay.MaxAge is %v; expected 1s at the least", age)}
	}
	return nil
}

// maxKeptName is the most bytes of one of Topics, so that as a subject of NATS it is whole.
const maxKeptName = 256

// keeps says whether the messages of a topic are kept, or those of some that a pattern may match.
func (r *Replay) keeps(k Kind, name string) bool {
	return slices.ContainsFunc(r.Topics, func(topic string) bool {
		beginning, begins := strings.CutSuffix(topic, "*")
		switch {
		case k == Sharded:
			return false
		case k == Pattern && begins:
			literal := literalOf(name)
			return strings.HasPrefix(beginning, literal[:min(len(literal), len(beginning))])
		case k == Pattern:
			return compileGlob(name).matches(topic)
		case begins:
			return strings.HasPrefix(name, beginning)
		}
		return name == topic
	})
}

// literalOf is what all topics begin with that a pattern matches.
func literalOf(pattern string) string {
	if i := strings.IndexAny(pattern, `*?[\`); i >= 0 {
		return pattern[:i]
	}
	return pattern
}

// Keeps says whether all messages of a name are kept: those of a topic, or of all topics that a pattern matches.
func (r *Replay) Keeps(k Kind, name string) bool {
	if k != Pattern {
		return r.keeps(k, name)
	}
	return slices.ContainsFunc(r.Topics, func(topic string) bool {
		beginning, begins := strings.CutSuffix(topic, "*")
		return begins && strings.HasPrefix(literalOf(name), beginning)
	})
}

// keeps says whether the hub keeps messages of a name.
func (h *Hub) keeps(k Kind, name string) bool {
	return h.Replay != nil && h.Cluster != nil && h.Replay.keeps(k, name)
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

var errPosition = errors.New("no position of a kept message")

// parsePosition reads what String has written.
func parsePosition(text string) (p Position, err error) {
	epoch, digits, ok := strings.Cut(text, "-")
	seq, err := strconv.ParseUint(digits, 10, 64)
	strange := func(r rune) bool { return (r < '0' || r > '9') && (r < 'a' || r > 'z') }
	if !ok || err != nil || epoch == "" || len(epoch) > 32 || strings.ContainsFunc(epoch, strange) {
		return p, fmt.Errorf("%w: %.60q; expected the id of a message, such as k3x9-17", errPosition, text)
	}
	return Position{epoch, seq}, nil
}

// position reads an id that a client gives. One that is further ahead of this node than the stream keeps messages
// is of no message, whatever other nodes have seen.
func (r *Replay) position(text string) (Position, error) {
	p, err := parsePosition(text)
	if err != nil {
		return p, err
	}
	_, most, _ := r.Bounds()
	if at, ready := r.At(); ready && p.Epoch == at.Epoch && p.Seq > at.Seq && p.Seq-at.Seq > uint64(most) {
		r.unissued.Add(1)
		return p, fmt.Errorf("%w: %s has not been issued; the newest is %s", errPosition, p, at)
	}
	return p, nil
}

// memory is the messages that are kept. One goroutine of the cluster delivers them, one after the other,
// and holds the lock while it remembers a message and sends it to those who have joined. Who joins
// holds it for reading, while it is sent what it has missed last: so nothing is left out, and
// nothing comes twice.
type memory struct {
	mu       sync.RWMutex
	ready    bool     // what was there before has been loaded
	at       Position // of the newest message
	first    uint64   // from this number on all are there
	messages []keptMessage
	head     int // of messages, those before are gone
	bytes    int
	// dropped has the newest message that is gone of each topic; of topics that are not there it is at
	// most floor.
	dropped map[string]uint64
	floor   uint64
	moved   chan struct{} // closed with the next message; nil if nobody waits

	asking  sync.Mutex // guards the next
	newest  Position   // of the stream, when it was asked for
	unknown error
	asked   time.Time

	limits replayLimits // by Replay.limited alone

	// stepping is held while a goroutine makes a step for a client with patterns, so that all of these together take
	// one processor at the most.
	stepping sync.Mutex

	replays, replayed, gaps, refusals, unissued, stalled atomic.Int64
}

// keptMessage is one that is remembered.
type keptMessage struct {
	seq   uint64
	when  time.Time
	topic string
	data  []byte
}

const (
	// keptSize is what a message takes beside its name and data.
	keptSize = 100
	// maxDropped is the most topics of which it is known what is gone.
	maxDropped = 1 << 16
)

func (m *keptMessage) size() int { return len(m.topic) + len(m.data) + keptSize }

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
func (r *Replay) Begin(epoch string, first uint64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.ready, r.at, r.first = false, Position{epoch, first - 1}, first
	r.messages, r.head, r.bytes, r.dropped, r.floor = nil, 0, 0, nil, first-1
}

// Ready says that all up to a number has been delivered.
func (r *Replay) Ready(seq uint64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.ready, r.at.Seq = true, max(r.at.Seq, seq)
	r.move()
}

// At is the position of the newest message; ready is false as long as it is not known.
func (r *Replay) At() (at Position, ready bool) {
	r.mu.RLock()
	defer r.mu.RUnlock()
	return r.at, r.ready
}

// DeliverKept is Deliver for the next message of the stream.
func (h *Hub) DeliverKept(m KeptMessage) (receivers int) {
	r := h.Replay
	r.mu.Lock()
	defer r.mu.Unlock()
	if m.At.Seq > r.at.Seq+1 {
		r.missed(h, m.At.Seq)
	}
	r.add(keptMessage{m.At.Seq, m.Time, strings.Clone(m.Topic), m.Data})
	r.at = m.At
	r.forget(m.Time)
	r.move()
	if m.Old {
		return 0
	}
	return h.deliver(Topic, m.Topic, m.Data, m.At.String())
}

// missed notes that the numbers up to next have not come, because the stream has thrown them away: nobody
// can have them any more, and those who are there have missed them.
func (r *Replay) missed(h *Hub, next uint64) {
	for r.head < len(r.messages) {
		r.drop()
	}
	r.first, r.floor, r.dropped = next, next-1, nil
	if !r.ready {
		return
	}
	r.gaps.Add(1)
	r.at.Seq = next - 1
	for _, k := range []Kind{Topic, Pattern} {
		h.tableOf(k).eachTopic(func(t *topic) {
			if r.keeps(k, t.name) {
				t.tellGap(r.at)
			}
		})
	}
}

func (r *Replay) move() {
	if r.moved != nil {
		close(r.moved)
		r.moved = nil
	}
}

// Forget forgets what is too old.
func (r *Replay) Forget(now time.Time) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.forget(now)
}

func (r *Replay) forget(now time.Time) {
	bytes, messages, age := r.Bounds()
	for n := len(r.messages) - r.head; n > 0 && (n > messages || r.bytes > bytes || now.Sub(r.messages[r.head].when) > age); n-- {
		r.drop()
	}
}

func (m *memory) add(message keptMessage) {
	m.messages = append(m.messages, message)
	m.bytes += message.size()
}

// drop drops the oldest message.
func (m *memory) drop() {
	old := &m.messages[m.head]
	m.bytes -= old.size()
	m.first = old.seq + 1
	if m.dropped == nil || len(m.dropped) >= maxDropped {
		m.dropped = make(map[string]uint64)
		m.floor = old.seq
	}
	m.dropped[old.topic] = old.seq
	*old = keptMessage{}
	if m.head++; m.head > len(m.messages)/2 {
		n := copy(m.messages, m.messages[m.head:])
		clear(m.messages[n:])
		m.messages, m.head = m.messages[:n], 0
	}
}

// behind are the messages behind a number.
func (m *memory) behind(seq uint64) []keptMessage {
	all := m.messages[m.head:]
	i, _ := slices.BinarySearchFunc(all, seq+1, func(k keptMessage, seq uint64) int { return cmp.Compare(k.seq, seq) })
	return all[i:]
}

// lacks says whether some of a topic's messages behind a number may be gone, or of a pattern's.
func (m *memory) lacks(t *topic, seq uint64) bool {
	if t.kind == Pattern {
		return seq+1 < m.first
	}
	return seq < max(m.floor, m.dropped[t.name])
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
	limits := r.limited()
	r.mu.RLock()
	defer r.mu.RUnlock()
	return &ReplayStats{
		Ready: r.ready, Seq: r.at.Seq, Messages: int64(len(r.messages) - r.head), Bytes: int64(r.bytes),
		Waiting: int64(limits.queue.holders() + limits.early.holders()), Replays: r.replays.Load(), Replayed: r.replayed.Load(),
		Gaps: r.gaps.Load(), Refused: r.refusals.Load(), Unissued: r.unissued.Load(), Stalled: r.stalled.Load(),
	}
}
