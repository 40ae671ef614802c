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

// total is how many connections a run opens.
func (c *Config) total() int {
	if c.PubSub == nil {
		return c.Connections
	}
	return c.Connections + c.PubSub.Publishers + c.PubSub.Slow
}

// pubsub is what a publish/subscribe run has besides the rest.
//
// The first connections that are established are the publishers, the next the slow
// subscribers. A publisher has a connState, and is paced as any other connection is. What
// answers its message k are the subscribers: slot k of its ring counts those that do not have
// it yet, and the last one nudges the publisher. Slots are counted down by the owners of
// subscribers, which have no connState, but a member. mu guards how many subscribers a topic
// has, and is held while a message of a topic is given its slot, and while a subscriber that
// is lost is taken out of all slots. Messages of publishers of other generators have no slot
// here; what is missing of them is counted in the end, when it is known how many there were.
type pubsub struct {
	*traffic
	*PubSub
	wire       wire
	payload    payload
	publishers []publisher
	zero       time.Duration // what times in messages count from, since the run's start
	next       []uint32      // by subscriber and publisher: the message on its topic that is next

	mu         sync.Mutex
	subscribed []int32      // by topic
	asleep     []engine.Ref // the slow subscribers
	published  []int64      // by all publishers, in the end; below 0 where that isn't known, nil until then
	each       []int64      // of that, by topic
	// Of subscribers that are lost: what they have got, and what was left out before.
	gone, gaps int64
}

// publisher is what subscribers know of one.
type publisher struct {
	ref    engine.Ref // written before the first message
	called atomic.Bool
	left   []atomic.Int32 // subscribers that do not have a message yet, by its place in the ring
	issued uint64         // messages; the lock of pubsub is held
}

// member is a connection that has not joined, or a subscriber. It belongs to the connection's
// owner.
type member struct {
	shard  *shard
	began  time.Duration
	number uint32 // of all connections; from the publishers on that of subscribers
	topic  uint32
	gaps   int32 // messages that were left out, and have not come since
	name   [topicSize]byte
	joined bool
	why    error // that it did not, or was ended
}

func (h *pubsub) publishes(m *member) bool { return int(m.number) < h.Publishers }
func (h *pubsub) slow(m *member) bool {
	return !h.publishes(m) && int(m.number) < h.Publishers+h.Slow
}

func newPubSub(t *traffic) *pubsub {
	cfg := t.cfg
	h := &pubsub{
		traffic: t, PubSub: cfg.PubSub, wire: newWire(cfg.PubSub.Protocol, cfg.Size), payload: newPayload(cfg),
		publishers: make([]publisher, cfg.PubSub.Publishers),
		next:       make([]uint32, cfg.PubSub.AllPublishers*cfg.Connections),
		subscribed: make([]int32, cfg.PubSub.Topics),
	}
	if !h.Since.IsZero() {
		h.zero = t.now() - time.Since(h.Since)
	}
	for i := range h.publishers {
		h.publishers[i].left = make([]atomic.Int32, t.table.ring)
	}
	return h
}

// topicOf is the topic of a publisher's message, by its number among all: they go round, each from another
// one on. The message is number k/Topics of that publisher on it.
func (h *pubsub) topicOf(publisher uint32, k uint64) uint32 {
	return uint32((uint64(publisher)*uint64(h.Topics)/uint64(h.AllPublishers) + k) % uint64(h.Topics))
}

// numberOf is the number of an own publisher among all.
func (h *pubsub) numberOf(own uint32) uint32 { return uint32(h.PublishersFrom) + own }

func (p *publisher) slot(k uint64) *atomic.Int32 { return &p.left[k&uint64(len(p.left)-1)] }

// greet begins to join.
func (h *pubsub) greet(c *engine.Conn, number uint32, began time.Duration) {
	m := &member{shard: h.shards[h.shardOf(c)], began: began, number: number}
	c.SetValue(m)
	say := &h.wire.hello
	if !h.publishes(m) {
		say = &h.wire.subscribe
		m.topic = (number - uint32(h.Publishers)) % uint32(h.Topics) // the slow ones first
		if !h.slow(m) {
			m.topic = (uint32(h.cfg.NumberFrom) + number - uint32(h.Publishers+h.Slow)) % uint32(h.Topics)
		}
		appendTopic(m.name[:0], m.topic)
	}
	_, _ = c.Write(say.append(nil, m.topic, nil)) // Closed tells why not
}

// receive takes what comes to a member.
func (h *pubsub) receive(c *engine.Conn, m *member, in []byte) (used int) {
	for !m.joined {
		confirmed := &h.wire.confirmed
		if h.publishes(m) {
			confirmed = &h.wire.welcome
		}
		want := confirmed.append(nil, m.topic, nil)
		if n := min(len(in)-used, len(want)); bytes.Equal(in[used:used+n], want[:n]) {
			if n < len(want) {
				return used
			}
			used += n
			if !h.join(c, m) {
				return used
			}
			break
		}
		n, err := h.wire.takeOther(c, in[used:])
		if err != nil {
			m.why = err
			c.Abort(err)
			return len(in)
		}
		if used += n; n == 0 {
			return used
		}
	}
	return used + h.deliver(c, m, in[used:])
}

// join makes a member a subscriber, or a publisher that is a connection like others; it is
// false for that, and where it comes too late.
func (h *pubsub) join(c *engine.Conn, m *member) (subscriber bool) {
	if h.publishes(m) {
		h.publishers[m.number].ref = c.Ref()
		h.establish(c, m.number, m.began)
		return false
	}
	now := h.now()
	m.shard.mu.Lock()
	late := m.shard.shut
	if !late {
		m.shard.sum.run[nOpened]++
		m.shard.sum.lastOpened = now
		m.shard.times.connect.record(now-m.began, 1)
	}
	m.shard.mu.Unlock()
	if late {
		m.why = errLate
		c.Abort(errLate)
		return false
	}
	m.joined = true
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.slow(m) {
		h.asleep = append(h.asleep, c.Ref())
		c.SetReading(false)
	} else {
		h.subscribed[m.topic]++
	}
	return true
}

// slowStall is how long slow subscribers read nothing in the end until they are taken to have
// read everything.
const slowStall = 500 * time.Millisecond

// wake has the slow subscribers read what there is, on Run's goroutine, so that those that the
// server has ended find the end.
func (h *pubsub) wake(ctx context.Context, r *run) error {
	h.mu.Lock()
	asleep := h.asleep
	h.mu.Unlock()
	tick := time.NewTicker(startEvery)
	defer tick.Stop()
	for _, ref := range asleep {
		if !nudge(ctx, ref, tick) {
			return context.Cause(ctx)
		}
	}
	return r.await(ctx, wait{
		most:  r.cfg.Drain,
		done:  func(s sum) bool { return s.run[nSlowEnded] == int64(len(asleep)) },
		stall: slowStall,
		moved: func(s sum) int64 { return s.run[nSlowEnded] + s.run[nSlowBytes] },
	})
}

// deliver takes messages. Those whose last subscriber this is have their publishers nudged.
func (h *pubsub) deliver(c *engine.Conn, m *member, in []byte) (used int) {
	if h.slow(m) {
		m.shard.mu.Lock()
		defer m.shard.mu.Unlock()
		m.shard.sum.run[nSlowBytes] += int64(len(in))
		return len(in)
	}
	var room [16]*publisher
	done, s, now := room[:0], m.shard, h.now()
	var err error
	s.mu.Lock()
	for used < len(in) && err == nil {
		var n int
		var p *publisher
		if n, p, err = h.message(c, m, in[used:], now); n == 0 {
			break
		}
		used += n
		if p != nil {
			done = append(done, p)
		}
	}
	s.mu.Unlock()
	for _, p := range done {
		p.nudge()
	}
	if err != nil {
		m.why = err
		h.faults.wrong(err, Mismatch{Connection: int64(m.number), Message: h.received(m), Want: `""`, Got: quote(in[used:])})
		c.Abort(err)
		return len(in)
	}
	return used
}

// message takes one, of n bytes, or a line; n is 0 while it is not whole. The publisher is
// that of a message which all subscribers have now. The caller holds the shard's lock.
func (h *pubsub) message(c *engine.Conn, m *member, in []byte, now time.Duration) (n int, done *publisher, err error) {
	w := &h.wire.message
	if head := min(len(in), len(w.head)); string(in[:head]) != w.head[:head] {
		n, err = h.wire.takeOther(c, in)
		return n, nil, err
	}
	name := len(w.head)
	mid := name + topicSize
	body := mid + len(w.mid)
	tail := body + h.cfg.Size
	if n = tail + len(w.tail); len(in) < n {
		return 0, nil, nil
	}
	if string(in[name:mid]) != string(m.name[:]) || string(in[mid:body]) != w.mid || string(in[tail:n]) != w.tail {
		return 0, nil, errWrong
	}
	from, k, at, err := h.payload.read(in[body:tail])
	if err != nil || int(from) >= h.AllPublishers || h.topicOf(from, k) != m.topic {
		return 0, nil, cmp.Or(err, errWrong)
	}
	s := m.shard
	switch next, number := h.sequence(m, from), uint32(k/uint64(h.Topics)); {
	case number >= *next: // what is left out may still come
		m.gaps += int32(number - *next)
		*next = number + 1
	case m.gaps > 0:
		m.gaps--
		s.sum.run[nReordered]++
	default:
		s.sum.run[nDoubled]++
		return n, nil, nil
	}
	s.sum.count(nDelivered, 1, h.measured(now))
	s.sum.count(nBytesReceived, int64(h.cfg.Size), h.measured(now))
	to, planned := &s.times.outside, time.Duration(at)+h.zero
	if h.open() && h.counts(planned) || !h.open() && h.measured(now) {
		to = &s.times.window
	}
	to.record(now-planned, 1)
	if own := int(from) - h.PublishersFrom; own >= 0 && own < h.Publishers && h.publishers[own].slot(k).Add(-1) == 0 {
		done = &h.publishers[own]
	}
	return n, done, nil
}

// sequences are the numbers of the next messages that a subscriber is to get, by all publishers.
func (h *pubsub) sequences(m *member) []uint32 {
	return h.next[int(m.number-uint32(h.Publishers+h.Slow))*h.AllPublishers:][:h.AllPublishers]
}

// sequence is that of a publisher.
func (h *pubsub) sequence(m *member, publisher uint32) *uint32 { return &h.sequences(m)[publisher] }

// received is how many messages a subscriber has got, or were left out.
func (h *pubsub) received(m *member) (n int64) {
	for _, next := range h.sequences(m) {
		n += int64(next)
	}
	return n
}

// nudge has a publisher look which of its messages are through: once for all that are until
// it does.
func (p *publisher) nudge() {
	if !p.called.Swap(true) {
		_ = p.ref.Nudge() // there is room for it, or the connection has closed
	}
}

// through is how many messages of a publisher, from the oldest in flight on, all subscribers
// have.
func (h *pubsub) through(l *connState) (n int) {
	p := &h.publishers[l.number]
	p.called.Store(false)
	for n < int(l.inFlight) && p.slot(l.answered+uint64(n)).Load() <= 0 {
		n++
	}
	return n
}

// publish publishes n messages of a publisher, the first of them number k.
func (h *pubsub) publish(c *engine.Conn, l *connState, k uint64, n int) {
	p := &h.publishers[l.number]
	b, body := scratch.Get().(*[]byte), scratch.Get().(*[]byte)
	defer scratch.Put(b)
	defer scratch.Put(body)
	out, through := (*b)[:0], false
	for i := range uint64(n) {
		at := h.table.times
		if h.open() {
			at = h.table.intended
		}
		topic := h.topicOf(h.numberOf(l.number), k+i)
		*body = h.payload.append((*body)[:0], h.numberOf(l.number), k+i, uint64(at[h.table.place(l, k+i)]-h.zero))
		out = h.wire.publish.append(out, topic, *body)
		h.mu.Lock()
		p.issued = k + i + 1
		p.slot(k + i).Store(h.subscribed[topic])
		through = through || h.subscribed[topic] == 0
		h.mu.Unlock()
		if len(out) >= sayBytes {
			_, _ = c.Write(out) // Closed tells why not
			out = out[:0]
		}
	}
	_, _ = c.Write(out)
	*b = out
	if through { // nobody is left to get it
		p.nudge()
	}
}

// check takes what a server says to a publisher.
func (h *pubsub) check(c *engine.Conn, _ *connState, in []byte, _ int) (is progress) {
	for is.used < len(in) {
		n, err := h.wire.takeOther(c, in[is.used:])
		if is.wrong = err; n == 0 {
			break
		}
		is.used += n
	}
	return is
}

func (h *pubsub) expects(*connState) []byte { return nil }

// leave counts the end of a member.
func (h *pubsub) leave(m *member, why error) {
	switch {
	case !m.joined && h.closing.Load():
		return
	case !m.joined:
		h.faults.refused(fmt.Errorf("%s: %w", h.Protocol, cmp.Or(m.why, errors.New(cause(why)))))
		return
	}
	m.shard.mu.Lock()
	m.shard.sum.run[nClosed]++
	m.shard.mu.Unlock()
	if h.closing.Load() {
		return
	}
	if h.slow(m) {
		m.shard.mu.Lock()
		m.shard.sum.run[nSlowEnded]++
		m.shard.mu.Unlock()
		return
	}
	if m.why == nil {
		h.faults.gone(why)
	}
	for _, p := range h.forget(m) {
		p.nudge()
	}
}

// forget takes a subscriber that is lost out of what messages wait for.
func (h *pubsub) forget(m *member) (done []*publisher) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.subscribed[m.topic]--
	for i := range h.publishers {
		p, number := &h.publishers[i], h.numberOf(uint32(i))
		first := max(p.issued, uint64(len(p.left))) - uint64(len(p.left))
		for k := first; k < p.issued; k++ {
			late := uint32(k/uint64(h.Topics)) >= *h.sequence(m, number)
			if late && h.topicOf(number, k) == m.topic && p.slot(k).Add(-1) == 0 {
				done = append(done, p)
			}
		}
	}
	m.shard.mu.Lock()
	defer m.shard.mu.Unlock()
	h.gone += h.received(m) - int64(m.gaps)
	h.gaps += int64(m.gaps)
	clear(h.sequences(m))
	return done
}

// undelivered is how many deliveries are missing.
func (h *pubsub) undelivered() (n int64) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.published != nil {
		return h.missing()
	}
	for i := range h.publishers {
		for k := range h.publishers[i].left {
			n += int64(max(h.publishers[i].left[k].Load(), 0))
		}
	}
	return n
}

// settle tells how much has been published, and waits until the subscribers have what all
// publishers have published, on Run's goroutine.
func (h *pubsub) settle(ctx context.Context, r *run) error {
	own := make([]int64, h.Publishers)
	h.mu.Lock()
	for i := range own {
		own[i] = int64(h.publishers[i].issued)
	}
	h.mu.Unlock()
	r.tell(Event{Phase: Published, Published: own})
	all := []int64(nil)
	err := r.await(ctx, wait{done: func(sum) bool {
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
	h.published, h.each = all, h.byTopic(all)
	h.mu.Unlock()
	return r.await(ctx, wait{
		done:  func(sum) bool { return h.undelivered() == 0 },
		stall: r.cfg.Drain,
		moved: func(s sum) int64 { return s.run[nDelivered] },
	})
}

// byTopic is how many messages there are on each topic, by what publishers have published.
func (h *pubsub) byTopic(published []int64) []int64 {
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

// missing is how many deliveries are missing of what all publishers have published. Of one of which that
// isn't known, only those that were left out are. The caller holds mu.
func (h *pubsub) missing() int64 {
	n := h.gone + h.gaps
	for topic, subscribers := range h.subscribed {
		n += h.each[topic] * int64(subscribers)
	}
	for _, s := range h.shards {
		s.mu.Lock()
		defer s.mu.Unlock()
		n -= s.sum.run[nDelivered]
	}
	for p, published := range h.published {
		for i := p; published < 0 && i < len(h.next); i += h.AllPublishers {
			n += int64(h.next[i])
		}
	}
	return n
}
