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

// streamPublisher queues messages to be stored in the replay stream. Event loops enqueue without waiting. Several
// goroutines dequeue and publish. A message is published again until NATS confirms it or publishTimeout has passed.
// Message ids prevent duplicates. At most one message per topic is in flight, which preserves the order. If the queue
// is full, further messages are rejected.
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
	publisherGoroutines = 64
	// publishTimeout limits the time to publish a message, publishAttemptTimeout the time of one attempt. The stream
	// recognizes duplicates for twice publishTimeout.
	publishTimeout        = time.Minute
	publishAttemptTimeout = 5 * time.Second
	publishRetryDelay     = 100 * time.Millisecond
)

func newStreamPublisher(origin string, maxMessages, maxBytes int) *streamPublisher {
	p := &streamPublisher{origin: origin, maxMessages: maxMessages, maxBytes: maxBytes, topics: make(map[string][]outgoing)}
	p.available = sync.NewCond(&p.mu)
	return p
}

func (p *streamPublisher) enqueue(topic string, message []byte) error {
	subject, long := topicSubject(hub.Topic, topic)
	m := outgoing{subject: subject, data: append([]byte(nil), message...)}
	if long {
		m.escapedName, _ = escapeName(topic)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	m.id = p.origin + "." + strconv.FormatUint(p.lastNumber+1, 36)
	switch {
	case p.closed:
		return errors.New("the hub is leaving the cluster")
	case p.waiting >= p.maxMessages || p.bytes+m.memoryBytes() > p.maxBytes:
		return fmt.Errorf("%d messages of %d bytes wait for the stream already", p.waiting, p.bytes)
	}
	p.lastNumber++
	p.waiting++
	p.bytes += m.memoryBytes()
	p.topics[subject] = append(p.topics[subject], m)
	if len(p.topics[subject]) == 1 {
		p.ready = append(p.ready, subject)
		p.available.Signal()
	}
	return nil
}

// dequeue waits for a message whose topic has no other message in flight. Once the publisher is closed and empty, ok is
// false.
func (p *streamPublisher) dequeue() (m outgoing, ok bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for (p.paused || len(p.ready) == 0) && !p.closed {
		p.available.Wait()
	}
	if len(p.ready) == 0 {
		return m, false
	}
	subject := p.ready[0]
	p.ready = p.ready[1:]
	return p.topics[subject][0], true
}

func (p *streamPublisher) unpause() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.paused = false
	p.available.Broadcast()
}

// removePublishedAndReadyNext removes a dequeued message and makes the next message of the same topic available. If
// publishErr is not nil, the removed message counts as lost.
func (p *streamPublisher) removePublishedAndReadyNext(m *outgoing, publishErr error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.waiting--
	p.bytes -= m.memoryBytes()
	if publishErr != nil {
		p.lost++
	}
	rest := p.topics[m.subject]
	rest[0] = outgoing{}
	if rest = rest[1:]; len(rest) == 0 {
		delete(p.topics, m.subject)
		return
	}
	p.topics[m.subject] = rest
	p.ready = append(p.ready, m.subject)
	p.available.Signal()
}

func (p *streamPublisher) publishLoop(ctx context.Context) {
	for {
		m, ok := p.dequeue()
		if !ok {
			return
		}
		p.removePublishedAndReadyNext(&m, p.publishWithRetries(ctx, &m))
	}
}

func (p *streamPublisher) publishWithRetries(ctx context.Context, m *outgoing) error {
	limited, cancel := context.WithTimeout(ctx, publishTimeout)
	defer cancel()
	for {
		err := p.publish(limited, m)
		if err == nil {
			return nil
		}
		if !isRetryablePublishError(err) || limited.Err() != nil {
			if ctx.Err() == nil {
				p.warn("message not stored, lost: %v", err)
			}
			return err
		}
		select {
		case <-limited.Done():
		case <-time.After(publishRetryDelay):
		}
	}
}

func isRetryablePublishError(err error) bool {
	var refused *jetstream.APIError
	return !errors.Is(err, nats.ErrMaxPayload) && (!errors.As(err, &refused) || refused.Code != 400)
}

func (p *streamPublisher) close() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.closed = true
	p.available.Broadcast()
}

func (p *streamPublisher) stats() (waiting, bytes, lost int64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return int64(p.waiting), int64(p.bytes), p.lost
}
