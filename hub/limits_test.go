package hub

import (
	"errors"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/myriad-go/myriad/internal/testkit"
	"github.com/myriad-go/myriad/internal/testkit/testserver"
	"github.com/myriad-go/myriad/tcp"
	"github.com/myriad-go/myriad/tcp/tcptest"
)

func TestCheck(t *testing.T) {
	valid := &Hub{Origins: []string{"https://good.example"}, Replay: &Replay{Topics: []string{"news.*", "chat:7"}}}
	testkit.ExpectNoError(t, valid.Check())
	limits := func(l Limits) *Hub { return &Hub{Limits: l} }
	origin := func(o string) *Hub { return &Hub{Origins: []string{"https://good.example", o}} }
	topic := func(pattern string) *Hub { return &Hub{Replay: &Replay{Topics: []string{pattern}}} }
	keeping := func(r *Replay) *Hub {
		r.Topics = []string{"*"}
		return &Hub{Replay: r}
	}
	for _, row := range []struct {
		hub  *Hub
		want string
	}{
		{limits(Limits{MaxMessage: -1}), "MaxMessage is -1"},
		{limits(Limits{MaxMessage: 1<<30 + 1}), "MaxMessage is 1073741825"},
		{limits(Limits{MaxName: 65537}), "MaxName is 65537"},
		{limits(Limits{MaxFailedLogins: 201}), "MaxFailedLogins is 201"},
		{limits(Limits{PublishRate: 1_000_000_001}), "PublishRate is 1000000001"},
		{limits(Limits{LastValueBytes: 7}), "LastValueBytes is 7, but"},
		{origin("example.com"), "expected an origin such as https://example.com"},
		{origin("https://example.com/path"), "expected an origin such as https://example.com"},
		{origin("*"), "expected an origin such as https://example.com"},
		{&Hub{Replay: &Replay{}}, "Topics is empty"},
		{topic(""), "expected a name"},
		{topic("news*"), `has "news*"; expected a name, or a prefix that ends with ".", ":" or "/" followed by "*"`},
		{topic("a*b"), "expected a name"},
		{topic(strings.Repeat("a", maxReplayTopicBytes+1)), "257 bytes; expected at most 256"},
		{keeping(&Replay{MaxBytes: 1000}), "MaxBytes is 1000; expected at least 66772"},
		{keeping(&Replay{MaxAge: time.Millisecond}), "MaxAge is 1ms; expected at least 1s"},
		{keeping(&Replay{MaxReplays: -1}), "Replay.MaxReplays is -1"},
	} {
		if err := row.hub.Check(); !errors.Is(err, tcp.ErrBadConfig) || !strings.Contains(err.Error(), row.want) || !strings.Contains(err.Error(), "expected") {
			t.Errorf("%v; want a bad configuration, %q", err, row.want)
		}
	}
}

func (h *Hub) publishAsClient(c *client, name string) error {
	_, err := h.authorizeAndPublish(c.user, c.countPublishWithinRate, Topic, name, nil)
	return err
}

func (h *Hub) publishFromAddr(addr netip.Addr, name string) error {
	withinRate := func(now time.Time, rate int) bool { return h.httpPublishRates.allow(addr, now, rate, time.Second) }
	_, err := h.authorizeAndPublish(unrestrictedUser, withinRate, Topic, name, nil)
	return err
}

func (h *Hub) subscribeWithoutConn(c *client, kind Kind, name string) error {
	return h.subscribe(c, tcp.Ref{}, kind, name, func(int) {})
}

// TestLimits checks that each limit rejects with its error, is counted, and leaves nothing behind.
func TestLimits(t *testing.T) {
	full := func(h *Hub, names ...string) *client {
		c := &client{user: unrestrictedUser}
		for _, name := range names {
			testkit.RequireNoError(t, h.subscribeWithoutConn(c, Topic, name))
		}
		return c
	}
	for want, row := range map[error]struct {
		limits  Limits
		beyond  func(h *Hub) error
		refused Refused
	}{
		errEmptyName: {Limits{}, func(h *Hub) error { _, err := h.Publish("", nil); return err }, Refused{Names: 1}},
		errNameTooLong: {Limits{MaxName: 3}, func(h *Hub) error {
			full(h, "abc")
			return h.subscribeWithoutConn(&client{user: unrestrictedUser}, Pattern, "abcd")
		}, Refused{Names: 1}},
		errMessageTooLong: {Limits{MaxMessage: 3}, func(h *Hub) error {
			h.publishAll(t, "a", "123")
			_, err := h.Publish("a", []byte("1234"))
			return err
		}, Refused{Messages: 1}},
		errTooManySubscriptions: {Limits{MaxSubscriptions: 2}, func(h *Hub) error {
			c := full(h, "a", "b")
			testkit.ExpectNoError(t, h.subscribeWithoutConn(c, Topic, "b")) // once more
			return h.subscribeWithoutConn(c, Pattern, "c")
		}, Refused{Subscriptions: 1}},
		errTooManySubscribers: {Limits{MaxSubscribers: 2}, func(h *Hub) error {
			full(h, "a")
			full(h, "a", "b")
			return h.subscribeWithoutConn(&client{user: unrestrictedUser}, Topic, "a")
		}, Refused{Subscribers: 1}},
		errTooManyTopics: {Limits{MaxTopics: 2}, func(h *Hub) error {
			full(h, "a", "b")
			testkit.ExpectNoError(t, h.subscribeWithoutConn(&client{user: unrestrictedUser}, Pattern, "a*"))
			return h.subscribeWithoutConn(full(h, "a"), Topic, "c")
		}, Refused{Topics: 1}},
		errPatternTooCostly: {Limits{MaxName: 16, MaxPatternWork: 20, MaxPatternCost: 11}, func(h *Hub) (err error) {
			a, b, c := &client{user: unrestrictedUser}, &client{user: unrestrictedUser}, &client{user: unrestrictedUser}
			for _, step := range []struct {
				client        *client
				pattern, want string
			}{
				{a, "*", ""}, {a, "**", ""}, // cost 5 and 6: without a literal run they are always tried
				{a, "***", "costs 7, but the client has 0 of 11 left; limits also apply to each address and to all clients together"},
				{b, "x1*", ""}, // cost 5, the next one 0: a name has only one of these prefixes
				{a, "x2*", ""},
				{b, "***", "costs 7, but the client has 6 of 11 left; limits also apply to each address and to all clients together"},
				{c, "***", "would cost 23; at most 20 is allowed"},
				{c, "*", ""}, // present, and costs each client the same
			} {
				e := h.subscribeWithoutConn(step.client, Pattern, step.pattern)
				if step.want == "" && e != nil || step.want != "" && (e == nil || !strings.HasSuffix(e.Error(), step.want)) {
					t.Errorf("%s: %v, want %q", step.pattern, e, step.want)
				}
				if e != nil {
					err = e
				}
			}
			if cost := []int{a.patternCost(), b.patternCost(), c.patternCost()}; !slices.Equal(cost, []int{11, 5, 5}) {
				t.Errorf("the clients' patterns cost %d", cost)
			}
			h.unsubscribe(b, tcp.Ref{}, Pattern, "x1*")
			for _, c := range []*client{a, b, c} {
				h.unsubscribeAllAndStopReplay(c, tcp.Ref{})
			}
			if s := h.Stats(); a.patternCost() != 0 || s.PatternWork != 0 || s.Patterns != 0 || s.Subscriptions != 0 {
				t.Errorf("what was refused leaves %+v, and the client's patterns cost %d", s, a.patternCost())
			}
			return err
		}, Refused{Patterns: 3}},
		errDenied: {Limits{}, func(h *Hub) error {
			err := h.publishAsClient(&client{}, "a")
			if err == nil {
				t.Error("a client without a user publishes")
			}
			return h.subscribeWithoutConn(&client{}, Topic, "a")
		}, Refused{Denied: 2}},
	} {
		h := &Hub{Limits: row.limits}
		if err := row.beyond(h); !errors.Is(err, want) {
			t.Errorf("%+v: %v, want %v", row.limits, err, want)
		}
		testkit.WantEqual(t, h.Stats().Refused, row.refused, "what is counted for %v", want)
	}
}

func TestPublishRate(t *testing.T) {
	const rate = 3
	synctest.Test(t, func(t *testing.T) {
		h := &Hub{Limits: Limits{PublishRate: rate}}
		c := &client{user: unrestrictedUser}
		from := netip.MustParseAddr("2001:db8::1")
		publish := map[string]func() error{
			"client": func() error { return h.publishAsClient(c, "a") },
			"post":   func() error { err := h.publishFromAddr(from, "a"); from = from.Next(); return err },
		}
		for who, publish := range publish {
			time.Sleep(time.Hour)
			for range rate {
				if err := publish(); err != nil {
					t.Fatalf("%s: %v", who, err)
				}
			}
			if err := publish(); !errors.Is(err, errPublishRate) {
				t.Fatalf("%s, message %d at once: %v, want %v", who, rate+1, err, errPublishRate)
			}
			time.Sleep(time.Second/rate + 1)
			if first, second := publish(), publish(); first != nil || !errors.Is(second, errPublishRate) {
				t.Errorf("%s, a third of a second later: %v, and then %v, want %v", who, first, second, errPublishRate)
			}
		}
		testkit.ExpectNoError(t, h.publishFromAddr(netip.MustParseAddr("2001:db8:0:1::"), "a")) // another network
		testkit.ExpectNoError(t, h.publishAsClient(&client{user: unrestrictedUser}, "a"))
		if s := h.Stats(); s.Refused.Rate != 4 || s.Published != 2*(rate+1)+2 {
			t.Errorf("%+v", s)
		}
	})
}

// TestAddrRateLimitsEviction checks that rate-limited addresses are bounded and idle ones evicted first.
func TestAddrRateLimitsEviction(t *testing.T) {
	var ps addrRateLimits
	begin := time.Now()
	address := func(i int) netip.Addr { return netip.AddrFrom4([4]byte{10, byte(i >> 16), byte(i >> 8), byte(i)}) }
	for i := range 2 * maxLimitedAddrs {
		if !ps.allow(address(i), begin.Add(time.Duration(i)*time.Millisecond), 1000, time.Second) {
			t.Fatalf("address %d is refused", i)
		}
		if len(ps.byAddr) > maxLimitedAddrs {
			t.Fatalf("%d addresses are known, want %d at most", len(ps.byAddr), maxLimitedAddrs)
		}
	}
	for i := range 2 * maxLimitedAddrs {
		ps.allow(address(i), begin.Add(time.Hour), 1, time.Second)
	}
	if len(ps.byAddr) > maxLimitedAddrs {
		t.Errorf("%d busy addresses are known, want %d at most", len(ps.byAddr), maxLimitedAddrs)
	}
}

// TestHeartbeat checks that WebSockets and event streams get heartbeats, and silent Redis clients stay open
// without.
func TestHeartbeat(t *testing.T) {
	s := tcptest.NewServer(t, &tcp.Server{
		Handler: new(Hub).Handler(), Heartbeat: tcp.Heartbeat{Interval: time.Second, MaxMissed: 1},
	})
	redis, socket, stream := s.Dial(), s.Dial(), s.Dial()
	redis.Send("SUBSCRIBE a\r\n")
	redis.Expect(confirmationRESP2("subscribe", "a", 1))
	socket.Send(webSocketHandshake)
	stream.Send("GET /events?topic=a HTTP/1.1\r\nHost: x\r\n\r\n")
	socket.Output()
	stream.Output()
	s.Advance(1500 * time.Millisecond)
	socket.Expect("\x89\x00")
	stream.Expect(":\n\n")
	s.Advance(time.Minute)
	if why, closed := redis.Closed(); closed {
		t.Fatalf("the Redis client is closed: %v", why)
	}
	redis.Send("PING\r\n")
	redis.Expect("*2\r\n$4\r\npong\r\n$0\r\n\r\n")
	socket.ExpectClosed(tcp.ErrHeartbeatTimeout)
}

// TestOverloadRejectsPublish fills the memory, which sheds all publishing.
func TestOverloadRejectsPublish(t *testing.T) {
	fill := testkit.LimitMemory(t, 64<<20)
	srv := &tcp.Server{Handler: new(Hub).Handler()}
	addr, _ := testserver.Start(t, srv)
	c := testkit.Dial(t, addr)
	c.Send("PUBLISH a b\r\n")
	c.Expect(":0\r\n")
	fill()
	testkit.WaitFor(t, "the action does not begin", func() bool { return srv.Stats().Overload.ShedRequests == 1 })
	c.Send("PUBLISH a b\r\nPING\r\n")
	c.Expect("-" + overloadedReply + "\r\n+PONG\r\n")
	testkit.WantEqual(t, srv.Stats().Overload.ShedMemory, 1, "shed commands")
}
