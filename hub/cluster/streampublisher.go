package cluster

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/myriad-go/myriad/hub"
)

// streamPublisher queues messages and publishes them to the replay stream, one at a time for each topic.
type streamPublisher struct {
	boundedQueue
	origin     string
	publish    func(ctx context.Context, m *outgoing) error
	warn       func(format string, v ...any)
	topics     map[string][]outgoing // queues by subject; the first message may be in flight
	ready      []string              // subjects with messages but none in flight
	lastNumber uint64
}

const (
	publisherGoroutines = 64
	// publishTimeout limits the time to publish a message. publishAttemptTimeout limits one attempt.
	publishTimeout        = time.Minute
	publishAttemptTimeout = 5 * time.Second
	publishRetryDelay     = 100 * time.Millisecond
)

func newStreamPublisher(origin string, maxMessages, maxBytes int) *streamPublisher {
	p := &streamPublisher{origin: origin, topics: make(map[string][]outgoing)}
	p.init(maxMessages, maxBytes)
	return p
}

func (p *streamPublisher) enqueue(topic string, message []byte) (closedOrFullErr error) {
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
	case p.isFullLocked(m.memoryBytes()):
		return fmt.Errorf("%d messages with %d bytes are already waiting to be stored; try again later", p.waiting, p.bytes)
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

// waitAndPeekReadyMessage waits for a message that can be published now, and returns it without removing it from its
// queue. If the publisher is closed and no message is ready, ok is false.
func (p *streamPublisher) waitAndPeekReadyMessage() (m outgoing, ok bool) {
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

// removeCountingLostAndReadyNext removes m, which must be the first message in the queue of its topic. The next message
// of the topic becomes ready. If publishErr is not nil, m counts as lost.
func (p *streamPublisher) removeCountingLostAndReadyNext(m *outgoing, publishErr error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.uncountMessageLocked(m, publishErr != nil)
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

func (p *streamPublisher) publishUntilClosedAndEmpty(ctx context.Context) {
	for {
		m, ok := p.waitAndPeekReadyMessage()
		if !ok {
			return
		}
		p.removeCountingLostAndReadyNext(&m, p.publishWithRetriesUntilTimeout(ctx, &m))
	}
}

func (p *streamPublisher) publishWithRetriesUntilTimeout(ctx context.Context, m *outgoing) error {
	limited, cancel := context.WithTimeout(ctx, publishTimeout)
	defer cancel()
	for {
		err := p.publish(limited, m)
		if err == nil {
			return nil
		}
		if !isRetryablePublishError(err) || limited.Err() != nil {
			if ctx.Err() == nil {
				p.warn("message lost, because the stream did not store it: %v", err)
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
