package load

import (
	"encoding/json"
	"fmt"
	"net"
	"slices"
	"strings"
	"testing"
	"time"
)

func TestDivide(t *testing.T) {
	ints := func(parts []Config, of func(*Config) int) (all []int) {
		for i := range parts {
			all = append(all, of(&parts[i]))
		}
		return all
	}
	cfg := Config{
		Target: "127.0.0.1:1", Connections: 10, ConnectRate: 7, Rate: Rate{PerSecond: 1000, To: 500},
		PubSub: &PubSub{Protocol: "redis", Topics: 4, Publishers: 3, Slow: 1},
	}
	parts, err := cfg.Divide(1, 2, 2)
	if err != nil {
		t.Fatal(err)
	}
	for name, test := range map[string]struct {
		of   func(*Config) int
		want []int
	}{
		"connections":  {func(c *Config) int { return c.Connections }, []int{2, 4, 4}},
		"connect rate": {func(c *Config) int { return c.ConnectRate }, []int{1, 3, 3}},
		"rate":         {func(c *Config) int { return int(c.Rate.PerSecond) }, []int{200, 400, 400}},
		"to":           {func(c *Config) int { return int(c.Rate.To) }, []int{100, 200, 200}},
		"topics":       {func(c *Config) int { return c.PubSub.Topics }, []int{4, 4, 4}},
		"publishers":   {func(c *Config) int { return c.PubSub.Publishers }, []int{1, 1, 1}},
		"all":          {func(c *Config) int { return c.PubSub.AllPublishers }, []int{3, 3, 3}},
		"publishers' ": {func(c *Config) int { return c.PubSub.PublishersFrom }, []int{0, 1, 2}},
		"from":         {func(c *Config) int { return c.NumberFrom }, []int{0, 2, 6}},
	} {
		if got := ints(parts, test.of); !slices.Equal(got, test.want) {
			t.Errorf("%s: %v, want %v", name, got, test.want)
		}
	}
	if cfg.PubSub.Topics != 4 || cfg.Connections != 10 {
		t.Errorf("what is divided has changed: %+v", cfg)
	}
	held := Config{Target: "127.0.0.1:1", Hold: true, Check: 5, Ramp: Ramp{From: 3, To: 11, Over: time.Second}}
	if parts, err = held.Divide(10, 1); err != nil {
		t.Fatal(err)
	}
	if got := ints(parts, func(c *Config) int { return 10000*c.Check + 1000*c.Ramp.From + 100*c.Ramp.To + c.Connections }); !slices.Equal(got, []int{44010, 10101}) && !slices.Equal(got, []int{10000*4 + 3000 + 1000 + 10, 10000 + 100 + 1}) {
		t.Errorf("a ramp: %v", got)
	}
	if got := ints(parts, func(c *Config) int { return c.NumberFrom }); !slices.Equal(got, []int{0, 10}) {
		t.Errorf("numbers from %v", got)
	}
	churn := Config{Target: "127.0.0.1:1", Connections: 3, Lifetime: time.Second, Rate: Rate{PerSecond: 5, Each: true}}
	if parts, err = churn.Divide(1, 1, 1); err != nil || parts[2].NumberFrom != 2*numbersEach || parts[1].Rate.PerSecond != 5 {
		t.Errorf("connections that are replaced: %v, %+v", err, parts)
	}
	most := Config{Target: "127.0.0.1:1", Connections: MaxGenerators, Lifetime: time.Second}
	if _, err := most.Divide(slices.Repeat([]float64{1}, MaxGenerators)...); err != nil {
		t.Errorf("as many as there can be: %v", err)
	}
}

func TestNotDivided(t *testing.T) {
	for want, cfg := range map[string]Config{
		"--src":          {Sources: addrs("127.0.0.2")},
		"--connections":  {Connections: 2},
		"--connect-rate": {ConnectRate: 2},
		"--publishers":   {PubSub: &PubSub{Protocol: "redis", Publishers: 2}},
		"--rate":         {Rate: Rate{Goal: Goal{Under: 10 * time.Millisecond}}, PubSub: &PubSub{Protocol: "redis"}},
		"--duration":     {Duration: maxTime + 1},
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

// TestNumberFrom has two generators on one server: each has numbers of its own.
func TestNumberFrom(t *testing.T) {
	cfg := Config{Target: serve(t, echo).addr(), Connections: 4, Messages: 2, Message: `\{connection.uid}.` + "\n"}
	parts, err := cfg.Divide(1, 1)
	if err != nil {
		t.Fatal(err)
	}
	script, err := newScript(&parts[1], newConnTable(2, 1, 1), nil)
	if err != nil {
		t.Fatal(err)
	}
	if got := string(script.message(nil, 2, 0)); got != "2.\n" {
		t.Errorf("the message of connection 2 is %q", got)
	}
	r, err := newTraffic(new(parts[1].filled()), 0)
	if err != nil {
		t.Fatal(err)
	}
	if got := r.numbers.Load(); got != 2 {
		t.Errorf("the first connection of the second part has number %d, want 2", got)
	}
	text, err := json.Marshal(parts[1])
	var again Config
	if err == nil {
		err = json.Unmarshal(text, &again)
	}
	if err != nil || fmt.Sprintf("%+v", again) != fmt.Sprintf("%+v", parts[1]) {
		t.Errorf("%v: %s is read as %+v, want %+v", err, text, again, parts[1])
	}
}

// TestBegin has a run wait, when it is connected, until others are, too.
func TestBegin(t *testing.T) {
	begin := make(chan float64)
	waited, begun := 0, false
	cfg := Config{Target: serve(t, echo).addr(), Connections: 2, Messages: 1, Begin: begin, ProgressEvery: 10 * time.Millisecond}
	cfg.Observe = func(e Event) {
		switch {
		case e.Phase == Progress && !begun && e.Interval.Stage == "hold":
			if waited++; waited == 5 {
				close(begin)
				begun = true
			}
		case e.Phase == Measuring && !begun:
			t.Errorf("the traffic begins before it may: %+v", e)
		}
		if !begun && e.Snapshot.Sent > 0 {
			t.Errorf("%d messages are sent before they may", e.Snapshot.Sent)
		}
	}
	if r := check(t, cfg); r.Answered != 2 || !begun {
		t.Errorf("%d answers, begun %v; want 2", r.Answered, begun)
	}
}

// TestBeginAlone has a run that waits end when its connections do.
func TestBeginAlone(t *testing.T) {
	s := serve(t, func(c net.Conn, _ int) { c.Close() })
	r, err := Run(t.Context(), Config{Target: s.addr(), Connections: 2, Messages: 1, Begin: make(chan float64)})
	if err != nil || r.Connected != 2 || len(r.Lost) == 0 {
		t.Errorf("%v, %+v; want two connections that are lost", err, r)
	}
}
