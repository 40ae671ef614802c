package agents

import (
	"bufio"
	"cmp"
	"encoding/json"
	"fmt"
	"io"
	"math"
	"net"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/myriad-go/myriad/hub"
	"github.com/myriad-go/myriad/hub/natsd"
	"github.com/myriad-go/myriad/internal/testkit"
	"github.com/myriad-go/myriad/internal/testkit/testserver"
	"github.com/myriad-go/myriad/tcp"
	"github.com/myriad-go/myriad/tools/load"
)

func readTriedResults(t *testing.T, dir string) (all []*load.Result) {
	t.Helper()
	for events := json.NewDecoder(openEventFile(t, dir)); events.More(); {
		var e load.Event
		testkit.RequireNoError(t, events.Decode(&e))
		if e.Phase == load.Tried {
			all = append(all, e.Result)
		}
	}
	return all
}

// TestSearch searches for a rate with two agents: each step is divided between them, and judged by their merged result.
func TestSearch(t *testing.T) {
	t.Parallel() // mostly waits
	dirs := []string{t.TempDir(), t.TempDir()}
	f := newFleet(t, Agent{Name: "a", EventDir: dirs[0], MaxConnections: 2}, Agent{Name: "b", EventDir: dirs[1]})
	var recorder load.StreamBuilder
	tried := 0
	goal := load.Goal{Percentile: 90, Under: 20 * time.Millisecond}
	cfg := load.Config{Target: startRateLimitedServer(t, 1000), Connections: 8, Rate: load.Rate{Goal: goal}, Duration: 200 * time.Millisecond, ProgressEvery: 250 * time.Millisecond, Drain: goal.Under, Observe: func(e load.Event) {
		recorder.Observe(e)
		if e.Phase == load.Tried {
			tried++
		}
	}}
	r, err := RunOnAgents(t.Context(), f.newOptions(2), cfg)
	if err != nil {
		t.Fatal(err, f.log.String())
	}
	found := r.Search
	if found == nil || len(found.Steps) < 2 || tried != len(found.Steps) || found.Rate > 5000 {
		t.Fatalf("%+v, %d told; want a few steps, up to about 1,000/s", found, tried)
	}
	if err := recorder.Err(); err != nil || recorder.Stream.Plan.Rate.PerSecond != found.Steps[0].Rate {
		t.Errorf("events: %v, %+v; want a plan that begins with %v/s", err, recorder.Stream.Plan.Rate, found.Steps[0].Rate)
	}
	of := cmp.Or(found.Rate, found.Steps[0].Rate) // the first, where none kept the goal
	if r.Schedule.PerSecond < of*0.999 || r.Schedule.PerSecond > of*1.001 || r.Connections != 8 || r.Connected != 8 || len(r.Agents) != 2 {
		t.Errorf("the result is of %v/s and %d connections, want %v/s and 8", r.Schedule.PerSecond, r.Connected, of)
	}
	a, b := readTriedResults(t, dirs[0]), readTriedResults(t, dirs[1])
	if len(a) != len(found.Steps) || len(b) != len(found.Steps) {
		t.Fatalf("%d and %d steps are kept of %d", len(a), len(b), len(found.Steps))
	}
	for i, step := range found.Steps {
		share := a[i].Schedule.PerSecond / step.Rate
		if share > 0.5 {
			share = 1 - share
		}
		if sum := a[i].Schedule.PerSecond + b[i].Schedule.PerSecond; share < 0.249 || share > 0.251 || sum < step.Rate*0.999 || sum > step.Rate*1.001 {
			t.Errorf("%v/s is divided into %v and %v, want a quarter and the rest", step.Rate, a[i].Schedule.PerSecond, b[i].Schedule.PerSecond)
		}
		both := testkit.Must(load.Merge(a[i], b[i]))(t)
		if unsent := both.Intended - both.Latency.Count; step.Latency != both.Latency.P90 || step.Late != both.Late.P90 || step.Unsent != unsent {
			t.Errorf("%+v; of what both have kept latency %v, late %v, unsent %d", step, both.Latency.P90, both.Late.P90, unsent)
		}
	}
}

// startRateLimitedServer starts a server that answers a number of lines a second, on all connections together.
func startRateLimitedServer(t *testing.T, rate int) string {
	t.Helper()
	var one sync.Mutex
	return startServer(t, func(conn net.Conn) {
		for lines := bufio.NewReader(conn); ; {
			line, err := lines.ReadBytes('\n')
			if err != nil {
				return
			}
			one.Lock()
			time.Sleep(time.Second / time.Duration(rate))
			one.Unlock()
			if _, err := conn.Write(line); err != nil {
				return
			}
		}
	})
}

// TestSearchLost cuts off an agent in the middle of a search, which ends with the rest.
func TestSearchLost(t *testing.T) {
	t.Parallel() // mostly waits
	target, steps := startEchoServer(t), 0
	_, r, _, _ := runLosingAgent(t, load.Tried, func(time.Duration) load.Config {
		steps = 0
		goal := load.Goal{Percentile: 50, Under: 10 * time.Millisecond}
		return load.Config{Target: target, Connections: 6, Rate: load.Rate{Goal: goal}, Duration: 100 * time.Millisecond, Observe: func(e load.Event) {
			if e.Phase == load.Tried {
				steps++
			}
		}}
	})
	if r.Search == nil || len(r.Search.Steps) < 2 || len(r.Search.Steps) != steps {
		t.Fatalf("%+v, %d steps told; want the search to go on with the other", r.Search, steps)
	}
	for _, step := range r.Search.Steps {
		if step.Kept && step.Answered < 0.6*step.Rate { // few messages may vary
			t.Errorf("%+v: a step without the part of who is lost counts", step)
		}
	}
	if err := r.Err(); err == nil {
		t.Error("the result does not say that an agent is lost")
	}
}

// TestSteady has two agents end their windows when the sum of their rates is steady.
func TestSteady(t *testing.T) {
	t.Parallel() // mostly waits
	f := newFleet(t, Agent{Name: "a"}, Agent{Name: "b"})
	silent := startServer(t, func(conn net.Conn) { _, _ = io.Copy(io.Discard, conn) })
	cfg := load.Config{Target: silent, Connections: 2, Flood: true, Steady: true, Duration: time.Second}
	if r, err := RunOnAgents(t.Context(), f.newOptions(2), cfg); err != nil || r.Window >= 3*cfg.Duration || r.Variation != 0 {
		t.Errorf("a rate of 0: %v, a window of %v, varied by %.2f; want less than %v and 0", err, r.Window, r.Variation, 3*cfg.Duration)
	}
}

// TestSteadyTogether has rates that vary at each agent, but not in the sum.
func TestSteadyTogether(t *testing.T) {
	t.Parallel() // mostly waits
	for name, test := range map[string]struct {
		a, b   [2]float64 // in turn
		enough bool
	}{
		"together":  {[2]float64{1, 9}, [2]float64{9, 1}, true},
		"in common": {[2]float64{1, 9}, [2]float64{1, 9}, false},
	} {
		c := &coordinator{conn: connectInProcess(t)}
		for _, name := range []string{"a", "b"} {
			c.members = append(c.members, &memberAgent{agentInfo: agentInfo{Name: name}, pending: make(map[load.Phase][]load.Event)})
		}
		for n := range 10 {
			if c.members[0].orders.Steady {
				t.Fatalf("%s: enough after %d of 10 parts", name, n)
			}
			c.processAgentReport(c.members[0], report{Event: &load.Event{Phase: load.Part, Received: test.a[n%2]}})
			c.processAgentReport(c.members[1], report{Event: &load.Event{Phase: load.Part, Received: test.b[n%2]}})
		}
		if got := c.members[0].orders.Steady && c.members[1].orders.Steady; got != test.enough {
			t.Errorf("%s: enough %v, want %v", name, got, test.enough)
		}
	}
}

func startHub(t *testing.T) string {
	t.Helper()
	addr, _ := testserver.Start(t, &tcp.Server{Handler: new(hub.Hub).Handler()})
	return addr
}

// TestPubSub lets two agents share topics: messages of each reach the subscribers of both.
func TestPubSub(t *testing.T) {
	t.Parallel() // mostly waits
	f := newFleet(t, Agent{Name: "a", MaxConnections: 5}, Agent{Name: "b"})
	var recorder load.StreamBuilder
	cfg := load.Config{
		Target: startHub(t), Connections: 12, PubSub: &load.PubSub{Protocol: "redis", Topics: 3, Publishers: 3},
		Rate: load.Rate{PerSecond: 300}, Duration: 500 * time.Millisecond, Drain: testkit.Timeout, Observe: recorder.Observe,
	}
	r, err := RunOnAgents(t.Context(), f.newOptions(2), cfg)
	if err != nil {
		t.Fatal(err, f.log.String())
	}
	sent, delivered := int64(0), int64(0)
	for _, i := range recorder.Stream.Intervals {
		sent, delivered = sent+i.Sent, delivered+i.Delivered
	}
	if sent < 100 || delivered != 4*sent || r.Err() != nil {
		t.Errorf("%d of %d messages to 4 subscribers each were delivered, %v", delivered, sent, r.Err())
	}
	if p := r.PubSub; p.Topics != 3 || p.Publishers != 3 || r.Connected != 15 || recorder.Err() != nil {
		t.Errorf("%+v, %d connected, %v; want 3 topics and publishers, and 15 connections", p, r.Connected, recorder.Err())
	}
}

// TestPubSubLost cuts off an agent that publishes: the other's subscribers do not wait for more of its messages.
func TestPubSubLost(t *testing.T) {
	t.Parallel() // mostly waits
	target := startHub(t)
	_, r, _, _ := runLosingAgent(t, load.Measuring, func(silence time.Duration) load.Config {
		pubsub := &load.PubSub{Protocol: "redis", Publishers: 2}
		return load.Config{Target: target, Connections: 4, PubSub: pubsub, Duration: 3 * silence, Drain: silence}
	})
	if r.Undelivered != 0 || r.Delivered == 0 || r.Connected != 3 {
		t.Errorf("%d delivered, %d are missing; want some, and none", r.Delivered, r.Undelivered)
	}
}

// Malformed messages are dropped, even those of authenticated peers.
func TestMalformed(t *testing.T) {
	id := newRandomID()
	good := message{header{protocol, "v1", heartbeatKind, id}, []byte(`{"begin":5}`)}
	for name, change := range map[string]func(m *message){
		"good":            func(*message) {},
		"protocol":        func(m *message) { m.Protocol-- },
		"version":         func(m *message) { m.Version = "v2" },
		"sender, a path":  func(m *message) { m.From = "../../../../../../../../etc/passwd" },
		"sender, long":    func(m *message) { m.From += id },
		"unknown field":   func(m *message) { m.Body = []byte(`{"begin":5,"mac":"x"}`) },
		"type":            func(m *message) { m.Body = []byte(`{"begin":"5"}`) },
		"too many bytes":  func(m *message) { m.Version = strings.Repeat("v", maxMessage) },
		"body is missing": func(m *message) { m.Body = nil },
	} {
		m := good
		change(&m)
		data := testkit.Must(json.Marshal(&m))(t)
		var o orders
		got, err := decodeMessageHeader(data, "v1")
		if err == nil {
			err = got.decodeBodyStrictly(&o)
		}
		if ok := err == nil && o.Begin == 5; ok != (name == "good") {
			t.Errorf("%s: %v, %+v", name, err, o)
		}
	}
	c, m := &coordinator{step: 1}, &memberAgent{id: id, agentInfo: agentInfo{Name: "a"}, publishers: 1}
	c.members, m.pending = []*memberAgent{m}, make(map[load.Phase][]load.Event)
	for _, e := range []string{
		`{"phase":"nonsense"}`, `{"phase":"began"}`, `{"phase":"measuring","plan":{}}`, `{"phase":"progress"}`, `{"phase":"tried","result":{}}`, `{"phase":"published","published":[1,2]}`, `[]`, ``,
	} {
		c.processAgentMessage(&nats.Msg{Data: fmt.Appendf(nil, `{"protocol":%d,"kind":"event","from":"%s","body":{"event":%s}}`, protocol, id, e)})
	}
	if len(m.pending)+len(m.intervals)+len(m.published) > 0 || m.tried != nil || !m.isReportPending() {
		t.Errorf("%+v; want nothing to be believed", m)
	}
}

// The offset is correct to within the uncertainty, whichever direction is slow.
func TestCompare(t *testing.T) {
	noon := time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
	const ahead = 1500 * time.Millisecond
	var trips []roundTrip
	for _, ways := range [][3]time.Duration{{9, 1, 1}, {2, 5, 1}, {1, 50, 70}} { // milliseconds there, stay, back
		there, stay, back := ways[0]*time.Millisecond, ways[1]*time.Millisecond, ways[2]*time.Millisecond
		trips = append(trips, roundTrip{noon, noon.Add(there + stay + back), noon.Add(there + ahead), noon.Add(there + stay + ahead)})
		offset, uncertainty := mostCertainOffset(trips[len(trips)-1:])
		if uncertainty != (there+back)/2 || (offset-ahead).Abs() > uncertainty {
			t.Errorf("%v there, %v back: %v ± %v, want %v", there, back, offset, uncertainty, ahead)
		}
	}
	if offset, uncertainty := mostCertainOffset(trips); uncertainty != 1500*time.Microsecond || offset != ahead+500*time.Microsecond {
		t.Errorf("of all %v ± %v; want the shortest's", offset, uncertainty)
	}
	if at := peerTimeToLocal(noon.Add(ahead).UnixNano(), ahead); !at.Equal(noon) {
		t.Errorf("noon there is %v here", at)
	}
}

func TestPartition(t *testing.T) {
	for name, test := range map[string]struct {
		total   int
		members []agentInfo
		want    []float64
	}{
		"by processors":       {90, []agentInfo{{CPUs: 1, Machine: "a"}, {CPUs: 2, Machine: "b"}}, []float64{30, 60}},
		"none too many":       {90, []agentInfo{{CPUs: 1, Machine: "a"}, {CPUs: 1, Machine: "b", Holds: 10}, {CPUs: 1, Machine: "c", Most: 50}}, []float64{40, 10, 40}},
		"one after the other": {100, []agentInfo{{CPUs: 8, Machine: "a", Holds: 10}, {CPUs: 1, Machine: "b", Holds: 20}, {CPUs: 1, Machine: "c"}}, []float64{10, 20, 70}},
		"one machine":         {90, []agentInfo{{CPUs: 2, Machine: "a", Holds: 60}, {CPUs: 2, Machine: "a", Holds: 60}, {CPUs: 1, Machine: "b"}}, []float64{30, 30, 30}},
		"no more":             {30, []agentInfo{{CPUs: 4, Machine: "a", Holds: 10}, {CPUs: 4, Machine: "b", Holds: 20}}, []float64{10, 20}},
	} {
		got, err := divideConnsByCPUsWithinLimits(test.total, test.members)
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		for i := range got {
			if math.Abs(got[i]-test.want[i]) > 1e-6 {
				t.Errorf("%s: %v, want %v", name, got, test.want)
				break
			}
		}
	}
	_, err := divideConnsByCPUsWithinLimits(31, []agentInfo{{Name: "a", Machine: "a", Holds: 10, Wall: "ports"}, {Name: "b", Machine: "b", Holds: 20, Wall: "nofile"}})
	if err == nil || !strings.Contains(err.Error(), "30 of 31 connections: a 10 (ports), b 20 (nofile)") {
		t.Errorf("%v; want who carries how many", err)
	}
}

func TestClean(t *testing.T) {
	if got := sanitizeAndTruncate("a\x1b[2Jb\xffc" + strings.Repeat("d", 2*maxText)); !strings.HasPrefix(got, "a?[2Jb?cd") || len(got) > maxText+4 {
		t.Errorf("%q", got)
	}
	if got := RedactCredentialsInURLs("nats://u:p@a:1,b:2"); got != "nats://…@a:1,b:2" {
		t.Errorf("%q", got)
	}
}

// TestOtherRun checks that messages of another coordinator do not affect a run.
func TestOtherRun(t *testing.T) {
	w := &agentWorker{Agent: &Agent{Logf: func(string, ...any) {}}, heartbeat: time.NewTicker(time.Hour)}
	w.run = &agentRun{agent: w, id: newRandomID(), cancel: func() {}}
	for _, from := range []string{newRandomID(), w.run.id} {
		data := testkit.Must(encodeMessage("", heartbeatKind, from, orders{Over: true}))(t)
		own := from == w.run.id
		if w.processMessageJoiningIfIdle(t.Context(), &nats.Msg{Data: data}, time.Now()); (w.run == nil) != own {
			t.Errorf("the run is over: %v; want %v", w.run == nil, own)
		}
	}
}

// TestConnectedAgain checks that a heartbeat repeats the state of a lost event: that an agent is connected.
func TestConnectedAgain(t *testing.T) {
	conn, run, agent := connectInProcess(t), newRandomID(), newRandomID()
	said := testkit.Must(conn.SubscribeSync(runSubject + run))(t)
	r := &agentRun{agent: &agentWorker{Agent: &Agent{}, id: agent, conn: conn}, id: run}
	m := &memberAgent{id: agent}
	c := &coordinator{conn: conn, run: run, members: []*memberAgent{m}}
	next := func() *nats.Msg {
		t.Helper()
		return testkit.Must(said.NextMsg(testkit.Timeout))(t)
	}
	r.sendPendingReportOrHeartbeat()
	if c.processAgentMessage(next()); m.connected || m.heard.IsZero() {
		t.Fatalf("connected %v, heard at %v before it is connected", m.connected, m.heard)
	}
	r.sendNonFinalEvent(load.Event{Phase: load.Connected})
	next() // is lost
	r.sendPendingReportOrHeartbeat()
	if c.processAgentMessage(next()); !m.connected {
		t.Error("the next heartbeat does not say that it is connected")
	}
}

func connectInProcess(t *testing.T) *nats.Conn {
	t.Helper()
	server := testkit.Must(natsd.Start(natsd.Config{}))(t)
	t.Cleanup(server.Close)
	conn := testkit.Must(server.Connect())(t)
	t.Cleanup(conn.Close)
	return conn
}

// TestFinished checks that a result's start is converted to the local clock, and that its limits name the agent.
func TestFinished(t *testing.T) {
	noon := time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
	c := &coordinator{conn: connectInProcess(t)}
	m := &memberAgent{agentInfo: agentInfo{Name: "b"}, offset: time.Hour}
	c.releaseWithResultOrMarkLost(m, &load.Result{Start: noon.Add(time.Hour), Limits: []load.Limit{{Evidence: "it was slow"}}}, "")
	if !m.result.Start.Equal(noon) || m.result.Limits[0].Evidence != "agent b: it was slow" || !m.orders.Over {
		t.Errorf("%+v, %+v; want noon", m.result, m.orders)
	}
}
