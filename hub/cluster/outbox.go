package cluster

import (
	"strconv"
	"sync"

	"github.com/myriad-go/myriad/hub"
)

// outbox is the messages that wait to be passed on, in the order in which they were published.
// Event loops put them in, and do not wait; the sender takes them out. It has a bound on their
// number and their bytes: there is no room for what comes then, which is lost.
type outbox struct {
	maxMessages, maxBytes int

	mu        sync.Mutex
	available *sync.Cond // there is something, or it is closed
	queued    []outgoing // what the sender has taken is not in it
	bytes     int        // in first, and of what the sender has taken and not sent
	inFlight  int        // messages that the sender has taken and not sent
	sequencer sequencer
	lost      int64
	paused    bool // the sender gets nothing until release or close
	closed    bool
}

// outgoing is a message that waits.
type outgoing struct {
	subject, id string
	escapedName string // if the subject does not tell it
	data        []byte
}

// memoryBytes is about what it takes of memory.
func (m *outgoing) memoryBytes() int {
	return len(m.subject) + len(m.id) + len(m.escapedName) + len(m.data) + 100
}

func newOutbox(origin string, maxMessages, maxBytes int) *outbox {
	o := &outbox{maxMessages: maxMessages, maxBytes: maxBytes, sequencer: sequencer{origin: origin}}
	o.available = sync.NewCond(&o.mu)
	return o
}

// enqueue adds a message. One for which there is no room takes a number, too: the others see by it
// that they have lost something.
func (o *outbox) enqueue(kind hub.Kind, name string, message []byte) {
	subject, long := topicSubject(kind, name)
	m := outgoing{subject: subject}
	if long {
		m.escapedName, _ = escapeTokens(name)
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	m.id = o.sequencer.nextSequence(subject)
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

// dequeueAll waits for messages and gives all that there are, with room for the next. It gives none
// once the outbox is closed and empty.
func (o *outbox) dequeueAll(reuse []outgoing) []outgoing {
	o.mu.Lock()
	defer o.mu.Unlock()
	for (o.paused || len(o.queued) == 0) && !o.closed {
		o.available.Wait()
	}
	taken := o.queued
	o.queued = reuse[:0]
	o.inFlight = len(taken)
	return taken
}

// unpause ends what held has begun. It reports whether the outbox was held.
func (o *outbox) unpause() (wasPaused bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	wasPaused, o.paused = o.paused, false
	o.available.Signal()
	return wasPaused
}

// complete says what has become of a message that was taken.
func (o *outbox) complete(m *outgoing, ok bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.inFlight--
	o.bytes -= m.memoryBytes()
	if !ok {
		o.lost++
	}
}

// close has nothing more put in.
func (o *outbox) close() {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.closed = true
	o.available.Signal()
}

func (o *outbox) stats() (waiting, bytes, unsent int64) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return int64(len(o.queued) + o.inFlight), int64(o.bytes), o.lost
}

// sequencer are those of the newest message of each topic that this node has published to. When
// there are too many, all begin again, for an origin of another name.
type sequencer struct {
	origin string
	era    int
	newest map[string]uint64 // by subject
}

// maxSequencedTopics is the most topics whose messages are numbered on.
const maxSequencedTopics = 1 << 18

// nextSequence is the number of the next message: the origin, a space, and how many there were before
// and this one.
func (n *sequencer) nextSequence(subject string) string {
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
