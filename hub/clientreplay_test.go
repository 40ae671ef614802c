package hub

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/myriad-go/myriad/internal/testkit"
)

type fakeKeepingCluster struct {
	Cluster
	h     *Hub
	mu    sync.Mutex
	at    Position
	full  atomic.Bool
	asked int // calls of Newest
	other int // messages published but not kept
}

func (s *fakeKeepingCluster) PublishOrCountLost(Kind, string, []byte) error { s.other++; return nil }
func (s *fakeKeepingCluster) Changed(Kind, string)                          {}
func (s *fakeKeepingCluster) Newest(context.Context) (Position, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.asked++; s.asked == 1 {
		return Position{}, errors.New("the shelf does not answer")
	}
	return s.at, nil
}
func (s *fakeKeepingCluster) Stats() ClusterStats { return ClusterStats{} }

func (s *fakeKeepingCluster) QueueForReplay(topic string, message []byte) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.full.Load() {
		return errors.New("the shelf is full")
	}
	s.at.Seq++
	s.h.KeepAndDeliver(KeptMessage{At: s.at, Time: time.Now(), Topic: topic, Data: append([]byte(nil), message...)})
	return nil
}

// newReplayHub returns a hub that keeps the topics k.* and one, and has three old messages.
func newReplayHub(r *Replay) *Hub {
	r.Topics = []string{"k.*", "one"}
	h := &Hub{Replay: r}
	s := &fakeKeepingCluster{h: h, at: Position{"e", 3}}
	h.Cluster = s
	h.Replay.Begin("e", 1)
	for i := range uint64(3) {
		h.KeepAndDeliver(KeptMessage{At: Position{"e", i + 1}, Time: time.Now(), Topic: "k.old", Data: []byte{'0' + byte(i+1)}, Old: true})
	}
	h.Replay.SetLoaded(3)
	return h
}

func (h *Hub) publishAll(t testing.TB, topic string, messages ...string) {
	t.Helper()
	for _, m := range messages {
		_, err := h.Publish(topic, []byte(m))
		testkit.RequireNoError(t, err)
	}
}

func TestReplayOnWebSocket(t *testing.T) {
	h, addr := startHub(t, newReplayHub(&Replay{}))
	p := dialWebSocket(t, addr, "")
	p.exchange(`{"op":"subscribe","topic":"k.a","id":1}`, `{"op":"subscribed","topic":"k.a","count":1,"since":"e-3","id":1}`)
	p.exchange(`{"op":"subscribe","topic":"k.a","since":"e-1"}`, `{"op":"subscribed","topic":"k.a","count":1}`) // already subscribed
	p.exchange(`{"op":"publish","topic":"k.a","data":"x"}`, `{"op":"message","id":"e-4","topic":"k.a","data":"x"}`, `{"op":"published","topic":"k.a","receivers":1}`)
	p.exchange(`{"op":"subscribe","topic":"k.old","since":"e-1"}`, `{"op":"subscribed","topic":"k.old","count":2,"since":"e-1"}`,
		`{"op":"message","id":"e-2","topic":"k.old","data":"2"}`, `{"op":"message","id":"e-3","topic":"k.old","data":"3"}`)
	p.exchange(`{"op":"subscribe","pattern":"k.*","since":"e-2"}`, `{"op":"subscribed","pattern":"k.*","count":3,"since":"e-2"}`,
		`{"op":"message","id":"e-3","pattern":"k.*","topic":"k.old","data":"3"}`, `{"op":"message","id":"e-4","pattern":"k.*","topic":"k.a","data":"x"}`)
	p.exchange(`{"op":"subscribe","topic":"one","since":"other-9"}`, `{"op":"subscribed","topic":"one","count":4,"since":"other-9"}`, `{"op":"gap","id":"e-0","topic":"one"}`)
	p.exchange(`{"op":"publish","topic":"one","data":"y"}`, `{"op":"message","id":"e-5","topic":"one","data":"y"}`, `{"op":"published","topic":"one","receivers":1}`)
	p.exchange(`{"op":"subscribe","topic":"two"}`, `{"op":"subscribed","topic":"two","count":5}`)
	testkit.WantEqual(t, h.Cluster.(*fakeKeepingCluster).other, 0, "messages that are not kept")
	h.Deliver(Topic, "two", []byte("z"))
	p.expectText(`{"op":"message","topic":"two","data":"z"}`)
	for since, why := range map[string]string{
		"": "expected the id of a message, such as k3x9-17", "3": "invalid message id", "e-": "invalid message id", "-3": "invalid message id",
		"E-3": "invalid message id", "e-18446744073709551616": "invalid message id", strings.Repeat("e", 33) + "-1": "invalid message id",
	} {
		p.sendText(fmt.Sprintf(`{"op":"subscribe","topic":"k.b","since":%q}`, since))
		if _, m, err := p.Read(p.ctx); err != nil || !strings.Contains(string(m), why) || !strings.Contains(string(m), `"op":"error"`) {
			t.Errorf("since %q: %s, %v; expected an error with %q", since, m, err, why)
		}
		p.exchange(`{"op":"ping"}`, `{"op":"pong"}`)
	}
	p.exchange(`{"op":"subscribe","topic":"three","since":"e-3"}`, `{"op":"error","error":"bad request: since is \"e-3\", but the messages of \"three\" are not kept*`)
	p.exchange(`{"op":"subscribe","topic":"k.c","since":3}`, `{"op":"error"*`)
	h.Cluster.(*fakeKeepingCluster).full.Store(true)
	p.exchange(`{"op":"publish","topic":"k.a","data":"x"}`, `{"op":"error","error":"the message can't be kept: the shelf is full"}`)
	if s := h.Stats(); s.Refused.NotStored != 1 || s.Replay.Seq != 5 || s.Replay.Messages != 5 || s.Replay.Replayed != 4 || s.Replay.Gaps != 1 || !s.Replay.Ready {
		t.Errorf("%+v, %+v", s.Refused, s.Replay)
	}
}

type eventStreamClient struct{ *testkit.Conn }

func openEvents(t testing.TB, addr, query, lastID string) eventStreamClient {
	t.Helper()
	if lastID != "" {
		lastID = "Last-Event-ID: " + lastID + "\r\n"
	}
	return eventStreamClient{dialAndSend(t, addr, "GET /events?"+query+" HTTP/1.1\r\nHost: localhost\r\n"+lastID+"\r\n")}
}

// nextEvent returns the lines of the next event with an id, separated by spaces.
func (r eventStreamClient) nextEvent() (event string, err error) {
	for {
		line, err := r.R.ReadString('\n')
		if err != nil {
			return "", err
		}
		switch line = strings.TrimSpace(line); {
		case line == "" && strings.Contains(event, "id: "):
			return strings.TrimPrefix(event, " "), nil
		case line == "":
			event = ""
		default:
			event += " " + line
		}
	}
}

func (r eventStreamClient) expectEvents(t testing.TB, want ...string) {
	t.Helper()
	for _, want := range want {
		if have, err := r.nextEvent(); have != want {
			t.Fatalf("it says %s, %v; expected %s", have, err, want)
		}
	}
}

func TestReplayOnEventStream(t *testing.T) {
	h, addr := startHub(t, newReplayHub(&Replay{}))
	s := openEvents(t, addr, "topic=k.a&topic=k.b&topic=k.a&topic=other&pattern=?.b", "")
	s.expectEvents(t, "id: e-3")
	h.publishAll(t, "k.a", "1")
	h.publishAll(t, "k.b", "2")
	s.expectEvents(t, `id: e-4 data: {"op":"message","id":"e-4","topic":"k.a","data":"1"}`, `id: e-5 data: {"op":"message","id":"e-5","topic":"k.b","data":"2"}`,
		`id: e-5 data: {"op":"message","id":"e-5","pattern":"?.b","topic":"k.b","data":"2"}`)
	h.publishAll(t, "k.a", "3")
	h.publishAll(t, "k.b", "4")
	const rest = "topic=k.b&topic=k.a"
	for query, last := range map[string]string{rest: "e-5", rest + "&since=e-5": "", rest + "&since=e-1": "e-5"} {
		openEvents(t, addr, query, last).expectEvents(t, `id: e-6 data: {"op":"message","id":"e-6","topic":"k.a","data":"3"}`,
			`id: e-7 data: {"op":"message","id":"e-7","topic":"k.b","data":"4"}`, `id: e-7`)
	}
	openEvents(t, addr, rest, "gone-1").expectEvents(t, `id: e-0 event: gap data: {"op":"gap","id":"e-0"}`)
	for query, why := range map[string]string{rest + "&since=x": "invalid message id", rest + "&since=": "invalid message id", "topic=other&since=e-1": "are not kept"} {
		expectResponse(t, 400, why, "GET", "http://"+addr+"/events?"+query, "")
	}
	expectResponse(t, 400, "invalid message id", "GET", "http://"+addr+"/events?"+rest, "", "Last-Event-ID", "7")
}

// TestReplayAlone checks that the clients of a single hub get what they missed, or a notice in the order of ids, also
// if the ids are another hub's.
func TestReplayAlone(t *testing.T) {
	h, addr := startHub(t, &Hub{Replay: &Replay{Topics: []string{"k.*"}, MaxMessagesPerTopic: 3}})
	h.publishAll(t, "k.a", "1")
	h.publishAll(t, "k.b", "2")
	h.publishAll(t, "k.a", "3", "4", "5", "6")
	h.publishAll(t, "k.b", "7")
	e := h.Replay.newestPos.Epoch
	at := func(n int) string { return fmt.Sprintf("%s-%d", e, n) }
	message := func(n int, pattern, topic string) string {
		return fmt.Sprintf(`{"op":"message","id":%q,%s"topic":%q,"data":"%d"}`, at(n), pattern, topic, n)
	}
	event := func(n int, topic string) string { return "id: " + at(n) + " data: " + message(n, "", topic) }
	gap := func(n int) string { return fmt.Sprintf(`id: %s event: gap data: {"op":"gap","id":"%[1]s"}`, at(n)) }

	p := dialWebSocket(t, addr, "")
	const pattern = `"pattern":"k.*",`
	p.exchange(`{"op":"subscribe","pattern":"k.*","since":"`+at(1)+`"}`, `{"op":"subscribed"*`, message(2, pattern, "k.b"),
		`{"op":"gap","id":"`+at(3)+`","pattern":"k.*"}`, message(4, pattern, "k.a"), message(5, pattern, "k.a"), message(6, pattern, "k.a"),
		message(7, pattern, "k.b"))
	openEvents(t, addr, "topic=k.a&topic=k.b", at(1)).expectEvents(t, event(2, "k.b"), gap(3), event(4, "k.a"))
	openEvents(t, addr, "topic=k.a", at(6)).expectEvents(t, "id: "+at(7))
	openEvents(t, addr, "topic=k.b&topic=k.c", "formerhub-6").expectEvents(t, gap(1), event(2, "k.b"), event(7, "k.b"))

	h.Replay.handedOver = true // to a process that has died
	h.publishAll(t, "k.a", "1")
	e = h.Replay.newestPos.Epoch
	p.expectText(`{"op":"gap","id":"` + at(0) + `","pattern":"k.*"}`)
	p.expectText(message(1, pattern, "k.a"))
}
