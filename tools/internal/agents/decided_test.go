package agents

import (
	"bufio"
	"cmp"
	"encoding/json"
	"io"
	"net"
	"sync"
	"testing"
	"time"

	"github.com/myriad-go/myriad/hub"
	"github.com/myriad-go/myriad/internal/testkit"
	"github.com/myriad-go/myriad/internal/testkit/testserver"
	"github.com/myriad-go/myriad/tcp"
	"github.com/myriad-go/myriad/tools/load"
)

// This file tests decisions that a coordinator makes from the data of all agents.

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
