package load

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/myriad-go/myriad/internal/engine"
)

// PubSub has connections subscribe to topics, and further ones publish. A message counts as
// answered when all subscribers of its topic have it; Latency is of each delivery, since its
// message was planned. It is sent on when there is room among those in flight, in a closed
// loop as in an open one, so that Config.Pipeline is of each publisher: its default is 64 in
// an open loop.
//
// Every delivery is compared byte for byte, and is to come once, in the order in which its
// publisher has published: Result.Undelivered, Doubled and Reordered are 0 in a clean run.
// Planned times are in the messages, and so is the number of each on its publisher.
//
// Several generators can share the topics: see Config.Divide. Then a message counts as answered when the
// subscribers of its publisher's generator have it. How many messages each publisher has published
// they tell each other in the end (Config.Published), so that it is known what is missing.
type PubSub struct {
	// Protocol is what the server speaks. For "ws" it is JSON on a WebSocket at "/ws", or at the
	// path of Config.WebSocket.
	Protocol string `json:"protocol" flag:"pubsub" not:"message,first-message,answer,match,message-rate,messages,flood,unprompted,hold,think,early,ramp,lifetime" help:"have the connections subscribe, by this <PROTOCOL>: redis, nats or ws (JSON as \"myriad hub\" has it, at /ws or the path of --ws); further ones publish"`
	// Topics is at most the number of Connections; subscribers have one each, in turn.
	Topics int `json:"topics" merge:"max" flag:"topics" default:"1" needs:"pubsub" help:"spread the subscribers over <N> topics"`
	// Publishers publish to all topics in turn. They are not counted among Connections.
	Publishers int `json:"publishers" merge:"sum" flag:"publishers" default:"1" max:"1024" needs:"pubsub" help:"publish on <N> connections, to all topics in turn; --pipeline is how many messages of each not all subscribers have yet"`
	// Slow subscribers are not counted among Connections. A server may end them. In the end they
	// read, for Drain at most, so that it is known which of them were ended. What they get does not
	// count.
	Slow int `json:"slow,omitempty" merge:"sum" flag:"slow" default:"0" min:"0" max:"64Mi" needs:"pubsub" help:"have <N> further subscribers that never read"`

	// AllPublishers is how many publishers there are on all generators that share the topics, the
	// first of these being number PublishersFrom of them. Default: those of this one.
	AllPublishers  int `json:"all_publishers,omitempty" key:"all-publishers" max:"1024"`
	PublishersFrom int `json:"publishers_from,omitempty" key:"publishers-from"`
	// Since is what times in messages count from: by the clock of this machine, the same moment
	// on all generators. Latencies between two of them are as exact as that is. Default: when the
	// run began.
	Since time.Time `json:"since,omitzero" key:"since"`
}

// MaxPublishers is the most publishers of a run, as the tag of PubSub.Publishers has it.
const MaxPublishers = 1024

// maxSequences bounds subscribers × publishers: 4 bytes are kept for each pair.
const maxSequences = 256 << 20

// pubsubPipeline is the default of Config.Pipeline in an open loop of publishers.
const pubsubPipeline = 64

func (c Config) checkPubSub() error {
	p := c.PubSub
	wrong := func(name, format string, args ...any) error {
		return &SettingError{name, fmt.Errorf(format, args...)}
	}
	switch {
	case p == nil:
		return nil
	case !slices.Contains(Protocols, p.Protocol):
		return wrong("pubsub", "%q; expected %s", p.Protocol, strings.Join(Protocols, " or "))
	case (c.WebSocket != nil) != (p.Protocol == protocolWS):
		return wrong("ws", "given with --pubsub %s; expected --pubsub ws", p.Protocol)
	case p.Topics > c.Connections && p.AllPublishers == p.Publishers:
		return wrong("topics", "%d; expected 1 to %d, the number of --connections", p.Topics, c.Connections)
	case p.Topics > maxTopics:
		return wrong("topics", "%d; expected at most %d", p.Topics, maxTopics)
	case p.PublishersFrom+p.Publishers > p.AllPublishers:
		return wrong("all-publishers", "%d, with %d from number %d on; expected all of these, at most %d", p.AllPublishers, p.Publishers, p.PublishersFrom, MaxPublishers)
	case int64(p.AllPublishers)*int64(c.Connections) > maxSequences:
		return wrong("publishers", "%d, of %d subscribers; expected at most %d pairs of both", p.AllPublishers, c.Connections, maxSequences)
	case c.Size < MinPayload:
		return wrong("size", "%d; expected %d to %d with --pubsub", c.Size, MinPayload, MaxMessage)
	}
	return nil
}

// totalConns is how many connections a run opens.
func (c *Config) totalConns() int {
	if c.PubSub == nil {
		return c.Connections
	}
	return c.Connections + c.PubSub.Publishers + c.PubSub.Slow
}

// pubsubRun is what a publish/subscribe run has besides the rest.
//
// The first connections that are established are the publishers, the next the slow
// subscribers. A publisher has a connState, and is paced as any other connection is. What
// answers its message k are the subscribers: slot k of its ring counts those that do not have
// it yet, and the last one nudges the publisher. Slots are counted down by the owners of
// subscribers, which have no connState, but a member. mu guards how many subscribers a topic
// has, and is held while a message of a topic is given its slot, and while a subscriber that
// is lost is taken out of all slots. Messages of publishers of other generators have no slot
// here; what is missing of them is counted in the end, when it is known how many there were.
type pubsubRun struct {
	*generator
	*PubSub
	protocol   pubsubProtocol
	payload    pubsubPayload
	publishers []publisher
	timeOrigin time.Duration // what times in messages count from, since the run's start
	nextSeq    []uint32      // by subscriber and publisher: the message on its topic that is next

	mu                 sync.Mutex
	subscribersByTopic []int32      // by topic
	slowRefs           []engine.Ref // the slow subscribers
	publishedByAll     []int64      // by all publishers, in the end; below 0 where that isn't known, nil until then
	publishedByTopic   []int64      // of that, by topic
	// Of subscribers that are lost: what they have got, and what was left out before.
	lostReceived, lostGaps int64
}

// publisher is what subscribers know of one.
type publisher struct {
	ref         engine.Ref // written before the first message
	nudged      atomic.Bool
	undelivered []atomic.Int32 // subscribers that do not have a message yet, by its place in the ring
	published   uint64         // messages; the lock of pubsub is held
}

// pubsubConn is a connection that has not joined, or a subscriber. It belongs to the connection's
// owner.
type pubsubConn struct {
	shard     *shard
	dialedAt  time.Duration
	number    uint32 // of all connections; from the publishers on that of subscribers
	topic     uint32
	gaps      int32 // messages that were left out, and have not come since
	topicName [topicSize]byte
	joined    bool
	err       error // that it did not, or was ended
}

func (h *pubsubRun) isPublisher(m *pubsubConn) bool { return int(m.number) < h.Publishers }
func (h *pubsubRun) isSlow(m *pubsubConn) bool {
	return !h.isPublisher(m) && int(m.number) < h.Publishers+h.Slow
}

func newPubSub(t *generator) *pubsubRun {
	cfg := t.cfg
	h := &pubsubRun{
		generator: t, PubSub: cfg.PubSub, protocol: newPubsubProtocol(cfg.PubSub.Protocol, cfg.Size), payload: newPubsubPayload(cfg),
		publishers:         make([]publisher, cfg.PubSub.Publishers),
		nextSeq:            make([]uint32, cfg.PubSub.AllPublishers*cfg.Connections),
		subscribersByTopic: make([]int32, cfg.PubSub.Topics),
	}
	if !h.Since.IsZero() {
		h.timeOrigin = t.now() - time.Since(h.Since)
	}
	for i := range h.publishers {
		h.publishers[i].undelivered = make([]atomic.Int32, t.table.slotsPerConn)
	}
	return h
}

// topicOf is the topic of a publisher's message, by its number among all: they go round, each from another
// one on. The message is number k/Topics of that publisher on it.
func (h *pubsubRun) topicOf(publisher uint32, msgNumber uint64) uint32 {
	return uint32((uint64(publisher)*uint64(h.Topics)/uint64(h.AllPublishers) + msgNumber) % uint64(h.Topics))
}

// globalPublisher is the number of an own publisher among all.
func (h *pubsubRun) globalPublisher(own uint32) uint32 { return uint32(h.PublishersFrom) + own }

func (p *publisher) undeliveredCount(msgNumber uint64) *atomic.Int32 {
	return &p.undelivered[msgNumber&uint64(len(p.undelivered)-1)]
}

// sendJoin begins to join.
func (h *pubsubRun) sendJoin(c *engine.Conn, connNumber uint32, dialedAt time.Duration) {
	m := &pubsubConn{shard: h.shards[h.shardIndex(c)], dialedAt: dialedAt, number: connNumber}
	c.SetValue(m)
	say := &h.protocol.hello
	if !h.isPublisher(m) {
		say = &h.protocol.subscribe
		m.topic = (connNumber - uint32(h.Publishers)) % uint32(h.Topics) // the slow ones first
		if !h.isSlow(m) {
			m.topic = (uint32(h.cfg.NumberFrom) + connNumber - uint32(h.Publishers+h.Slow)) % uint32(h.Topics)
		}
		appendTopicName(m.topicName[:0], m.topic)
	}
	_, _ = c.Write(say.appendMessage(nil, m.topic, nil)) // Closed tells why not
}

// receiveInput takes what comes to a member.
func (h *pubsubRun) receiveInput(c *engine.Conn, m *pubsubConn, in []byte) (used int) {
	for !m.joined {
		confirmed := &h.protocol.subscribed
		if h.isPublisher(m) {
			confirmed = &h.protocol.welcome
		}
		want := confirmed.appendMessage(nil, m.topic, nil)
		if n := min(len(in)-used, len(want)); bytes.Equal(in[used:used+n], want[:n]) {
			if n < len(want) {
				return used
			}
			used += n
			if !h.completeJoin(c, m) {
				return used
			}
			break
		}
		n, err := h.protocol.consumeOther(c, in[used:])
		if err != nil {
			m.err = err
			c.Abort(err)
			return len(in)
		}
		if used += n; n == 0 {
			return used
		}
	}
	return used + h.receiveDeliveries(c, m, in[used:])
}

// completeJoin makes a member a subscriber, or a publisher that is a connection like others; it is
// false for that, and where it comes too late.
func (h *pubsubRun) completeJoin(c *engine.Conn, m *pubsubConn) (isSubscriber bool) {
	if h.isPublisher(m) {
		h.publishers[m.number].ref = c.Ref()
		h.establishConn(c, m.number, m.dialedAt)
		return false
	}
	now := h.now()
	m.shard.mu.Lock()
	late := m.shard.closedToNew
	if !late {
		m.shard.totals.run[nOpened]++
		m.shard.totals.lastOpened = now
		m.shard.times.connect.record(now-m.dialedAt, 1)
	}
	m.shard.mu.Unlock()
	if late {
		m.err = errEstablishedLate
		c.Abort(errEstablishedLate)
		return false
	}
	m.joined = true
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.isSlow(m) {
		h.slowRefs = append(h.slowRefs, c.Ref())
		c.Listen(false)
	} else {
		h.subscribersByTopic[m.topic]++
	}
	return true
}

// slowDrainStall is how long slow subscribers read nothing in the end until they are taken to have
// read everything.
const slowDrainStall = 500 * time.Millisecond

// drainSlowSubscribers has the slow subscribers read what there is, on Run's goroutine, so that those that the
// server has ended find the end.
func (h *pubsubRun) drainSlowSubscribers(ctx context.Context, r *run) error {
	h.mu.Lock()
	slow := h.slowRefs
	h.mu.Unlock()
	tick := time.NewTicker(nudgeRetryInterval)
	defer tick.Stop()
	for _, ref := range slow {
		if !nudgeWithRetry(ctx, ref, tick) {
			return context.Cause(ctx)
		}
	}
	return r.waitUntil(ctx, waitCondition{
		timeout:      r.cfg.Drain,
		done:         func(s totals) bool { return s.run[nSlowEnded] == int64(len(slow)) },
		stallTimeout: slowDrainStall,
		progress:     func(s totals) int64 { return s.run[nSlowEnded] + s.run[nSlowBytes] },
	})
}

// receiveDeliveries takes messages. Those whose last subscriber this is have their publishers nudged.
func (h *pubsubRun) receiveDeliveries(c *engine.Conn, m *pubsubConn, in []byte) (used int) {
	if h.isSlow(m) {
		m.shard.mu.Lock()
		defer m.shard.mu.Unlock()
		m.shard.totals.run[nSlowBytes] += int64(len(in))
		return len(in)
	}
	var room [16]*publisher
	done, s, now := room[:0], m.shard, h.now()
	var err error
	s.mu.Lock()
	for used < len(in) && err == nil {
		var n int
		var p *publisher
		if n, p, err = h.receiveDelivery(c, m, in[used:], now); n == 0 {
			break
		}
		used += n
		if p != nil {
			done = append(done, p)
		}
	}
	s.mu.Unlock()
	for _, p := range done {
		p.nudgeOnce()
	}
	if err != nil {
		m.err = err
		h.faults.recordMismatch(err, Mismatch{Connection: int64(m.number), Message: h.deliveredOrMissed(m), Want: `""`, Got: quoteBytes(in[used:])})
		c.Abort(err)
		return len(in)
	}
	return used
}

// receiveDelivery takes one, of n bytes, or a line; n is 0 while it is not whole. The publisher is
// that of a message which all subscribers have now. The caller holds the shard's lock.
func (h *pubsubRun) receiveDelivery(c *engine.Conn, m *pubsubConn, in []byte, now time.Duration) (n int, done *publisher, err error) {
	w := &h.protocol.message
	if head := min(len(in), len(w.head)); string(in[:head]) != w.head[:head] {
		n, err = h.protocol.consumeOther(c, in)
		return n, nil, err
	}
	name := len(w.head)
	mid := name + topicSize
	body := mid + len(w.mid)
	tail := body + h.cfg.Size
	if n = tail + len(w.tail); len(in) < n {
		return 0, nil, nil
	}
	if string(in[name:mid]) != string(m.topicName[:]) || string(in[mid:body]) != w.mid || string(in[tail:n]) != w.tail {
		return 0, nil, errWrongAnswer
	}
	from, k, at, err := h.payload.parsePayload(in[body:tail])
	if err != nil || int(from) >= h.AllPublishers || h.topicOf(from, k) != m.topic {
		return 0, nil, cmp.Or(err, errWrongAnswer)
	}
	s := m.shard
	switch next, number := h.nextSequence(m, from), uint32(k/uint64(h.Topics)); {
	case number >= *next: // what is left out may still come
		m.gaps += int32(number - *next)
		*next = number + 1
	case m.gaps > 0:
		m.gaps--
		s.totals.run[nReordered]++
	default:
		s.totals.run[nDoubled]++
		return n, nil, nil
	}
	s.totals.addCount(nDelivered, 1, h.isInWindow(now))
	s.totals.addCount(nBytesReceived, int64(h.cfg.Size), h.isInWindow(now))
	to, planned := &s.times.outside, time.Duration(at)+h.timeOrigin
	if h.isOpenLoop() && h.isPlannedInWindow(planned) || !h.isOpenLoop() && h.isInWindow(now) {
		to = &s.times.window
	}
	to.record(now-planned, 1)
	if own := int(from) - h.PublishersFrom; own >= 0 && own < h.Publishers && h.publishers[own].undeliveredCount(k).Add(-1) == 0 {
		done = &h.publishers[own]
	}
	return n, done, nil
}

// nextSequences are the numbers of the next messages that a subscriber is to get, by all publishers.
func (h *pubsubRun) nextSequences(m *pubsubConn) []uint32 {
	return h.nextSeq[int(m.number-uint32(h.Publishers+h.Slow))*h.AllPublishers:][:h.AllPublishers]
}

// nextSequence is that of a publisher.
func (h *pubsubRun) nextSequence(m *pubsubConn, publisher uint32) *uint32 {
	return &h.nextSequences(m)[publisher]
}

// deliveredOrMissed is how many messages a subscriber has got, or were left out.
func (h *pubsubRun) deliveredOrMissed(m *pubsubConn) (n int64) {
	for _, next := range h.nextSequences(m) {
		n += int64(next)
	}
	return n
}

// nudgeOnce has a publisher look which of its messages are through: once for all that are until
// it does.
func (p *publisher) nudgeOnce() {
	if !p.nudged.Swap(true) {
		_ = p.ref.Nudge() // there is room for it, or the connection has closed
	}
}

// countFullyDelivered is how many messages of a publisher, from the oldest in flight on, all subscribers
// have.
func (h *pubsubRun) countFullyDelivered(cs *connState) (n int) {
	p := &h.publishers[cs.number]
	p.nudged.Store(false)
	for n < int(cs.inFlight) && p.undeliveredCount(cs.answered+uint64(n)).Load() <= 0 {
		n++
	}
	return n
}

// publishMessages publishes n messages of a publisher, the first of them number k.
func (h *pubsubRun) publishMessages(c *engine.Conn, cs *connState, msgNumber uint64, n int) {
	p := &h.publishers[cs.number]
	b, body := bufferPool.Get().(*[]byte), bufferPool.Get().(*[]byte)
	defer bufferPool.Put(b)
	defer bufferPool.Put(body)
	out, through := (*b)[:0], false
	for i := range uint64(n) {
		at := h.table.sentTimes
		if h.isOpenLoop() {
			at = h.table.plannedTimes
		}
		topic := h.topicOf(h.globalPublisher(cs.number), msgNumber+i)
		*body = h.payload.appendPayload((*body)[:0], h.globalPublisher(cs.number), msgNumber+i, uint64(at[h.table.slotIndex(cs, msgNumber+i)]-h.timeOrigin))
		out = h.protocol.publish.appendMessage(out, topic, *body)
		h.mu.Lock()
		p.published = msgNumber + i + 1
		p.undeliveredCount(msgNumber + i).Store(h.subscribersByTopic[topic])
		through = through || h.subscribersByTopic[topic] == 0
		h.mu.Unlock()
		if len(out) >= writeChunk {
			_, _ = c.Write(out) // Closed tells why not
			out = out[:0]
		}
	}
	_, _ = c.Write(out)
	*b = out
	if through { // nobody is left to get it
		p.nudgeOnce()
	}
}

// checkAnswers takes what a server says to a publisher.
func (h *pubsubRun) checkAnswers(c *engine.Conn, _ *connState, in []byte, _ int) (is checkResult) {
	for is.used < len(in) {
		n, err := h.protocol.consumeOther(c, in[is.used:])
		if is.err = err; n == 0 {
			break
		}
		is.used += n
	}
	return is
}

func (h *pubsubRun) expectedBytes(*connState) []byte { return nil }

// countClosedMember counts the end of a member.
func (h *pubsubRun) countClosedMember(m *pubsubConn, reason error) {
	switch {
	case !m.joined && h.closing.Load():
		return
	case !m.joined:
		h.faults.recordConnectFailure(fmt.Errorf("%s: %w", h.Protocol, cmp.Or(m.err, errors.New(describeCause(reason)))))
		return
	}
	m.shard.mu.Lock()
	m.shard.totals.run[nClosed]++
	m.shard.mu.Unlock()
	if h.closing.Load() {
		return
	}
	if h.isSlow(m) {
		m.shard.mu.Lock()
		m.shard.totals.run[nSlowEnded]++
		m.shard.mu.Unlock()
		return
	}
	if m.err == nil {
		h.faults.recordLostConn(reason)
	}
	for _, p := range h.removeSubscriber(m) {
		p.nudgeOnce()
	}
}

// removeSubscriber takes a subscriber that is lost out of what messages wait for.
func (h *pubsubRun) removeSubscriber(m *pubsubConn) (completed []*publisher) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.subscribersByTopic[m.topic]--
	for i := range h.publishers {
		p, number := &h.publishers[i], h.globalPublisher(uint32(i))
		first := max(p.published, uint64(len(p.undelivered))) - uint64(len(p.undelivered))
		for k := first; k < p.published; k++ {
			late := uint32(k/uint64(h.Topics)) >= *h.nextSequence(m, number)
			if late && h.topicOf(number, k) == m.topic && p.undeliveredCount(k).Add(-1) == 0 {
				completed = append(completed, p)
			}
		}
	}
	m.shard.mu.Lock()
	defer m.shard.mu.Unlock()
	h.lostReceived += h.deliveredOrMissed(m) - int64(m.gaps)
	h.lostGaps += int64(m.gaps)
	clear(h.nextSequences(m))
	return completed
}

// countUndelivered is how many deliveries are missing.
func (h *pubsubRun) countUndelivered() (n int64) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.publishedByAll != nil {
		return h.countMissing()
	}
	for i := range h.publishers {
		for k := range h.publishers[i].undelivered {
			n += int64(max(h.publishers[i].undelivered[k].Load(), 0))
		}
	}
	return n
}

// awaitSharedDeliveries tells how much has been published, and waits until the subscribers have what all
// publishers have published, on Run's goroutine.
func (h *pubsubRun) awaitSharedDeliveries(ctx context.Context, r *run) error {
	own := make([]int64, h.Publishers)
	h.mu.Lock()
	for i := range own {
		own[i] = int64(h.publishers[i].published)
	}
	h.mu.Unlock()
	r.emitEvent(Event{Phase: Published, Published: own})
	all := []int64(nil)
	err := r.waitUntil(ctx, waitCondition{done: func(totals) bool {
		select {
		case all = <-r.cfg.Published:
			return true
		default:
			return false
		}
	}})
	if err != nil {
		return err
	}
	if len(all) != h.AllPublishers {
		return fmt.Errorf("load: told of %d publishers; expected %d", len(all), h.AllPublishers)
	}
	h.mu.Lock()
	h.publishedByAll, h.publishedByTopic = all, h.messagesByTopic(all)
	h.mu.Unlock()
	return r.waitUntil(ctx, waitCondition{
		done:         func(totals) bool { return h.countUndelivered() == 0 },
		stallTimeout: r.cfg.Drain,
		progress:     func(s totals) int64 { return s.run[nDelivered] },
	})
}

// messagesByTopic is how many messages there are on each topic, by what publishers have published.
func (h *pubsubRun) messagesByTopic(published []int64) []int64 {
	each, rounds := make([]int64, h.Topics), int64(0)
	for p, n := range published {
		n = max(n, 0)
		rounds += n / int64(h.Topics)
		for k := range uint64(n % int64(h.Topics)) {
			each[h.topicOf(uint32(p), k)]++
		}
	}
	for i := range each {
		each[i] += rounds
	}
	return each
}

// countMissing is how many deliveries are missing of what all publishers have published. Of one of which that
// isn't known, only those that were left out are. The caller holds mu.
func (h *pubsubRun) countMissing() int64 {
	n := h.lostReceived + h.lostGaps
	for topic, subscribers := range h.subscribersByTopic {
		n += h.publishedByTopic[topic] * int64(subscribers)
	}
	for _, s := range h.shards {
		s.mu.Lock()
		defer s.mu.Unlock()
		n -= s.totals.run[nDelivered]
	}
	for p, published := range h.publishedByAll {
		for i := p; published < 0 && i < len(h.nextSeq); i += h.AllPublishers {
			n += int64(h.nextSeq[i])
		}
	}
	return n
}
