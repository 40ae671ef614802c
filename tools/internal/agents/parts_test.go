package agents

import (
	"bytes"
	"encoding/json"
	"math"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/myriad-go/myriad/hub/natsd"
	"github.com/myriad-go/myriad/internal/await"
	"github.com/myriad-go/myriad/tools/load"
)

// A letter is refused if anything in it has been changed, and if it is of another key.
func TestLetter(t *testing.T) {
	k := newKey(secret, "session", "run", "agent", "nonce")
	data, err := k.write("v1", beatKind, "me", 7, orders{Begin: 5})
	if err != nil {
		t.Fatal(err)
	}
	l, err := k.open(data, "v1")
	var o orders
	if err != nil || l.Number != 7 || l.From != "me" || l.read(&o) != nil || o.Begin != 5 {
		t.Fatalf("%+v, %v", l, err)
	}
	for name, change := range map[string]func(*letter){
		"kind":   func(l *letter) { l.Kind = planKind },
		"from":   func(l *letter) { l.From = "you" },
		"number": func(l *letter) { l.Number++ },
		"body":   func(l *letter) { l.Body = bytes.ToUpper(l.Body) },
		"MAC":    func(l *letter) { l.MAC = nil },
	} {
		changed := *l
		change(&changed)
		again, _ := json.Marshal(&changed)
		if _, err := k.open(again, "v1"); err != errSecret {
			t.Errorf("another %s: %v, want %v", name, err, errSecret)
		}
	}
	if _, err := k.open(data, "v2"); err != errVersion {
		t.Errorf("another version: %v", err)
	}
	if _, err := newKey(secret, "session", "run", "agentnonce", "").open(data, "v1"); err != errSecret {
		t.Errorf("a key of the same letters, cut otherwise: %v", err)
	}
	if _, err := k.open([]byte("nonsense"), "v1"); err == nil {
		t.Error("nonsense is taken for a letter")
	}
}

// The offset is right to within the uncertainty, whichever way is slow.
func TestCompare(t *testing.T) {
	noon := time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
	const ahead = 1500 * time.Millisecond
	var trips []trip
	for _, ways := range [][3]time.Duration{{9, 1, 1}, {2, 5, 1}, {1, 50, 70}} { // milliseconds there, stay, back
		there, stay, back := ways[0]*time.Millisecond, ways[1]*time.Millisecond, ways[2]*time.Millisecond
		trips = append(trips, trip{noon, noon.Add(there + stay + back), noon.Add(there + ahead), noon.Add(there + stay + ahead)})
		offset, uncertainty := compare(trips[len(trips)-1:])
		if uncertainty != (there+back)/2 || (offset-ahead).Abs() > uncertainty {
			t.Errorf("%v there, %v back: %v ± %v, want %v", there, back, offset, uncertainty, ahead)
		}
	}
	if offset, uncertainty := compare(trips); uncertainty != 1500*time.Microsecond || offset != ahead+500*time.Microsecond {
		t.Errorf("of all %v ± %v; want the shortest's", offset, uncertainty)
	}
	if at := ours(noon.Add(ahead).UnixNano(), ahead); !at.Equal(noon) {
		t.Errorf("noon there is %v here", at)
	}
}

func TestShares(t *testing.T) {
	for name, test := range map[string]struct {
		total int
		crew  []here
		want  []float64
	}{
		"by processors":       {90, []here{{CPUs: 1, Machine: "a"}, {CPUs: 2, Machine: "b"}}, []float64{30, 60}},
		"none too many":       {90, []here{{CPUs: 1, Machine: "a"}, {CPUs: 1, Machine: "b", Holds: 10}, {CPUs: 1, Machine: "c", Most: 50}}, []float64{40, 10, 40}},
		"one after the other": {100, []here{{CPUs: 8, Machine: "a", Holds: 10}, {CPUs: 1, Machine: "b", Holds: 20}, {CPUs: 1, Machine: "c"}}, []float64{10, 20, 70}},
		"one machine":         {90, []here{{CPUs: 2, Machine: "a", Holds: 60}, {CPUs: 2, Machine: "a", Holds: 60}, {CPUs: 1, Machine: "b"}}, []float64{30, 30, 30}},
		"no more":             {30, []here{{CPUs: 4, Machine: "a", Holds: 10}, {CPUs: 4, Machine: "b", Holds: 20}}, []float64{10, 20}},
	} {
		got, err := shares(test.total, test.crew)
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
	_, err := shares(31, []here{{Name: "a", Machine: "a", Holds: 10, Wall: "ports"}, {Name: "b", Machine: "b", Holds: 20, Wall: "nofile"}})
	if err == nil || !strings.Contains(err.Error(), "30 of 31 connections: a 10 (ports), b 20 (nofile)") {
		t.Errorf("%v; want who carries how many", err)
	}
}

func TestClean(t *testing.T) {
	if got := clean("a\x1b[2Jb\xffc" + strings.Repeat("d", 2*maxText)); !strings.HasPrefix(got, "a?[2Jb?cd") || len(got) > maxText+4 {
		t.Errorf("%q", got)
	}
	if got := redact("nats://u:p@a:1,b:2"); got != "nats://…@a:1,b:2" {
		t.Errorf("%q", got)
	}
}

// TestRepeated has letters that were said before, or that another coordinator says, do nothing.
func TestRepeated(t *testing.T) {
	s := &servant{Agent: &Agent{Secret: secret, Say: func(string, ...any) {}}, id: "agent", nonce: "nonce", beat: time.NewTicker(time.Hour)}
	k := newKey(secret, "session", "run", s.id, s.nonce)
	s.session = &session{agent: s, run: "run", key: k, remove: func() {}, cancel: func() {}, number: 5}
	for _, l := range []struct {
		key    key
		from   string
		number uint64
		over   bool
	}{
		{k, "run", 4, false}, {k, "run", 5, false}, {k, "another", 6, false},
		{newKey(secret, "session", "run", s.id, "an older nonce"), "run", 6, false}, {k, "run", 6, true},
	} {
		data, err := l.key.write("", beatKind, l.from, l.number, orders{Over: true})
		if err != nil {
			t.Fatal(err)
		}
		s.obey(t.Context(), &nats.Msg{Data: data}, time.Now())
		if over := s.session == nil; over != l.over {
			t.Fatalf("letter %d from %s: over %v, want %v", l.number, l.from, over, l.over)
		}
	}
	if s.nonce == "nonce" {
		t.Error("the next session has the random number of this one")
	}
}

// TestConnectedAgain has a beat say what a lost event would have: that an agent is connected.
func TestConnectedAgain(t *testing.T) {
	conn := inProcess(t)
	said, err := conn.SubscribeSync(runSubject + "run")
	if err != nil {
		t.Fatal(err)
	}
	k := newKey(secret, "session", "run", "agent", "nonce")
	s := &session{agent: &servant{Agent: &Agent{}, id: "agent", conn: conn}, run: "run", key: k}
	m := &member{id: "agent", key: k}
	c := &coordinator{conn: conn, run: "run", crew: []*member{m}}
	next := func() *nats.Msg {
		t.Helper()
		letter, err := said.NextMsg(await.Patience)
		if err != nil {
			t.Fatal(err)
		}
		return letter
	}
	s.tell()
	if c.hear(next()); m.connected || m.number != 1 {
		t.Fatalf("connected %v by letter %d before it is", m.connected, m.number)
	}
	s.observe(load.Event{Phase: load.Connected})
	next() // is lost
	s.tell()
	if c.hear(next()); !m.connected || m.number != 3 {
		t.Errorf("connected %v after letter %d, want it by the third", m.connected, m.number)
	}
}

// inProcess is a connection to a server of its own.
func inProcess(t *testing.T) *nats.Conn {
	t.Helper()
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
	return conn
}

// TestFinished has a result begin when it did by our clock, and its limits name the agent.
func TestFinished(t *testing.T) {
	noon := time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
	c := &coordinator{conn: inProcess(t)}
	m := &member{here: here{Name: "b"}, offset: time.Hour}
	c.finished(m, &load.Result{Start: noon.Add(time.Hour), Limits: []load.Limit{{Evidence: "it was slow"}}}, "")
	if !m.result.Start.Equal(noon) || m.result.Limits[0].Evidence != "agent b: it was slow" || !m.orders.Over {
		t.Errorf("%+v, %+v; want noon", m.result, m.orders)
	}
}
