package cluster

import (
	"strconv"
	"sync"

	"github.com/myriad-go/myriad/hub"
)

// outbox queues messages to be sent, in the order of publication. Event loops enqueue without waiting; one sender
// dequeues. Messages that exceed the limits of the outbox are lost.
type outbox struct {
	maxMessages, maxBytes int

	mu        sync.Mutex
	available *sync.Cond // signals messages, or the end
	queued    []outgoing // not yet dequeued
	bytes     int        // of queued and in-flight messages
	inFlight  int        // dequeued but not completed
	sequencer sequencer
	lost      int64
	paused    bool // waitAndDequeueAll waits until unpause or close
	closed    bool
}

type outgoing struct {
	subject, id string
	escapedName string // "" if the subject contains it
	data        []byte
}

func (m *outgoing) memoryBytes() int {
	return len(m.subject) + len(m.id) + len(m.escapedName) + len(m.data) + 100
}

func newOutbox(origin string, maxMessages, maxBytes int) *outbox {
	o := &outbox{maxMessages: maxMessages, maxBytes: maxBytes, sequencer: sequencer{origin: origin}}
	o.available = sync.NewCond(&o.mu)
	return o
}

// enqueueOrCountLost adds a message. If the message does not fit, it counts as lost. A lost message still uses up a
// sequence number, so that receivers notice the loss.
func (o *outbox) enqueueOrCountLost(kind hub.Kind, name string, message []byte) {
	subject, long := topicSubject(kind, name)
	m := outgoing{subject: subject}
	if long {
		m.escapedName, _ = escapeName(name)
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	m.id = o.sequencer.nextSequenceHeader(subject)
	size := m.memoryBytes() + len(message)
	if o.closed || len(o.queued)+o.inFlight >= o.maxMessages || o.bytes+size > o.maxBytes {
		o.lost++
		return
	}
	m.data = append([]byte(nil), message...)
	o.bytes += size
	o.queued = append(o.queued, m)
	if len(o.queued) == 1 {
		o.available.Signal()
	}
}

// waitAndDequeueAll waits for messages and returns all of them. Once the outbox is closed and empty, the result is
// empty. The outbox uses the memory of emptyQueue for later messages.
func (o *outbox) waitAndDequeueAll(emptyQueue []outgoing) []outgoing {
	o.mu.Lock()
	defer o.mu.Unlock()
	for (o.paused || len(o.queued) == 0) && !o.closed {
		o.available.Wait()
	}
	taken := o.queued
	o.queued = emptyQueue[:0]
	o.inFlight = len(taken)
	return taken
}

func (o *outbox) unpause() (wasPaused bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	wasPaused, o.paused = o.paused, false
	o.available.Signal()
	return wasPaused
}

func (o *outbox) recordSendResult(m *outgoing, sent bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.inFlight--
	o.bytes -= m.memoryBytes()
	if !sent {
		o.lost++
	}
}

func (o *outbox) close() {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.closed = true
	o.available.Signal()
}

func (o *outbox) stats() (waiting, bytes, lost int64) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return int64(len(o.queued) + o.inFlight), int64(o.bytes), o.lost
}

// sequencer numbers the messages that this node sends, separately for each topic. When there are more than
// maxSequencedTopics topics, a new era begins, and all numbers restart.
type sequencer struct {
	origin string
	era    int
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
