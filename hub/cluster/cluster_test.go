package cluster

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nats-io/nats.go"
	"go.uber.org/goleak"

	"github.com/myriad-go/myriad/hub"
	"github.com/myriad-go/myriad/hub/natsd"
	"github.com/myriad-go/myriad/internal/testkit"
	"github.com/myriad-go/myriad/internal/testkit/testserver"
	"github.com/myriad-go/myriad/tcp"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

type testNode struct {
	*hub.Hub
	node *Node
	addr string
}

func startTestNode(t *testing.T, h *hub.Hub, c Config) *testNode {
	t.Helper()
	c.Warn = func(line string) { t.Log(line) }
	node, err := Start(h, c)
	testkit.RequireNoError(t, err)
	t.Cleanup(node.Close)
	limits := tcp.Limits{MaxMessage: 1 << 20, MaxUnsent: 16 << 20}
	addr, _ := testserver.Start(t, &tcp.Server{Model: tcp.Goroutine, Handler: h.Handler(), Limits: limits})
	return &testNode{h, node, addr}
}

func peersConfig(join ...*testNode) Config {
	p := &Peers{Addr: "127.0.0.1:0", Secret: "s3cret"}
	for _, other := range join {
		p.Join = append(p.Join, other.node.Addr())
	}
	return Config{Peers: p, Linger: 50 * time.Millisecond}
}

func startThreePeers(t *testing.T) [3]*testNode {
	t.Helper()
	a := startTestNode(t, new(hub.Hub), peersConfig())
	b := startTestNode(t, new(hub.Hub), peersConfig(a))
	c := startTestNode(t, new(hub.Hub), peersConfig(a))
	all := [3]*testNode{a, b, c}
	for _, p := range all {
		p.waitForNodes(t, 2)
	}
	return all
}

func (p *testNode) waitForNodes(t *testing.T, others int) {
	t.Helper()
	testkit.WaitFor(t, fmt.Sprintf("%d other nodes", others), func() bool {
		return p.node.inbox.countPresentNodes() == others && (p.node.server == nil || p.node.server.OtherServerCount() == others)
	})
}

type redisClient struct {
	*testkit.Conn
	t *testing.T
}

func (p *testNode) dial(t *testing.T) *redisClient {
	t.Helper()
	return &redisClient{testkit.Dial(t, p.addr), t}
}

// subscribe returns a client that is subscribed to a topic. The publishers' servers know of the subscription.
func (p *testNode) subscribe(t *testing.T, topic string, publishers ...*testNode) *redisClient {
	t.Helper()
	c := p.dial(t)
	c.expectReply("subscribe "+topic+" :1", "SUBSCRIBE", topic)
	if len(publishers) > 0 {
		waitForSubscription(t, p, hub.Topic, topic, publishers...)
	}
	return c
}

func (c *redisClient) readReply() (words []string) {
	c.t.Helper()
	raw, err := testkit.ReadRESP(c.R)
	testkit.RequireNoError(c.t, err)
	return testkit.RESPWords(raw)
}

// expectReply sends a command, unless args is empty, and expects a reply.
func (c *redisClient) expectReply(want string, args ...string) {
	c.t.Helper()
	got := ""
	testkit.WaitForFunc(c.t, func() bool {
		if len(args) > 0 {
			c.Send(testkit.RESPCommand(args...))
		}
		got = strings.Join(c.readReply(), " ")
		return got == want || len(args) == 0 || args[0] != "PUBSUB" // retry: other nodes may have answered too late
	}, func() string { return fmt.Sprintf("%q: got %q; expected %q", args, got, want) })
	if got != want {
		c.t.Fatalf("%q: got %q; expected %q", args, got, want)
	}
}

func (c *redisClient) expectMessages(topic string, messages ...string) {
	c.t.Helper()
	for _, m := range messages {
		c.expectReply("message " + topic + " " + m)
	}
}

func (p *testNode) publish(t *testing.T, topic string, messages ...string) {
	t.Helper()
	for _, m := range messages {
		_, err := p.Publish(topic, []byte(m))
		testkit.RequireNoError(t, err)
	}
}

// waitForSubscription waits until the publishers' servers know a subscription of subscriber.
func waitForSubscription(t *testing.T, subscriber *testNode, kind hub.Kind, topic string, publishers ...*testNode) {
	t.Helper()
	subject := subjectCoveringPattern(topic)
	if kind != hub.Pattern {
		subject, _ = topicSubject(kind, topic)
	}
	testkit.WaitFor(t, "a subscription to "+subject, func() bool {
		subscriber.node.subscriptions.countMu.Lock()
		defer subscriber.node.subscriptions.countMu.Unlock()
		return subscriber.node.subscriptions.subjects[subject] != nil || subscriber.node.subscriptions.allTopicSubs != nil
	})
	// Routes keep the order, so a probe that arrives proves that the subscription has, too.
	for _, p := range publishers {
		if p == subscriber {
			continue // it does not receive its own messages
		}
		probe := nats.NewInbox()
		sub, err := subscriber.node.natsConn.SubscribeSync(probe)
		testkit.RequireNoError(t, err)
		testkit.WaitFor(t, "a probe", func() bool {
			_ = p.node.natsConn.Publish(probe, nil)
			_, err := sub.NextMsg(20 * time.Millisecond)
			return err == nil
		})
		_ = sub.Unsubscribe()
	}
}

// TestPublish checks that a message reaches the subscribers of all hubs, to topics, patterns or both, once and in
// order.
func TestPublish(t *testing.T) {
	t.Parallel() // mostly waits
	all := startThreePeers(t)
	publisher := all[0].dial(t)
	var subscribers []*redisClient
	for _, p := range all {
		c := p.subscribe(t, "news.a")
		c.expectReply("psubscribe news.* :2", "PSUBSCRIBE", "news.*")
		c.expectReply("ssubscribe news.a :1", "SSUBSCRIBE", "news.a")
		subscribers = append(subscribers, c)
		waitForSubscription(t, p, hub.Topic, "news.a", all[:]...)
		waitForSubscription(t, p, hub.Pattern, "news.*", all[:]...)
		waitForSubscription(t, p, hub.Sharded, "news.a", all[:]...)
	}
	const messages = 200
	for i := range messages {
		publisher.expectReply(":2", "PUBLISH", "news.a", strconv.Itoa(i))
		publisher.expectReply(":1", "SPUBLISH", "news.a", strconv.Itoa(i))
	}
	for n, c := range subscribers {
		next := map[string]int{} // by kind
		for range 3 * messages {
			words := c.readReply()
			kind, number := words[0], words[len(words)-1]
			if number != strconv.Itoa(next[kind]) {
				t.Fatalf("%d: %q; expected number %d", n, words, next[kind])
			}
			next[kind]++
		}
		c.expectReply("unsubscribe news.a :1", "UNSUBSCRIBE", "news.a") // nothing precedes it
		if next["message"] != messages || next["pmessage"] != messages || next["smessage"] != messages {
			t.Errorf("%d: %v", n, next)
		}
	}
	for i, p := range all {
		s := p.Stats().Cluster
		if s.Lost != 0 || s.Unsent != 0 || !s.Connected {
			t.Errorf("%d: %+v", i, s)
		}
		if want := int64(2 * messages); i > 0 && (s.Received != want || s.Duplicates != messages) {
			t.Errorf("%d: %d received, %d twice; expected %d and %d", i, s.Received, s.Duplicates, want, messages)
		}
	}
}

func startNATS(t *testing.T, c natsd.Config) *natsd.Server {
	t.Helper()
	s, err := natsd.Start(c)
	testkit.RequireNoError(t, err)
	t.Cleanup(s.Close)
	return s
}

func connectTo(t *testing.T, s *natsd.Server) *nats.Conn {
	t.Helper()
	nc, err := s.Connect()
	testkit.RequireNoError(t, err)
	t.Cleanup(nc.Close)
	return nc
}

// TestMessagesWaitForReconnect checks that messages wait without a connection, up to the limit, and lost ones are
// counted on both sides.
func TestMessagesWaitForReconnect(t *testing.T) {
	s := startNATS(t, natsd.Config{Addr: "127.0.0.1:0"})
	addr := s.Addr().String()
	const room = 10
	a := startTestNode(t, new(hub.Hub), Config{URLs: []string{"nats://" + addr}, MaxWaiting: room})
	b := startTestNode(t, new(hub.Hub), Config{URLs: []string{"nats://" + addr}})
	a.waitForNodes(t, 1)
	from, to := a.dial(t), b.subscribe(t, "a", a)
	from.expectReply(":0", "PUBLISH", "a", "before")
	to.expectReply("message a before")
	s.Close()
	testkit.WaitFor(t, "both are cut off", func() bool { return !a.Stats().Cluster.Connected && !b.Stats().Cluster.Connected })
	for i := range 3 * room {
		from.expectReply(":0", "PUBLISH", "a", strconv.Itoa(i))
	}
	if got := a.Stats().Cluster; got.Waiting != room || got.Unsent != 2*room || got.WaitingBytes > room*200 || got.Disconnects != 1 {
		t.Fatalf("%+v; expected %d to wait and %d to be lost", got, room, 2*room)
	}
	startNATS(t, natsd.Config{Addr: addr})
	testkit.WaitFor(t, "what has waited is sent", func() bool { return a.Stats().Cluster.Waiting == 0 })
	testkit.WaitFor(t, "the other one is back", func() bool { return b.Stats().Cluster.Connected })
	waitForSubscription(t, b, hub.Topic, "a", a)
	from.expectReply(":0", "PUBLISH", "a", "behind")
	got := 0
	for words := to.readReply(); words[2] != "behind"; words = to.readReply() {
		got++
	}
	if s := b.Stats().Cluster; s.Lost != int64(3*room-got) || s.Received != int64(got+2) {
		t.Errorf("%d have come of %d, and %+v", got, 3*room, s)
	}
	if nodes := b.Stats().Cluster.Nodes; len(nodes) != 1 || nodes[0].Lost != int64(3*room-got) || !nodes[0].Present {
		t.Errorf("of the other node: %+v", nodes)
	}
}

// TestLateServer checks that a node starts before NATS is reachable.
func TestLateServer(t *testing.T) {
	addr := testserver.FreeAddr(t)
	a := startTestNode(t, new(hub.Hub), Config{URLs: []string{"nats://" + addr}})
	from := a.dial(t)
	from.expectReply(":0", "PUBLISH", "a", "1")
	if s := a.Stats().Cluster; s.Connected || s.Waiting != 1 {
		t.Fatalf("%+v; expected one message to wait", s)
	}
	startNATS(t, natsd.Config{Addr: addr})
	testkit.WaitFor(t, "it is sent", func() bool { s := a.Stats().Cluster; return s.Connected && s.Sent == 1 && s.Waiting == 0 })
}

// TestMessageTooLong checks that a message too long for the cluster is rejected and not delivered.
func TestMessageTooLong(t *testing.T) {
	s := startNATS(t, natsd.Config{Addr: "127.0.0.1:0", MaxPayload: 8 << 10})
	a := startTestNode(t, new(hub.Hub), Config{URLs: []string{"nats://" + s.Addr().String()}})
	c, to := a.dial(t), a.subscribe(t, "a")
	c.expectReply("-ERR the message is too long: 4097 bytes; at most 4096 are allowed in this cluster", "PUBLISH", "a", strings.Repeat("x", 4097))
	c.expectReply(":1", "PUBLISH", "a", strings.Repeat("x", 4096))
	to.expectReply("message a " + strings.Repeat("x", 4096))
	testkit.WantEqual(t, a.Stats().Refused.Messages, 1, "refused messages")
}

// TestMessagesOfOtherPrograms checks that messages of other programs, without sequence numbers, are delivered once.
func TestMessagesOfOtherPrograms(t *testing.T) {
	s := startNATS(t, natsd.Config{Addr: "127.0.0.1:0"})
	a := startTestNode(t, new(hub.Hub), Config{URLs: []string{"nats://" + s.Addr().String()}})
	to := a.subscribe(t, "a.b")
	to.expectReply("psubscribe a.* :2", "PSUBSCRIBE", "a.*")
	waitForSubscription(t, a, hub.Topic, "a.b", a)
	waitForSubscription(t, a, hub.Pattern, "a.*", a)
	nc := connectTo(t, s)
	_ = a.node.natsConn.Flush()
	own := &nats.Msg{Subject: "myriad.t.a.b", Header: nats.Header{sequenceHeader: {a.node.origin + ".1 1"}}}
	testkit.RequireNoError(t, nc.PublishMsg(own)) // as if from a connection given up earlier
	for _, text := range []string{"1", "2"} {
		testkit.RequireNoError(t, nc.Publish("myriad.t.a.b", []byte(text)))
		to.expectReply("message a.b " + text)
		to.expectReply("pmessage a.* a.b " + text)
	}
}

func TestLastValues(t *testing.T) {
	a := startTestNode(t, new(hub.Hub), peersConfig())
	b := startTestNode(t, &hub.Hub{Limits: hub.Limits{LastValues: 10}}, peersConfig(a))
	a.waitForNodes(t, 1)
	waitForSubscription(t, b, hub.Topic, "a", a)
	a.dial(t).expectReply(":0", "PUBLISH", "a", "1")
	testkit.WaitFor(t, "the value is kept", func() bool { return b.Stats().LastValues == 1 })
	b.subscribe(t, "a").expectMessages("a", "1")
}

// TestWrongToken checks that a wrong password is a permanent error.
func TestWrongToken(t *testing.T) {
	s := startNATS(t, natsd.Config{Addr: "127.0.0.1:0", Token: "s3cret"})
	node, err := Start(new(hub.Hub), Config{URLs: []string{"nats://wrong@" + s.Addr().String()}})
	if err == nil {
		node.Close()
	}
	if !errors.Is(err, nats.ErrAuthorization) {
		t.Errorf("%v; expected %v", err, nats.ErrAuthorization)
	}
	startTestNode(t, new(hub.Hub), Config{URLs: []string{"nats://s3cret@" + s.Addr().String()}})
}

func TestConfig(t *testing.T) {
	for _, c := range []struct {
		config Config
		want   string
	}{
		{Config{}, "URLs and Peers are both set or both empty"},
		{Config{URLs: []string{"nats://a"}, Peers: &Peers{Addr: ":0", Secret: "s"}}, "URLs and Peers are both set or both empty"},
		{Config{Peers: &Peers{Addr: ":0"}}, "Peers.Secret is empty"},
		{Config{Peers: &Peers{Addr: ":0", Secret: "s"}, MaxMessage: 1 << 30}, "the limit of NATS"},
		{Config{Peers: &Peers{Addr: "nowhere", Secret: "s"}}, "expected host:port"},
		{Config{URLs: []string{"nats://a"}, Linger: -1}, "Linger is -1"},
		{Config{URLs: []string{"nats://a"}, Origin: "a.b"}, "expected the origin of another Node"},
		{Config{Peers: &Peers{Addr: ":0", Secret: "s"}, Origin: "a"}, "Origin is set with Peers"},
	} {
		node, err := Start(new(hub.Hub), c.config)
		if err == nil {
			node.Close()
		}
		if err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%+v: %v; expected %q", c.config, err, c.want)
		}
	}
}

// TestWarnings checks the limits of warnings, and that repeats are recognized despite varying numbers.
func TestWarnings(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var said []string
		w := warningLimiter{sink: func(line string) { said = append(said, line) }}
		for range 2 {
			for i := range maxWarningsPerSecond + 3 {
				w.warnf("line %d", i)
				w.warnf("line %d", i)
			}
			time.Sleep(time.Second)
		}
		if len(said) != maxWarningsPerSecond+1+3 || said[maxWarningsPerSecond] != "6 more log lines about NATS were suppressed" {
			t.Errorf("%q", said)
		}
		said = nil
		for i := range 10 * 60 {
			w.warnf("%d refused, rid:%d (attempt %d) 127.0.0.1:%d->127.0.0.1:7", 9, i, i, i)
			time.Sleep(repeatInterval / 60)
		}
		if len(said) != 10 || said[9] != "9 refused, rid:540 (attempt 540) 127.0.0.1:540->127.0.0.1:7 (repeated 59 times in the last 1m0s)" {
			t.Errorf("in 10 minutes it says %q", said)
		}
		said = nil
		w.warnf("9 refused, rid:1")
		w.logChange("connected")
		w.warnf("9 refused, rid:2")
		testkit.WantEqual(t, len(said), 3, "lines when something has changed")
		for i := range 10 * maxKnownWarnings {
			w.warnf("%d refused", i)
			time.Sleep(time.Second)
		}
		if len(w.known) > maxKnownWarnings {
			t.Errorf("%d lines are known; expected at most %d", len(w.known), maxKnownWarnings)
		}
	})
}

func TestSubscriberCountsOfAllNodes(t *testing.T) {
	all := startThreePeers(t)
	for i, p := range all {
		c := p.dial(t)
		c.expectReply("subscribe a :1", "SUBSCRIBE", "a")
		c.expectReply(fmt.Sprintf("subscribe b%d\xff :2", i), "SUBSCRIBE", fmt.Sprintf("b%d\xff", i))
		c.expectReply("psubscribe p* :3", "PSUBSCRIBE", "p*")
		c.expectReply(fmt.Sprintf("psubscribe p%d* :4", i), "PSUBSCRIBE", fmt.Sprintf("p%d*", i))
	}
	c := all[1].dial(t)
	c.expectReply("a :3 b0\xff :1 x :0", "PUBSUB", "NUMSUB", "a", "b0\xff", "x")
	c.expectReply("a b0\xff b1\xff b2\xff", "PUBSUB", "CHANNELS")
	c.expectReply("b0\xff b1\xff b2\xff", "PUBSUB", "CHANNELS", "b*")
	c.expectReply("a :0", "PUBSUB", "SHARDNUMSUB", "a")
	c.expectReply(":4", "PUBSUB", "NUMPAT")
	all[2].node.Close()
	for _, p := range all[:2] {
		p.waitForNodes(t, 1)
	}
	c.expectReply("a :2", "PUBSUB", "NUMSUB", "a")
	c.expectReply(":3", "PUBSUB", "NUMPAT")
}

// TestQueriesSplit checks that queries are split to fit into messages and omitted names counted.
func TestQueriesSplit(t *testing.T) {
	s := startNATS(t, natsd.Config{Addr: "127.0.0.1:0", MaxPayload: 8 << 10})
	c := Config{URLs: []string{"nats://" + s.Addr().String()}}
	a, b := startTestNode(t, new(hub.Hub), c), startTestNode(t, new(hub.Hub), c)
	a.waitForNodes(t, 1)
	const size, n = 100, 100 // 10,800 bytes; 4,096 fit 37 names
	client := b.dial(t)
	names := make([]string, 0, n+1)
	for i := range n {
		names = append(names, fmt.Sprintf("%0*d", size, i))
		client.expectReply(fmt.Sprintf("subscribe %s :%d", names[i], i+1), "SUBSCRIBE", names[i])
	}
	names = append(names, strings.Repeat("long", 3000)) // fits into no query
	for i, count := range a.node.Subscribers(t.Context(), hub.Topic, append(names[n:], names[:n]...)) {
		if want := min(i, 1); count != want {
			t.Fatalf("name %d has %d subscribers; expected %d", i, count, want)
		}
	}
	for limit, want := range map[int]int{n: 37, 10: 10} {
		if found, more := a.node.Names(t.Context(), hub.Topic, "0*", limit*(size+8)); len(found) != want || more != n-want {
			t.Errorf("of a pattern: %d names and %d more; expected %d of %d", len(found), more, want, n)
		}
		if found, more := a.node.Largest(t.Context(), "0", limit, 1<<20); len(found) != want || more != n-want {
			t.Errorf("the largest: %d names and %d more; expected %d of %d", len(found), more, want, n)
		}
	}
	over, cancel := context.WithCancel(t.Context())
	cancel()
	if counts := a.node.Subscribers(over, hub.Topic, names[1:2]); counts[0] != 0 {
		t.Errorf("%d, without time to ask", counts[0])
	}
}
