package hub

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/myriad-go/myriad/internal/testkit"
	"github.com/myriad-go/myriad/tcp"
)

// TestReplayAcrossReconnects disconnects clients during publishing, which continue at one of two hubs, of which
// one lags. Each must get every message of its topics once, in order.
func TestReplayAcrossReconnects(t *testing.T) {
	const messages, clients, topics = 3000, 6, 3
	for _, model := range tcp.Models() {
		t.Run(model, func(t *testing.T) {
			a, b := newReplayHub(&Replay{}), newReplayHub(&Replay{})
			var addrs [2]string
			addrs[0], _ = serveHub(t, model, a)
			addrs[1], _ = serveHub(t, model, b)
			late := make(chan KeptMessage, 50)
			var all sync.WaitGroup
			all.Go(func() {
				defer close(late)
				for i := range messages {
					m := KeptMessage{At: Position{"e", uint64(i + 4)}, Time: time.Now(), Topic: "k." + strconv.Itoa(i%(topics+1)), Data: []byte(strconv.Itoa(i))}
					a.DeliverKept(m)
					late <- m
					if i%20 == 0 {
						time.Sleep(time.Millisecond)
					}
				}
			})
			all.Go(func() {
				for m := range late {
					b.DeliverKept(m)
				}
			})
			for n := range clients {
				all.Go(func() {
					r := rand.New(rand.NewPCG(1, uint64(n)))
					last, had, cuts := "e-3", 0, 0
					for want := 0; had < messages*topics/(topics+1); cuts++ {
						visit := readEventMessages
						if n%2 == 0 {
							visit = readSocketMessages
						}
						err := visit(t, addrs[r.IntN(2)], last, 1+r.IntN(300), func(id, data string) error {
							for want%(topics+1) == topics {
								want++
							}
							if data != strconv.Itoa(want) {
								return fmt.Errorf("it got %s behind %s; expected %d", data, last, want)
							}
							want++
							had++
							last = id
							if had == messages*topics/(topics+1) {
								return io.EOF
							}
							return nil
						})
						if err != nil && err != io.EOF {
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

type receivedMessage struct{ Op, ID, Topic, Data string }

func readEventMessages(t testing.TB, addr, lastID string, maxMessages int, f func(id, data string) error) error {
	s := openEvents(t, addr, "topic=k.0&topic=k.1&topic=k.2", lastID)
	defer s.Close()
	for maxMessages > 0 {
		event, err := s.nextEvent()
		if err != nil {
			return err
		}
		_, data, ok := strings.Cut(event, "data: ")
		if !ok {
			continue // only sets the id
		}
		var m receivedMessage
		if err := json.Unmarshal([]byte(data), &m); err != nil || m.Op != "message" {
			return fmt.Errorf("%s: %v", event, err)
		}
		if err := f(m.ID, m.Data); err != nil {
			return err
		}
		maxMessages--
	}
	return nil
}

func readSocketMessages(t testing.TB, addr, lastID string, maxMessages int, f func(id, data string) error) error {
	p := dialWebSocket(t, addr, "")
	defer func() { _ = p.CloseNow() }()
	p.sendText(`{"op":"subscribe","pattern":"k.[012]","since":"` + lastID + `"}`)
	for maxMessages > 0 {
		_, text, err := p.Read(p.ctx)
		if err != nil {
			return err
		}
		var m receivedMessage
		if err := json.Unmarshal(text, &m); err != nil || m.Op != "message" && m.Op != "subscribed" {
			return fmt.Errorf("%s: %v", text, err)
		}
		if m.Op == "subscribed" {
			continue
		}
		if err := f(m.ID, m.Data); err != nil {
			return err
		}
		maxMessages--
	}
	return nil
}

// TestReplayBufferLimits checks the limits of kept messages in number, bytes and age, and for whom dropped ones
// are missing.
func TestReplayBufferLimits(t *testing.T) {
	began := time.Now()
	put := func(h *Hub, seq uint64, topic string, size int) {
		h.DeliverKept(KeptMessage{At: Position{"e", seq}, Time: began.Add(time.Duration(seq) * time.Second), Topic: topic, Data: make([]byte, size)})
	}
	wants := func(h *Hub, first uint64, messages, size int) {
		t.Helper()
		if r := h.Replay; r.firstSeq != first || len(r.messages)-r.head != messages || r.bytes != size || cap(r.messages) > 4*messages+64 {
			t.Fatalf("from %d on there are %d messages of %d bytes, with room for %d; expected %d, %d, %d", r.firstSeq, len(r.messages)-r.head, r.bytes, cap(r.messages), first, messages, size)
		}
	}
	lacks := func(h *Hub, k Kind, name string, seq uint64, want bool) {
		t.Helper()
		if have := h.Replay.mayHaveDropped(&topic{kind: k, name: name}, seq); have != want {
			t.Errorf("%s lacks something behind %d: %v; expected %v", name, seq, have, want)
		}
	}
	fresh := func(r *Replay) *Hub {
		h := &Hub{Replay: r, Cluster: &fakeKeepingCluster{}}
		r.Topics = []string{"*"}
		h.Replay.Begin("e", 1)
		h.Replay.Ready(0)
		return h
	}
	h := fresh(&Replay{MaxMessages: 10})
	put(h, 1, "quiet", 1)
	for seq := uint64(2); seq <= 1000; seq++ {
		put(h, seq, "busy", 1)
	}
	wants(h, 991, 10, 10*(len("busy")+1+keptMessageOverhead))
	lacks(h, Topic, "quiet", 0, true)
	lacks(h, Topic, "quiet", 1, false) // whatever other topics lack
	lacks(h, Topic, "busy", 989, true)
	lacks(h, Topic, "busy", 990, false)
	lacks(h, Pattern, "q*", 989, true)
	lacks(h, Pattern, "q*", 990, false)

	h = fresh(&Replay{MaxBytes: 1000})
	for seq := uint64(1); seq <= 20; seq++ {
		put(h, seq, "a", 99)
	}
	wants(h, 16, 5, 1000)

	h = fresh(&Replay{MaxAge: 10 * time.Second})
	for seq := uint64(1); seq <= 20; seq++ {
		put(h, seq, "a", 1)
	}
	wants(h, 10, 11, 11*(2+keptMessageOverhead))
	h.Replay.Forget(began.Add(25 * time.Second))
	wants(h, 15, 6, 6*(2+keptMessageOverhead))
	h.Replay.Forget(began.Add(time.Hour))
	wants(h, 21, 0, 0)
	lacks(h, Topic, "a", 19, true)
	lacks(h, Topic, "a", 20, false)

	h = fresh(&Replay{MaxMessages: 1})
	put(h, 1, "a", 1)
	for seq := uint64(2); seq <= maxDroppedTopics+10; seq++ {
		put(h, seq, strconv.FormatUint(seq, 10), 1)
	}
	if n := len(h.Replay.newestDropped); n > maxDroppedTopics {
		t.Errorf("of %d topics it is known what is gone; expected %d at the most", n, maxDroppedTopics)
	}
	lacks(h, Topic, "a", 2, true) // possibly, since it is unknown
	lacks(h, Topic, "a", maxDroppedTopics+9, false)
}

// TestReplayGaps checks that current subscribers are told of messages dropped by the stream, and reconnecting
// ones of those dropped from memory.
func TestReplayGaps(t *testing.T) {
	forEachModel(t, func() *Hub { return newReplayHub(&Replay{MaxMessages: 2}) }, func(t *testing.T, h *Hub, addr string) {
		p := dialWebSocket(t, addr, "")
		p.sendText(`{"op":"subscribe","topic":"k.a"}`)
		p.expectText(`{"op":"subscribed","topic":"k.a","count":1,"since":"e-3"}`)
		s := openEvents(t, addr, "pattern=k.*", "e-2")
		s.expectEvents(t, `id: e-3 data: {"op":"message","id":"e-3","pattern":"k.*","topic":"k.old","data":"3"}`, "id: e-3")
		other, in := dialAndSend(t, addr, "SUBSCRIBE k.a\r\n")
		defer other.Close()
		waitForSubscribers(t, h, "k.a", 2)
		h.DeliverKept(KeptMessage{At: Position{"e", 10}, Time: time.Now(), Topic: "k.a", Data: []byte("x")})
		p.expectText(`{"op":"gap","id":"e-9","topic":"k.a"}`)
		p.expectText(`{"op":"message","id":"e-10","topic":"k.a","data":"x"}`)
		s.expectEvents(t, `id: e-9 event: gap data: {"op":"gap","id":"e-9","pattern":"k.*"}`, `id: e-10 data: {"op":"message","id":"e-10","pattern":"k.*","topic":"k.a","data":"x"}`)
		if want := confirmationRESP2("subscribe", "k.a", 1) + "*3\r\n$7\r\nmessage\r\n$3\r\nk.a\r\n$1\r\nx\r\n"; want != "" {
			have := make([]byte, len(want))
			if _, err := io.ReadFull(in, have); string(have) != want {
				t.Errorf("a Redis client is told %q, %v; expected %q", have, err, want)
			}
		}
		late := openEvents(t, addr, "topic=k.a&topic=k.b", "e-8")
		late.expectEvents(t, `id: e-9 event: gap data: {"op":"gap","id":"e-9"}`, `id: e-10 data: {"op":"message","id":"e-10","topic":"k.a","data":"x"}`, "id: e-10")
		h.Cluster.(*fakeKeepingCluster).at.Seq = 10
		h.publishAll(t, "k.a", "1", "2", "3")
		for range 3 {
			p.expectText(`{"op":"message"*`)
		}
		q := dialWebSocket(t, addr, "")
		q.sendText(`{"op":"subscribe","topic":"k.a","since":"e-10"}`)
		q.expectText(`{"op":"subscribed","topic":"k.a","count":1,"since":"e-10"}`)
		q.expectText(`{"op":"gap","id":"e-11","topic":"k.a"}`)
		q.expectText(`{"op":"message","id":"e-12","topic":"k.a","data":"2"}`)
		q.expectText(`{"op":"message","id":"e-13","topic":"k.a","data":"3"}`)
		q.sendText(`{"op":"subscribe","topic":"k.b","since":"e-10"}`) // nothing is dropped of it
		q.expectText(`{"op":"subscribed","topic":"k.b","count":2,"since":"e-10"}`)
		q.sendText(`{"op":"ping"}`)
		q.expectText(`{"op":"pong"}`)
	})
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
		p.sendText(`{"op":"ping"}`)
		p.expectText(`{"op":"subscribed","topic":"k.a"*`)
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
		if n := h.Stats().Replay.Replays; n != 2 {
			t.Errorf("%d replays took a turn; expected 2", n)
		}
	})
}

// TestReplayQueueAndTimeout checks that replays beyond the queue are rejected, and slow ones time out.
func TestReplayQueueAndTimeout(t *testing.T) {
	const ahead = `{"op":"subscribe","topic":"k.a","since":"e-4"}`
	t.Run("waiting", func(t *testing.T) {
		h := newReplayHub(&Replay{MaxReplays: 1})
		h.Replay.Begin("e", 1) // not ready, so all wait
		addr, _ := serveHub(t, tcp.Goroutine, h)
		var waiting []wsClient
		for range waitersPerTurn + 1 {
			p := dialWebSocket(t, addr, "")
			p.sendText(ahead)
			p.expectText(`{"op":"subscribed"*`)
			waiting = append(waiting, p)
		}
		testkit.WaitFor(t, "all wait", func() bool { return h.Stats().Replay.Waiting == waitersPerTurn+1 })
		p := dialWebSocket(t, addr, "")
		p.sendText(ahead)
		p.expectClose(closeTryAgainLater)
		if b, err := io.ReadAll(openEvents(t, addr, "topic=k.a", "e-4").Reader); err != nil || !strings.Contains(string(b), errTooManyReplays.Error()) {
			t.Errorf("a stream is told %s, %v", b, err)
		}
		if s := h.Stats().Replay; s.Refused != 2 {
			t.Errorf("%+v; expected 2 to be refused", s)
		}
		h.Replay.Ready(4)
		h.Cluster.(*fakeKeepingCluster).at.Seq = 4
		h.publishAll(t, "k.a", "x")
		for _, p := range waiting {
			p.expectText(`{"op":"message","id":"e-5","topic":"k.a","data":"x"}`)
		}
	})
	t.Run("time", func(t *testing.T) {
		serveSlowConsumers(t, func() *Hub { return newReplayHub(&Replay{Timeout: 50 * time.Millisecond}) }, func(t *testing.T, h *Hub, _ *tcp.Server, addr string) {
			for range 100 {
				h.publishAll(t, "k.a", string(bytes.Repeat([]byte("x"), 60<<10)))
			}
			openEvents(t, addr, "topic=k.a", "e-3") // and never read
			testkit.WaitFor(t, "its time is over", func() bool { return h.Stats().Replay.Refused == 1 })
			waitForSubscribers(t, h, "k.a", 0)
		})
		h := newReplayHub(&Replay{Timeout: 50 * time.Millisecond})
		h.Replay.Begin("e", 1)
		addr, _ := serveHub(t, tcp.Goroutine, h)
		p := dialWebSocket(t, addr, "")
		p.sendText(ahead)
		p.expectText(`{"op":"subscribed"*`)
		p.expectClose(closeTryAgainLater)
	})
}

// TestReplayNotReady checks that clients can subscribe while the newest position is unknown.
func TestReplayNotReady(t *testing.T) {
	h := newReplayHub(&Replay{})
	h.Replay.Begin("e", 1)
	addr, _ := serveHub(t, tcp.Goroutine, h)
	p := dialWebSocket(t, addr, "")
	p.sendText(`{"op":"subscribe","topic":"k.a"}`)
	p.expectText(`{"op":"subscribed","topic":"k.a","count":1}`)
	h.publishAll(t, "k.a", "x")
	p.expectText(`{"op":"message","id":"e-4","topic":"k.a","data":"x"}`)
}

// TestReplayLastValues checks that clients without a position start with the last value, and reconnecting ones
// don't.
func TestReplayLastValues(t *testing.T) {
	h := newReplayHub(&Replay{})
	h.Limits.LastValues = 10
	addr, _ := serveHub(t, tcp.Goroutine, h)
	h.publishAll(t, "k.a", "x")
	p := dialWebSocket(t, addr, "")
	p.sendText(`{"op":"subscribe","topic":"k.a"}`)
	p.expectText(`{"op":"subscribed","topic":"k.a","count":1,"since":"e-4"}`)
	p.expectText(`{"op":"message","topic":"k.a","data":"x"}`)
	p.sendText(`{"op":"unsubscribe","topic":"k.a"}`)
	p.expectText(`{"op":"unsubscribed","topic":"k.a","count":0}`)
	p.sendText(`{"op":"subscribe","topic":"k.a","since":"e-4"}`)
	p.expectText(`{"op":"subscribed","topic":"k.a","count":1,"since":"e-4"}`)
	p.sendText(`{"op":"ping"}`)
	p.expectText(`{"op":"pong"}`)
}

func TestReplayValidated(t *testing.T) {
	for _, row := range []struct {
		replay *Replay
		want   string
	}{
		{&Replay{}, "Topics is empty"},
		{&Replay{Topics: []string{""}}, "expected a name"},
		{&Replay{Topics: []string{"news*"}}, `has "news*"; expected a name, or a prefix that ends with ".", ":" or "/" followed by "*"`},
		{&Replay{Topics: []string{"a?.*"}}, "expected a name"},
		{&Replay{Topics: []string{"a*b"}}, "expected a name"},
		{&Replay{Topics: []string{strings.Repeat("a", maxReplayTopicBytes+1)}}, "257 bytes; expected at most 256"},
		{&Replay{Topics: []string{"*"}, MaxBytes: -1}, "Replay.MaxBytes is -1"},
		{&Replay{Topics: []string{"*"}, MaxBytes: 1000}, "MaxBytes is 1000; expected at least 66660"},
		{&Replay{Topics: []string{"*"}, MaxMessages: -1}, "Replay.MaxMessages is -1"},
		{&Replay{Topics: []string{"*"}, MaxAge: time.Millisecond}, "MaxAge is 1ms; expected at least 1s"},
		{&Replay{Topics: []string{"*"}, MaxReplays: -1}, "Replay.MaxReplays is -1"},
		{&Replay{Topics: []string{"*"}, MaxReplaysEach: -1}, "Replay.MaxReplaysEach is -1"},
		{&Replay{Topics: []string{"*"}, Timeout: -1}, "Replay.Timeout is -1"},
	} {
		if err := (&Hub{Replay: row.replay}).Check(); !errors.Is(err, tcp.ErrBadConfig) || !strings.Contains(err.Error(), row.want) {
			t.Errorf("%v: %v; expected %q", row.replay.Topics, err, row.want)
		}
	}
	h := &Hub{Replay: &Replay{Topics: []string{"news.*", "chat:7"}}, Cluster: &fakeKeepingCluster{}}
	if err := h.Check(); err != nil {
		t.Error(err)
	}
	for _, row := range []struct {
		k    Kind
		name string
		want bool
	}{
		{Topic, "news.a", true}, {Topic, "news.", true}, {Topic, "news", false}, {Topic, "chat:7", true}, {Topic, "chat:77", false},
		{Sharded, "news.a", false}, {Pattern, "news.a*", true}, {Pattern, "n*", true}, {Pattern, "*", true}, {Pattern, "?", true},
		{Pattern, "newt*", false}, {Pattern, "chat:?", true}, {Pattern, "chat:[89]", false}, {Pattern, "sport*", false}, {Pattern, "news.a", true},
	} {
		if have := h.keepsAny(row.k, row.name); have != row.want {
			t.Errorf("%d %q is kept: %v; expected %v", row.k, row.name, have, row.want)
		}
	}
	for pattern, want := range map[string]bool{"news.*": true, "news.a?": true, "news.": true, "new*": false, "*": false, "chat:7": false, "chat:*": false} {
		if have := h.Replay.Keeps(Pattern, pattern); have != want {
			t.Errorf("all that %q matches is kept: %v; expected %v", pattern, have, want)
		}
	}
	if h.Cluster = nil; h.keepsAny(Topic, "news.a") {
		t.Error("a hub that is alone keeps messages")
	}
}
