package agents

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/myriad-go/myriad/hub/natsd"
	"github.com/myriad-go/myriad/internal/testkit"
	"github.com/myriad-go/myriad/internal/testkit/testserver"
	"github.com/myriad-go/myriad/tools/load"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const secret = "open sesame"

type fleet struct {
	t    *testing.T
	nats *natsd.Server
	log  logBuffer
}

type logBuffer struct{ testkit.Buffer }

func (s *logBuffer) logf(format string, args ...any) { _, _ = fmt.Fprintf(s, format+"\n", args...) }

func (s *logBuffer) contains(text string) bool { return strings.Contains(s.String(), text) }

func newFleet(t *testing.T, agents ...Agent) *fleet {
	t.Helper()
	server := testkit.Must(natsd.Start(natsd.Config{Addr: "127.0.0.1:0", Token: secret, MaxPayload: maxMessage}))(t)
	t.Cleanup(server.Close)
	f := &fleet{t: t, nats: server}
	for _, a := range agents {
		f.startAgent(a)
	}
	return f
}

func (f *fleet) url() string { return "nats://" + f.nats.Addr().String() }

// startAgent starts an agent and stops it at the end of the test; end stops it earlier.
func (f *fleet) startAgent(a Agent) (end func()) {
	f.t.Helper()
	a.Logf = f.log.logf
	if a.URL == "" {
		a.URL = f.url()
	}
	if a.Token == "" {
		a.Token = secret
	}
	ctx, cancel := context.WithCancel(context.Background())
	var serving sync.WaitGroup
	serving.Go(func() {
		if err := a.Serve(ctx); err != nil {
			f.t.Errorf("agent %s: %v", a.Name, err)
		}
	})
	end = func() { cancel(); serving.Wait() }
	f.t.Cleanup(end)
	return end
}

// startProxy starts a proxy to the fleet's NATS server. cut disconnects it for good.
func (f *fleet) startProxy() (url string, cut func()) {
	f.t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		f.t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	var ends sync.WaitGroup
	ends.Go(func() {
		for {
			here, err := ln.Accept()
			if err != nil {
				return
			}
			there, err := net.Dial("tcp", f.nats.Addr().String())
			if err != nil {
				here.Close()
				continue
			}
			context.AfterFunc(ctx, func() { here.Close(); there.Close() })
			ends.Go(func() { _, _ = io.Copy(here, there); here.Close() })
			ends.Go(func() { _, _ = io.Copy(there, here); there.Close() })
		}
	})
	cut = sync.OnceFunc(func() { ln.Close(); cancel(); ends.Wait() })
	f.t.Cleanup(cut)
	return "nats://" + ln.Addr().String(), cut
}

func (f *fleet) newOptions(agents int) Options {
	return Options{Agents: agents, NATS: NATS{URL: f.url(), Token: secret}, Logf: f.log.logf, JoinTimeout: testkit.Timeout}
}

func startServer(t *testing.T, handle func(net.Conn)) string {
	t.Helper()
	ln := testkit.Must(net.Listen("tcp", "127.0.0.1:0"))(t)
	var conns sync.WaitGroup
	conns.Go(func() {
		for {
			conn, err := ln.Accept()
			if err != nil {
				return
			}
			conns.Go(func() { defer conn.Close(); handle(conn) })
		}
	})
	t.Cleanup(func() { ln.Close(); conns.Wait() })
	return ln.Addr().String()
}

func startEchoServer(t *testing.T) string {
	t.Helper()
	return startServer(t, func(conn net.Conn) { _, _ = io.Copy(conn, conn) })
}

func openEventFile(t *testing.T, dir string) *os.File {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(dir, "*.jsonl"))
	if err != nil || len(files) != 1 {
		t.Fatalf("%q, %v; want the events of one run", files, err)
	}
	file := testkit.Must(os.Open(files[0]))(t)
	t.Cleanup(func() { file.Close() })
	return file
}

func readEventStreams(t *testing.T, dirs ...string) (all []*load.Stream) {
	t.Helper()
	for _, dir := range dirs {
		s, err := load.ReadStream(openEventFile(t, dir))
		if err != nil || !s.Complete() {
			t.Fatal("the events are not whole", err)
		}
		all = append(all, s)
	}
	return all
}

// TestRun loads a server from two agents: connections and rate are divided, the traffic begins on both at the same
// time, and the merged result equals the sum of both. Then the same agents serve the next run.
func TestRun(t *testing.T) {
	t.Parallel() // mostly waits
	dirs := []string{t.TempDir(), t.TempDir()}
	f, target := newFleet(t, Agent{Name: "a", EventDir: dirs[0]}, Agent{Name: "b", EventDir: dirs[1]}), startEchoServer(t)
	var recorder load.StreamBuilder
	cfg := load.Config{Target: target, Connections: 7, Rate: load.Rate{PerSecond: 200}, Duration: 600 * time.Millisecond, Drain: testkit.Timeout, ProgressEvery: 100 * time.Millisecond, Observe: recorder.Observe, Histograms: true}
	r, err := RunOnAgents(t.Context(), f.newOptions(2), cfg)
	if err != nil {
		t.Fatal(err, f.log.String())
	}
	planned := r.Intended >= 118 && r.Intended <= 122 // each part is rounded
	if r.Connected != 7 || !planned || r.Latency.Count != r.Intended || len(r.Agents) != 2 || r.Schedule.PerSecond != 200 || r.Err() != nil {
		t.Errorf("%+v, %v; want 7 connections and 120 messages", r, r.Err())
	}
	for _, a := range r.Agents {
		if a.Connected != a.Connections || a.Connections < 3 || a.Lost != "" || a.Uncertainty <= 0 || a.Uncertainty > time.Second || a.Offset.Abs() > a.Uncertainty {
			t.Errorf("agent %+v; want about half of 7 connections, and a clock that is ours", a)
		}
	}
	if err := recorder.Err(); err != nil || !recorder.Stream.Complete() || recorder.Stream.Plan.Connections != 7 {
		t.Errorf("events: %v, %+v", err, recorder.Stream.Plan)
	}
	parts := readEventStreams(t, dirs...)
	both, err := load.Merge(parts[0].Result, parts[1].Result)
	if err != nil || r.Latency != both.Latency || r.Histogram != both.Histogram || len(r.Histograms) != 4 || !maps.Equal(r.Histograms, both.Histograms) {
		t.Errorf("%v: latency %+v and %d other distributions; want those of both parts, %+v", err, r.Latency, len(r.Histograms), both.Latency)
	}
	sum := func(streams ...*load.Stream) (answered, measured int64) {
		for _, s := range streams {
			for _, i := range s.Intervals {
				answered, measured = answered+i.Answered, measured+i.Latency.Count
			}
		}
		return answered, measured
	}
	answered, measured := sum(&recorder.Stream)
	answeredParts, measuredParts := sum(parts...)
	if n := len(recorder.Stream.Intervals); n < 5 || answered != r.Bytes.Answered/64 || answered != answeredParts || measured == 0 || measured != measuredParts {
		t.Errorf("%d intervals with %d answers and %d latencies; want those of both parts, %d and %d", n, answered, measured, answeredParts, measuredParts)
	}
	cfg.Observe, cfg.Rate, cfg.Messages, cfg.Duration = nil, load.Rate{}, 10, 0
	if r, err = RunOnAgents(t.Context(), f.newOptions(2), cfg); err != nil || r.Answered != 70 {
		t.Errorf("the next run: %v, %+v; want 10 messages on each of 7 connections", err, r)
	}
}

// TestTogether checks that the traffic of both waits until the slower one is connected.
func TestTogether(t *testing.T) {
	t.Parallel() // mostly waits
	f, target := newFleet(t, Agent{Name: "a", MaxConnections: 1}, Agent{Name: "b"}), startEchoServer(t)
	cfg := load.Config{Target: target, Connections: 9, ConnectRate: 4, Messages: 1} // 1 and 8, who take 2 seconds
	r := testkit.Must(RunOnAgents(t.Context(), f.newOptions(2), cfg))(t)
	if r.Agents[0].Connections+r.Agents[1].Connections != 9 || min(r.Agents[0].Connections, r.Agents[1].Connections) != 1 {
		t.Errorf("%+v; want 1 and 8 connections", r.Agents)
	}
	if r.Agents[0].Behind+r.Agents[1].Behind > 1500*time.Millisecond {
		t.Errorf("one began %v and %v after the first; want both together", r.Agents[0].Behind, r.Agents[1].Behind)
	}
}

// growingSilences yields growing values of Silence: on a busy machine a short one ends although nobody is lost.
func growingSilences(t *testing.T) func(func(time.Duration) bool) {
	return func(yield func(time.Duration) bool) {
		for silence := 300 * time.Millisecond; silence < maxSilence; silence *= 4 {
			if !yield(silence) {
				return
			}
			t.Logf("a silence of %v was too short", silence)
		}
		t.Fatal("no silence was long enough")
	}
}

// runLosingAgent runs agents a and b, of which b is cut off when a phase begins for the first time.
// It returns the result and its entries for both.
func runLosingAgent(t *testing.T, at load.Phase, config func(silence time.Duration) load.Config) (f *fleet, r *load.Result, a, b load.Agent) {
	t.Helper()
	for silence := range growingSilences(t) {
		f = newFleet(t, Agent{Name: "a"})
		way, cut := f.startProxy()
		f.startAgent(Agent{Name: "b", NATS: NATS{URL: way}})
		o := f.newOptions(2)
		o.Silence = silence
		var cutting sync.WaitGroup
		begins := sync.OnceFunc(func() { cutting.Go(cut) })
		cfg := config(silence)
		observe := cfg.Observe
		cfg.Observe = func(e load.Event) {
			if observe != nil {
				observe(e)
			}
			if e.Phase == at {
				begins()
			}
		}
		var err error
		r, err = RunOnAgents(t.Context(), o, cfg)
		cutting.Wait()
		if err != nil {
			continue // so short a silence that both were lost
		}
		i := slices.IndexFunc(r.Agents, func(a load.Agent) bool { return a.Name == "b" })
		a, b = r.Agents[1-i], r.Agents[i]
		if a.Lost == "" && b.Lost != "" && (b.Last == nil || b.Last.Open > 0) {
			break
		}
	}
	return f, r, a, b
}

// TestLost cuts off an agent in the middle of a run, which ends with the rest.
func TestLost(t *testing.T) {
	t.Parallel() // mostly waits
	target := startEchoServer(t)
	f, r, a, b := runLosingAgent(t, load.Measuring, func(silence time.Duration) load.Config {
		return load.Config{Target: target, Connections: 6, Duration: 3 * silence, ProgressEvery: silence / 10}
	})
	if !strings.Contains(b.Lost, "not heard of for") || b.Last == nil || b.Last.Open != 3 || b.Connected != 0 {
		t.Errorf("%+v; want b to be lost with 3 connections", b)
	}
	if a.Connected != 3 || r.Connected != 3 || r.Connections != 6 {
		t.Errorf("%+v of %d connections; want 3 of 6, those of a", a, r.Connections)
	}
	if err := r.Err(); err == nil || !strings.Contains(err.Error(), "lost agent b with 3 of 6 connections") {
		t.Errorf("the result says %v; want that b is lost", err)
	}
	testkit.WaitFor(t, "b ends its run", func() bool { return f.log.contains("no message from the coordinator") })
}

// TestInterrupted interrupts a run from the coordinator, and from an agent.
func TestInterrupted(t *testing.T) {
	t.Parallel() // mostly waits
	f, target := newFleet(t), startEchoServer(t)
	endA := f.startAgent(Agent{Name: "a"})
	f.startAgent(Agent{Name: "b"})
	for _, who := range []string{"coordinator", "agent"} {
		ctx, cancel := context.WithCancelCause(t.Context())
		var ending sync.WaitGroup
		cfg := load.Config{Target: target, Connections: 2, Duration: time.Hour, ProgressEvery: 20 * time.Millisecond}
		if who == "agent" {
			cfg.Duration = 3 * time.Second
		}
		cfg.Observe = func(e load.Event) {
			switch {
			case e.Phase != load.Measuring:
			case who == "agent":
				ending.Go(endA)
			default:
				cancel(errors.New("enough"))
			}
		}
		r, err := RunOnAgents(ctx, f.newOptions(2), cfg)
		ending.Wait()
		want := map[string]string{"coordinator": "enough", "agent": "agent a: the agent was stopped"}[who]
		if err == nil || err.Error() != want || r == nil || !r.Interrupted || r.Connected != 2 {
			t.Errorf("%s: %v, %+v; want what there was, and %q", who, err, r, want)
		}
		cancel(nil)
	}
}

// TestCoordinatorGone cuts off a coordinator: the agent ends its run and serves the next.
func TestCoordinatorGone(t *testing.T) {
	t.Parallel() // mostly waits
	f, target := newFleet(t, Agent{Name: "a"}), startEchoServer(t)
	gone := make(chan struct{})
	var running sync.WaitGroup
	for silence := range growingSilences(t) {
		o := f.newOptions(1)
		o.Silence = silence
		stuck := make(chan bool, 2)
		running.Go(func() {
			_, _ = RunOnAgents(t.Context(), o, load.Config{Target: target, Connections: 2, Duration: time.Hour, Observe: func(e load.Event) {
				if e.Phase == load.Measuring { // it says nothing more
					stuck <- true
					<-gone
				}
			}})
			stuck <- false
		})
		if testkit.Receive(t, stuck, "no window") {
			break
		}
	}
	testkit.WaitFor(t, "the run ends", func() bool { return f.log.contains("no message from the coordinator for") })
	r, err := RunOnAgents(t.Context(), f.newOptions(1), load.Config{Target: target, Connections: 2, Messages: 1})
	if err != nil || r.Answered != 2 {
		t.Errorf("the next run: %v, %+v", err, r)
	}
	close(gone)
	running.Wait()
}

// TestRefused has agents that cannot, or may not, take part.
func TestRefused(t *testing.T) {
	target := startEchoServer(t)
	for name, test := range map[string]struct {
		agent Agent
		cfg   load.Config
		want  string // of what is said, or the error
	}{
		"version":     {agent: Agent{version: "v9"}, want: "version v9 differs from the version (devel) of the coordinator"},
		"network":     {agent: Agent{Allow: parseAllowedList(t, "10.0.0.0/8")}, want: "target " + target + " is not allowed on this machine"},
		"unix":        {cfg: load.Config{Target: "unix:/nowhere"}, want: "target unix:/nowhere is not allowed on this machine"},
		"name":        {cfg: load.Config{Target: "nobody.invalid:1"}, want: `target "nobody.invalid:1"`},
		"connections": {agent: Agent{MaxConnections: 9}, cfg: load.Config{Connections: 10}, want: "the agents can open only 9 of 10 connections: x 9 (--max-connections)"},
	} {
		t.Run(name, func(t *testing.T) {
			f := newFleet(t)
			test.agent.Name = "x"
			f.startAgent(test.agent)
			o := f.newOptions(1)
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			o.Logf = func(format string, args ...any) {
				if f.log.logf(format, args...); f.log.contains("cannot take part") {
					cancel() // it would wait for others
				}
			}
			cfg := test.cfg
			if cfg.Target == "" {
				cfg.Target = target
			}
			_, err := RunOnAgents(ctx, o, cfg)
			if err == nil || !f.log.contains(test.want) && !strings.Contains(err.Error(), test.want) {
				t.Errorf("%v, and said:\n%s\nwant %s", err, f.log.String(), test.want)
			}
		})
	}
}

func parseAllowedList(t *testing.T, texts ...string) (all []AllowedTarget) {
	t.Helper()
	for _, text := range texts {
		a := testkit.Must(ParseAllowedNetworkOrPath(text))(t)
		all = append(all, a)
	}
	return all
}

// TestOpenFails makes each step of startOrConnectNATSAndLocalAgents fail: Run returns an error and leaves nothing
// behind.
func TestOpenFails(t *testing.T) {
	taken := testkit.Must(net.Listen("tcp", "127.0.0.1:0"))(t)
	defer taken.Close()
	silent := "nats://" + testserver.FreeAddr(t)
	cfg := load.Config{Target: "127.0.0.1:1", Connections: 1, Messages: 1}
	for _, c := range []struct {
		name string
		o    Options
		want string
	}{
		{"nobody listens", Options{NATS: NATS{URL: silent}}, "agents: NATS at " + silent},
		{"its address is taken", Options{Listen: taken.Addr().String()}, "address already in use"},
		{"no local agents", Options{Listen: "127.0.0.1:0", StartLocal: func(string) (func(), error) { return nil, errors.New("no program") }}, "agents: no program"},
	} {
		c.o.Agents = 1
		_, err := RunOnAgents(t.Context(), c.o, cfg)
		testkit.ExpectError(t, c.name, err, c.want)
	}
}

// TestTooFew checks that the error names the agents that have joined.
func TestTooFew(t *testing.T) {
	t.Parallel() // mostly waits
	f := newFleet(t, Agent{Name: "alone"})
	for wait := range growingSilences(t) {
		o := f.newOptions(2)
		o.JoinTimeout = wait
		_, err := RunOnAgents(t.Context(), o, load.Config{Target: "127.0.0.1:1", Connections: 2})
		if err == nil {
			t.Fatal("a run of two agents, with one")
		}
		if strings.Contains(err.Error(), fmt.Sprintf("1 of 2 agents joined within %v: alone", wait)) {
			return
		}
	}
}

// TestConfigure checks that configurations are refused that would make an agent read its own files.
func TestConfigure(t *testing.T) {
	a := &Agent{Sources: []netip.Addr{netip.MustParseAddr("127.0.0.3")}}
	for config, want := range map[string]string{
		`{"target":"127.0.0.1:1","message_file":"/etc/passwd"}`: `"message_file"`,
		`{"target":"tls://127.0.0.1:1","tls_ca":"/etc/passwd"}`: `"tls_ca"`,
		`{"target":"127.0.0.1:1","src":["127.0.0.9"]}`:          `"src"`,
		`{"target":"127.0.0.1:1","connections":0.5}`:            "connections",
		`[]`: "array",
	} {
		_, err := a.parseAndValidatePlan(t.Context(), plan{Config: []byte(config)})
		testkit.ExpectError(t, config, err, want)
	}
	if cfg, err := a.parseAndValidatePlan(t.Context(), plan{Config: []byte(`{"target":"tls://127.0.0.1:1"}`), CA: []byte("none")}); err == nil {
		t.Errorf("certificates that are none: %+v; want an error", cfg.TLS)
	}
}
