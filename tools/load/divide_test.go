package load

import (
	"fmt"
	"net"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/myriad-go/myriad/internal/testkit"
)

// TestDivide checks that the parts add up to the whole. It lists for each part: the number of its first connection,
// connections, rates, lines in flight, ramp, topics, publishers, all publishers and the number of its first publisher.
func TestDivide(t *testing.T) {
	all := func(cfg Config, weights ...float64) (text string) {
		cfg.Target = "127.0.0.1:1"
		parts := testkit.Must(cfg.Divide(weights...))(t)
		for _, c := range parts {
			if c.PubSub == nil {
				c.PubSub = &PubSub{}
			}
			p := c.PubSub
			text += fmt.Sprint(c.NumberFrom, " ", c.Connections, c.ConnectRate, c.Rate.PerSecond, c.Rate.To, c.Check, c.Ramp.From, c.Ramp.To)
			text += fmt.Sprint(", ", p.Topics, p.Publishers, p.AllPublishers, p.PublishersFrom, "; ")
		}
		return text
	}
	shared := Config{
		Connections: 10, ConnectRate: 7, Rate: Rate{PerSecond: 1000, To: 500},
		PubSub: &PubSub{Protocol: "redis", Topics: 4, Publishers: 3, Slow: 1},
	}
	for _, test := range []struct{ name, got, want string }{
		{"shared", all(shared, 1, 2, 2), "0 2 1 200 100 0 0 0, 4 1 3 0; 2 4 3 400 200 0 0 0, 4 1 3 1; 6 4 3 400 200 0 0 0, 4 1 3 2; "},
		{"held", all(Config{Hold: true, Check: 5, Ramp: Ramp{From: 3, To: 11, Over: time.Second}}, 10, 1),
			"0 10 0 0 0 4 3 10, 0 0 0 0; 10 1 0 0 0 1 0 1, 0 0 0 0; "},
		{"replaced", all(Config{Connections: 3, Lifetime: time.Second, Rate: Rate{PerSecond: 5, Each: true}}, 1, 1, 1),
			"0 1 0 5 0 0 0 0, 0 0 0 0; 16777216 1 0 5 0 0 0 0, 0 0 0 0; 33554432 1 0 5 0 0 0 0, 0 0 0 0; "},
	} {
		if test.got != test.want {
			t.Errorf("%s: %s, want %s", test.name, test.got, test.want)
		}
	}
	if shared.PubSub.Topics != 4 || shared.Connections != 10 {
		t.Errorf("what is divided has changed: %+v", shared)
	}
	all(Config{Connections: MaxGenerators, Lifetime: time.Second}, slices.Repeat([]float64{1}, MaxGenerators)...) // as many as there can be
}

func TestNotDivided(t *testing.T) {
	for want, cfg := range map[string]Config{
		"--src":          {Sources: parseAddrs("127.0.0.2")},
		"--connections":  {Connections: 2},
		"--connect-rate": {ConnectRate: 2},
		"--publishers":   {PubSub: &PubSub{Protocol: "redis", Publishers: 2}},
		"--rate":         {Rate: Rate{Goal: Goal{Under: 10 * time.Millisecond}}, PubSub: &PubSub{Protocol: "redis"}},
		"--duration":     {Duration: maxDuration + 1},
	} {
		cfg.Target = "127.0.0.1:1"
		if _, err := cfg.Divide(1, 1, 1); err == nil || !strings.Contains(err.Error(), want+" is ") {
			t.Errorf("%v; want an error of %s", err, want)
		}
	}
	for _, n := range []int{0, MaxGenerators + 1} {
		if _, err := (Config{Target: "127.0.0.1:1"}).Divide(make([]float64, n)...); err == nil {
			t.Errorf("divided among %d", n)
		}
	}
}

// TestNumberFrom checks that two generators use different connection numbers.
func TestNumberFrom(t *testing.T) {
	cfg := Config{Target: startTestServer(t, echo).addr(), Connections: 4, Messages: 2, Message: `\{connection.uid}.` + "\n"}
	parts := testkit.Must(cfg.Divide(1, 1))(t)
	script := testkit.Must(newTrafficScript(&parts[1], newConnTable(2, 1, 1), nil))(t)
	if got := string(script.appendMessageReadOnlyIfNil(nil, 2, 0)); got != "2.\n" {
		t.Errorf("the message of connection 2 is %q", got)
	}
	r := testkit.Must(newGenerator(new(parts[1].withDefaultsAndImplied()), 0))(t)
	if got := r.nextNumber.Load(); got != 2 {
		t.Errorf("the first connection of the second part has number %d, want 2", got)
	}
}

// TestBegin checks that a connected run waits for Config.Begin.
func TestBegin(t *testing.T) {
	begin := make(chan float64)
	waited, begun := 0, false
	cfg := Config{Target: startTestServer(t, echo).addr(), Connections: 2, Messages: 1, Begin: begin, ProgressEvery: 10 * time.Millisecond}
	cfg.Observe = func(e Event) {
		if !begun && (e.Phase == Measuring || e.Snapshot.Sent > 0) {
			t.Errorf("the traffic begins before it may: %+v", e)
		}
		if e.Phase == Progress && e.Interval.Stage == "hold" && !begun {
			if waited++; waited == 5 {
				begun = true
				close(begin)
			}
		}
	}
	if r := runToEnd(t, cfg); r.Answered != 2 || !begun {
		t.Errorf("%d answers, begun %v; want 2", r.Answered, begun)
	}
}

// TestBeginAlone checks that a waiting run ends when its connections do.
func TestBeginAlone(t *testing.T) {
	s := startTestServer(t, func(c net.Conn, _ int) { c.Close() })
	r, err := Run(t.Context(), Config{Target: s.addr(), Connections: 2, Messages: 1, Begin: make(chan float64)})
	if err != nil || r.Connected != 2 || len(r.Lost) == 0 {
		t.Errorf("%v, %+v; want two connections that are lost", err, r)
	}
}
