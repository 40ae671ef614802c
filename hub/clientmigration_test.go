package hub

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/myriad-go/myriad/tcp"
	"github.com/myriad-go/myriad/tcp/tcptest"
)

const usersOfSuccessor = "user default on nopass +@all &*\nuser ann on >secret +@all &news* &n?\nuser gone on >secret2 +@all &*\n"

// serveUpgradableHub serves a hub, which has a user named former, and another one without. upgrade moves the clients
// from the first to the second.
func serveUpgradableHub(t *testing.T) (old, next *Hub, s *tcptest.Server, upgrade func() *tcptest.Server) {
	newHub := func(users string) *Hub {
		return &Hub{Users: mustReadUsers(users), Replay: &Replay{Topics: []string{"kept"}}, Compression: true}
	}
	old, next = newHub(usersOfSuccessor+"user former on >secret3 +@all &*\n"), newHub(usersOfSuccessor)
	s = serveVirtual(t, old, tcp.Limits{})
	return old, next, s, func() *tcptest.Server {
		to := serveVirtual(t, next, tcp.Limits{})
		if stayed := s.MigrateTo(to); len(stayed) > 0 {
			t.Fatalf("%d clients stayed: %v", len(stayed), stayed)
		}
		return to
	}
}

// TestRedisClientsMigrate checks that subscribers keep subscriptions, user, name and half a command in an
// upgrade, and that clients whose user is gone are closed.
func TestRedisClientsMigrate(t *testing.T) {
	_, _, s, upgrade := serveUpgradableHub(t)
	clients := map[string]*tcptest.Peer{}
	for _, c := range []struct{ name, says, want string }{
		{"ann", "HELLO 3 AUTH ann secret SETNAME a-name\r\nCLIENT SETINFO LIB-NAME a-lib\r\nSUBSCRIBE news\r\nPSUBSCRIBE n?\r\nPING\r\n", "+PONG\r\n"},
		{"second", "SUBSCRIBE news\r\nSUBSCRIBE other\r\nSSUBSCRIBE part\r\nPING x\r\n", "$1\r\nx\r\n"},
		{"former", "AUTH former secret3\r\nSUBSCRIBE news\r\nPING x\r\n", "$1\r\nx\r\n"},
		{"idle", "PING\r\n", "+PONG\r\n"},
		{"half", "PING\r\n*2\r\n$4\r\nEC", "+PONG\r\n"},
	} {
		p := s.Dial()
		p.Send(c.says)
		if out := p.Output(); !strings.HasSuffix(out, c.want) {
			t.Fatalf("%s is answered with %q", c.name, out)
		}
		clients[c.name] = p
	}
	upgrade()
	clients["former"].ExpectClosed(errDenied)
	clients["half"].Send("HO\r\n$3\r\nyes\r\n")
	clients["half"].Expect("$3\r\nyes\r\n")
	clients["idle"].Send("PUBLISH news hello\r\nPUBLISH nx pattern\r\nSPUBLISH part shard\r\nPUBSUB NUMSUB other\r\n")
	clients["idle"].Expect(":2\r\n:1\r\n:1\r\n*2\r\n$5\r\nother\r\n:1\r\n")
	clients["ann"].Expect(">3\r\n$7\r\nmessage\r\n$4\r\nnews\r\n$5\r\nhello\r\n>4\r\n$8\r\npmessage\r\n$2\r\nn?\r\n$2\r\nnx\r\n$7\r\npattern\r\n")
	clients["second"].Expect("*3\r\n$7\r\nmessage\r\n$4\r\nnews\r\n$5\r\nhello\r\n*3\r\n$8\r\nsmessage\r\n$4\r\npart\r\n$5\r\nshard\r\n")
	clients["ann"].Send("CLIENT INFO\r\n")
	if out := clients["ann"].Output(); !strings.Contains(out, " lib-name=a-lib lib-ver=\n") {
		t.Errorf("the library is lost: %q", out)
	}
	clients["ann"].Send("CLIENT GETNAME\r\nUNSUBSCRIBE news\r\nPUBSUB NUMSUB news\r\n")
	clients["ann"].Expect("$6\r\na-name\r\n>3\r\n$11\r\nunsubscribe\r\n$4\r\nnews\r\n:1\r\n*2\r\n$4\r\nnews\r\n:1\r\n")
}

// virtualSocket is a WebSocket of a simulated connection.
type virtualSocket struct{ *tcptest.Peer }

func dialVirtualSocket(s *tcptest.Server, query, headerLines string) virtualSocket {
	p := s.Dial()
	p.Send(strings.Replace(webSocketHandshake, "/ws HTTP/1.1\r\n", "/ws"+query+" HTTP/1.1\r\n"+headerLines, 1))
	p.Output()
	return virtualSocket{p}
}

func (s virtualSocket) exchange(say, want string) {
	s.Send(maskedTextFrame(say))
	s.expectText(want)
}

func (s virtualSocket) expectText(want string) {
	s.Expect("\x81" + string(byte(len(want))) + want)
}

func requestVirtual(s *tcptest.Server, path, headerLines string) *tcptest.Peer {
	p := s.Dial()
	p.Send("GET " + path + " HTTP/1.1\r\nHost: localhost\r\n" + headerLines + "\r\n")
	p.Expect("HTTP/1.1 200 OK\r\n")
	return p
}

// TestHTTPClientsMigrate upgrades a hub with WebSockets, event streams and an idle HTTP connection.
func TestHTTPClientsMigrate(t *testing.T) {
	_, next, s, upgrade := serveUpgradableHub(t)
	ann, former := dialVirtualSocket(s, "?token=secret", ""), dialVirtualSocket(s, "?token=secret3", "")
	mistaken := dialVirtualSocket(s, "", "")
	compressed := dialVirtualSocket(s, "", "Sec-WebSocket-Extensions: permessage-deflate\r\n")
	for _, p := range []virtualSocket{ann, former, compressed} {
		p.exchange(`{"op":"subscribe","topic":"news"}`, `{"op":"subscribed","topic":"news","count":1}`)
	}
	ann.exchange(`{"op":"subscribe","pattern":"n?"}`, `{"op":"subscribed","pattern":"n?","count":2}`)
	mistaken.Send(strings.Repeat(maskedTextFrame(`{}`), maxBadRequests-1))
	mistaken.Output()
	stream := requestVirtual(s, "/events?topic=news&pattern=n?&token=secret", "")
	ended := requestVirtual(s, "/events?topic=news&token=secret3", "")
	keptAlive := requestVirtual(s, "/topics/news", "")
	out := stream.Output() + keptAlive.Output()
	if !strings.Contains(out, "retry: ") || !strings.Contains(out, `{"topic":"news","subscribers":5}`) {
		t.Errorf("before the upgrade: %s", out)
	}
	upgrade()
	if why, _ := former.Closed(); why == nil || !strings.Contains(why.Error(), "close 1008: no permission") {
		t.Errorf("the socket of a user that is gone has closed for %v", why)
	}
	ended.ExpectClosed(errDenied)
	keptAlive.Send("GET /topics/news HTTP/1.1\r\nHost: localhost\r\n\r\n")
	keptAlive.Expect("HTTP/1.1 200 OK\r\n")
	if out := keptAlive.Output(); !strings.Contains(out, `{"topic":"news","subscribers":3}`) {
		t.Errorf("after the upgrade: %s", out)
	}
	next.publishAll(t, "news", "hello")
	next.publishAll(t, "nx", "pattern")
	for _, message := range []string{
		`{"op":"message","topic":"news","data":"hello"}`,
		`{"op":"message","pattern":"n?","topic":"nx","data":"pattern"}`,
	} {
		ann.expectText(message)
		stream.Expect("data: " + message + "\n\n")
	}
	ann.exchange(`{"op":"unsubscribe","topic":"news"}`, `{"op":"unsubscribed","topic":"news","count":1}`)
	ann.exchange(`{"op":"subscribe","topic":"other"}`, `{"op":"error","error":"no permission"}`) // not allowed for ann
	compressed.Output()
	next.publishAll(t, "news", strings.Repeat("x", 2000))
	compressed.Expect("\xc1")
	mistaken.Send(maskedTextFrame(`{}`))
	mistaken.ExpectClosed(nil)
}

// TestKeptMessagesMigrate upgrades a hub that keeps messages: ids continue, and a client that reconnects gets what it
// missed before and after the upgrade.
func TestKeptMessagesMigrate(t *testing.T) {
	old, next, s, upgrade := serveUpgradableHub(t)
	old.publishAll(t, "kept", "0")
	epoch := old.Replay.newestPos.Epoch
	message := func(n int, pattern string) string {
		return fmt.Sprintf(`{"op":"message","id":"%s-%d",%s"topic":"kept","data":"%[2]d"}`, epoch, n, pattern)
	}
	event := func(n int) string { return fmt.Sprintf("id: %s-%d\ndata: %s\n\n", epoch, n, message(n, "")) }
	p, stream := dialVirtualSocket(s, "", ""), requestVirtual(s, "/events?topic=kept", "")
	p.exchange(`{"op":"subscribe","topic":"kept"}`, `{"op":"subscribed","topic":"kept","count":1,"since":"`+epoch+`-1"}`)
	stream.Output()
	for n := 2; n <= 5; n++ {
		h := old
		if n > 3 {
			h = next
		}
		if n == 4 {
			s = upgrade()
		}
		h.publishAll(t, "kept", fmt.Sprint(n))
		p.expectText(message(n, ""))
		stream.Expect(event(n))
	}
	late := requestVirtual(s, "/events?topic=kept", "Last-Event-ID: "+epoch+"-2\r\n")
	if out := late.Output(); !strings.HasSuffix(out, event(3)+event(4)+event(5)+"id: "+epoch+"-5\n\n") {
		t.Errorf("it says %s", out)
	}
	p.exchange(`{"op":"subscribe","pattern":"kep?","since":"`+epoch+`-1"}`, `{"op":"subscribed","pattern":"kep?","count":2,"since":"`+epoch+`-1"}`)
	for n := 2; n <= 5; n++ {
		p.expectText(message(n, `"pattern":"kep?",`))
	}
}

func TestInvalidClientStateRejected(t *testing.T) {
	good := []byte{clientStateVersion, byte(formatRESP3), 1, 0, 3, 'a', 'n', 'n', 0}
	users := mustReadUsers("user ann on >secret +@all &*\n")
	for n := 1; n < len(good); n++ {
		if err := (redisOrHTTPHandler{hub: &Hub{Users: users}}).Restore(nil, good[:n:n]); err == nil {
			t.Errorf("a state of %d of its %d bytes is taken", n, len(good))
		}
	}
	for wrong, is := range map[int]byte{0: clientStateVersion + 1, 1: byte(formatWebSocket)} {
		bad := slices.Clone(good)
		bad[wrong] = is
		if err := (redisOrHTTPHandler{hub: &Hub{Users: users}}).Restore(nil, bad); err == nil {
			t.Errorf("a state with byte %d wrong is taken", wrong)
		}
	}
	if _, err := (&Hub{Users: users}).decodeSavedClientAndFindUser(good, formatWebSocket, formatEvents); !errors.Is(err, errBadState) {
		t.Errorf("a state of a client of the Redis protocol: %v, want %v", err, errBadState)
	}
}

// FuzzClientState decodes arbitrary client states. Accepted ones must encode to an equivalent state and leave no
// subscriptions behind.
func FuzzClientState(f *testing.F) {
	some := &savedClient{client: client{format: formatEvents, repliesInMessageOrder: true, user: &user{name: "u"}, firstTopic: &topic{name: "a"}}, flagsOrErrors: 3, name: "n"}
	some.client.addSubscribedTopic(&topic{name: "b*", kind: Pattern})
	f.Add(some.appendState(nil))
	f.Add([]byte{clientStateVersion, byte(formatRESP3), 1, 0, 1, 'u', 0, byte(Sharded), 1, 's'})
	f.Add([]byte{clientStateVersion, byte(formatEvents), 1, 0, 1, 'u', 0, 0, 1, 's', 0, 1, 's', 0, 1, 's'}) // three times the same
	f.Fuzz(func(t *testing.T, state []byte) {
		h := &Hub{}
		s, err := h.decodeSavedClientAndFindUser(state, formatRESP2, formatEvents)
		if err != nil {
			return
		}
		c := s.copyClient()
		err = h.reauthorizeAndRestoreSubscriptions(c, tcp.Ref{}, &s.subscriptions)
		if err == nil {
			again, err := h.decodeSavedClientAndFindUser((&savedClient{client: *c, flagsOrErrors: s.flagsOrErrors, name: s.name}).appendState(nil), s.format, s.format)
			if err != nil || again.format != s.format || again.repliesInMessageOrder != s.repliesInMessageOrder || again.flagsOrErrors != s.flagsOrErrors || again.name != s.name {
				t.Errorf("%q: read again: %+v, %v; want %+v", state, again, err, s)
			}
			other := again.copyClient()
			if err := h.reauthorizeAndRestoreSubscriptions(other, tcp.Ref{}, &again.subscriptions); err != nil || other.subscriptionCount() != c.subscriptionCount() {
				t.Errorf("%q: %d subscriptions are saved, and %d restored, %v", state, c.subscriptionCount(), other.subscriptionCount(), err)
			}
			h.unsubscribeAllAndStopReplay(other, tcp.Ref{})
		}
		h.unsubscribeAllAndStopReplay(c, tcp.Ref{})
		if n := h.subscriptions.Load(); n != 0 {
			t.Errorf("%q: %d subscriptions are left", state, n)
		}
	})
}

func mustReadUsers(text string) *Users {
	u, err := ReadUsers(strings.NewReader(text))
	if err != nil {
		panic(err)
	}
	return u
}
