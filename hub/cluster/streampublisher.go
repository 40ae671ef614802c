package cluster

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/myriad-go/myriad/hub"
)

// streamPublisher is the messages that wait to be taken by the stream. Event loops put them in, and do not wait;
// some goroutines have the stream take them, and try again until it has, or the time of a message is
// over. Of a topic one message is under way at a time, so that they keep their order; each has an id, by which
// the stream takes it once. It has a bound on their number and their bytes: what comes then is refused.
type streamPublisher struct {
	maxMessages, maxBytes int
	origin                string
	publish               func(ctx context.Context, m *outgoing) error
	warn                  func(format string, v ...any)

	mu         sync.Mutex
	available  *sync.Cond            // there is something, or it is closed
	topics     map[string][]outgoing // that wait, by subject; the first one may be under way
	ready      []string              // subjects of which none is under way
	waiting    int
	bytes      int
	lastNumber uint64 // of the newest message
	lost       int64
	paused     bool // nothing is taken until release or close
	closed     bool
}

const (
	// publisherGoroutines is how many messages are under way at a time.
	publisherGoroutines = 64
	// publishTimeout is how long a message is tried, and publishAttemptTimeout one time. The stream knows a message again for
	// twice as long.
	publishTimeout        = time.Minute
	publishAttemptTimeout = 5 * time.Second
	publishRetryDelay     = 100 * time.Millisecond
)

func newStreamPublisher(origin string, maxMessages, maxBytes int) *streamPublisher {
	k := &streamPublisher{origin: origin, maxMessages: maxMessages, maxBytes: maxBytes, topics: make(map[string][]outgoing)}
	k.available = sync.NewCond(&k.mu)
	return k
}

// enqueue adds a message, if there is room.
func (k *streamPublisher) enqueue(topic string, message []byte) error {
	subject, long := topicSubject(hub.Topic, topic)
	m := outgoing{subject: subject, data: append([]byte(nil), message...)}
	if long {
		m.escapedName, _ = escapeTokens(topic)
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	m.id = k.origin + "." + strconv.FormatUint(k.lastNumber+1, 36)
	switch {
	case k.closed:
		return errors.New("the hub leaves the cluster")
	case k.waiting >= k.maxMessages || k.bytes+m.memoryBytes() > k.maxBytes:
		return fmt.Errorf("%d messages wait for the stream already, of %d bytes; expected it to take them", k.waiting, k.bytes)
	}
	k.lastNumber++
	k.waiting++
	k.bytes += m.memoryBytes()
	k.topics[subject] = append(k.topics[subject], m)
	if len(k.topics[subject]) == 1 {
		k.ready = append(k.ready, subject)
		k.available.Signal()
	}
	return nil
}

// dequeue waits for a message of which no other of its topic is under way. ok is false when there is none and
// the keeper is closed.
func (k *streamPublisher) dequeue() (m outgoing, ok bool) {
	k.mu.Lock()
	defer k.mu.Unlock()
	for (k.paused || len(k.ready) == 0) && !k.closed {
		k.available.Wait()
	}
	if len(k.ready) == 0 {
		return m, false
	}
	subject := k.ready[0]
	k.ready = k.ready[1:]
	return k.topics[subject][0], true
}

// unpause ends what held has begun.
func (k *streamPublisher) unpause() {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.paused = false
	k.available.Broadcast()
}

// complete says what has become of a message that was taken.
func (k *streamPublisher) complete(m *outgoing, err error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.waiting--
	k.bytes -= m.memoryBytes()
	if err != nil {
		k.lost++
	}
	rest := k.topics[m.subject]
	rest[0] = outgoing{}
	if rest = rest[1:]; len(rest) == 0 {
		delete(k.topics, m.subject)
		return
	}
	k.topics[m.subject] = rest
	k.ready = append(k.ready, m.subject)
	k.available.Signal()
}

// publishLoop has the stream take messages until the keeper is closed and none is left, or ctx ends.
func (k *streamPublisher) publishLoop(ctx context.Context) {
	for {
		m, ok := k.dequeue()
		if !ok {
			return
		}
		k.complete(&m, k.publishWithRetries(ctx, &m))
	}
}

// publishWithRetries has the stream take a message.
func (k *streamPublisher) publishWithRetries(ctx context.Context, m *outgoing) error {
	limited, cancel := context.WithTimeout(ctx, publishTimeout)
	defer cancel()
	for {
		err := k.publish(limited, m)
		if err == nil {
			return nil
		}
		if !isRetryable(err) || limited.Err() != nil {
			if ctx.Err() == nil {
				k.warn("a message is not kept, and lost: %v", err)
			}
			return err
		}
		select {
		case <-limited.Done():
		case <-time.After(publishRetryDelay):
		}
	}
}

// isRetryable says whether an error may be none the next time.
func isRetryable(err error) bool {
	var refused *jetstream.APIError
	return !errors.Is(err, nats.ErrMaxPayload) && (!errors.As(err, &refused) || refused.Code != 400)
}

// close has nothing more put in.
func (k *streamPublisher) close() {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.closed = true
	k.available.Broadcast()
}

func (k *streamPublisher) stats() (waiting, bytes, lost int64) {
	k.mu.Lock()
	defer k.mu.Unlock()
	return int64(k.waiting), int64(k.bytes), k.lost
}
