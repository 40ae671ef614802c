package cluster

import (
	"errors"
	"fmt"
	"io"
	"net"
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

// place is a hub that serves, and its node.
type place struct {
	*hub.Hub
	node *Node
	addr string
}

// serve has a hub serve in a cluster until the test ends.
func serve(t *testing.T, h *hub.Hub, c Config) *place {
	t.Helper()
	c.Warn = func(line string) { t.Log(line) }
	node, err := Start(h, c)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(node.Close)
	limits := tcp.Limits{MaxMessage: 1 << 20, MaxUnsent: 16 << 20}
	addr, _ := testserver.Start(t, &tcp.Server{Model: tcp.Goroutine, Handler: h.Handler(), Limits: limits})
	return &place{h, node, addr}
}

// peers gives the configuration of a hub that forms a cluster with others.
func peers(join ...*place) Config {
	p := &Peers{Addr: "127.0.0.1:0", Secret: "s3cret"}
	for _, other := range join {
		p.Join = append(p.Join, other.node.Addr())
	}
	return Config{Peers: p, Linger: 50 * time.Millisecond}
}

// three are hubs that form a cluster.
func three(t *testing.T) [3]*place {
	t.Helper()
	a := serve(t, new(hub.Hub), peers())
	b := serve(t, new(hub.Hub), peers(a))
	c := serve(t, new(hub.Hub), peers(a))
	all := [3]*place{a, b, c}
	for _, p := range all {
		p.meets(t, 2)
	}
	return all
}

// meets waits until a node knows so many others.
func (p *place) meets(t *testing.T, others int) {
	t.Helper()
	testkit.WaitFor(t, fmt.Sprintf("%d other nodes", others), func() bool {
		return p.node.inbox.present() == others && (p.node.server == nil || p.node.server.Others() == others)
	})
}

// client is one of the Redis protocol.
type client struct {
	*testkit.Conn
}

func (p *place) dial(t *testing.T) *client {
	t.Helper()
	return &client{testkit.Dial(t, p.addr)}
}

// do sends a command.
func (c *client) do(t *testing.T, args ...string) {
	t.Helper()
	c.Send(testkit.RESPCommand(args...))
}

// reads reads one answer, as words.
func (c *client) reads(t *testing.T) (words []string) {
	t.Helper()
	line := strings.TrimSpace(c.ReadLine())
	switch n, _ := strconv.Atoi(line[1:]); line[0] {
	case '*':
		for range n {
			words = append(words, c.reads(t)...)
		}
		return words
	case '$':
		b := make([]byte, n+2)
		if _, err := io.ReadFull(c.R, b); err != nil {
			t.Fatal(err)
		}
		return []string{string(b[:n])}
	}
	return []string{line}
}

// wants does a command, and wants an answer.
func (c *client) wants(t *testing.T, want string, args ...string) {
	t.Helper()
	got := ""
	testkit.WaitForFunc(t, func() bool {
		if len(args) > 0 {
			c.do(t, args...)
		}
		got = strings.Join(c.reads(t), " ")
		return got == want || len(args) == 0 || args[0] != "PUBSUB" // which other nodes may answer too late
	}, func() string { return fmt.Sprintf("%q: got %q; expected %q", args, got, want) })
	if got != want {
		t.Fatalf("%q: got %q; expected %q", args, got, want)
	}
}

// settled waits until what a place is subscribed to is known everywhere.
func settled(t *testing.T, subscriber *place, k hub.Kind, text string, publishers ...*place) {
	t.Helper()
	subject := subjectOfPattern(text)
	if k != hub.Pattern {
		subject, _ = subjectOf(k, text)
	}
	testkit.WaitFor(t, "a subscription to "+subject, func() bool {
		subscriber.node.interest.counts.Lock()
		defer subscriber.node.interest.counts.Unlock()
		return subscriber.node.interest.subjects[subject] != nil || subscriber.node.interest.every != nil
	})
	// Behind the subscription goes a probe, back and forth: routes keep its order.
	for _, p := range publishers {
		if p == subscriber {
			continue // it does not hear itself
		}
		probe := nats.NewInbox()
		sub, err := subscriber.node.nc.SubscribeSync(probe)
		if err != nil {
			t.Fatal(err)
		}
		testkit.WaitFor(t, "a probe", func() bool {
			_ = p.node.nc.Publish(probe, nil)
			_, err := sub.NextMsg(20 * time.Millisecond)
			return err == nil
		})
		_ = sub.Unsubscribe()
	}
}

// A message that is published to one hub comes to the subscribers of all, once and in order, be
// they of topics, of patterns, or of both, and the answer is how many are of that hub.
func TestPublish(t *testing.T) {
	all := three(t)
	publisher := all[0].dial(t)
	var subscribers []*client
	for _, p := range all {
		c := p.dial(t)
		c.wants(t, "subscribe news.a :1", "SUBSCRIBE", "news.a")
		c.wants(t, "psubscribe news.* :2", "PSUBSCRIBE", "news.*")
		c.wants(t, "ssubscribe news.a :1", "SSUBSCRIBE", "news.a")
		subscribers = append(subscribers, c)
		settled(t, p, hub.Topic, "news.a", all[:]...)
		settled(t, p, hub.Pattern, "news.*", all[:]...)
		settled(t, p, hub.Sharded, "news.a", all[:]...)
	}
	const messages = 200
	for i := range messages {
		publisher.wants(t, ":2", "PUBLISH", "news.a", strconv.Itoa(i))
		publisher.wants(t, ":1", "SPUBLISH", "news.a", strconv.Itoa(i))
	}
	for n, c := range subscribers {
		var plain, matched, sharded int
		for range 3 * messages {
			switch words := c.reads(t); words[0] {
			case "message":
				if words[2] != strconv.Itoa(plain) {
					t.Fatalf("%d: %q; expected number %d", n, words, plain)
				}
				plain++
			case "pmessage":
				if words[3] != strconv.Itoa(matched) {
					t.Fatalf("%d: %q; expected number %d", n, words, matched)
				}
				matched++
			case "smessage":
				if words[2] != strconv.Itoa(sharded) {
					t.Fatalf("%d: %q; expected number %d", n, words, sharded)
				}
				sharded++
			}
		}
		c.wants(t, "unsubscribe news.a :1", "UNSUBSCRIBE", "news.a") // nothing comes before it
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

// A name may be any bytes, and long.
func TestNames(t *testing.T) {
	a := serve(t, new(hub.Hub), peers())
	b := serve(t, new(hub.Hub), peers(a))
	a.meets(t, 1)
	from, to := a.dial(t), b.dial(t)
	for i, name := range []string{"a b", ">", "*", "a..b", "\x00\xff\r\n", strings.Repeat("x.", 500), strings.Repeat("\xff", 1000)} {
		to.wants(t, fmt.Sprintf("subscribe %s :%d", name, i+1), "SUBSCRIBE", name)
		settled(t, b, hub.Topic, name, a)
		from.wants(t, ":0", "PUBLISH", name, "x")
		to.wants(t, "message "+name+" x")
	}
}

// A node is subscribed to what it has subscribers for, and to that for a while after the last has
// gone; with very many topics, to all.
func TestInterest(t *testing.T) {
	c := peers()
	c.MaxSubjects = 8
	c.Linger = 200 * time.Millisecond
	p := serve(t, new(hub.Hub), c)
	subjects := func(what string, want int64, wantAll bool) {
		t.Helper()
		testkit.WaitFor(t, what, func() bool {
			s := p.Stats().Cluster
			return s.Subjects == want && s.All == wantAll
		})
	}
	one, two := p.dial(t), p.dial(t)
	one.wants(t, "subscribe a :1", "SUBSCRIBE", "a")
	two.wants(t, "subscribe a :1", "SUBSCRIBE", "a")
	one.wants(t, "psubscribe b.* :2", "PSUBSCRIBE", "b.*")
	two.wants(t, "psubscribe b.?x :2", "PSUBSCRIBE", "b.?x") // of the same subject
	subjects("two subjects", 2, false)
	one.wants(t, "unsubscribe a :1", "UNSUBSCRIBE", "a")
	began := time.Now()
	one.wants(t, "punsubscribe b.* :0", "PUNSUBSCRIBE", "b.*")
	two.wants(t, "punsubscribe b.?x :1", "PUNSUBSCRIBE", "b.?x")
	subjects("one subject", 1, false)
	if took := time.Since(began); took < c.Linger {
		t.Errorf("it stayed for %v; expected %v", took, c.Linger)
	}
	for i := range 8 {
		one.wants(t, fmt.Sprintf("subscribe t%d :%d", i, i+1), "SUBSCRIBE", fmt.Sprintf("t%d", i))
	}
	subjects("all subjects", 2, true)
	for i := range 5 {
		one.wants(t, fmt.Sprintf("unsubscribe t%d :%d", i, 7-i), "UNSUBSCRIBE", fmt.Sprintf("t%d", i))
	}
	subjects("each subject again", 4, false)
}

// external is a server of NATS that can be stopped and started again.
func external(t *testing.T, addr string, payload int) *natsd.Server {
	t.Helper()
	s, err := natsd.Start(natsd.Config{Addr: addr, MaxPayload: payload})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Close)
	return s
}

// While there is no connection messages wait, as many as there is room for. Those that do not
// come are counted on both sides.
func TestReconnect(t *testing.T) {
	s := external(t, "127.0.0.1:0", 0)
	addr := s.Addr().String()
	const room = 10
	a := serve(t, new(hub.Hub), Config{URLs: []string{"nats://" + addr}, MaxWaiting: room})
	b := serve(t, new(hub.Hub), Config{URLs: []string{"nats://" + addr}})
	a.meets(t, 1)
	from, to := a.dial(t), b.dial(t)
	to.wants(t, "subscribe a :1", "SUBSCRIBE", "a")
	settled(t, b, hub.Topic, "a", a)
	from.wants(t, ":0", "PUBLISH", "a", "before")
	to.wants(t, "message a before")
	s.Close()
	testkit.WaitFor(t, "both are cut off", func() bool { return !a.Stats().Cluster.Connected && !b.Stats().Cluster.Connected })
	for i := range 3 * room {
		from.wants(t, ":0", "PUBLISH", "a", strconv.Itoa(i))
	}
	if got := a.Stats().Cluster; got.Waiting != room || got.Unsent != 2*room || got.WaitingBytes > room*200 || got.Disconnects != 1 {
		t.Fatalf("%+v; expected %d to wait and %d to be lost", got, room, 2*room)
	}
	external(t, addr, 0)
	testkit.WaitFor(t, "what has waited is sent", func() bool { return a.Stats().Cluster.Waiting == 0 })
	testkit.WaitFor(t, "the other one is back", func() bool { return b.Stats().Cluster.Connected })
	settled(t, b, hub.Topic, "a", a)
	from.wants(t, ":0", "PUBLISH", "a", "behind")
	got := 0
	for words := to.reads(t); words[2] != "behind"; words = to.reads(t) {
		got++
	}
	if s := b.Stats().Cluster; s.Lost != int64(3*room-got) || s.Received != int64(got+2) {
		t.Errorf("%d have come of %d, and %+v", got, 3*room, s)
	}
	if nodes := b.Stats().Cluster.Nodes; len(nodes) != 1 || nodes[0].Lost != int64(3*room-got) || !nodes[0].Here {
		t.Errorf("of the other node: %+v", nodes)
	}
}

// A node starts where NATS can't be reached yet, and joins when it can.
func TestLateServer(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	addr := l.Addr().String()
	l.Close()
	a := serve(t, new(hub.Hub), Config{URLs: []string{"nats://" + addr}})
	from := a.dial(t)
	from.wants(t, ":0", "PUBLISH", "a", "1")
	if s := a.Stats().Cluster; s.Connected || s.Waiting != 1 {
		t.Fatalf("%+v; expected one message to wait", s)
	}
	external(t, addr, 0)
	testkit.WaitFor(t, "it is sent", func() bool { s := a.Stats().Cluster; return s.Connected && s.Sent == 1 && s.Waiting == 0 })
}

// What the cluster can't carry is refused, and reaches nobody.
func TestTooLong(t *testing.T) {
	s := external(t, "127.0.0.1:0", 8<<10)
	a := serve(t, new(hub.Hub), Config{URLs: []string{"nats://" + s.Addr().String()}})
	c, to := a.dial(t), a.dial(t)
	to.wants(t, "subscribe a :1", "SUBSCRIBE", "a")
	c.wants(t, "-ERR the message is too long: 4097 bytes, at most 4096 are allowed in this cluster", "PUBLISH", "a", strings.Repeat("x", 4097))
	c.wants(t, ":1", "PUBLISH", "a", strings.Repeat("x", 4096))
	to.wants(t, "message a "+strings.Repeat("x", 4096))
	if s := a.Stats(); s.Refused.Messages != 1 {
		t.Errorf("%d messages are refused; expected 1", s.Refused.Messages)
	}
}

// Programs that are no hubs publish, too: their messages have no numbers, and come once.
func TestForeign(t *testing.T) {
	s := external(t, "127.0.0.1:0", 0)
	a := serve(t, new(hub.Hub), Config{URLs: []string{"nats://" + s.Addr().String()}})
	to := a.dial(t)
	to.wants(t, "subscribe a.b :1", "SUBSCRIBE", "a.b")
	to.wants(t, "psubscribe a.* :2", "PSUBSCRIBE", "a.*")
	settled(t, a, hub.Topic, "a.b", a)
	settled(t, a, hub.Pattern, "a.*", a)
	nc, err := s.Connect()
	if err != nil {
		t.Fatal(err)
	}
	defer nc.Close()
	_ = a.node.nc.Flush()
	own := &nats.Msg{Subject: "myriad.t.a.b", Header: nats.Header{numberHeader: {a.node.origin + ".1 1"}}}
	if err := nc.PublishMsg(own); err != nil { // as by a connection that it has given up
		t.Fatal(err)
	}
	for _, text := range []string{"1", "2"} {
		if err := nc.Publish("myriad.t.a.b", []byte(text)); err != nil {
			t.Fatal(err)
		}
		to.wants(t, "message a.b "+text)
		to.wants(t, "pmessage a.* a.b "+text)
	}
}

// The newest message of a topic is that of the whole cluster.
func TestLastValues(t *testing.T) {
	a := serve(t, new(hub.Hub), peers())
	b := serve(t, &hub.Hub{Limits: hub.Limits{LastValues: 10}}, peers(a))
	a.meets(t, 1)
	settled(t, b, hub.Topic, "a", a)
	a.dial(t).wants(t, ":0", "PUBLISH", "a", "1")
	testkit.WaitFor(t, "the value is kept", func() bool { return b.Stats().LastValues == 1 })
	c := b.dial(t)
	c.wants(t, "subscribe a :1", "SUBSCRIBE", "a")
	c.wants(t, "message a 1")
}

// A wrong password does not get better by waiting.
func TestWrongToken(t *testing.T) {
	s, err := natsd.Start(natsd.Config{Addr: "127.0.0.1:0", Token: "s3cret"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Close)
	node, err := Start(new(hub.Hub), Config{URLs: []string{"nats://wrong@" + s.Addr().String()}})
	if err == nil {
		node.Close()
	}
	if !errors.Is(err, nats.ErrAuthorization) {
		t.Errorf("%v; expected %v", err, nats.ErrAuthorization)
	}
	serve(t, new(hub.Hub), Config{URLs: []string{"nats://s3cret@" + s.Addr().String()}})
}

func TestConfig(t *testing.T) {
	for _, c := range []struct {
		config Config
		want   string
	}{
		{Config{}, "expected URLs of NATS, or Peers, and not both"},
		{Config{URLs: []string{"nats://a"}, Peers: &Peers{Addr: ":0", Secret: "s"}}, "and not both"},
		{Config{Peers: &Peers{Addr: ":0"}}, "need a secret"},
		{Config{Peers: &Peers{Addr: ":0", Secret: "s"}, MaxMessage: 1 << 30}, "NATS takes at most"},
		{Config{Peers: &Peers{Addr: "nowhere", Secret: "s"}}, "expected host:port"},
		{Config{URLs: []string{"nats://a"}, Linger: -1}, "Linger is -1"},
		{Config{URLs: []string{"nats://a"}, Origin: "a.b"}, "expected that of another Node"},
		{Config{Peers: &Peers{Addr: ":0", Secret: "s"}, Origin: "a"}, "Origin is given with Peers"},
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

// Of warnings that come thick and fast a few are passed on, and it is said that there were others. One that is repeated
// is passed on once a minute, whatever the number of its connection is, or when something has changed.
func TestWarnings(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var said []string
		w := warnings{to: func(line string) { said = append(said, line) }}
		for range 2 {
			for i := range maxWarnings + 3 {
				w.say("line %d", i)
				w.say("line %d", i)
			}
			time.Sleep(time.Second)
		}
		if len(said) != maxWarnings+1+3 || said[maxWarnings] != "6 more lines about NATS are not shown" {
			t.Errorf("%q", said)
		}
		said = nil
		for i := range 10 * 60 {
			w.say("%d refused, rid:%d (attempt %d) 127.0.0.1:%d->127.0.0.1:7", 9, i, i, i)
			time.Sleep(repeatTime / 60)
		}
		if len(said) != 10 || said[9] != "9 refused, rid:540 (attempt 540) 127.0.0.1:540->127.0.0.1:7 (and 59 times in the last 1m0s)" {
			t.Errorf("in 10 minutes it says %q", said)
		}
		said = nil
		w.say("9 refused, rid:1")
		w.state("connected")
		w.say("9 refused, rid:2")
		if len(said) != 3 {
			t.Errorf("when something has changed it says %q", said)
		}
		for i := range 10 * maxKnown {
			w.say("%d refused", i)
			time.Sleep(time.Second)
		}
		if len(w.known) > maxKnown {
			t.Errorf("%d lines are known; expected at most %d", len(w.known), maxKnown)
		}
	})
}
