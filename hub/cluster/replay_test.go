package cluster

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/coder/websocket"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/myriad-go/myriad/hub"
	"github.com/myriad-go/myriad/hub/natsd"
	"github.com/myriad-go/myriad/internal/testkit"
	"github.com/myriad-go/myriad/internal/testkit/testserver"
)

// newReplayHub returns a hub that keeps the topics k.*.
func newReplayHub(r *hub.Replay) *hub.Hub {
	r.Topics = []string{"k.*"}
	return &hub.Hub{Replay: r}
}

func startNATSWithStreams(t *testing.T, dir string) *natsd.Server {
	t.Helper()
	return startNATS(t, natsd.Config{Addr: "127.0.0.1:0", StoreDir: dir})
}

func startReplayNode(t *testing.T, h *hub.Hub, c Config) *testNode {
	t.Helper()
	p := startTestNode(t, h, c)
	p.waitForReplayReady(t)
	return p
}

func (p *testNode) waitForReplayReady(t *testing.T) {
	t.Helper()
	testkit.WaitFor(t, "the stream is read", func() bool { return p.Hub.Stats().Replay.Ready })
}

// replayVisitor is a client that is disconnected repeatedly and continues at another node.
type replayVisitor struct {
	last   string         // last id
	next   map[string]int // message number by publisher
	count  int
	visits int
}

// connectAndReadMessages connects to a node, reads up to maxMessages, and disconnects.
func (v *replayVisitor) connectAndReadMessages(ctx context.Context, addr string, maxMessages, total int) error {
	v.visits++
	c, err := subscribeSince(ctx, addr, v.last)
	if err != nil {
		return nil // the node may be gone: try another one
	}
	defer c.CloseNow()
	for ; maxMessages > 0 && v.count < total; maxMessages-- {
		_, text, err := c.Read(ctx)
		if err != nil {
			return ctx.Err()
		}
		var m struct{ Op, ID, Data string }
		if err := json.Unmarshal(text, &m); err != nil {
			return fmt.Errorf("%s: %w", text, err)
		}
		if m.Op == "error" {
			return nil // told to try again
		}
		from, number, _ := strings.Cut(m.Data, " ")
		if m.Op != "message" || number != strconv.Itoa(v.next[from]) || m.ID == v.last {
			return fmt.Errorf("%s came behind %s; expected number %d", text, v.last, v.next[from])
		}
		v.next[from]++
		v.last = m.ID
		v.count++
	}
	return nil
}

// subscribeSince connects a WebSocket that subscribes to all kept topics.
func subscribeSince(ctx context.Context, addr, id string) (*websocket.Conn, error) {
	c, _, err := websocket.Dial(ctx, "ws://"+addr+"/ws", nil)
	if err != nil {
		return nil, err
	}
	err = c.Write(ctx, websocket.MessageText, fmt.Appendf(nil, `{"op":"subscribe","pattern":"k.*","since":%q}`, id))
	if err == nil {
		_, _, err = c.Read(ctx)
	}
	if err != nil {
		_ = c.CloseNow()
	}
	return c, err
}

// publishWhileVisiting publishes messages on each node while visitors come and go. Each visitor must get all
// messages once, ordered by publisher and topic. meanwhile is called after half of them.
func publishWhileVisiting(t *testing.T, places []*testNode, visitors, messages int, meanwhile func()) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), testkit.Timeout)
	defer cancel()
	at, ready := places[0].Hub.Replay.At()
	if !ready {
		t.Fatal("it is not ready")
	}
	var all sync.WaitGroup
	var half sync.WaitGroup
	for i, p := range places {
		half.Add(1)
		all.Go(func() {
			topic := "k." + string(rune('a'+i%3))
			for n := range messages {
				for {
					_, err := p.Publish(topic, fmt.Appendf(nil, "%d %d", i, n))
					if err == nil {
						break
					}
					if ctx.Err() != nil {
						t.Errorf("publishing: %v", err)
						half.Done()
						return
					}
					time.Sleep(time.Millisecond) // the queue is full
				}
				if n == messages/2 {
					half.Done()
				}
				time.Sleep(200 * time.Microsecond)
			}
		})
	}
	for i := range visitors {
		v := &replayVisitor{last: at.String(), next: make(map[string]int)}
		all.Go(func() {
			r := rand.New(rand.NewPCG(7, uint64(i)))
			for v.count < len(places)*messages {
				if err := v.connectAndReadMessages(ctx, places[r.IntN(len(places))].addr, 1+r.IntN(messages/2), len(places)*messages); err != nil || ctx.Err() != nil {
					t.Errorf("visitor %d: %v; it has got %d of %d", i, err, v.count, len(places)*messages)
					return
				}
			}
			t.Logf("visitor %d: %d messages in %d visits", i, v.count, v.visits)
		})
	}
	half.Wait()
	if meanwhile != nil {
		meanwhile()
	}
	all.Wait()
}

// TestReplay checks that disconnected clients continue at other nodes without missing or repeating messages, as
// does a Redis client that stays.
func TestReplay(t *testing.T) {
	t.Parallel() // mostly waits
	s := startNATSWithStreams(t, t.TempDir())
	c := Config{URLs: []string{"nats://" + s.Addr().String()}}
	var places []*testNode
	for range 3 {
		places = append(places, startReplayNode(t, newReplayHub(&hub.Replay{}), c))
	}
	const messages = 500
	stays := places[1].dial(t)
	stays.expectReply("psubscribe * :1", "PSUBSCRIBE", "*") // matches kept topics, whose messages arrive twice
	waitForSubscription(t, places[1], hub.Pattern, "*", places[0])
	publishWhileVisiting(t, places, 6, messages, func() {
		places[0].publish(t, "other", "x") // not kept
	})
	next, others := make(map[string]int), 0
	for range 3*messages + 1 {
		words := stays.readReply()
		if words[2] == "other" {
			others++
			continue
		}
		from, number, _ := strings.Cut(words[3], " ")
		if number != strconv.Itoa(next[from]) {
			t.Fatalf("%q; expected number %d", words, next[from])
		}
		next[from]++
	}
	testkit.WantEqual(t, others, 1, "messages that are not kept")
	if n := places[2].Stats().Cluster.Subjects; n != 0 { // kept topics need none
		t.Errorf("%d subjects are subscribed to; expected 0", n)
	}
	for i, p := range places {
		if s := p.Stats(); s.Cluster.Unsent != 0 || s.Cluster.Lost != 0 || s.Replay.Gaps != 0 || s.Replay.Messages != 3*messages || s.Cluster.Sent < messages {
			t.Errorf("%d: %+v, %+v", i, s.Cluster, s.Replay)
		}
	}
	late := startTestNode(t, newReplayHub(&hub.Replay{}), c) // loads the old messages
	late.waitForReplayReady(t)
	if s := late.Stats(); s.Replay.Messages != 3*messages || s.Delivered != 0 || s.Cluster.Received != 0 {
		t.Errorf("a node that comes later: %+v", s.Replay)
	}
}

// TestReplayRestart checks that a restarted NATS server has kept messages, and that messages wait or are rejected
// meanwhile.
func TestReplayRestart(t *testing.T) {
	t.Parallel() // mostly waits
	dir := t.TempDir()
	s := startNATSWithStreams(t, dir)
	addr := s.Addr().String()
	p := startReplayNode(t, newReplayHub(&hub.Replay{}), Config{URLs: []string{"nats://" + addr}, MaxWaiting: 3})
	held := func(n int64) {
		t.Helper()
		testkit.WaitFor(t, fmt.Sprintf("%d messages", n), func() bool { return p.Stats().Replay.Messages == n })
	}
	p.publish(t, "k.a", "1")
	held(1)
	s.Close()
	testkit.WaitFor(t, "the node is cut off", func() bool { return !p.Stats().Cluster.Connected })
	p.publish(t, "k.a", "2", "3", "4")
	if _, err := p.Publish("k.a", []byte("5")); err == nil || !strings.Contains(err.Error(), "already waiting to be stored") || p.Stats().Refused.NotStored != 1 {
		t.Fatalf("%v; expected it to be refused", err)
	}
	again := startNATS(t, natsd.Config{Addr: addr, StoreDir: dir})
	held(4)
	c := p.subscribe(t, "k.a")
	p.publish(t, "k.a", "5")
	c.expectMessages("k.a", "5")
	at, _ := p.Replay.At()
	testkit.WantEqual(t, at.Seq, 5, "number of the newest message")
	// A new stream delivers everything again.
	js, err := jetstream.New(connectTo(t, again))
	testkit.RequireNoError(t, err)
	testkit.RequireNoError(t, js.DeleteStream(t.Context(), streamName))
	testkit.WaitFor(t, "another stream", func() bool {
		now, _ := p.Replay.At()
		return now.Epoch != at.Epoch
	})
	p.publish(t, "k.a", "6")
	c.expectMessages("k.a", "6")
}

// TestReplayGap checks that the stream drops what exceeds its limits, also for a node that comes later, and that
// clients are told.
func TestReplayGap(t *testing.T) {
	s := startNATSWithStreams(t, t.TempDir())
	c := Config{URLs: []string{"nats://" + s.Addr().String()}}
	a := startReplayNode(t, newReplayHub(&hub.Replay{MaxMessages: 10}), c)
	at, _ := a.Replay.At()
	for i := range 30 {
		a.publish(t, "k.a", fmt.Sprint("0 ", i))
	}
	testkit.WaitFor(t, "all are kept", func() bool { return a.Stats().Replay.Seq == 30 })
	b := startReplayNode(t, newReplayHub(&hub.Replay{MaxMessages: 10}), c)
	for _, p := range []*testNode{a, b} {
		testkit.WantEqual(t, p.Stats().Replay.Messages, 10, "kept messages")
		c, err := subscribeSince(t.Context(), p.addr, at.String())
		testkit.RequireNoError(t, err)
		defer c.CloseNow()
		for _, want := range []string{`{"op":"gap","id":"` + at.Epoch + `-20"`, `{"op":"message","id":"` + at.Epoch + `-21"`} {
			if _, text, err := c.Read(t.Context()); err != nil || !strings.HasPrefix(string(text), want) {
				t.Errorf("%s, %v; expected %s", text, err, want)
			}
		}
	}
}

func TestReplayAge(t *testing.T) {
	t.Parallel() // mostly waits
	s := startNATSWithStreams(t, t.TempDir())
	p := startReplayNode(t, newReplayHub(&hub.Replay{MaxAge: time.Second}), Config{URLs: []string{"nats://" + s.Addr().String()}})
	p.publish(t, "k.a", "x")
	testkit.WaitFor(t, "it comes", func() bool { return p.Stats().Replay.Seq == 1 })
	testkit.WaitFor(t, "it goes", func() bool { return p.Stats().Replay.Messages == 0 })
}

// TestReplayOfOtherPrograms checks messages of other programs, to kept topics and invalid subjects, and long
// names.
func TestReplayOfOtherPrograms(t *testing.T) {
	s := startNATSWithStreams(t, t.TempDir())
	p := startReplayNode(t, newReplayHub(&hub.Replay{}), Config{URLs: []string{"nats://" + s.Addr().String()}})
	long := "k." + strings.Repeat("\xff", 600)
	c := p.subscribe(t, "k.a")
	c.expectReply("subscribe "+long+" :2", "SUBSCRIBE", long)
	nc := connectTo(t, s)
	for _, subject := range []string{"myriad.t.k.%zz", "myriad.t.k.a"} {
		testkit.RequireNoError(t, nc.Publish(subject, []byte("x")))
	}
	c.expectReply("message k.a x")
	p.publish(t, long, "y")
	c.expectMessages(long, "y")
	testkit.WantEqual(t, p.Stats().Replay.Gaps, 0, "gaps")
}

// TestReplayConfig checks the error without JetStream, and the stream's subjects.
func TestReplayConfig(t *testing.T) {
	s := startNATS(t, natsd.Config{Addr: "127.0.0.1:0"})
	node, err := Start(newReplayHub(&hub.Replay{}), Config{URLs: []string{"nats://" + s.Addr().String()}})
	if err == nil {
		node.Close()
	}
	if err == nil || !strings.Contains(err.Error(), "expected NATS servers with JetStream") {
		t.Errorf("%v; expected it to say that there is no JetStream", err)
	}
	for topics, want := range map[string]string{
		"one news.sport.* news.* chat:* news.today one": "myriad.t.chat:.> myriad.t.news.> myriad.t.one",
		"one *": "myriad.t.>",
	} {
		have := strings.Join(nonOverlappingSubjects(strings.Fields(topics)), " ")
		testkit.WantEqual(t, have, want, "subjects of %s", topics)
	}
}

// TestStreamPublisher checks the limits of a streamPublisher, its order per topic, retries, and permanent errors.
func TestStreamPublisher(t *testing.T) {
	t.Parallel() // mostly waits
	k := newStreamPublisher("me", 4, 1000)
	k.warn = t.Logf
	fails := errors.New("try again")
	var mu sync.Mutex
	var stored []string
	tries := make(map[string]int)
	k.publish = func(_ context.Context, m *outgoing) error {
		mu.Lock()
		defer mu.Unlock()
		text := m.subject + " " + string(m.data)
		switch tries[m.id]++; {
		case string(m.data) == "bad":
			return &jetstream.APIError{Code: 400}
		case string(m.data) == "big":
			return nats.ErrMaxPayload
		case tries[m.id] == 1:
			return fails
		}
		stored = append(stored, text)
		return nil
	}
	put := func(topic, text string, ok bool) {
		t.Helper()
		if err := k.enqueue(topic, []byte(text)); (err == nil) != ok {
			t.Errorf("%s %.10s: %v", topic, text, err)
		}
	}
	put("a", strings.Repeat("x", 1000), false)
	put("a", "1", true)
	put("a", "bad", true)
	put("b", "big", true)
	put("a", "2", true)
	put("a", "3", false)
	var all sync.WaitGroup
	for range 3 {
		all.Go(func() { k.publishUntilClosedAndEmpty(t.Context()) })
	}
	testkit.WaitFor(t, "all are done", func() bool { waiting, bytes, _ := k.stats(); return waiting == 0 && bytes == 0 })
	put("b", "3", true)
	k.close()
	put("b", "4", false)
	all.Wait()
	testkit.WantEqual(t, strings.Join(stored, ", "), "myriad.t.a 1, myriad.t.a 2, myriad.t.b 3", "stored messages")
	if _, _, lost := k.stats(); lost != 2 {
		t.Errorf("%d are lost; expected 2", lost)
	}
	testkit.WantEqual(t, len(k.topics), 0, "topics left")
	// Messages that time out are lost; the end of ctx ends retries immediately.
	k = newStreamPublisher("me", 4, 1000)
	k.warn = t.Logf
	k.publish = func(ctx context.Context, _ *outgoing) error { <-ctx.Done(); return ctx.Err() }
	put("a", "1", true)
	put("a", "2", true)
	ctx, cancel := context.WithCancel(t.Context())
	all.Go(func() { k.publishUntilClosedAndEmpty(ctx) })
	k.close()
	cancel()
	all.Wait()
	if waiting, _, lost := k.stats(); waiting != 0 || lost != 2 {
		t.Errorf("%d wait, %d are lost; expected 0 and 2", waiting, lost)
	}
}

// TestReplayPeers checks that hubs that form a cluster keep messages while nodes leave and return under their own
// name.
func TestReplayPeers(t *testing.T) {
	t.Parallel() // mostly waits
	addrs := []string{testserver.FreeAddr(t), testserver.FreeAddr(t), testserver.FreeAddr(t)}
	var dirs []string
	start := func(i int) *testNode {
		return startTestNode(t, newReplayHub(&hub.Replay{}), Config{Name: "hub" + strconv.Itoa(i), Peers: &Peers{Addr: addrs[i], Secret: "s3cret", Join: addrs, Dir: dirs[i]}})
	}
	var places []*testNode
	for i := range 3 {
		dirs = append(dirs, t.TempDir())
		places = append(places, start(i))
	}
	for _, p := range places {
		p.waitForReplayReady(t)
	}
	publishWhileVisiting(t, places[:2], 2, 100, places[2].node.Close)
	places[2] = start(2)
	places[2].waitForReplayReady(t)
	testkit.WantEqual(t, places[2].Stats().Replay.Messages, 2*100, "messages of a node that comes again")
	testkit.WaitFor(t, "the server of the node that has come again has what the others have", func() bool {
		ctx, cancel := context.WithTimeout(t.Context(), apiTimeout)
		defer cancel()
		found, err := places[0].node.stream.js.Stream(ctx, streamName)
		if err != nil {
			return false
		}
		all := found.CachedInfo().Cluster.Replicas
		for _, r := range all {
			if !r.Current || r.Offline {
				return false
			}
		}
		return len(all) == 2
	})
	publishWhileVisiting(t, places[1:], 2, 100, places[0].node.Close)
}
