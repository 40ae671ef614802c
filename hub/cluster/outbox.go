package cluster

import (
	"strconv"
	"sync"

	"github.com/myriad-go/myriad/hub"
)

// outbox queues messages for other nodes in the order of publication.
type outbox struct {
	boundedQueue
	queued    []outgoing // not yet dequeued
	sequencer sequencer
}

// boundedQueue limits and counts the messages of an outbox or a streamPublisher.
type boundedQueue struct {
	maxMessages, maxBytes int

	mu             sync.Mutex
	available      sync.Cond // signals a new message, the end of a pause, and the closing of the queue
	waiting, bytes int
	lost           int64
	paused         bool // nothing is dequeued until unpause or close
	closed         bool
}

func (q *boundedQueue) init(maxMessages, maxBytes int) {
	q.maxMessages, q.maxBytes, q.available.L = maxMessages, maxBytes, &q.mu
}

func (q *boundedQueue) isFullLocked(newBytes int) bool {
	return q.waiting >= q.maxMessages || q.bytes+newBytes > q.maxBytes
}

func (q *boundedQueue) uncountMessageLocked(m *outgoing, lost bool) {
	q.waiting--
	q.bytes -= m.memoryBytes()
	if lost {
		q.lost++
	}
}

func (q *boundedQueue) unpause() (wasPaused bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	wasPaused, q.paused = q.paused, false
	q.available.Broadcast()
	return wasPaused
}

func (q *boundedQueue) close() {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.closed = true
	q.available.Broadcast()
}

func (q *boundedQueue) stats() (waiting, bytes, lost int64) {
	q.mu.Lock()
	defer q.mu.Unlock()
	return int64(q.waiting), int64(q.bytes), q.lost
}

type outgoing struct {
	subject, id string
	escapedName string // "" if the subject contains the name
	data        []byte
}

func (m *outgoing) memoryBytes() int {
	return len(m.subject) + len(m.id) + len(m.escapedName) + len(m.data) + 100
}

func newOutbox(origin string, maxMessages, maxBytes int) *outbox {
	o := &outbox{sequencer: sequencer{origin: origin}}
	o.init(maxMessages, maxBytes)
	return o
}

// enqueueOrCountLost enqueues the message. If the outbox is full or closed, it counts the message as lost instead.
func (o *outbox) enqueueOrCountLost(kind hub.Kind, name string, message []byte) {
	subject, long := topicSubject(kind, name)
	m := outgoing{subject: subject}
	if long {
		m.escapedName, _ = escapeName(name)
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	// A lost message uses up a sequence number, so that receivers notice the loss.
	m.id = o.sequencer.nextSequenceHeader(subject)
	size := m.memoryBytes() + len(message)
	if o.closed || o.isFullLocked(size) {
		o.lost++
		return
	}
	m.data = append([]byte(nil), message...)
	o.waiting++
	o.bytes += size
	o.queued = append(o.queued, m)
	if len(o.queued) == 1 {
		o.available.Signal()
	}
}

// waitAndDequeueAll waits until the outbox has messages and is not paused. It then removes all messages and returns
// them. If the outbox is closed, it does not wait. The outbox uses the memory of emptyQueue for later messages.
func (o *outbox) waitAndDequeueAll(emptyQueue []outgoing) []outgoing {
	o.mu.Lock()
	defer o.mu.Unlock()
	for (o.paused || len(o.queued) == 0) && !o.closed {
		o.available.Wait()
	}
	taken := o.queued
	o.queued = emptyQueue[:0]
	return taken
}

func (o *outbox) releaseSpaceCountingLost(m *outgoing, sent bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.uncountMessageLocked(m, !sent)
}

// sequencer numbers the messages that this node sends, separately for each topic.
type sequencer struct {
	origin string
	era    int               // incremented when the numbers restart
	newest map[string]uint64 // by subject
}

const maxSequencedTopics = 1 << 18

func (n *sequencer) nextSequenceHeader(subject string) string {
	number, ok := n.newest[subject]
	if !ok && len(n.newest) >= maxSequencedTopics || n.newest == nil {
		n.newest = make(map[string]uint64)
		n.era++
		number = 0
	}
	n.newest[subject] = number + 1
	b := make([]byte, 0, 48)
	b = append(b, n.origin...)
	b = append(b, '.')
	b = strconv.AppendInt(b, int64(n.era), 36)
	b = append(b, ' ')
	return string(strconv.AppendUint(b, number+1, 10))
}
