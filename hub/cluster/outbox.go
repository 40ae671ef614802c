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
	mostMessages, mostBytes int

	mu      sync.Mutex
	ready   *sync.Cond // there is something, or it is closed
	first   []outgoing // what the sender has taken is not in it
	bytes   int        // in first, and of what the sender has taken and not sent
	taken   int        // messages that the sender has taken and not sent
	numbers numbers
	unsent  int64
	held    bool // the sender gets nothing until release or close
	closed  bool
}

// outgoing is a message that waits.
type outgoing struct {
	subject, number string
	name            string // if the subject does not tell it
	data            []byte
}

// size is about what it takes of memory.
func (m *outgoing) size() int {
	return len(m.subject) + len(m.number) + len(m.name) + len(m.data) + 100
}

func newOutbox(origin string, mostMessages, mostBytes int) *outbox {
	o := &outbox{mostMessages: mostMessages, mostBytes: mostBytes, numbers: numbers{origin: origin}}
	o.ready = sync.NewCond(&o.mu)
	return o
}

// put adds a message. One for which there is no room takes a number, too: the others see by it
// that they have lost something.
func (o *outbox) put(k hub.Kind, name string, message []byte) {
	subject, long := subjectOf(k, name)
	m := outgoing{subject: subject}
	if long {
		m.name, _ = tokens(name)
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	m.number = o.numbers.next(subject)
	size := m.size() + len(message)
	if o.closed || len(o.first)+o.taken >= o.mostMessages || o.bytes+size > o.mostBytes {
		o.unsent++
		return
	}
	m.data = append([]byte(nil), message...)
	o.bytes += size
	o.first = append(o.first, m)
	if len(o.first) == 1 {
		o.ready.Signal()
	}
}

// take waits for messages and gives all that there are, with room for the next. It gives none
// once the outbox is closed and empty.
func (o *outbox) take(room []outgoing) []outgoing {
	o.mu.Lock()
	defer o.mu.Unlock()
	for (o.held || len(o.first) == 0) && !o.closed {
		o.ready.Wait()
	}
	taken := o.first
	o.first = room[:0]
	o.taken = len(taken)
	return taken
}

// release ends what held has begun. It reports whether the outbox was held.
func (o *outbox) release() (held bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	held, o.held = o.held, false
	o.ready.Signal()
	return held
}

// sent says what has become of a message that was taken.
func (o *outbox) sent(m *outgoing, ok bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.taken--
	o.bytes -= m.size()
	if !ok {
		o.unsent++
	}
}

// close has nothing more put in.
func (o *outbox) close() {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.closed = true
	o.ready.Signal()
}

func (o *outbox) stats() (waiting, bytes, unsent int64) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return int64(len(o.first) + o.taken), int64(o.bytes), o.unsent
}

// numbers are those of the newest message of each topic that this node has published to. When
// there are too many, all begin again, for an origin of another name.
type numbers struct {
	origin string
	era    int
	newest map[string]uint64 // by subject
}

// maxNumbers is the most topics whose messages are numbered on.
const maxNumbers = 1 << 18

// next is the number of the next message: the origin, a space, and how many there were before
// and this one.
func (n *numbers) next(subject string) string {
	number, ok := n.newest[subject]
	if !ok && len(n.newest) >= maxNumbers || n.newest == nil {
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
