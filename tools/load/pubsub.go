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

// PubSub configures a publish/subscribe run. The connections subscribe to topics, and additional connections publish. A
// message counts as answered when all subscribers of its topic have received it. Latency is measured for each delivery.
// In an open loop, the latency begins at the planned time of the message. In a closed loop, the latency begins when the
// message is sent.
//
// Every delivery is compared byte for byte. Each subscriber must receive each message of its topic once, and the
// messages of one publisher in order. Result.Undelivered, Doubled and Reordered count violations.
//
// Several generators can share the topics; see Config.Divide. A message then counts as answered when all subscribers of
// its topic that belong to the publisher's generator have received it. At the end, the generators exchange the message
// counts of their publishers (Config.Published) to find missing deliveries.
type PubSub struct {
	// Protocol is one of Protocols. "ws" is JSON on a WebSocket at "/ws", or at the path of Config.WebSocket.
	Protocol string `json:"protocol" flag:"pubsub" not:"message,first-message,answer,match,message-rate,messages,flood,unprompted,hold,think,early,ramp,lifetime" help:"subscribe on all connections, with this <PROTOCOL>: redis, nats or ws (JSON as in \"myriad hub\", at /ws or the path of --ws); further connections publish"`
	// Topics is the number of topics, at most Connections. Subscribers are assigned to topics in rotation.
	Topics int `json:"topics" merge:"max" flag:"topics" default:"1" needs:"pubsub" help:"spread the subscribers over <N> topics"`
	// Publishers is the number of further connections that publish, each to all topics in rotation.
	Publishers int `json:"publishers" merge:"sum" flag:"publishers" default:"1" max:"1024" needs:"pubsub" help:"publish on <N> connections, to all topics in turn; --pipeline limits the messages of each publisher that a subscriber has yet to receive"`
	// Slow is the number of subscribers that do not read, in addition to Connections. The server may disconnect them,
	// and their deliveries do not count. At the end of the run they read for at most Drain, so that they notice a
	// disconnection.
	Slow int `json:"slow,omitempty" merge:"sum" flag:"slow" default:"0" min:"0" max:"64Mi" needs:"pubsub" help:"add <N> subscribers that never read"`

	// AllPublishers is the number of publishers of all generators that share the topics. PublishersFrom is the
	// number of this generator's first publisher among them. By default, no other generator publishes.
	AllPublishers  int `json:"all_publishers,omitempty" key:"all-publishers" max:"1024"`
	PublishersFrom int `json:"publishers_from,omitempty" key:"publishers-from"`
	// Since is the origin of the times in messages, the same moment on all generators. Each generator uses its own
	// clock, so latencies between two generators are only as exact as their clocks. By default, Since is the
	// beginning of the run.
	Since time.Time `json:"since,omitzero" key:"since"`
}

// MaxPublishers is the maximum of PubSub.Publishers.
const MaxPublishers = 1024

// maxSequences limits the number of subscribers times the number of publishers.
const maxSequences = 256 << 20

// pubsubPipeline is the default of Config.Pipeline for a publish/subscribe run in an open loop.
const pubsubPipeline = 64

func (c Config) validatePubSub() error {
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
		return wrong("all-publishers", "%d with %d publishers numbered from %d; expected at least %d and at most %d", p.AllPublishers, p.Publishers, p.PublishersFrom, p.PublishersFrom+p.Publishers, MaxPublishers)
	case int64(p.AllPublishers)*int64(c.Connections) > maxSequences:
		return wrong("publishers", "%d with %d subscribers; expected at most %d pairs of a publisher and a subscriber", p.AllPublishers, c.Connections, maxSequences)
	case c.Size < MinPayload:
		return wrong("size", "%d; expected %d to %d with --pubsub", c.Size, MinPayload, MaxMessage)
	}
	return nil
}

func (c *Config) totalConns() int {
	if c.PubSub == nil {
		return c.Connections
	}
	return c.Connections + c.PubSub.Publishers + c.PubSub.Slow
}

// pubsubRun is the state of a publish/subscribe run.
//
// Connections are numbered in this order: publishers, slow subscribers, other subscribers.
//
// mu guards the number of subscribers of each topic. The counters publisherState.undelivered depend on this number. A
// goroutine must therefore hold mu while it sets the counter of a message, and while it subtracts a lost subscriber
// from counters.
type pubsubRun struct {
	*generator
	*PubSub
	protocol   pubsubProtocol
	payload    pubsubPayloadCodec
	publishers []publisherState
	timeOrigin time.Duration // origin of times in messages, since the run's start
	nextSeq    []uint32      // by subscriber and publisher: number of the next message on the subscriber's topic

	mu                 sync.Mutex
	subscribersByTopic []int32
	slowRefs           []engine.Ref // slow subscribers
	publishedByAll     []int64      // number of messages by publisher, set at the end; negative if unknown
	publishedByTopic   []int64      // number of messages by topic, set at the end
	// lostReceived counts the messages that lost subscribers had received. lostGaps counts those that they had missed.
	lostReceived, lostGaps int64
}

// publisherState is the part of a publisher's state that subscribers' goroutines also access.
type publisherState struct {
	ref         engine.Ref     // set before the first message
	nudged      atomic.Bool    // a nudge is pending
	undelivered []atomic.Int32 // numbers of subscribers without a message, by message number modulo the length
	published   uint64         // number of published messages; guarded by pubsubRun.mu
}

// pubsubMember is the state of a subscriber. It is also the state of a publisher until the server has answered the
// publisher's greeting. Only the goroutine that owns the connection may use it.
type pubsubMember struct {
	shard     *shard
	dialedAt  time.Duration
	number    uint32 // number among all connections: publishers, then slow subscribers, then other subscribers
	topic     uint32
	gaps      int32 // skipped messages that have not arrived since
	topicName [topicSize]byte
	joined    bool
	err       error // why the connection did not join or was closed
}

func (h *pubsubRun) isPublisher(m *pubsubMember) bool { return int(m.number) < h.Publishers }
func (h *pubsubRun) isSlow(m *pubsubMember) bool {
	return !h.isPublisher(m) && int(m.number) < h.Publishers+h.Slow
}

func newPubsubRun(gen *generator) *pubsubRun {
	cfg := gen.cfg
	h := &pubsubRun{
		generator: gen, PubSub: cfg.PubSub, protocol: newPubsubProtocol(cfg.PubSub.Protocol, cfg.Size), payload: newPubsubPayloadCodec(cfg),
		publishers:         make([]publisherState, cfg.PubSub.Publishers),
		nextSeq:            make([]uint32, cfg.PubSub.AllPublishers*cfg.Connections),
		subscribersByTopic: make([]int32, cfg.PubSub.Topics),
	}
	if !h.Since.IsZero() {
		h.timeOrigin = gen.now() - time.Since(h.Since)
	}
	for i := range h.publishers {
		h.publishers[i].undelivered = make([]atomic.Int32, gen.table.slotsPerConn)
	}
	return h
}

func (h *pubsubRun) topicOfMessage(publisher uint32, msgNumber uint64) uint32 {
	return uint32((uint64(publisher)*uint64(h.Topics)/uint64(h.AllPublishers) + msgNumber) % uint64(h.Topics))
}

func (h *pubsubRun) globalPublisher(own uint32) uint32 { return uint32(h.PublishersFrom) + own }

func (p *publisherState) undeliveredCount(msgNumber uint64) *atomic.Int32 {
	return &p.undelivered[msgNumber&uint64(len(p.undelivered)-1)]
}

func (h *pubsubRun) sendPublisherHelloOrSubscription(c *engine.Conn, connNumber uint32, dialedAt time.Duration) {
	m := &pubsubMember{shard: h.shards[h.shardIndex(c)], dialedAt: dialedAt, number: connNumber}
	c.SetValue(m)
	say := &h.protocol.hello
	if !h.isPublisher(m) {
		say = &h.protocol.subscribe
		m.topic = (connNumber - uint32(h.Publishers)) % uint32(h.Topics) // slow subscribers come first
		if !h.isSlow(m) {
			m.topic = (uint32(h.cfg.NumberFrom) + connNumber - uint32(h.Publishers+h.Slow)) % uint32(h.Topics)
		}
		appendTopicName(m.topicName[:0], m.topic)
	}
	_, _ = c.Write(say.appendFilledIn(nil, m.topic, nil)) // an error reaches Closed
}

func (h *pubsubRun) handleJoinThenDeliveries(c *engine.Conn, m *pubsubMember, in []byte) (used int) {
	for !m.joined {
		confirmed := &h.protocol.subscribed
		if h.isPublisher(m) {
			confirmed = &h.protocol.welcome
		}
		want := confirmed.appendFilledIn(nil, m.topic, nil)
		if n := min(len(in)-used, len(want)); bytes.Equal(in[used:used+n], want[:n]) {
			if n < len(want) {
				return used
			}
			used += n
			if !h.registerMemberOrAbortLate(c, m) {
				return used
			}
			break
		}
		n, err := h.protocol.handleNonMessage(c, in[used:])
		if err != nil {
			m.err = err
			c.Abort(err)
			return len(in)
		}
		if used += n; n == 0 {
			return used
		}
	}
	return used + h.verifyDeliveriesOrCountSlowBytes(c, m, in[used:])
}

// registerMemberOrAbortLate counts the connection of a publisher or subscriber as established. If the connect phase is
// over, it aborts the connection instead. joinedAsSubscriber is true only for a subscriber that was not aborted. A
// publisher no longer uses m after the call.
func (h *pubsubRun) registerMemberOrAbortLate(c *engine.Conn, m *pubsubMember) (joinedAsSubscriber bool) {
	if h.isPublisher(m) {
		h.publishers[m.number].ref = c.Ref()
		h.registerAndStartConnOrAbortLate(c, m.number, m.dialedAt)
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
		c.SetReading(false)
	} else {
		h.subscribersByTopic[m.topic]++
	}
	return true
}

// slowDrainStall is how long a run waits for further input of slow subscribers. If nothing arrives for this time, they
// are assumed to have read their whole backlog.
const slowDrainStall = 500 * time.Millisecond

// resumeAndDrainSlowSubscribers makes the slow subscribers read the data that the server has stored for them. It
// returns nil when all of them are disconnected or after Config.Drain. If none of them has received data for
// slowDrainStall, it returns errStalled. It must be called on Run's goroutine.
func (h *pubsubRun) resumeAndDrainSlowSubscribers(ctx context.Context, r *loadRun) error {
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
	return r.waitEmittingProgress(ctx, waitCondition{
		timeout:      r.cfg.Drain,
		done:         func(s totals) bool { return s.run[nSlowEnded] == int64(len(slow)) },
		stallTimeout: slowDrainStall,
		progress:     func(s totals) int64 { return s.run[nSlowEnded] + s.run[nSlowBytes] },
	})
}

func (h *pubsubRun) verifyDeliveriesOrCountSlowBytes(c *engine.Conn, m *pubsubMember, in []byte) (used int) {
	if h.isSlow(m) {
		m.shard.mu.Lock()
		defer m.shard.mu.Unlock()
		m.shard.totals.run[nSlowBytes] += int64(len(in))
		return len(in)
	}
	var room [16]*publisherState
	done, s, now := room[:0], m.shard, h.now()
	var err error
	s.mu.Lock()
	for used < len(in) && err == nil {
		var n int
		var p *publisherState
		if n, p, err = h.verifyAndRecordDeliveryLocked(c, m, in[used:], now); n == 0 {
			break
		}
		used += n
		if p != nil {
			done = append(done, p)
		}
	}
	s.mu.Unlock()
	for _, p := range done {
		p.nudgeUnlessPending()
	}
	if err != nil {
		m.err = err
		h.faults.countMismatchAndKeepFirst(err, Mismatch{Connection: int64(m.number), Message: h.countReceivedOrSkipped(m), Want: `""`, Got: quoteTruncated(in[used:])})
		c.Abort(err)
		return len(in)
	}
	return used
}

// verifyAndRecordDeliveryLocked verifies and records the delivery at the beginning of the input. If the input begins
// with something else, such as a ping of the server, it is passed to handleNonMessage. consumed is 0 if the input is
// incomplete or wrong.
//
// When the last missing delivery of a message has arrived, fullyDeliveredBy is the publisher of the message. Otherwise,
// it is nil. The caller holds the shard's lock.
func (h *pubsubRun) verifyAndRecordDeliveryLocked(c *engine.Conn, m *pubsubMember, in []byte, now time.Duration) (consumed int, fullyDeliveredBy *publisherState, err error) {
	w := &h.protocol.message
	if head := min(len(in), len(w.head)); string(in[:head]) != w.head[:head] {
		consumed, err = h.protocol.handleNonMessage(c, in)
		return consumed, nil, err
	}
	name := len(w.head)
	mid := name + topicSize
	body := mid + len(w.mid)
	tail := body + h.cfg.Size
	if consumed = tail + len(w.tail); len(in) < consumed {
		return 0, nil, nil
	}
	if string(in[name:mid]) != string(m.topicName[:]) || string(in[mid:body]) != w.mid || string(in[tail:consumed]) != w.tail {
		return 0, nil, errWrongAnswer
	}
	from, k, at, err := h.payload.parseAndVerifyPayload(in[body:tail])
	if err != nil || int(from) >= h.AllPublishers || h.topicOfMessage(from, k) != m.topic {
		return 0, nil, cmp.Or(err, errWrongAnswer)
	}
	s := m.shard
	switch next, number := h.nextSequence(m, from), uint32(k/uint64(h.Topics)); {
	case number >= *next: // skipped messages may still come
		m.gaps += int32(number - *next)
		*next = number + 1
	case m.gaps > 0:
		m.gaps--
		s.totals.run[nReordered]++
	default:
		s.totals.run[nDoubled]++
		return consumed, nil, nil
	}
	s.totals.addToRunAndWindow(nDelivered, 1, h.isInWindow(now))
	s.totals.addToRunAndWindow(nBytesReceived, int64(h.cfg.Size), h.isInWindow(now))
	to, planned := &s.times.outside, time.Duration(at)+h.timeOrigin
	if h.isOpenLoop() && h.isPlannedInWindow(planned) || !h.isOpenLoop() && h.isInWindow(now) {
		to = &s.times.window
	}
	to.record(now-planned, 1)
	if own := int(from) - h.PublishersFrom; own >= 0 && own < h.Publishers && h.publishers[own].undeliveredCount(k).Add(-1) == 0 {
		fullyDeliveredBy = &h.publishers[own]
	}
	return consumed, fullyDeliveredBy, nil
}

// nextSequencesOfMember returns, for each publisher, the number of the next message that m should receive.
func (h *pubsubRun) nextSequencesOfMember(m *pubsubMember) []uint32 {
	return h.nextSeq[int(m.number-uint32(h.Publishers+h.Slow))*h.AllPublishers:][:h.AllPublishers]
}

func (h *pubsubRun) nextSequence(m *pubsubMember, publisher uint32) *uint32 {
	return &h.nextSequencesOfMember(m)[publisher]
}

func (h *pubsubRun) countReceivedOrSkipped(m *pubsubMember) (n int64) {
	for _, next := range h.nextSequencesOfMember(m) {
		n += int64(next)
	}
	return n
}

func (p *publisherState) nudgeUnlessPending() {
	if !p.nudged.Swap(true) {
		_ = p.ref.Nudge() // cannot fail: the mailbox has space, or the connection is closed
	}
}

// clearNudgeAndCountDeliveredPrefix clears the mark that a publisher has a pending nudge (wake-up), so that it can be
// nudged again. It looks at the publisher's messages in flight, from the oldest on, and returns how many are fully
// delivered before the first one that is not.
func (h *pubsubRun) clearNudgeAndCountDeliveredPrefix(cs *connState) (n int) {
	p := &h.publishers[cs.number]
	p.nudged.Store(false)
	for n < int(cs.inFlight) && p.undeliveredCount(cs.answered+uint64(n)).Load() <= 0 {
		n++
	}
	return n
}

func (h *pubsubRun) publishMessages(c *engine.Conn, cs *connState, firstMsgNumber uint64, n int) {
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
		topic := h.topicOfMessage(h.globalPublisher(cs.number), firstMsgNumber+i)
		*body = h.payload.appendPayload((*body)[:0], h.globalPublisher(cs.number), firstMsgNumber+i, uint64(at[h.table.slotIndex(cs, firstMsgNumber+i)]-h.timeOrigin))
		out = h.protocol.publish.appendFilledIn(out, topic, *body)
		h.mu.Lock()
		p.published = firstMsgNumber + i + 1
		p.undeliveredCount(firstMsgNumber + i).Store(h.subscribersByTopic[topic])
		through = through || h.subscribersByTopic[topic] == 0
		h.mu.Unlock()
		if len(out) >= writeChunk {
			_, _ = c.Write(out) // an error reaches Closed
			out = out[:0]
		}
	}
	_, _ = c.Write(out)
	*b = out
	if through { // a message's topic has no subscriber, so no delivery will nudge the publisher
		p.nudgeUnlessPending()
	}
}

func (h *pubsubRun) checkAnswers(c *engine.Conn, _ *connState, in []byte, _ int) (withoutAnswers checkResult) {
	for withoutAnswers.used < len(in) {
		n, err := h.protocol.handleNonMessage(c, in[withoutAnswers.used:])
		if withoutAnswers.err = err; n == 0 {
			break
		}
		withoutAnswers.used += n
	}
	return withoutAnswers
}

func (h *pubsubRun) nextExpectedBytes(*connState) []byte { return nil }

func (h *pubsubRun) recordLostOrUnjoinedMember(m *pubsubMember, reason error) {
	switch {
	case !m.joined && h.closing.Load():
		return
	case !m.joined:
		h.faults.recordConnectFailureUnlessEnded(fmt.Errorf("%s: %w", h.Protocol, cmp.Or(m.err, errors.New(describeCause(reason)))))
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
	for _, p := range h.removeLostSubscriber(m) {
		p.nudgeUnlessPending()
	}
}

// removeLostSubscriber handles the loss of a subscriber. For each message that the subscriber should still have
// received, one delivery fewer is expected. The result contains the publishers of messages for which no other delivery
// was missing.
func (h *pubsubRun) removeLostSubscriber(m *pubsubMember) (nowFullyDelivered []*publisherState) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.subscribersByTopic[m.topic]--
	for i := range h.publishers {
		p, number := &h.publishers[i], h.globalPublisher(uint32(i))
		first := max(p.published, uint64(len(p.undelivered))) - uint64(len(p.undelivered))
		for k := first; k < p.published; k++ {
			late := uint32(k/uint64(h.Topics)) >= *h.nextSequence(m, number)
			if late && h.topicOfMessage(number, k) == m.topic && p.undeliveredCount(k).Add(-1) == 0 {
				nowFullyDelivered = append(nowFullyDelivered, p)
			}
		}
	}
	m.shard.mu.Lock()
	defer m.shard.mu.Unlock()
	h.lostReceived += h.countReceivedOrSkipped(m) - int64(m.gaps)
	h.lostGaps += int64(m.gaps)
	clear(h.nextSequencesOfMember(m))
	return nowFullyDelivered
}

func (h *pubsubRun) countMissingDeliveries() (n int64) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.publishedByAll != nil {
		return h.countMissingOfAllPublishersLocked()
	}
	for i := range h.publishers {
		for k := range h.publishers[i].undelivered {
			n += int64(max(h.publishers[i].undelivered[k].Load(), 0))
		}
	}
	return n
}

// exchangeCountsAndAwaitDeliveries emits the numbers of messages that this generator has published. It then receives
// the numbers of all generators from Config.Published. From these numbers it knows which deliveries are missing, and
// waits for them, as limited by Config.Drain. It must be called on Run's goroutine.
func (h *pubsubRun) exchangeCountsAndAwaitDeliveries(ctx context.Context, r *loadRun) error {
	own := make([]int64, h.Publishers)
	h.mu.Lock()
	for i := range own {
		own[i] = int64(h.publishers[i].published)
	}
	h.mu.Unlock()
	r.emitEventWithSnapshot(Event{Phase: Published, Published: own})
	all := []int64(nil)
	err := r.waitEmittingProgress(ctx, waitCondition{done: func(totals) bool {
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
		return fmt.Errorf("load: the slice of published messages has length %d; expected %d, one count for each publisher of all generators", len(all), h.AllPublishers)
	}
	h.mu.Lock()
	h.publishedByAll, h.publishedByTopic = all, h.countMessagesByTopic(all)
	h.mu.Unlock()
	return r.waitEmittingProgress(ctx, waitCondition{
		done:         func(totals) bool { return h.countMissingDeliveries() == 0 },
		stallTimeout: r.cfg.Drain,
		progress:     func(s totals) int64 { return s.run[nDelivered] },
	})
}

func (h *pubsubRun) countMessagesByTopic(publishedByPublisher []int64) []int64 {
	each, rounds := make([]int64, h.Topics), int64(0)
	for p, n := range publishedByPublisher {
		n = max(n, 0)
		rounds += n / int64(h.Topics)
		for k := range uint64(n % int64(h.Topics)) {
			each[h.topicOfMessage(uint32(p), k)]++
		}
	}
	for i := range each {
		each[i] += rounds
	}
	return each
}

// countMissingOfAllPublishersLocked returns how many deliveries to subscribers of this generator are missing. It
// includes messages from publishers of other generators. The field publishedByAll must be set. The caller holds mu.
func (h *pubsubRun) countMissingOfAllPublishersLocked() int64 {
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
