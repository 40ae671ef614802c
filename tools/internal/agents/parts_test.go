package agents

import (
	"encoding/json"
	"fmt"
	"math"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/myriad-go/myriad/hub/natsd"
	"github.com/myriad-go/myriad/internal/testkit"
	"github.com/myriad-go/myriad/tools/load"
)

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
	if got := redactCredentialsInURLs("nats://u:p@a:1,b:2"); got != "nats://…@a:1,b:2" {
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
		msg := testkit.Must(said.NextMsg(testkit.Timeout))(t)
		return msg
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
