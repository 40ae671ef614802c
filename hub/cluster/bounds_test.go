package cluster

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/myriad-go/myriad/hub"
	"github.com/myriad-go/myriad/hub/natsd"
	"github.com/myriad-go/myriad/internal/testkit"
)

// The outbox has a bound on messages and one on bytes, for what is taken and not sent, too.
func TestOutboxBounds(t *testing.T) {
	o := newOutbox("me", 3, 1000)
	put := func(size int) { o.put(hub.Topic, "a", make([]byte, size)) }
	wants := func(wantWaiting, wantUnsent int64) {
		t.Helper()
		if waiting, _, unsent := o.stats(); waiting != wantWaiting || unsent != wantUnsent {
			t.Fatalf("%d wait, %d are lost; expected %d and %d", waiting, unsent, wantWaiting, wantUnsent)
		}
	}
	put(10)
	put(900)
	wants(1, 1)
	put(10)
	put(10)
	put(10)
	wants(3, 2)
	taken := o.take(nil)
	put(10)
	wants(3, 3)
	for i := range taken {
		o.sent(&taken[i], i > 0)
	}
	wants(0, 4)
	if _, bytes, _ := o.stats(); bytes != 0 {
		t.Errorf("%d bytes are left", bytes)
	}
	put(10)
	if got := o.take(taken); len(got) != 1 || got[0].number != "me.1 7" { // those that were lost have numbers
		t.Errorf("%+v", got)
	}
	o.held = true
	put(10)
	o.close() // which ends that, too
	put(10)
	if got := o.take(nil); len(got) != 1 {
		t.Errorf("a closed outbox that was held gives %+v; expected what was put in before", got)
	}
	if got := o.take(nil); len(got) != 0 {
		t.Errorf("a closed outbox gives %+v", got)
	}
}

// Numbers begin again, under another name, when there are too many topics.
func TestNumbersBound(t *testing.T) {
	n := numbers{origin: "me"}
	for i := range maxNumbers {
		n.next(fmt.Sprint(i))
	}
	if got := n.next("0"); got != "me.1 2" {
		t.Errorf("%q", got)
	}
	if got := n.next("one more"); got != "me.2 1" || len(n.newest) != 1 {
		t.Errorf("%q, and %d topics", got, len(n.newest))
	}
}

func TestGaps(t *testing.T) {
	var g gaps
	sees := func(subject, origin string, number, wantMissing uint64, wantAgain bool) {
		t.Helper()
		if missing, again := g.see(subject, origin, number); missing != wantMissing || again != wantAgain {
			t.Fatalf("%s %d: %d missing, again %v; expected %d, %v", subject, number, missing, again, wantMissing, wantAgain)
		}
	}
	sees("a", "x", 5, 0, false) // the first
	sees("a", "x", 5, 0, true)
	sees("a", "x", 6, 0, false)
	sees("a", "x", 9, 2, false)
	sees("a", "x", 7, 0, true)
	sees("a", "y", 1, 0, false)
	sees("b", "x", 1, 0, false)
	nothing := func(string) bool { return false }
	g.left("a", nothing) // nothing is concluded from what has not come meanwhile
	sees("a", "x", 9, 0, true)
	sees("a", "x", 20, 0, false)
	sees("a", "x", 22, 1, false)
	sees("b", "x", 3, 1, false)
	g.left("c.>", nothing)
	sees("b", "x", 9, 0, false)
	sees("b", "x", 9, 0, true)
	g.left("unknown", nothing)
	b := func(subject string) bool { return subject == "b" }
	g.left(">", b) // another subscription covers it
	sees("b", "x", 11, 1, false)
	sees("a", "x", 24, 0, false)
	g.left("b", b)
	sees("b", "x", 13, 1, false)
}

// What is known of numbers is bounded, by topics and by origins; what is used stays.
func TestGapsBounds(t *testing.T) {
	var g gaps
	g.see("used", "x", 1)
	for i := range 3 * maxTopics {
		g.see(fmt.Sprint(i), "x", 1)
		if i%(maxTopics/2) == 0 {
			if _, again := g.see("used", "x", 1); !again {
				t.Fatalf("a topic that is used is forgotten behind %d others", i)
			}
		}
	}
	if n := len(g.young) + len(g.old); n > 2*maxTopics {
		t.Errorf("%d topics are known; expected %d at the most", n, 2*maxTopics)
	}
	if _, again := g.see("0", "x", 1); again {
		t.Error("a topic that is not used is known still")
	}
	for i := range 2 * maxOrigins {
		g.see("used", fmt.Sprint(i), 1)
	}
	if n := len(g.find("used").origins); n != maxOrigins {
		t.Errorf("%d origins are known of one topic; expected %d", n, maxOrigins)
	}
	for i := range 10 {
		g.see("eras", fmt.Sprint("x.", i), 1)
	}
	if o := g.find("eras").origins; len(o) != 2 || o[0].origin != "x.8" || o[1].origin != "x.9" {
		t.Errorf("of eras there are %+v; expected the two newest", o)
	}
}

// Of a node that starts a thousand times nothing grows: what was known of the times before is forgotten.
func TestManyRestarts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := &Node{hub: new(hub.Hub), stop: make(chan struct{})}
		in := newInbox(n)
		deliver := func(source string, number int) {
			for _, topic := range []string{"myriad.t.a", "myriad.t.b"} {
				in.deliver(&nats.Msg{Subject: topic, Header: nats.Header{numberHeader: {fmt.Sprint(source, " ", number)}}})
			}
		}
		for i := range 1000 {
			for _, origin := range []string{"stays", fmt.Sprint("start", i)} {
				in.heard(news{Origin: origin, Name: origin[:5]})
				deliver(origin+".1", i+1)
			}
			time.Sleep(goneAfter / 10)
			in.forget(time.Now())
			if known := len(in.gaps.find("myriad.t.a").origins); known > 12 || len(in.nodes) > 150 {
				t.Fatalf("behind %d starts the numbers of %d and the names of %d nodes are known", i, known, len(in.nodes))
			}
		}
		if in.again.Load() != 0 || in.lost.Load() != 0 || in.received.Load() != 4000 {
			t.Errorf("%d again, %d lost, %d received; expected 4000", in.again.Load(), in.lost.Load(), in.received.Load())
		}
		var s hub.ClusterStats
		if in.stats(&s); len(s.Nodes) != 2 || s.Nodes[1].Received != 2000 {
			t.Errorf("%+v; expected two names", s.Nodes)
		}
	})
}

func TestParseNumber(t *testing.T) {
	if source, origin, number, ok := parseNumber("abc.1 7"); source != "abc.1" || origin != "abc" || number != 7 || !ok {
		t.Errorf("%q, %q, %d, %v", source, origin, number, ok)
	}
	for _, text := range []string{strings.Repeat("x", maxSource) + ".1 7", "", "abc", "abc.1", "abc.1 ", "abc.1 x", "abc 7", "abc.1 0", "abc.1 -1"} {
		if _, _, _, ok := parseNumber(text); ok {
			t.Errorf("%q is a number", text)
		}
	}
}

// Of changes that come faster than they are looked at so many are kept; then all names are
// looked at.
func TestChangedBound(t *testing.T) {
	in := &interest{hub: new(hub.Hub), wake: make(chan struct{}, 1), subjects: make(map[string]*subject)}
	for i := range maxChanged {
		in.note(hub.Topic, fmt.Sprint(i))
	}
	if len(in.changed) != maxChanged || in.all {
		t.Fatalf("%d changes, all %v", len(in.changed), in.all)
	}
	in.note(hub.Topic, "one more")
	in.note(hub.Topic, "and another")
	if len(in.changed) != 0 || !in.all {
		t.Fatalf("%d changes, all %v; expected all to be looked at", len(in.changed), in.all)
	}
	in.subjects["myriad.t.gone"] = &subject{names: map[name]struct{}{{hub.Topic, "gone"}: {}}}
	in.look()
	if in.all || len(in.idle) != 1 || in.idle[0].subject != "myriad.t.gone" {
		t.Errorf("all %v, %+v; expected a topic that is gone to be seen", in.all, in.idle)
	}
}

// A subject that comes and goes is noted once for its end, which is put off.
func TestLinger(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const linger = time.Second
		in := &interest{linger: linger, most: 10, subjects: make(map[string]*subject)}
		a := name{hub.Topic, "a"}
		in.subjects["myriad.t.a"] = &subject{sub: new(nats.Subscription), names: map[name]struct{}{a: {}}}
		left := 0
		in.left = func(string, func(string) bool) { left++ }
		in.warn = func(string, ...any) {} // that there is no such subscription
		for range 5 {
			in.set(a, false)
			time.Sleep(linger / 2)
			in.expire(time.Now())
			in.set(a, true)
			if len(in.idle) > 1 || left > 0 {
				t.Fatalf("%+v, %d left", in.idle, left)
			}
		}
		in.set(a, false)
		time.Sleep(linger - 1)
		in.expire(time.Now())
		if left > 0 {
			t.Fatal("it has left early")
		}
		time.Sleep(linger)
		in.expire(time.Now())
		if left != 1 || len(in.subjects)+len(in.idle) != 0 {
			t.Fatalf("%d left, %v, %v", left, in.subjects, in.idle)
		}
	})
}

// A subscription that is replaced stays for a while: a server may deliver by it alone what it was about to
// when the other one came. What comes by both is one message.
func TestReplaced(t *testing.T) {
	server, err := natsd.Start(natsd.Config{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(server.Close)
	conn, err := server.Connect()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(conn.Close)
	left := 0
	in := &interest{
		hub: new(hub.Hub), nc: conn, to: make(chan *nats.Msg, 1), left: func(string, func(string) bool) { left++ }, warn: t.Errorf,
		linger: time.Hour, most: 10, subjects: make(map[string]*subject),
	}
	a := name{hub.Topic, "a"}
	in.set(a, true)
	one := in.subjects["myriad.t.a"].sub
	in.wide.Store(true)
	in.everything(true)
	all := in.every[0]
	in.expire(time.Now())
	if !one.IsValid() || in.widest(one.Subject, "myriad.t.a") || !in.widest(all.Subject, "myriad.t.a") {
		t.Error("it has left at once, or what has no number comes by it")
	}
	in.expire(time.Now().Add(overlap))
	if one.IsValid() || left != 1 {
		t.Errorf("%d left; expected the topic's", left)
	}
	in.wide.Store(false)
	in.everything(false)
	in.set(a, true)
	in.expire(time.Now())
	if !all.IsValid() || in.widest(all.Subject, "myriad.t.a") || !in.widest("myriad.t.a", "myriad.t.a") {
		t.Error("it has left at once, or what has no number comes by it")
	}
	in.expire(time.Now().Add(overlap))
	if all.IsValid() || left != 3 {
		t.Errorf("%d left; expected those to everything, too", left)
	}
}

// A node that switches once more leaves no subscription before its time: it takes those to all topics back, and
// subscribes to each again when nothing is replaced.
func TestSwitchingBack(t *testing.T) {
	server, err := natsd.Start(natsd.Config{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(server.Close)
	conn, err := server.Connect()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(conn.Close)
	left := 0
	in := &interest{
		hub: new(hub.Hub), nc: conn, to: make(chan *nats.Msg, 1), left: func(string, func(string) bool) { left++ }, warn: t.Errorf,
		linger: time.Hour, most: 2, subjects: make(map[string]*subject),
	}
	fill := func() {
		for _, topic := range []string{"a", "b", "c"} {
			in.set(name{hub.Topic, topic}, true)
		}
	}
	fill()
	all := in.every
	if len(all) != 2 || len(in.replaced) != 2 {
		t.Fatalf("%d are to all topics, and %d replaced; expected 2 and 2", len(all), len(in.replaced))
	}
	in.expire(in.settled.Add(overlap - 1))
	if in.every == nil || len(in.replaced) != 2 || left != 0 {
		t.Errorf("%d left, %d are replaced; expected it to wait", left, len(in.replaced))
	}
	in.expire(in.settled.Add(overlap))
	if in.every != nil || len(in.replaced) != 2 || left != 2 {
		t.Errorf("%d left, %d are replaced; expected those to two topics to have left, and those to all to be replaced", left, len(in.replaced))
	}
	fill()
	if !slices.Equal(in.every, all) || len(in.replaced) != 2 || left != 2 || conn.NumSubscriptions() != 4 {
		t.Errorf("%d left, %d are replaced, of %d; expected those to all topics to be taken back", left, len(in.replaced), conn.NumSubscriptions())
	}
}

// So many nodes are kept in mind, and those that are gone make room.
func TestNodesBound(t *testing.T) {
	n := &Node{stop: make(chan struct{})}
	in := newInbox(n)
	n.inbox = in
	(&presence{node: n}).hear(fmt.Appendf(nil, `{"Origin":%q}`, strings.Repeat("x", maxOrigin+1)))
	if len(in.nodes) != 0 {
		t.Errorf("a node is known by %d bytes", maxOrigin+1)
	}
	for i := range maxNodes + 10 {
		in.heard(news{Origin: fmt.Sprint(i), Name: strings.Repeat("x", 1000)})
	}
	if len(in.nodes) != maxNodes || len(in.nodes["0"].Name) != maxName {
		t.Fatalf("%d nodes; expected %d", len(in.nodes), maxNodes)
	}
	in.heard(news{Origin: "0", Gone: true})
	if here := in.present(); here != maxNodes-1 {
		t.Errorf("%d are here; expected %d", here, maxNodes-1)
	}
	in.forget(time.Now().Add(2 * absence))
	if len(in.nodes) > maxNodes/2 {
		t.Errorf("%d nodes are known still", len(in.nodes))
	}
	in.forget(time.Now().Add(2 * forgetAfter))
	if len(in.nodes) != 0 {
		t.Errorf("%d nodes are known still", len(in.nodes))
	}
}

// While messages wait nothing more is read.
func TestPace(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := &Node{stop: make(chan struct{})}
		in := newInbox(n)
		for range maxUnread + 1 {
			in.messages <- new(nats.Msg)
		}
		read := false
		go func() {
			in.wait()
			read = true
		}()
		synctest.Wait()
		if read {
			t.Fatal("it does not wait")
		}
		<-in.messages
		in.room <- struct{}{}
		synctest.Wait()
		if !read {
			t.Fatal("it waits still")
		}
	})
}

// So many questions wait, and further ones are not answered.
func TestQuestionsBound(t *testing.T) {
	s := external(t, "127.0.0.1:0", 0)
	nc, err := s.Connect()
	if err != nil {
		t.Fatal(err)
	}
	defer nc.Close()
	p := newPresence(&Node{hub: new(hub.Hub), nc: nc, stop: make(chan struct{})})
	p.subscribe(questionSubject, p.questions)
	for range 2 * maxQuestions {
		if err := nc.PublishRequest(questionSubject, "answers", []byte(`{"Of":["YQ=="]}`)); err != nil {
			t.Fatal(err)
		}
	}
	answers, err := nc.SubscribeSync("answers")
	if err != nil {
		t.Fatal(err)
	}
	if err := nc.Flush(); err != nil {
		t.Fatal(err)
	}
	p.node.running.Go(func() { p.answers(p.node.stop) })
	for range maxQuestions {
		if _, err := answers.NextMsg(testkit.Timeout); err != nil {
			t.Fatal(err)
		}
	}
	if m, err := answers.NextMsg(50 * time.Millisecond); err == nil {
		t.Errorf("one more answer: %s", m.Data)
	}
	close(p.node.stop)
	p.node.running.Wait()
}

// A question that does not fit is not answered; one about nothing neither.
func TestBadQuestions(t *testing.T) {
	p := newPresence(&Node{hub: new(hub.Hub)})
	for _, data := range []string{"", "{", `{"Kind":9}`} {
		p.answer(&nats.Msg{Data: []byte(data)})
	}
}

func BenchmarkPut(b *testing.B) {
	o := newOutbox("origin", defaultWaiting, defaultBytes)
	message := make([]byte, 100)
	b.ReportAllocs()
	var room []outgoing
	for i := 0; b.Loop(); i++ {
		o.put(hub.Topic, "news.sport", message)
		if i%1000 == 999 {
			room = o.take(room)
			for j := range room {
				o.sent(&room[j], true)
			}
		}
	}
}
