package cluster

import (
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/myriad-go/myriad/hub"
	"github.com/myriad-go/myriad/hub/natsd"
	"github.com/myriad-go/myriad/internal/testkit"
)

// TestOutboxLimits checks the limits of messages and bytes, including those in flight.
func TestOutboxLimits(t *testing.T) {
	o := newOutbox("me", 3, 1000)
	put := func(size int) { o.enqueueOrCountLost(hub.Topic, "a", make([]byte, size)) }
	wants := func(wantWaiting, wantUnsent int64) {
		t.Helper()
		if waiting, bytes, unsent := o.stats(); waiting != wantWaiting || unsent != wantUnsent || (bytes == 0) != (waiting == 0) {
			t.Fatalf("%d with %d bytes wait, %d are lost; expected %d and %d", waiting, bytes, unsent, wantWaiting, wantUnsent)
		}
	}
	put(10)
	put(900)
	wants(1, 1)
	for range 3 {
		put(10)
	}
	wants(3, 2)
	taken := o.waitAndDequeueAll(nil)
	put(10)
	wants(3, 3)
	for i := range taken {
		o.releaseSpaceCountingLost(&taken[i], i > 0)
	}
	wants(0, 4)
	put(10)
	if got := o.waitAndDequeueAll(taken); len(got) != 1 || got[0].id != "me.1 7" { // lost ones have used up numbers
		t.Errorf("%+v", got)
	}
	o.paused = true
	put(10)
	o.close() // also ends the pause
	put(10)
	for _, want := range []int{1, 0} {
		testkit.WantEqual(t, len(o.waitAndDequeueAll(nil)), want, "messages of a closed outbox that was paused")
	}
}

// TestSequencerLimit checks that numbering restarts in a new era if there are too many topics.
func TestSequencerLimit(t *testing.T) {
	n := sequencer{origin: "me"}
	for i := range maxSequencedTopics {
		n.nextSequenceHeader(fmt.Sprint(i))
	}
	testkit.WantEqual(t, n.nextSequenceHeader("0"), "me.1 2", "header")
	if got := n.nextSequenceHeader("one more"); got != "me.2 1" || len(n.newest) != 1 {
		t.Errorf("%q, and %d topics", got, len(n.newest))
	}
}

func (g *gapDetector) sees(t *testing.T, subject, source string, number, wantMissing uint64, wantAgain bool) {
	t.Helper()
	if missing, again := g.recordSequence(subject, source, number); missing != wantMissing || again != wantAgain {
		t.Fatalf("%s %s %d: %d missing, again %v; expected %d, %v", subject, source, number, missing, again, wantMissing, wantAgain)
	}
}

func TestGapDetector(t *testing.T) {
	var g gapDetector
	g.sees(t, "a", "x", 5, 0, false) // the first one
	g.sees(t, "a", "x", 5, 0, true)
	g.sees(t, "a", "x", 6, 0, false)
	g.sees(t, "a", "x", 9, 2, false)
	g.sees(t, "a", "x", 7, 0, true)
	g.sees(t, "a", "y", 1, 0, false)
	g.sees(t, "b", "x", 1, 0, false)
	nothing := func(string) bool { return false }
	g.ignoreGapsAfterUnsubscribe("a", nothing) // messages missed meanwhile don't count
	g.sees(t, "a", "x", 9, 0, true)
	g.sees(t, "a", "x", 20, 0, false)
	g.sees(t, "a", "x", 22, 1, false)
	g.sees(t, "b", "x", 3, 1, false)
	g.ignoreGapsAfterUnsubscribe("c.>", nothing)
	g.sees(t, "b", "x", 9, 0, false)
	g.sees(t, "b", "x", 9, 0, true)
	g.ignoreGapsAfterUnsubscribe("unknown", nothing)
	b := func(subject string) bool { return subject == "b" }
	g.ignoreGapsAfterUnsubscribe(">", b) // covered by another subscription
	g.sees(t, "b", "x", 11, 1, false)
	g.sees(t, "a", "x", 24, 0, false)
	g.ignoreGapsAfterUnsubscribe("b", b)
	g.sees(t, "b", "x", 13, 1, false)
}

// TestGapDetectorLimits checks that topics and sources are bounded and used ones stay.
func TestGapDetectorLimits(t *testing.T) {
	var g gapDetector
	g.recordSequence("used", "x", 1)
	for i := range 3 * maxTopicsPerGeneration {
		g.recordSequence(fmt.Sprint(i), "x", 1)
		if i%(maxTopicsPerGeneration/2) == 0 {
			if _, again := g.recordSequence("used", "x", 1); !again {
				t.Fatalf("a topic that is used is forgotten behind %d others", i)
			}
		}
	}
	if n := len(g.young) + len(g.old); n > 2*maxTopicsPerGeneration {
		t.Errorf("%d topics are known; expected %d at the most", n, 2*maxTopicsPerGeneration)
	}
	if _, again := g.recordSequence("0", "x", 1); again {
		t.Error("a topic that is not used is known still")
	}
	for i := range 2 * maxSourcesPerTopic {
		g.recordSequence("used", fmt.Sprint(i), 1)
	}
	testkit.WantEqual(t, len(g.getOrAddTopicLocked("used").sources), maxSourcesPerTopic, "known origins of one topic")
	for i := range 10 {
		g.recordSequence("eras", fmt.Sprint("x.", i), 1)
	}
	if o := g.getOrAddTopicLocked("eras").sources; len(o) != 2 || o[0].source != "x.8" || o[1].source != "x.9" {
		t.Errorf("of eras there are %+v; expected the two newest", o)
	}
}

// TestManyRestarts checks that a node that restarts a thousand times leaves bounded state.
func TestManyRestarts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := &Node{hub: new(hub.Hub), stopped: make(chan struct{})}
		in := newInbox(n)
		deliver := func(source string, number int) {
			for _, topic := range []string{"myriad.t.a", "myriad.t.b"} {
				in.deliverUnlessDuplicate(&nats.Msg{Subject: topic, Header: nats.Header{sequenceHeader: {fmt.Sprint(source, " ", number)}}})
			}
		}
		for i := range 1000 {
			for _, origin := range []string{"stays", fmt.Sprint("start", i)} {
				in.recordAnnouncedNode(announcement{Origin: origin, Name: origin[:5]})
				deliver(origin+".1", i+1)
			}
			time.Sleep(forgetSequencesAfter / 10)
			in.forgetAbsentNodes(time.Now())
			if known := len(in.gaps.getOrAddTopicLocked("myriad.t.a").sources); known > 12 || len(in.nodes) > 150 {
				t.Fatalf("behind %d starts the numbers of %d and the names of %d nodes are known", i, known, len(in.nodes))
			}
		}
		if in.duplicates.Load() != 0 || in.lost.Load() != 0 || in.received.Load() != 4000 {
			t.Errorf("%d again, %d lost, %d received; expected 4000", in.duplicates.Load(), in.lost.Load(), in.received.Load())
		}
		var s hub.ClusterStats
		if in.fillReceiveAndNodeStats(&s); len(s.Nodes) != 2 || s.Nodes[1].Received != 2000 {
			t.Errorf("%+v; expected two names", s.Nodes)
		}
	})
}

func TestParseSequence(t *testing.T) {
	if source, origin, number, ok := parseSequenceHeader("abc.1 7"); source != "abc.1" || origin != "abc" || number != 7 || !ok {
		t.Errorf("%q, %q, %d, %v", source, origin, number, ok)
	}
	for _, text := range []string{strings.Repeat("x", maxSourceBytes) + ".1 7", "", "abc", "abc.1", "abc.1 ", "abc.1 x", "abc 7", "abc.1 0", "abc.1 -1"} {
		if _, _, _, ok := parseSequenceHeader(text); ok {
			t.Errorf("%q is a number", text)
		}
	}
}

// TestChangedNamesLimit checks that too many changed names lead to a check of all.
func TestChangedNamesLimit(t *testing.T) {
	in := &subscriptions{hub: new(hub.Hub), wake: make(chan struct{}, 1), subjects: make(map[string]*subjectState)}
	for i := range maxChangedNames {
		in.queueSubscriptionCheck(hub.Topic, fmt.Sprint(i))
	}
	if len(in.changed) != maxChangedNames || in.checkAll {
		t.Fatalf("%d changes, all %v", len(in.changed), in.checkAll)
	}
	in.queueSubscriptionCheck(hub.Topic, "one more")
	in.queueSubscriptionCheck(hub.Topic, "and another")
	if len(in.changed) != 0 || !in.checkAll {
		t.Fatalf("%d changes, all %v; expected all to be looked at", len(in.changed), in.checkAll)
	}
	in.subjects["myriad.t.gone"] = &subjectState{names: map[topicName]struct{}{{hub.Topic, "gone"}: {}}}
	in.syncSubjectsWithChangedNames()
	if in.checkAll || len(in.idle) != 1 || in.idle[0].subject != "myriad.t.gone" {
		t.Errorf("all %v, %+v; expected a topic that is gone to be seen", in.checkAll, in.idle)
	}
}

// TestLinger checks that a subject that comes and goes is queued once and expires late.
func TestLinger(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const linger = time.Second
		in := &subscriptions{linger: linger, maxSubjects: 10, subjects: make(map[string]*subjectState)}
		a := topicName{hub.Topic, "a"}
		in.subjects["myriad.t.a"] = &subjectState{sub: new(nats.Subscription), names: map[topicName]struct{}{a: {}}}
		left := 0
		in.onUnsubscribed = func(string, func(string) bool) { left++ }
		in.warn = func(string, ...any) {} // the subscription does not exist
		for range 5 {
			in.subscribeOrMarkUnused(a, false)
			time.Sleep(linger / 2)
			in.unsubscribeUnneeded(time.Now())
			in.subscribeOrMarkUnused(a, true)
			if len(in.idle) > 1 || left > 0 {
				t.Fatalf("%+v, %d left", in.idle, left)
			}
		}
		in.subscribeOrMarkUnused(a, false)
		time.Sleep(linger - 1)
		in.unsubscribeUnneeded(time.Now())
		if left > 0 {
			t.Fatal("it has left early")
		}
		time.Sleep(linger)
		in.unsubscribeUnneeded(time.Now())
		if left != 1 || len(in.subjects)+len(in.idle) != 0 {
			t.Fatalf("%d left, %v, %v", left, in.subjects, in.idle)
		}
	})
}

// TestSupersededSubscriptionStays checks that a superseded subscription stays for replaceDelay and does not
// deliver twice.
func TestSupersededSubscriptionStays(t *testing.T) {
	conn := connectTo(t, startNATS(t, natsd.Config{}))
	left := 0
	in := &subscriptions{
		hub: new(hub.Hub), natsConn: conn, messages: make(chan *nats.Msg, 1), onUnsubscribed: func(string, func(string) bool) { left++ }, warn: t.Errorf,
		linger: time.Hour, maxSubjects: 10, subjects: make(map[string]*subjectState),
	}
	a := topicName{hub.Topic, "a"}
	in.subscribeOrMarkUnused(a, true)
	one := in.subjects["myriad.t.a"].sub
	in.forceAll.Store(true)
	in.switchSubscribeAll(true)
	all := in.allTopicSubs[0]
	in.unsubscribeUnneeded(time.Now())
	if !one.IsValid() || in.isWidestSubscriptionFor(one.Subject, "myriad.t.a") || !in.isWidestSubscriptionFor(all.Subject, "myriad.t.a") {
		t.Error("it has left at once, or what has no number comes by it")
	}
	in.unsubscribeUnneeded(time.Now().Add(replaceDelay))
	if one.IsValid() || left != 1 {
		t.Errorf("%d left; expected the topic's", left)
	}
	in.forceAll.Store(false)
	in.switchSubscribeAll(false)
	in.subscribeOrMarkUnused(a, true)
	in.unsubscribeUnneeded(time.Now())
	if !all.IsValid() || in.isWidestSubscriptionFor(all.Subject, "myriad.t.a") || !in.isWidestSubscriptionFor("myriad.t.a", "myriad.t.a") {
		t.Error("it has left at once, or what has no number comes by it")
	}
	in.unsubscribeUnneeded(time.Now().Add(replaceDelay))
	if all.IsValid() || left != 3 {
		t.Errorf("%d left; expected those to everything, too", left)
	}
}

func TestKnownNodesLimit(t *testing.T) {
	n := &Node{stopped: make(chan struct{})}
	in := newInbox(n)
	n.inbox = in
	(&presence{node: n}).handleAnnouncementReplyIfNew(fmt.Appendf(nil, `{"Origin":%q}`, strings.Repeat("x", maxOriginBytes+1)))
	testkit.WantEqual(t, len(in.nodes), 0, "known nodes")
	for i := range maxNodes + 10 {
		in.recordAnnouncedNode(announcement{Origin: fmt.Sprint(i), Name: strings.Repeat("x", 1000)})
	}
	if len(in.nodes) != maxNodes || len(in.nodes["0"].Name) != maxNodeNameBytes {
		t.Fatalf("%d nodes; expected %d", len(in.nodes), maxNodes)
	}
	in.recordAnnouncedNode(announcement{Origin: "0", Gone: true})
	testkit.WantEqual(t, in.countPresentNodes(), maxNodes-1, "nodes that are here")
	in.forgetAbsentNodes(time.Now().Add(2 * absenceTimeout))
	if len(in.nodes) > maxNodes/2 {
		t.Errorf("%d nodes are known still", len(in.nodes))
	}
	in.forgetAbsentNodes(time.Now().Add(2 * forgetNodeAfter))
	testkit.WantEqual(t, len(in.nodes), 0, "known nodes")
}

// TestInboxThrottlesReads checks that nothing is read while messages are queued.
func TestInboxThrottlesReads(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := &Node{stopped: make(chan struct{})}
		in := newInbox(n)
		for range maxQueued + 1 {
			in.messages <- new(nats.Msg)
		}
		read := false
		go func() {
			in.waitForSpace()
			read = true
		}()
		synctest.Wait()
		if read {
			t.Fatal("it does not wait")
		}
		<-in.messages
		in.spaceFreed <- struct{}{}
		synctest.Wait()
		if !read {
			t.Fatal("it waits still")
		}
	})
}

// TestQueriesLimit checks that only some queries are queued, and that invalid ones are ignored.
func TestQueriesLimit(t *testing.T) {
	nc := connectTo(t, startNATS(t, natsd.Config{}))
	p := newPresence(&Node{hub: new(hub.Hub), natsConn: nc, stopped: make(chan struct{})})
	for _, data := range []string{"", "{", `{"Kind":9}`} {
		p.answerCountsOrNamesQuery(&nats.Msg{Data: []byte(data)})
	}
	p.subscribeOrWarn(querySubject, p.queries)
	for range 2 * maxQueuedQueries {
		testkit.RequireNoError(t, nc.PublishRequest(querySubject, "answers", []byte(`{"Of":["YQ=="]}`)))
	}
	answers, err := nc.SubscribeSync("answers")
	testkit.RequireNoError(t, err)
	testkit.RequireNoError(t, nc.Flush())
	p.node.goroutines.Go(func() { p.answerQueries(p.node.stopped) })
	for range maxQueuedQueries {
		_, err := answers.NextMsg(testkit.Timeout)
		testkit.RequireNoError(t, err)
	}
	if m, err := answers.NextMsg(50 * time.Millisecond); err == nil {
		t.Errorf("one more answer: %s", m.Data)
	}
	close(p.node.stopped)
	p.node.goroutines.Wait()
}
