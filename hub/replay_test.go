package hub

import (
	"encoding/json"
	"fmt"
	"io"
	"math/rand/v2"
	"runtime/debug"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/myriad-go/myriad/internal/testkit"
	"github.com/myriad-go/myriad/tcp"
)

const reconnectMessages, reconnectTopics = 3000, 3

// TestReplayAcrossReconnects disconnects clients during publishing, which continue at one of two hubs, of which
// one lags, or at a single hub. Each must get every message of its topics once, in order.
func TestReplayAcrossReconnects(t *testing.T) {
	for name, alone := range map[string]bool{"two hubs": false, "a single hub": true} {
		t.Run(name, func(t *testing.T) {
			a, b := newReplayHub(&Replay{}), newReplayHub(&Replay{})
			if alone {
				a.Cluster, b = nil, a
			}
			var addrs [2]string
			addrs[0], _ = serveHub(t, tcp.Auto, a)
			addrs[1], _ = serveHub(t, tcp.Auto, b)
			late := make(chan KeptMessage, 50)
			var all sync.WaitGroup
			all.Go(func() {
				defer close(late)
				for i := range reconnectMessages {
					topic, data := "k."+strconv.Itoa(i%(reconnectTopics+1)), strconv.Itoa(i)
					if alone {
						a.publishAll(t, topic, data)
					} else {
						m := KeptMessage{At: Position{"e", uint64(i + 4)}, Time: time.Now(), Topic: topic, Data: []byte(data)}
						a.KeepAndDeliver(m)
						late <- m
					}
					if i%20 == 0 {
						time.Sleep(time.Millisecond)
					}
				}
			})
			all.Go(func() {
				for m := range late {
					b.KeepAndDeliver(m)
				}
			})
			for n := range 6 {
				all.Go(func() {
					r := rand.New(rand.NewPCG(1, uint64(n)))
					c, cuts := restlessClient{last: "e-3"}, 0
					for ; c.want < reconnectMessages-1; cuts++ {
						if err := c.visit(t, addrs[r.IntN(2)], 1+r.IntN(300)); err != nil {
							t.Errorf("client %d: %v", n, err)
							return
						}
					}
					if cuts < 5 {
						t.Errorf("client %d was cut off %d times; expected more", n, cuts)
					}
				})
			}
			all.Wait()
			if s := a.Stats().Replay; s.Gaps != 0 || s.Replayed == 0 {
				t.Errorf("%+v", s)
			}
		})
	}
}

type restlessClient struct {
	last string // id of the last message
	want int    // number of the next one
}

// visit reads messages of topics behind the last one, and disconnects.
func (c *restlessClient) visit(t testing.TB, addr string, maxMessages int) error {
	s := openEvents(t, addr, "topic=k.0&topic=k.1&topic=k.2", c.last)
	defer s.Close()
	for maxMessages > 0 && c.want < reconnectMessages-1 {
		event, err := s.nextEvent()
		if err != nil {
			return err
		}
		_, text, ok := strings.Cut(event, "data: ")
		if !ok { // it only sets the id
			continue
		}
		var m struct{ Op, ID, Data string }
		if err := json.Unmarshal([]byte(text), &m); err != nil || m.Op != "message" || m.Data != strconv.Itoa(c.want) {
			return fmt.Errorf("it got %s behind %s, %v; expected %d", text, c.last, err, c.want)
		}
		c.last = m.ID
		maxMessages--
		if c.want++; c.want%(reconnectTopics+1) == reconnectTopics { // of the topic that it does not subscribe to
			c.want++
		}
	}
	return nil
}

// TestReplayBufferLimits checks the limits of kept messages in number, bytes and age, and for whom dropped ones
// are missing.
func TestReplayBufferLimits(t *testing.T) {
	began := time.Now()
	// put keeps a message a second, of each topic in turn, or of a new topic each.
	put := func(h *Hub, first, last uint64, size int, topics ...string) {
		for seq := first; seq <= last; seq++ {
			topic := strconv.FormatUint(seq, 10)
			if len(topics) > 0 {
				topic = topics[seq%uint64(len(topics))]
			}
			at := began.Add(time.Duration(seq) * time.Second)
			h.KeepAndDeliver(KeptMessage{At: Position{"e", seq}, Time: at, Topic: topic, Data: make([]byte, size)})
		}
	}
	wants := func(h *Hub, first uint64, messages, size int) {
		t.Helper()
		if r := h.Replay; r.firstOrNextSeqLocked() != first || r.live != messages || r.bytes != size || cap(r.messages) > 4*messages+64 {
			t.Fatalf("from %d on there are %d messages of %d bytes, with room for %d; expected %d, %d, %d",
				r.firstOrNextSeqLocked(), r.live, r.bytes, cap(r.messages), first, messages, size)
		}
	}
	// complete expects that a topic, or a pattern with a wildcard, lacks messages up to seq and none behind it.
	complete := func(h *Hub, name string, seq uint64) {
		t.Helper()
		newest := h.Replay.newestDroppedSeqLocked(name)
		if strings.ContainsAny(name, "*[") {
			newest = h.Replay.newestDroppedSeqOfPatternsLocked([]topicPattern{{glob: compileGlob(name)}}, 0)
		}
		testkit.WantEqual(t, newest, seq, "newest message that %s lacks", name)
	}
	fresh := func(r *Replay) *Hub {
		h := &Hub{Replay: r, Cluster: &fakeKeepingCluster{}}
		r.Topics = []string{"*"}
		h.Replay.Begin("e", 1)
		h.Replay.SetLoaded(0)
		return h
	}
	h := fresh(&Replay{MaxMessages: 10})
	put(h, 1, 1, 1, "quiet")
	put(h, 2, 1000, 1, "busy")
	wants(h, 991, 10, 10*(len("busy")+1+keptMessageOverhead)+keptTopicOverhead)
	for name, seq := range map[string]uint64{"quiet": 1, "busy": 990, "b*": 990, "q*": 1} { // whatever other topics lack
		complete(h, name, seq)
	}

	h = fresh(&Replay{MaxBytes: 1000 + keptTopicOverhead})
	put(h, 1, 20, 99, "a")
	wants(h, 16, 5, 1000+keptTopicOverhead)

	h = fresh(&Replay{MaxAge: 10 * time.Second})
	put(h, 1, 20, 1, "a")
	wants(h, 10, 11, 11*(2+keptMessageOverhead)+keptTopicOverhead)
	h.Replay.DropExpired(began.Add(25 * time.Second))
	wants(h, 15, 6, 6*(2+keptMessageOverhead)+keptTopicOverhead)
	h.Replay.DropExpired(began.Add(time.Hour))
	wants(h, 21, 0, 0)
	complete(h, "a", 20)

	h = fresh(&Replay{MaxMessages: 10, MaxMessagesPerTopic: 3, MaxBytesPerTopic: 4 * (2 + keptMessageOverhead)})
	put(h, 1, 1, 1, "quiet")
	put(h, 2, 1000, 1, "a", "b")
	wants(h, 1, 7, 6*(2+keptMessageOverhead)+len("quiet")+1+keptMessageOverhead+3*keptTopicOverhead)
	for name, seq := range map[string]uint64{"quiet": 0, "q*": 0, "a": 994, "b": 993, "[ab]": 994} {
		complete(h, name, seq)
	}
	put(h, 1001, 1003, 101, "b")
	wants(h, 1, 6, 3*(2+keptMessageOverhead)+2*(102+keptMessageOverhead)+len("quiet")+1+keptMessageOverhead+3*keptTopicOverhead)
	put(h, 1004, 1011, 1) // the limits of all win
	wants(h, 1002, 10, 8*(5+keptMessageOverhead)+2*(102+keptMessageOverhead)+9*keptTopicOverhead)

	h = fresh(&Replay{MaxMessages: 1})
	put(h, 1, maxDroppedTopics+10, 1)
	if n := len(h.Replay.newestDropped); n > maxDroppedTopics || h.Replay.newestDroppedSeqLocked("1") <= 2 { // unknown, so possibly
		t.Errorf("of %d topics it is known what is gone; expected %d at the most, and not the oldest", n, maxDroppedTopics)
	}
}

// TestReplayManyTopics keeps messages of a million topics within the memory that they count as, and drops them.
func TestReplayManyTopics(t *testing.T) {
	topics := 1_000_000
	if testing.Short() {
		topics = 100_000
	}
	defer debug.SetGCPercent(debug.SetGCPercent(400))
	before := testkit.LiveHeapBytes()
	h := &Hub{Replay: &Replay{Topics: []string{"*"}, MaxBytes: 1 << 30, MaxMessages: topics + 1, MaxMessagesPerTopic: 1}}
	for i := range topics + topics/10 {
		h.publishAll(t, "topic."+strconv.Itoa(i%topics), "0123456789abcdef")
	}
	s := h.Stats().Replay
	if s.Messages != int64(topics) || len(h.Replay.topics) != topics || len(h.Replay.newestDropped) > maxDroppedTopics {
		t.Fatalf("%+v, %d topics, %d with dropped messages; expected %d messages", s, len(h.Replay.topics), len(h.Replay.newestDropped), topics)
	}
	heap := testkit.LiveHeapBytes() - before
	t.Logf("%d bytes of heap per topic with one message, counted as %d", heap/s.Messages, s.Bytes/s.Messages)
	if heap > s.Bytes*5/4 {
		t.Errorf("%d bytes of heap, counted as %d; expected at most a quarter more", heap, s.Bytes)
	}
	h.Replay.MaxMessages = 1
	h.publishAll(t, "last", "x")
	if s := h.Stats().Replay; s.Messages != 1 || len(h.Replay.topics) != 1 || h.Replay.maxTopics > 4 {
		t.Errorf("%+v, %d topics, space for %d", s, len(h.Replay.topics), h.Replay.maxTopics)
	}
}

// TestReplayAge checks that publishing, subscribing and Stats drop expired messages of a single hub.
func TestReplayAge(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := &Hub{Replay: &Replay{Topics: []string{"*"}, MaxAge: time.Minute}}
		expectAfter := func(d time.Duration, drop func(), messages int) {
			t.Helper()
			time.Sleep(d)
			if drop(); h.Replay.live != messages {
				t.Errorf("%d messages are kept; expected %d", h.Replay.live, messages)
			}
		}
		publish := func() { h.publishAll(t, "b", "x") }
		for range 10 {
			h.publishAll(t, "a", "x")
			time.Sleep(10 * time.Second)
		}
		expectAfter(time.Second, publish, 6)
		expectAfter(40*time.Second, h.ensureLocalStreamAndDropExpired, 2)
		time.Sleep(time.Minute)
		if s := h.Stats().Replay; s.Messages != 0 || s.Bytes != 0 || s.Seq != 11 {
			t.Errorf("%+v; expected no messages", s)
		}
		for range 3 * maxExpiredDrops {
			h.publishAll(t, "a", "x")
		}
		expectAfter(2*time.Minute, publish, 2*maxExpiredDrops+1) // a publish does not wait until all are dropped
		expectAfter(0, h.ensureLocalStreamAndDropExpired, 1)
	})
}

// TestReplayGaps checks that current subscribers are told of messages dropped by the stream, and reconnecting
// ones of those dropped from memory.
func TestReplayGaps(t *testing.T) {
	h, addr := startHub(t, newReplayHub(&Replay{MaxMessages: 2}))
	p := dialWebSocket(t, addr, "")
	p.exchange(`{"op":"subscribe","topic":"k.a"}`, `{"op":"subscribed","topic":"k.a","count":1,"since":"e-3"}`)
	s := openEvents(t, addr, "pattern=k.*", "e-2")
	s.expectEvents(t, `id: e-3 data: {"op":"message","id":"e-3","pattern":"k.*","topic":"k.old","data":"3"}`, "id: e-3")
	redis := testkit.Dial(t, addr)
	redis.Send("SUBSCRIBE k.a\r\n")
	redis.Expect(confirmationRESP2("subscribe", "k.a", 1))
	h.KeepAndDeliver(KeptMessage{At: Position{"e", 10}, Time: time.Now(), Topic: "k.a", Data: []byte("x")})
	p.expectText(`{"op":"gap","id":"e-9","topic":"k.a"}`)
	p.expectText(`{"op":"message","id":"e-10","topic":"k.a","data":"x"}`)
	s.expectEvents(t, `id: e-9 event: gap data: {"op":"gap","id":"e-9","pattern":"k.*"}`, `id: e-10 data: {"op":"message","id":"e-10","pattern":"k.*","topic":"k.a","data":"x"}`)
	redis.Expect("*3\r\n$7\r\nmessage\r\n$3\r\nk.a\r\n$1\r\nx\r\n")
	late := openEvents(t, addr, "topic=k.a&topic=k.b", "e-8")
	late.expectEvents(t, `id: e-9 event: gap data: {"op":"gap","id":"e-9"}`, `id: e-10 data: {"op":"message","id":"e-10","topic":"k.a","data":"x"}`, "id: e-10")
	h.Cluster.(*fakeKeepingCluster).at.Seq = 10
	h.publishAll(t, "k.a", "1", "2", "3")
	q := dialWebSocket(t, addr, "")
	q.exchange(`{"op":"subscribe","topic":"k.a","since":"e-10"}`, `{"op":"subscribed","topic":"k.a","count":1,"since":"e-10"}`,
		`{"op":"gap","id":"e-11","topic":"k.a"}`, `{"op":"message","id":"e-12","topic":"k.a","data":"2"}`, `{"op":"message","id":"e-13","topic":"k.a","data":"3"}`)
	q.exchange(`{"op":"subscribe","topic":"k.b","since":"e-10"}`, `{"op":"subscribed","topic":"k.b","count":2,"since":"e-10"}`) // nothing is dropped of it
	q.exchange(`{"op":"ping"}`, `{"op":"pong"}`)
}

// TestReplayExceedsMaxUnsent checks a replay that exceeds MaxUnsent, and that later requests are answered after
// it.
func TestReplayExceedsMaxUnsent(t *testing.T) {
	const messages = 200
	serveSlowConsumers(t, func() *Hub { return newReplayHub(&Replay{}) }, func(t *testing.T, h *Hub, _ *tcp.Server, addr string) {
		for range messages {
			h.publishAll(t, "k.a", strings.Repeat("x", 4<<10))
		}
		p := dialWebSocket(t, addr, "")
		p.sendText(`{"op":"subscribe","topic":"k.a","since":"e-3"}`)
		p.sendText(`{"op":"subscribe","topic":"k.b","since":"e-3"}`)
		p.exchange(`{"op":"ping"}`, `{"op":"subscribed","topic":"k.a"*`)
		for i := range messages {
			p.expectText(fmt.Sprintf(`{"op":"message","id":"e-%d"*`, i+4))
		}
		p.expectText(`{"op":"subscribed","topic":"k.b","count":2*`)
		p.expectText(`{"op":"pong"}`)
		s := openEvents(t, addr, "topic=k.a", "e-4")
		for i := 1; i < messages; i++ {
			if event, err := s.nextEvent(); !strings.HasPrefix(event, fmt.Sprintf("id: e-%d data", i+4)) {
				t.Fatalf("%d: %.60s, %v", i, event, err)
			}
		}
		testkit.WaitFor(t, "the replays end", func() bool { return h.Stats().Replay.Waiting == 0 })
		testkit.WantEqual(t, h.Stats().Replay.Replays, 2, "replays that took a turn")
	})
}

// TestReplayQueueAndTimeout checks that replays beyond the queue are rejected, that slow ones time out, and that
// clients without an id can subscribe while the newest position is unknown.
func TestReplayQueueAndTimeout(t *testing.T) {
	const ahead = `{"op":"subscribe","topic":"k.a","since":"e-4"}`
	t.Run("waiting", func(t *testing.T) {
		h := newReplayHub(&Replay{MaxReplays: 1})
		h.Replay.Begin("e", 1) // not ready, so all wait
		addr, _ := serveHub(t, tcp.Goroutine, h)
		var waiting []wsClient
		for range waitersPerTurn + 1 {
			p := dialWebSocket(t, addr, "")
			p.exchange(ahead, `{"op":"subscribed"*`)
			waiting = append(waiting, p)
		}
		testkit.WaitFor(t, "all wait", func() bool { return h.Stats().Replay.Waiting == waitersPerTurn+1 })
		p := dialWebSocket(t, addr, "")
		p.exchange(`{"op":"subscribe","topic":"k.b"}`, `{"op":"subscribed","topic":"k.b","count":1}`)
		h.publishAll(t, "k.b", "x")
		p.expectText(`{"op":"message","id":"e-4","topic":"k.b","data":"x"}`)
		p.sendText(ahead)
		p.expectClose(closeTryAgainLater)
		if b, err := io.ReadAll(openEvents(t, addr, "topic=k.a", "e-4").R); err != nil || !strings.Contains(string(b), errTooManyReplays.Error()) {
			t.Errorf("a stream is told %s, %v", b, err)
		}
		testkit.WantEqual(t, h.Stats().Replay.Refused, 2, "refused replays")
		h.Replay.SetLoaded(4)
		h.publishAll(t, "k.a", "x")
		for _, p := range waiting {
			p.expectText(`{"op":"message","id":"e-5","topic":"k.a","data":"x"}`)
		}
	})
	t.Run("time", func(t *testing.T) {
		serveSlowConsumers(t, func() *Hub { return newReplayHub(&Replay{Timeout: 50 * time.Millisecond}) }, func(t *testing.T, h *Hub, _ *tcp.Server, addr string) {
			for range 100 {
				h.publishAll(t, "k.a", strings.Repeat("x", 60<<10))
			}
			openEvents(t, addr, "topic=k.a", "e-3") // and never read
			testkit.WaitFor(t, "its time is over", func() bool { return h.Stats().Replay.Refused == 1 })
			waitForSubscribers(t, h, "k.a", 0)
		})
		h := newReplayHub(&Replay{Timeout: 50 * time.Millisecond})
		h.Replay.Begin("e", 1)
		addr, _ := serveHub(t, tcp.Goroutine, h)
		p := dialWebSocket(t, addr, "")
		p.exchange(ahead, `{"op":"subscribed"*`)
		p.expectClose(closeTryAgainLater)
	})
}

// TestReplayLastValues checks that clients without a position start with the last value, and reconnecting ones
// don't.
func TestReplayLastValues(t *testing.T) {
	h := newReplayHub(&Replay{})
	h.Limits.LastValues = 10
	addr, _ := serveHub(t, tcp.Goroutine, h)
	h.publishAll(t, "k.a", "x")
	p := dialWebSocket(t, addr, "")
	p.exchange(`{"op":"subscribe","topic":"k.a"}`, `{"op":"subscribed","topic":"k.a","count":1,"since":"e-4"}`)
	p.expectText(`{"op":"message","topic":"k.a","data":"x"}`)
	p.exchange(`{"op":"unsubscribe","topic":"k.a"}`, `{"op":"unsubscribed","topic":"k.a","count":0}`)
	p.exchange(`{"op":"subscribe","topic":"k.a","since":"e-4"}`, `{"op":"subscribed","topic":"k.a","count":1,"since":"e-4"}`)
	p.exchange(`{"op":"ping"}`, `{"op":"pong"}`)
}

func TestReplayTopics(t *testing.T) {
	h := &Hub{Replay: &Replay{Topics: []string{"news.*", "chat:7"}}, Cluster: &fakeKeepingCluster{}}
	for _, row := range []struct {
		k    Kind
		name string
		want bool
	}{
		{Topic, "news.a", true}, {Topic, "news.", true}, {Topic, "news", false}, {Topic, "chat:7", true}, {Topic, "chat:77", false},
		{Sharded, "news.a", false}, {Pattern, "news.a*", true}, {Pattern, "n*", true}, {Pattern, "*", true}, {Pattern, "?", true},
		{Pattern, "newt*", false}, {Pattern, "chat:?", true}, {Pattern, "chat:[89]", false}, {Pattern, "sport*", false}, {Pattern, "news.a", true},
	} {
		testkit.WantEqual(t, h.keepsAny(row.k, row.name), row.want, "%d %q is kept", row.k, row.name)
	}
	for pattern, want := range map[string]bool{"news.*": true, "news.a?": true, "news.": true, "new*": false, "*": false, "chat:7": false, "chat:*": false} {
		testkit.WantEqual(t, h.Replay.KeepsAll(Pattern, pattern), want, "all that %q matches is kept", pattern)
	}
}
