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

// keeper is the messages that wait to be taken by the stream. Event loops put them in, and do not wait;
// some goroutines have the stream take them, and try again until it has, or the time of a message is
// over. Of a topic one message is under way at a time, so that they keep their order; each has an id, by which
// the stream takes it once. It has a bound on their number and their bytes: what comes then is refused.
type keeper struct {
	mostMessages, mostBytes int
	origin                  string
	store                   func(ctx context.Context, m *outgoing) error
	warn                    func(format string, v ...any)

	mu      sync.Mutex
	work    *sync.Cond            // there is something, or it is closed
	topics  map[string][]outgoing // that wait, by subject; the first one may be under way
	ready   []string              // subjects of which none is under way
	waiting int
	bytes   int
	number  uint64 // of the newest message
	lost    int64
	held    bool // nothing is taken until release or close
	closed  bool
}

const (
	// keepers is how many messages are under way at a time.
	keepers = 64
	// keepTime is how long a message is tried, and keepTry one time. The stream knows a message again for
	// twice as long.
	keepTime = time.Minute
	keepTry  = 5 * time.Second
	keepWait = 100 * time.Millisecond
)

func newKeeper(origin string, mostMessages, mostBytes int) *keeper {
	k := &keeper{origin: origin, mostMessages: mostMessages, mostBytes: mostBytes, topics: make(map[string][]outgoing)}
	k.work = sync.NewCond(&k.mu)
	return k
}

// put adds a message, if there is room.
func (k *keeper) put(topic string, message []byte) error {
	subject, long := subjectOf(hub.Topic, topic)
	m := outgoing{subject: subject, data: append([]byte(nil), message...)}
	if long {
		m.name, _ = tokens(topic)
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	m.number = k.origin + "." + strconv.FormatUint(k.number+1, 36)
	switch {
	case k.closed:
		return errors.New("the hub leaves the cluster")
	case k.waiting >= k.mostMessages || k.bytes+m.size() > k.mostBytes:
		return fmt.Errorf("%d messages wait for the stream already, of %d bytes; expected it to take them", k.waiting, k.bytes)
	}
	k.number++
	k.waiting++
	k.bytes += m.size()
	k.topics[subject] = append(k.topics[subject], m)
	if len(k.topics[subject]) == 1 {
		k.ready = append(k.ready, subject)
		k.work.Signal()
	}
	return nil
}

// take waits for a message of which no other of its topic is under way. ok is false when there is none and
// the keeper is closed.
func (k *keeper) take() (m outgoing, ok bool) {
	k.mu.Lock()
	defer k.mu.Unlock()
	for (k.held || len(k.ready) == 0) && !k.closed {
		k.work.Wait()
	}
	if len(k.ready) == 0 {
		return m, false
	}
	subject := k.ready[0]
	k.ready = k.ready[1:]
	return k.topics[subject][0], true
}

// release ends what held has begun.
func (k *keeper) release() {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.held = false
	k.work.Broadcast()
}

// done says what has become of a message that was taken.
func (k *keeper) done(m *outgoing, err error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.waiting--
	k.bytes -= m.size()
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
	k.work.Signal()
}

// run has the stream take messages until the keeper is closed and none is left, or ctx ends.
func (k *keeper) run(ctx context.Context) {
	for {
		m, ok := k.take()
		if !ok {
			return
		}
		k.done(&m, k.keep(ctx, &m))
	}
}

// keep has the stream take a message.
func (k *keeper) keep(ctx context.Context, m *outgoing) error {
	limited, cancel := context.WithTimeout(ctx, keepTime)
	defer cancel()
	for {
		err := k.store(limited, m)
		if err == nil {
			return nil
		}
		if !again(err) || limited.Err() != nil {
			if ctx.Err() == nil {
				k.warn("a message is not kept, and lost: %v", err)
			}
			return err
		}
		select {
		case <-limited.Done():
		case <-time.After(keepWait):
		}
	}
}

// again says whether an error may be none the next time.
func again(err error) bool {
	var refused *jetstream.APIError
	return !errors.Is(err, nats.ErrMaxPayload) && (!errors.As(err, &refused) || refused.Code != 400)
}

// close has nothing more put in.
func (k *keeper) close() {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.closed = true
	k.work.Broadcast()
}

func (k *keeper) stats() (waiting, bytes, lost int64) {
	k.mu.Lock()
	defer k.mu.Unlock()
	return int64(k.waiting), int64(k.bytes), k.lost
}
