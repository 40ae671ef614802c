package hub

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"math"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

// Replay configures which messages the hub stores for clients that reconnect. A client that sends the id of its last
// message receives the messages that it missed. Topics must not be empty. Any other field that is zero has its default.
// Negative values are errors. The fields must not change after the hub starts to serve.
//
// A single hub stores the messages in memory. An upgrade moves the newest 256 MiB to the new process. A restart loses
// all messages. Clients that reconnect after a restart are notified of a gap.
//
// With a Cluster, a NATS stream stores the messages. SubscribedToAll nodes deliver these messages in the same order
// (see Cluster.QueueForReplay). Every node has a copy of the stream in memory.
type Replay struct {
	// Topics selects the topics whose messages are stored. An entry is a topic's name, or a prefix followed by "*". The
	// prefix must end with ".", ":" or "/". Examples are news.today, news.* and chat:*. "*" selects all topics.
	Topics []string
	// MaxBytes, MaxMessages and MaxAge limit the messages that are stored in the stream and in the memory of each node.
	// A message's size includes its topic's name and 100 bytes of overhead. In memory, each topic with messages counts
	// as 112 more bytes. Beyond a limit, the oldest messages are dropped. Expired messages are dropped when a message
	// is published or a client subscribes. The defaults are 64 MiB, 1,000,000 and 1 hour. The minimum of MaxAge is 1 s.
	MaxBytes, MaxMessages int
	MaxAge                time.Duration
	// MaxBytesPerTopic and MaxMessagesPerTopic limit the messages of one topic in memory, but not in the NATS stream of
	// a Cluster. Beyond a limit, the topic's oldest messages are dropped. The default 0 means no limit per topic.
	MaxBytesPerTopic, MaxMessagesPerTopic int
	// MaxReplays limits the number of replays that run at the same time. The default is 64. A replay of few messages
	// does not count. Up to 64 * MaxReplays more clients may wait for their replays. Any further client is rejected and
	// must try again. If a client does not read for a second, its replay stops, and the client waits again.
	MaxReplays int
	// MaxReplaysEach limits the number of replays of one user that run at the same time. Up to 64 * MaxReplaysEach more
	// clients of the user may wait. SubscribedToAll clients of an IPv4 address or IPv6 /64 network together have
	// similar limits, which are twice as high. If Hub.Users is nil, only the limits per address apply. If all clients
	// share one user or one proxy, set MaxReplaysEach to MaxReplays. The default is a quarter of MaxReplays.
	MaxReplaysEach int
	// Timeout limits the time of a replay, including the time that the client waits for its start. After Timeout, the
	// client is disconnected. It may reconnect to get the remaining messages. The default is 30 s.
	Timeout time.Duration

	replayBuffer
}

func (r *Replay) maxReplays() int        { return cmp.Or(r.MaxReplays, 64) }
func (r *Replay) maxReplaysEach() int    { return cmp.Or(r.MaxReplaysEach, (r.maxReplays()+3)/4) }
func (r *Replay) timeout() time.Duration { return cmp.Or(r.Timeout, 30*time.Second) }

// Bounds returns MaxBytes, MaxMessages and MaxAge, with defaults for fields that are 0.
func (r *Replay) Bounds() (bytes, messages int, age time.Duration) {
	return cmp.Or(r.MaxBytes, 64<<20), cmp.Or(r.MaxMessages, 1_000_000), cmp.Or(r.MaxAge, time.Hour)
}

func (r *Replay) validateConfig(limits Limits) error {
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
		{"MaxBytesPerTopic", r.MaxBytesPerTopic, math.MaxInt}, {"MaxMessagesPerTopic", r.MaxMessagesPerTopic, math.MaxInt32},
		{"MaxReplays", r.MaxReplays, 1 << 20}, {"MaxReplaysEach", r.MaxReplaysEach, 1 << 20}, {"Timeout", int(r.Timeout), math.MaxInt},
	} {
		if n.value < 0 || n.value > n.max {
			return configError{fmt.Errorf("hub: Replay.%s is %d; expected 0 (the default) to %d", n.name, n.value, n.max)}
		}
	}
	bytes, _, age := r.Bounds()
	minBytes := limits.maxMessage() + limits.maxName() + keptMessageOverhead + keptTopicOverhead
	for name, limit := range map[string]int{"MaxBytes": bytes, "MaxBytesPerTopic": r.MaxBytesPerTopic} {
		if limit > 0 && limit < minBytes {
			return configError{fmt.Errorf("hub: Replay.%s is %d; expected at least %d, the size of a message of Limits.MaxMessage", name, limit, minBytes)}
		}
	}
	if age < time.Second {
		return configError{fmt.Errorf("hub: Replay.MaxAge is %v; expected at least 1s", age)}
	}
	return nil
}

const maxReplayTopicBytes = 256

// keepsAny reports whether r.Topics selects the given topic. For a pattern, it reports whether r.Topics may select a
// topic that matches the pattern.
func (r *Replay) keepsAny(kind Kind, topicOrPattern string) bool {
	return slices.ContainsFunc(r.Topics, func(topic string) bool {
		beginning, begins := strings.CutSuffix(topic, "*")
		switch {
		case kind == Sharded:
			return false
		case kind == Pattern && begins:
			literal := literalPrefix(topicOrPattern)
			return strings.HasPrefix(beginning, literal[:min(len(literal), len(beginning))])
		case kind == Pattern:
			return compileGlob(topicOrPattern).matches(topic)
		case begins:
			return strings.HasPrefix(topicOrPattern, beginning)
		}
		return topicOrPattern == topic
	})
}

func literalPrefix(pattern string) string {
	if i := strings.IndexAny(pattern, `*?[\`); i >= 0 {
		return pattern[:i]
	}
	return pattern
}

// KeepsAll reports whether the messages of the given topic are stored. For a pattern, it reports whether the messages
// of all topics that match the pattern are stored.
func (r *Replay) KeepsAll(kind Kind, topicOrPattern string) bool {
	if kind != Pattern {
		return r.keepsAny(kind, topicOrPattern)
	}
	return slices.ContainsFunc(r.Topics, func(topic string) bool {
		beginning, begins := strings.CutSuffix(topic, "*")
		return begins && strings.HasPrefix(literalPrefix(topicOrPattern), beginning)
	})
}

func (h *Hub) keepsAny(kind Kind, topicOrPattern string) bool {
	return h.Replay != nil && h.Replay.keepsAny(kind, topicOrPattern)
}

// Position identifies a stored message. Clients receive and send the result of String as the message id.
type Position struct {
	// Epoch identifies the stream that contains the message. It consists of at most 32 lower-case letters and digits.
	Epoch string
	// Seq is the message's sequence number in the stream.
	Seq uint64
}

// String returns the message id, such as k3x9-17.
func (p Position) String() string { return string(strconv.AppendUint([]byte(p.Epoch+"-"), p.Seq, 10)) }

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

// parsePlausiblePosition parses a message id from a client. It rejects an id that no node can have assigned to a
// message.
func (r *Replay) parsePlausiblePosition(text string) (Position, error) {
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

// replayBuffer contains the stored messages in order. mu is held while a message is numbered, stored and sent.
//
// When a message is dropped, its topic is set to nil. The message remains in the slice messages until
// skipOrCompactDropped removes it.
type replayBuffer struct {
	mu        sync.RWMutex
	ready     bool           // the messages of the stream are loaded
	newestPos Position       // of the newest message
	messages  []*keptMessage // ordered by seq
	head      int            // index of the oldest message; earlier elements are nil
	live      int            // number of messages that are not dropped
	bytes     int
	topics    map[string]*keptTopic
	maxTopics int // most entries since topics was allocated; maps don't shrink
	// newestDropped maps a topic to the sequence number of its newest dropped message. For any other topic, that number
	// is at most droppedFloor. maxDropped is the highest number of all topics.
	newestDropped            map[string]uint64
	droppedFloor, maxDropped uint64
	advanced                 chan struct{} // closed when the next message arrives; nil if no replay waits for it
	handedOver               bool          // after an upgrade, another process stores the messages

	newestMu        sync.Mutex // guards streamNewest and its error and time
	streamNewest    Position   // cached result of Cluster.Newest
	streamNewestErr error
	streamNewestAt  time.Time

	limiters      replayLimiters // use initLimitersOnce to access it
	patternStepMu sync.Mutex     // held during a replay step with patterns

	replays, replayed, gaps, refused, unissued, stalled atomic.Int64
}

type keptMessage struct {
	seq   uint64
	when  int64 // Unix time in nanoseconds
	topic *keptTopic
	newer *keptMessage // next message of the same topic
	data  []byte
}

type keptTopic struct {
	name           string
	oldest, newest *keptMessage
	count, bytes   int
}

const (
	keptMessageOverhead = 100
	// keptTopicOverhead is the memory in bytes of a topic with messages.
	keptTopicOverhead = 64 + 48
	maxDroppedTopics  = 1 << 16
	maxExpiredDrops   = 1000
	maxDropWork       = 4_000 // see newestDroppedSeqOfPatternsLocked
)

func (m *keptMessage) memoryBytes() int { return len(m.topic.name) + len(m.data) + keptMessageOverhead }

// KeptMessage is a stored message.
type KeptMessage struct {
	At    Position
	Time  time.Time // when the stream stored the message
	Topic string
	Data  []byte // must not change
	// Old marks a message that was stored before this node started. KeepAndDeliver does not send it to subscribers.
	Old bool
}

// Begin discards all stored messages and starts a new stream. firstSeq is the first message's sequence number. Clients
// that resume must wait until SetLoaded is called. Only an implementation of Cluster may call Begin and SetLoaded.
func (r *Replay) Begin(epoch string, firstSeq uint64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.clearAndBeginStreamLocked(epoch, firstSeq)
}

func (m *replayBuffer) clearAndBeginStreamLocked(epoch string, firstSeq uint64) {
	m.ready, m.newestPos = false, Position{epoch, firstSeq - 1}
	m.messages, m.head, m.live, m.bytes, m.topics, m.maxTopics = nil, 0, 0, 0, make(map[string]*keptTopic), 0
	m.newestDropped, m.droppedFloor, m.maxDropped = make(map[string]uint64), firstSeq-1, firstSeq-1
}

// SetLoaded declares that the stream is loaded. Call SetLoaded after KeepAndDeliver was called for all messages up to
// lastSeq. Clients that wait to resume can then continue.
func (r *Replay) SetLoaded(lastSeq uint64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.readyLocked(lastSeq)
}

func (m *replayBuffer) readyLocked(seq uint64) {
	m.ready, m.newestPos.Seq = true, max(m.newestPos.Seq, seq)
	m.wakePositionWaitersLocked()
}

// At returns the position of the newest message. Until the stream is loaded, ready is false.
func (r *Replay) At() (newest Position, ready bool) {
	r.mu.RLock()
	defer r.mu.RUnlock()
	return r.newestPos, r.ready
}

// KeepAndDeliver stores the next message of the stream. It sends the message to this hub's subscribers and returns the
// number of receivers. A message with Old set is only stored. If m skips a sequence number, all earlier messages are
// discarded, and clients are notified of a gap.
func (h *Hub) KeepAndDeliver(m KeptMessage) (receivers int) {
	r := h.Replay
	r.mu.Lock()
	defer r.mu.Unlock()
	if m.At.Seq > r.newestPos.Seq+1 {
		r.clearAndSendGapNoticeLocked(h, Position{m.At.Epoch, m.At.Seq - 1})
	}
	return h.keepAndDeliverLocked(m)
}

func (h *Hub) keepAndDeliverLocked(m KeptMessage) (receivers int) {
	r := h.Replay
	r.newestPos = m.At
	r.addWithinTopicLimitsLocked(m.At.Seq, m.Time, m.Topic, m.Data)
	r.dropBeyondLimitsLocked(m.Time, maxExpiredDrops)
	r.wakePositionWaitersLocked()
	if m.Old {
		return 0
	}
	return h.deliverAndStoreLastValue(Topic, m.Topic, m.Data, m.At.String())
}

// clearAndSendGapNoticeLocked discards all stored messages, and notifies clients that messages up to newest may be
// missing.
func (r *Replay) clearAndSendGapNoticeLocked(hub *Hub, newest Position) {
	ready := r.ready
	r.clearAndBeginStreamLocked(newest.Epoch, newest.Seq+1)
	if !ready {
		return
	}
	r.ready = true
	r.gaps.Add(1)
	for _, k := range []Kind{Topic, Pattern} {
		hub.tableForKind(k).eachTopic(func(t *topic) bool {
			if r.keepsAny(k, t.name) {
				t.broadcastEncoded(func(f messageFormat, dst []byte) []byte {
					return f.appendGapNoticeUnlessRESP(dst, []*topic{t}, r.newestPos)
				})
			}
			return true
		})
	}
}

func (m *replayBuffer) wakePositionWaitersLocked() {
	if m.advanced != nil {
		close(m.advanced)
		m.advanced = nil
	}
}

// DropExpired drops stored messages that are older than MaxAge.
func (r *Replay) DropExpired(now time.Time) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.dropBeyondLimitsLocked(now, math.MaxInt)
}

// dropBeyondLimitsLocked drops the oldest messages until no limit is exceeded. However, it drops at most maxExpired
// messages for the sole reason that they are older than MaxAge.
func (r *Replay) dropBeyondLimitsLocked(now time.Time, maxExpired int) {
	bytes, messages, age := r.Bounds()
	for n := 0; r.live > 0; n++ {
		old := r.messages[r.head]
		if r.live <= messages && r.bytes <= bytes && (n >= maxExpired || now.Sub(time.Unix(0, old.when)) <= age) {
			break
		}
		r.dropOldestOfLocked(old.topic)
	}
}

// addWithinTopicLimitsLocked stores a message. If the topic then exceeds MaxMessagesPerTopic or MaxBytesPerTopic, it
// drops the topic's oldest messages.
func (r *Replay) addWithinTopicLimitsLocked(seq uint64, when time.Time, name string, data []byte) {
	t := r.topics[name]
	if t == nil {
		t = &keptTopic{name: strings.Clone(name)}
		r.topics[t.name] = t
		r.bytes += keptTopicOverhead
		r.maxTopics = max(r.maxTopics, len(r.topics))
	}
	m := &keptMessage{seq: seq, when: when.UnixNano(), topic: t, data: data}
	if t.oldest == nil {
		t.oldest = m
	} else {
		t.newest.newer = m
	}
	t.newest = m
	t.count++
	t.bytes += m.memoryBytes()
	r.bytes += m.memoryBytes()
	r.live++
	r.messages = append(r.messages, m)
	for t.count > cmp.Or(r.MaxMessagesPerTopic, t.count) || t.bytes > cmp.Or(r.MaxBytesPerTopic, t.bytes) {
		r.dropOldestOfLocked(t)
	}
}

func (m *replayBuffer) dropOldestOfLocked(t *keptTopic) {
	old := t.oldest
	t.count--
	t.bytes -= old.memoryBytes()
	m.bytes -= old.memoryBytes()
	m.live--
	if t.oldest = old.newer; t.oldest == nil {
		m.bytes -= keptTopicOverhead
		if delete(m.topics, t.name); len(m.topics) < m.maxTopics/4 {
			all := m.topics
			m.topics, m.maxTopics = make(map[string]*keptTopic, len(all)), len(all)
			maps.Copy(m.topics, all)
		}
	}
	*old = keptMessage{seq: old.seq}
	m.recordNewestDroppedLocked(t.name, old.seq)
	m.skipOrCompactDropped()
}

func (m *replayBuffer) recordNewestDroppedLocked(topic string, seq uint64) {
	if len(m.newestDropped) >= maxDroppedTopics {
		m.newestDropped, m.droppedFloor = make(map[string]uint64), m.maxDropped
	}
	m.newestDropped[topic] = seq
	m.maxDropped = max(m.maxDropped, seq)
}

// skipOrCompactDropped removes the dropped messages at the beginning of m.messages. If more than half of the elements
// are dropped messages, it removes all dropped messages.
func (m *replayBuffer) skipOrCompactDropped() {
	for m.head < len(m.messages) && m.messages[m.head].topic == nil {
		m.messages[m.head] = nil
		m.head++
	}
	if len(m.messages) <= 2*m.live {
		return
	}
	kept := make([]*keptMessage, 0, 2*m.live)
	for _, message := range m.messages[m.head:] {
		if message.topic != nil {
			kept = append(kept, message)
		}
	}
	m.messages, m.head = kept, 0
}

func (m *replayBuffer) firstOrNextSeqLocked() uint64 {
	if m.head < len(m.messages) {
		return m.messages[m.head].seq
	}
	return m.newestPos.Seq + 1
}

// messagesAndDropMarksAfterLocked returns the elements of m.messages after the sequence number seq. An element with a
// nil topic stands for a dropped message. The caller must skip such elements.
func (m *replayBuffer) messagesAndDropMarksAfterLocked(seq uint64) []*keptMessage {
	all := m.messages[m.head:]
	i, _ := slices.BinarySearchFunc(all, seq+1, func(k *keptMessage, seq uint64) int { return cmp.Compare(k.seq, seq) })
	return all[i:]
}

// newestDroppedSeqLocked returns an upper bound for the sequence number of the topic's newest dropped message.
func (m *replayBuffer) newestDroppedSeqLocked(topic string) (upperBound uint64) {
	return max(m.droppedFloor, m.newestDropped[topic])
}

// newestDroppedSeqOfPatternsLocked returns an upper bound for the sequence number of the newest dropped message that
// matches a pattern. If the result is at most afterSeq, no matching message after afterSeq was dropped.
func (m *replayBuffer) newestDroppedSeqOfPatternsLocked(patterns []topicPattern, afterSeq uint64) (upperBound uint64) {
	if len(patterns) == 0 || m.maxDropped <= afterSeq {
		return 0
	}
	upperBound = m.droppedFloor
	work := 0
	for name, dropped := range m.newestDropped {
		work++
		for i := 0; i < len(patterns) && dropped > max(upperBound, afterSeq); i++ {
			if work += patterns[i].maxMatchWork(len(name)); patterns[i].matches(name) {
				upperBound = dropped
			}
		}
		if work > maxDropWork {
			return m.maxDropped
		}
	}
	return upperBound
}

// ReplayStats contains a Replay's current state, and its counters since the hub started.
type ReplayStats struct {
	// Ready reports whether the messages of the stream are loaded. Seq is the newest sequence number. Messages and
	// Bytes are the number and the total size of the stored messages.
	Ready           bool
	Seq             uint64
	Messages, Bytes int64
	// Waiting is the number of clients that wait for a replay or receive one now. Replays counts replays that were not
	// small enough to run at once. Replayed counts messages sent in replays. Gaps counts notices about messages that
	// are no longer available. Refused counts clients that were told to try again.
	Waiting, Replays, Replayed, Gaps, Refused int64
	// Unissued counts clients that sent an id that no node has assigned. Stalled counts replays that stopped because
	// the client did not read.
	Unissued, Stalled int64
}

func (r *Replay) stats() *ReplayStats {
	limits := r.initLimitersOnce()
	r.mu.RLock()
	defer r.mu.RUnlock()
	return &ReplayStats{
		Ready: r.ready, Seq: r.newestPos.Seq, Messages: int64(r.live), Bytes: int64(r.bytes),
		Waiting: int64(limits.queue.slotsInUse() + limits.early.slotsInUse()), Replays: r.replays.Load(), Replayed: r.replayed.Load(),
		Gaps: r.gaps.Load(), Refused: r.refused.Load(), Unissued: r.unissued.Load(), Stalled: r.stalled.Load(),
	}
}
