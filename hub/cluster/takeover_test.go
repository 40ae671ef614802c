package cluster

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/myriad-go/myriad/hub"
	"github.com/myriad-go/myriad/hub/natsd"
	"github.com/myriad-go/myriad/internal/testkit"
)

// TestTakeOver checks that a new process delivers what the old one has not, that neither delivers the other's
// messages, and that other nodes see one node.
func TestTakeOver(t *testing.T) {
	s := startNATS(t, natsd.Config{Addr: "127.0.0.1:0"})
	c := Config{URLs: []string{"nats://" + s.Addr().String()}, Linger: 50 * time.Millisecond}
	far := startTestNode(t, new(hub.Hub), c)
	c.Name = "near"
	old := startTestNode(t, new(hub.Hub), c)
	far.waitForNodes(t, 1)
	before := old.subscribe(t, "a", far)
	far.publish(t, "a", "1", "2", "3")
	before.expectMessages("a", "1", "2", "3")
	c.Origin = old.node.Origin()
	next := startTestNode(t, new(hub.Hub), c)
	if s := next.Stats().Cluster; !s.SubscribedToAll {
		t.Errorf("%+v; expected it to be subscribed to everything at once", s)
	}
	waitForSubscription(t, next, hub.Topic, "a", far)
	far.publish(t, "a", "4", "5", "6") // reach both
	before.expectMessages("a", "4", "5", "6")
	testkit.WaitFor(t, "messages wait", func() bool { return len(next.node.inbox.messages) == 3 })
	state := old.node.PauseDelivery()
	old.node.PauseDelivery() // already paused
	far.publish(t, "a", "7", "8", "9")
	testkit.WaitFor(t, "messages wait", func() bool { return len(next.node.inbox.messages) == 6 && len(old.node.inbox.messages) == 3 })
	behind := next.subscribe(t, "a")
	testkit.RequireNoError(t, next.node.Restore(state))
	for _, p := range []*testNode{old, next} {
		p.node.Resume()
		p.node.Resume()
	}
	before.expectMessages("a", "7", "8", "9") // a client that stayed
	behind.expectMessages("a", "7", "8", "9")
	testkit.WaitFor(t, "it is subscribed to its topics alone", func() bool { s := next.Stats().Cluster; return !s.SubscribedToAll && s.Subjects == 1 })
	old.dial(t).expectReply(":1", "PUBLISH", "a", "by old")
	before.expectReply("message a by old")
	next.dial(t).expectReply(":1", "PUBLISH", "a", "by next")
	behind.expectReply("message a by next")
	there := far.subscribe(t, "b", old, next)
	for _, p := range []*testNode{old, next, old} { // their eras differ
		p.dial(t).expectReply(":0", "PUBLISH", "b", "here")
		there.expectReply("message b here")
	}
	far.publish(t, "a", "10")
	before.expectMessages("a", "10")
	behind.expectMessages("a", "10")
	old.node.Close()
	far.waitForNodes(t, 1)
	if nodes := far.Stats().Cluster.Nodes; len(nodes) != 1 || nodes[0].Name != "near" {
		t.Errorf("%+v; expected one other node", nodes)
	}
	if s := next.Stats().Cluster; s.Lost != 0 || s.Received != 4 || len(s.Nodes) != 1 {
		t.Errorf("%+v; expected 4 messages, and none lost", s)
	}
}

// TestTakeOverOrder checks that messages of the old process precede those of the new one, even if they wait on
// their way to NATS.
func TestTakeOverOrder(t *testing.T) {
	t.Parallel() // mostly waits
	s := startNATSWithStreams(t, t.TempDir())
	for what, topic := range map[string]string{"passed on": "a", "kept": "k.a"} {
		t.Run(what, func(t *testing.T) { testTakeOverOrderOf(t, s.Addr().String(), topic) })
	}
}

func testTakeOverOrderOf(t *testing.T, nats, topic string) {
	c := Config{URLs: []string{"nats://" + nats}}
	far := startTestNode(t, newReplayHub(&hub.Replay{}), c)
	slow := startBlockableProxy(t, nats)
	old := startTestNode(t, newReplayHub(&hub.Replay{}), Config{URLs: []string{"nats://" + slow.addr}})
	far.waitForNodes(t, 1)
	there := far.subscribe(t, topic)
	if topic == "a" {
		waitForSubscription(t, far, hub.Topic, topic, old)
	}
	c.Origin = old.node.Origin()
	next := startTestNode(t, newReplayHub(&hub.Replay{}), c)
	for _, p := range []*testNode{far, old, next} {
		p.waitForReplayReady(t)
	}
	slow.up.Lock()
	testkit.RequireNoError(t, next.node.Restore(old.node.PauseDelivery()))
	old.publish(t, topic, "1")
	next.publish(t, topic, "2")
	testkit.WaitFor(t, "the second message is ahead, or waits", func() bool {
		return far.Stats().Cluster.Received > 0 || next.Stats().Cluster.Waiting == 1
	})
	resumed := make(chan struct{})
	go func() {
		defer close(resumed)
		old.node.Resume()
		next.node.Resume()
	}()
	testkit.WaitFor(t, "the old process has resumed delivery", func() bool {
		old.node.inbox.mu.Lock()
		defer old.node.inbox.mu.Unlock()
		return old.node.inbox.resumed == nil
	})
	slow.up.Unlock()
	there.expectMessages(topic, "1", "2")
	testkit.Receive(t, resumed, "the end of both pauses")
	if s := far.Stats().Cluster; s.Lost != 0 || s.Received != 2 {
		t.Errorf("%+v; expected 2 messages, and none lost", s)
	}
}

// TestTakeOverOfLaggingProcess checks that a lagging old process delivers what it was sent before the new one
// subscribed.
func TestTakeOverOfLaggingProcess(t *testing.T) {
	s := startNATS(t, natsd.Config{Addr: "127.0.0.1:0"})
	c := Config{URLs: []string{"nats://" + s.Addr().String()}}
	far := startTestNode(t, new(hub.Hub), c)
	slow := startBlockableProxy(t, s.Addr().String())
	old := startTestNode(t, new(hub.Hub), Config{URLs: []string{"nats://" + slow.addr}})
	far.waitForNodes(t, 1)
	before := old.subscribe(t, "a", far)
	far.publish(t, "a", "1")
	before.expectMessages("a", "1")
	slow.down.Lock()
	far.publish(t, "a", "2")
	testkit.WaitFor(t, "it is passed on", func() bool {
		return far.Stats().Cluster.Sent == 2 && far.node.natsConn.FlushTimeout(time.Second) == nil
	})
	c.Origin = old.node.Origin()
	next := startTestNode(t, new(hub.Hub), c)
	far.publish(t, "a", "3")
	behind := next.subscribe(t, "a")
	testkit.WaitFor(t, "a message waits", func() bool { return len(next.node.inbox.messages) == 1 })
	sent, paused := slow.sent.Load(), make(chan []byte, 1)
	go func() { paused <- old.node.PauseDelivery() }()
	testkit.WaitFor(t, "it pauses, or asks for what is on its way", func() bool { return len(paused) > 0 || slow.sent.Load() > sent })
	slow.down.Unlock()
	testkit.RequireNoError(t, next.node.Restore(testkit.Receive(t, paused, "the pause")))
	far.publish(t, "a", "4")
	old.node.Resume()
	next.node.Resume()
	before.expectMessages("a", "2", "3", "4")
	behind.expectMessages("a", "4")
	testkit.WantEqual(t, next.Stats().Cluster.Lost, 0, "lost messages")
}

type blockableProxy struct {
	addr     string
	up, down sync.RWMutex
	sent     atomic.Int64 // reads from clients
}

func startBlockableProxy(t *testing.T, to string) *blockableProxy {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	testkit.RequireNoError(t, err)
	w := &blockableProxy{addr: l.Addr().String()}
	var running sync.WaitGroup
	t.Cleanup(func() {
		l.Close()
		running.Wait()
	})
	running.Go(func() {
		for {
			client, err := l.Accept()
			if err != nil {
				return
			}
			server, err := net.Dial("tcp", to)
			if err != nil {
				client.Close()
				continue
			}
			running.Go(func() { copyWhileUnlocked(server, client, &w.up, &w.sent) })
			running.Go(func() { copyWhileUnlocked(client, server, &w.down, new(atomic.Int64)) })
		}
	})
	return w
}

func copyWhileUnlocked(to, from net.Conn, gate *sync.RWMutex, reads *atomic.Int64) {
	defer to.Close()
	for b := make([]byte, 1<<10); ; {
		n, err := from.Read(b)
		if err != nil {
			return
		}
		reads.Add(1)
		gate.RLock()
		_, err = to.Write(b[:n])
		gate.RUnlock()
		if err != nil {
			return
		}
	}
}

// TestSubscriptionConfirmedBehindMessages checks that a new process sees its subscription confirmed after more
// messages than are otherwise queued.
func TestSubscriptionConfirmedBehindMessages(t *testing.T) {
	n := &Node{stopped: make(chan struct{})}
	n.inbox = newInbox(n)
	conn, err := nats.Connect("", nats.InProcessServer(readThrottledDialer{busyServer{}, n.inbox}), nats.NoReconnect())
	testkit.RequireNoError(t, err)
	t.Cleanup(conn.Close)
	t.Cleanup(func() { close(n.stopped) })
	n.subscriptions = &subscriptions{
		hub: new(hub.Hub), natsConn: conn, messages: n.inbox.messages, onUnsubscribed: n.inbox.gaps.ignoreGapsAfterUnsubscribe, warn: t.Errorf,
		linger: time.Hour, maxSubjects: 10, subjects: make(map[string]*subjectState),
	}
	n.subscribeToAllForTakeover()
	testkit.WantEqual(t, len(n.inbox.messages), busyMessages, "messages before the confirmation")
}

// busyServer is a NATS server that sends many messages before each PONG but the first.
type busyServer struct{}

const busyMessages = 20 * maxQueued

func (busyServer) InProcessConn() (net.Conn, error) {
	client, server := net.Pipe()
	go func() {
		defer server.Close()
		_, _ = io.WriteString(server, "INFO {\"max_payload\":1048576,\"headers\":true}\r\n")
		in, out := bufio.NewScanner(server), ""
		for in.Scan() {
			if in.Text() != "PING" {
				continue
			}
			if _, err := io.WriteString(server, out+"PONG\r\n"); err != nil {
				return
			}
			out = strings.Repeat("MSG myriad.t.a 1 1000\r\n"+strings.Repeat("x", 1000)+"\r\n", busyMessages)
		}
	}()
	return client, nil
}

func TestGapDetectorSaved(t *testing.T) {
	var from gapDetector
	from.recordSequence("a", "x.1", 5)
	from.recordSequence("a", "y.1", 7)
	from.recordSequence("b", "x.1", 9)
	from.ignoreGapsAfterUnsubscribe("b", func(string) bool { return false })
	state := from.saveState()
	var to gapDetector
	to.period = 3
	testkit.RequireNoError(t, to.restoreState(state))
	to.sees(t, "a", "x.1", 5, 0, true)
	to.sees(t, "a", "x.1", 8, 2, false)
	to.sees(t, "a", "y.1", 8, 0, false)
	to.sees(t, "b", "x.1", 9, 0, true)
	to.sees(t, "b", "x.1", 12, 0, false)
	to.sees(t, "b", "x.1", 14, 1, false)
	wholes := 0
	for n := range state {
		if new(gapDetector).restoreState(state[:n]) == nil {
			wholes++ // between two topics
		}
	}
	testkit.WantEqual(t, wholes, 2, "beginnings of a state that are taken for whole")
}

func TestPauseEndsByItself(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var said []string
		n := &Node{hub: new(hub.Hub), stopped: make(chan struct{}), subscriptions: &subscriptions{}, warnings: warningLimiter{sink: func(line string) { said = append(said, line) }}}
		n.inbox = newInbox(n)
		n.inbox.resumed = make(chan struct{})
		n.outbox = newOutbox("me", 1, 1000)
		n.outbox.paused = true
		n.subscriptions.forceAll.Store(true)
		n.goroutines.Go(func() { n.inbox.deliverOrPauseUntilStopped(n.stopped) })
		n.inbox.messages <- &nats.Msg{Subject: "myriad.t.a", Header: nats.Header{sequenceHeader: {"x.1 1"}}}
		time.Sleep(maxPauseDuration - 1)
		synctest.Wait()
		testkit.WantEqual(t, n.inbox.received.Load(), 0, "messages delivered in the pause")
		time.Sleep(time.Nanosecond)
		synctest.Wait()
		if got := n.inbox.received.Load(); got != 1 || len(said) != 1 || n.subscriptions.forceAll.Load() || n.outbox.paused {
			t.Errorf("%d messages are delivered, and it says %q", got, said)
		}
		n.inbox.deliverQueuedAndPause()
		close(n.stopped)
		n.goroutines.Wait() // during a pause
		n.inbox.resume()
		n.inbox.deliverQueuedAndPause()
	})
}

// TestSwitching checks that a topic that stays subscribed misses nothing while the mode switches.
func TestSwitching(t *testing.T) {
	t.Parallel() // mostly waits
	a := startTestNode(t, new(hub.Hub), peersConfig())
	c := peersConfig(a)
	c.MaxSubjects, c.Linger = 4, 4*time.Millisecond
	b := startTestNode(t, new(hub.Hub), c)
	a.waitForNodes(t, 1)
	to, others := b.subscribe(t, "a"), b.dial(t)
	waitForSubscription(t, b, hub.Topic, "a", a)
	var topics []string
	for i := range 8 {
		topics = append(topics, fmt.Sprint("t", i))
	}
	published, read := 0, 0
	publishUntil := func(all bool) {
		t.Helper()
		testkit.WaitFor(t, fmt.Sprint("subscribed to everything: ", all), func() bool {
			for range 20 {
				a.publish(t, "a", strconv.Itoa(published))
				published++
			}
			return b.Stats().Cluster.SubscribedToAll == all
		})
	}
	for range 5 {
		others.Send(testkit.RESPCommand(append([]string{"SUBSCRIBE"}, topics...)...))
		publishUntil(true)
		others.Send(testkit.RESPCommand(append([]string{"UNSUBSCRIBE"}, topics...)...))
		publishUntil(false)
		for range 2 * len(topics) {
			others.readReply()
		}
		for ; read < published; read++ {
			to.expectMessages("a", strconv.Itoa(read))
		}
	}
	if s := b.Stats().Cluster; s.Lost != 0 || s.Received != int64(read) {
		t.Errorf("%+v; expected %d messages, and none lost", s, read)
	}
}
