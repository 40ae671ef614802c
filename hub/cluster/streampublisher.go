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

// streamPublisher queues messages to be stored in the replay stream. Event loops enqueue without
// waiting; goroutines publish and retry until NATS confirms or the message times out. Only one
// message of a topic is in flight, which preserves order. Message ids prevent duplicates. Messages
// beyond the limits are rejected.
type streamPublisher struct {
	maxMessages, maxBytes int
	origin                string
	publish               func(ctx context.Context, m *outgoing) error
	warn                  func(format string, v ...any)

	mu         sync.Mutex
	available  *sync.Cond            // signals messages, or the end
	topics     map[string][]outgoing // queues by subject; the first message may be in flight
	ready      []string              // subjects with messages but none in flight
	waiting    int
	bytes      int
	lastNumber uint64
	lost       int64
	paused     bool // dequeue waits until unpause or close
	closed     bool
}

const (
	// publisherGoroutines is the number of messages in flight.
	publisherGoroutines = 64
	// publishTimeout limits the time to publish a message, publishAttemptTimeout one attempt. The
	// stream recognizes duplicates for twice as long.
	publishTimeout        = time.Minute
	publishAttemptTimeout = 5 * time.Second
	publishRetryDelay     = 100 * time.Millisecond
)

func newStreamPublisher(origin string, maxMessages, maxBytes int) *streamPublisher {
	k := &streamPublisher{origin: origin, maxMessages: maxMessages, maxBytes: maxBytes, topics: make(map[string][]outgoing)}
	k.available = sync.NewCond(&k.mu)
	return k
}

// enqueue adds a message. It fails if a limit is exceeded.
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

// dequeue waits for a message whose topic has none in flight. ok is false once the publisher is
// closed and empty.
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

func (k *streamPublisher) unpause() {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.paused = false
	k.available.Broadcast()
}

// complete removes a dequeued message and readies the next one of its topic. With an error, the
// message counts as lost.
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

// publishLoop publishes messages until the publisher is closed and empty, or ctx ends.
func (k *streamPublisher) publishLoop(ctx context.Context) {
	for {
		m, ok := k.dequeue()
		if !ok {
			return
		}
		k.complete(&m, k.publishWithRetries(ctx, &m))
	}
}

// publishWithRetries publishes a message, retrying until publishTimeout.
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

// isRetryable reports whether publishing may succeed later.
func isRetryable(err error) bool {
	var refused *jetstream.APIError
	return !errors.Is(err, nats.ErrMaxPayload) && (!errors.As(err, &refused) || refused.Code != 400)
}

// close makes enqueue fail.
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
