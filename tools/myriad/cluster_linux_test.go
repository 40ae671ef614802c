package main

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"net"
	"os/exec"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/coder/websocket"

	"github.com/myriad-go/myriad/hub"
	"github.com/myriad-go/myriad/internal/testkit"
	"github.com/myriad-go/myriad/tools/internal/faults"
)

// tally is what one subscriber has got, of messages such as "hub1 7": by publisher, the newest
// number and how many are missing before it.
type tally struct {
	name string

	mu              sync.Mutex
	newest, missing map[string]int64
	got             int64
	wrong           []string
}

func newTally(name string) *tally {
	return &tally{name: name, newest: make(map[string]int64), missing: make(map[string]int64)}
}

// note notes a message: a number that is not above the last one is wrong.
func (y *tally) note(message string) {
	from, number, _ := strings.Cut(message, " ")
	number, _, _ = strings.Cut(number, " ")
	n, err := strconv.ParseInt(number, 10, 64)
	y.mu.Lock()
	defer y.mu.Unlock()
	last, known := y.newest[from]
	if err != nil || n <= last {
		y.wrong = append(y.wrong, fmt.Sprintf("%.40q behind %d", message, last))
		return
	}
	if known {
		y.missing[from] += n - last - 1
	}
	y.newest[from] = n
	y.got++
}

func (y *tally) of(from string) (newest, missing int64) {
	y.mu.Lock()
	defer y.mu.Unlock()
	return y.newest[from], y.missing[from]
}

// hubNode is a hub on a machine.
type hubNode struct {
	*machine
	*server
	args []string
}

func (m *machine) hub(t *testing.T, args ...string) *hubNode {
	t.Helper()
	h := &hubNode{machine: m, args: append([]string{"hub", "--insecure", "--node", m.name, "--addr", m.machineAddr("6379"), "--admin", m.machineAddr("9999")}, args...)}
	h.restart(t)
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("%s: %s", m.name, h.stderr)
		}
	})
	return h
}

func (m *machine) machineAddr(port string) string { return net.JoinHostPort(m.address, port) }

// restart starts a hub that is not there, or not any more.
func (h *hubNode) restart(t *testing.T) {
	t.Helper()
	h.server = startProcess(t, h.machine.on(process(t, h.args...)))
}

// stats asks a hub, on its machine, which may be cut off.
func (h *hubNode) stats(t *testing.T) hub.ClusterStats {
	t.Helper()
	answer, err := h.client().Get("http://" + h.machineAddr("9999") + "/hub")
	if err != nil {
		t.Fatal(err)
	}
	defer answer.Body.Close()
	var shown struct{ Stats hub.Stats }
	if err := json.NewDecoder(answer.Body).Decode(&shown); err != nil {
		t.Fatal(err)
	}
	return *shown.Stats.Cluster
}

func (h *hubNode) footprint(t *testing.T) faults.Footprint {
	t.Helper()
	f, err := faults.ReadFootprint(h.Process.Pid)
	if err != nil {
		t.Fatal(err)
	}
	return f
}

// redisCLI subscribes by redis-cli.
func (h *hubNode) redisCLI(t *testing.T, topic string) *tally {
	t.Helper()
	cmd := h.on(exec.Command(lookFor(t, "redis-cli"), "-h", h.address, "subscribe", topic))
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	y := newTally("redis-cli on " + h.name)
	subscribed, done := make(chan struct{}), make(chan struct{})
	go func() { // message, its topic and itself have a line each
		defer close(done)
		lines := bufio.NewScanner(out)
		lines.Buffer(nil, 1<<20)
		for n := 0; lines.Scan(); n++ {
			switch {
			case n == 2:
				close(subscribed)
			case n > 2 && n%3 == 2:
				y.note(lines.Text())
			}
		}
	}()
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		<-done
		_ = cmd.Wait()
	})
	testkit.Receive(t, subscribed, "redis-cli's subscription")
	return y
}

func lookFor(t *testing.T, program string) string {
	t.Helper()
	path, err := exec.LookPath(program)
	if err != nil {
		t.Skipf("%s is not here: %v", program, err)
	}
	return path
}

// webSocket subscribes by a WebSocket.
func (h *hubNode) webSocket(t *testing.T, topic string) *tally {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	c, _, err := websocket.Dial(ctx, "ws://"+h.machineAddr("6379")+"/ws", &websocket.DialOptions{HTTPClient: h.client()})
	if err == nil {
		c.SetReadLimit(1 << 20)
		err = c.Write(ctx, websocket.MessageText, fmt.Appendf(nil, `{"op":"subscribe","topic":%q}`, topic))
	}
	if err == nil {
		_, _, err = c.Read(ctx)
	}
	if err != nil {
		t.Fatal(err)
	}
	y := newTally("WebSocket on " + h.name)
	done := make(chan struct{})
	go func() {
		defer close(done)
		for {
			_, data, err := c.Read(ctx)
			if err != nil {
				return
			}
			var m struct{ Data string }
			_ = json.Unmarshal(data, &m)
			y.note(m.Data)
		}
	}()
	t.Cleanup(func() {
		cancel()
		_ = c.CloseNow()
		<-done
	})
	return y
}

// publisher publishes numbered messages to a hub, one after the other, until it is stopped.
type publisher struct {
	from      string
	published atomic.Int64 // have been answered
	stop      func()
}

// publish has one publish with a name of its own, every so often, messages with something behind
// their number.
func (h *hubNode) publish(t *testing.T, from, topic string, every time.Duration, size int) *publisher {
	t.Helper()
	c, err := h.dial(context.Background(), "tcp", h.machineAddr("6379"))
	if err != nil {
		t.Fatal(err)
	}
	return publishTo(t, c, from, topic, every, size)
}

// publishTo does so over a connection.
func publishTo(t *testing.T, c net.Conn, from, topic string, every time.Duration, size int) *publisher {
	t.Helper()
	p := &publisher{from: from}
	stop, done := make(chan struct{}), make(chan struct{})
	p.stop = sync.OnceFunc(func() {
		close(stop)
		<-done
		c.Close()
	})
	t.Cleanup(p.stop)
	filler := strings.Repeat("x", size)
	go func() {
		defer close(done)
		in := bufio.NewReader(c)
		tick := time.NewTicker(every)
		defer tick.Stop()
		for {
			select {
			case <-stop:
				return
			case <-tick.C:
			}
			m := fmt.Sprintf("%s %d %s", from, p.published.Load()+1, filler)
			_, _ = fmt.Fprintf(c, "*3\r\n$7\r\nPUBLISH\r\n$%d\r\n%s\r\n$%d\r\n%s\r\n", len(topic), topic, len(m), m)
			if line, err := in.ReadString('\n'); err != nil || line[0] != ':' {
				return // the hub is gone
			}
			p.published.Add(1)
		}
	}()
	return p
}

// goesOn waits until each of some subscribers gets what is published from now on.
func goesOn(t *testing.T, what string, p *publisher, all ...*tally) {
	t.Helper()
	from := p.published.Load()
	for _, y := range all {
		testkit.WaitForFunc(t, func() bool { n, _ := y.of(p.from); return n > from }, func() string {
			n, _ := y.of(p.from)
			return fmt.Sprintf("%s: %s gets nothing of %s behind %d; %d are published", what, y.name, p.from, n, p.published.Load())
		})
	}
}

// TestClusterInTown has three hubs and a cluster of three servers of NATS on machines of their own,
// and on each hub a client of the Redis protocol and a WebSocket. What is published on one hub is
// received on all, in order and once; what gets lost when machines and cables fail is counted by
// the hub where it is missed: as many as its subscribers miss.
func TestClusterInTown(t *testing.T) {
	slow(t)
	w := newTown(t, "nats1", "nats2", "nats3", "hub1", "hub2", "hub3")
	var addrs, urls []string
	servers := make(map[string]*server)
	for _, name := range []string{"nats1", "nats2", "nats3"} {
		addrs = append(addrs, w.machines[name].address)
		urls = append(urls, "nats://"+w.machines[name].machineAddr("4222"))
	}
	startNATS := func(name string) {
		cmd := process(t)
		cmd.Env = append(cmd.Env, asNATS+"="+w.machines[name].address+" "+strings.Join(addrs, " "))
		servers[name] = startProcess(t, w.machines[name].on(cmd))
	}
	for _, name := range []string{"nats1", "nats2", "nats3"} {
		startNATS(name)
	}
	var hubs []*hubNode
	for _, name := range []string{"hub1", "hub2", "hub3"} {
		hubs = append(hubs, w.machines[name].hub(t, "--nats", strings.Join(urls, ","), "--cluster-waiting", "2000"))
	}
	for _, h := range hubs {
		testkit.WaitFor(t, h.name+" knows the others", func() bool {
			here := 0
			for _, n := range h.stats(t).Nodes {
				if n.Here {
					here++
				}
			}
			return here == 2
		})
	}
	var subscribers [3][]*tally
	var all []*tally
	for i, h := range hubs {
		subscribers[i] = []*tally{h.redisCLI(t, "t"), h.webSocket(t, "t")}
		all = append(all, subscribers[i]...)
	}
	var publishers []*publisher
	for _, h := range hubs {
		publishers = append(publishers, h.publish(t, h.name, "t", 2*time.Millisecond, 0))
	}
	everywhere := func(what string, who ...*publisher) {
		t.Helper()
		for _, p := range who {
			goesOn(t, what, p, all...)
		}
		t.Logf("%s: all goes on", what)
	}
	everywhere("at first", publishers...)

	// A server of NATS is killed: its hubs go to another one.
	servers["nats1"].Process.Kill()
	servers["nats1"].stop()
	everywhere("without nats1", publishers...)
	startNATS("nats1")
	servers["nats2"].Process.Kill()
	servers["nats2"].stop()
	everywhere("without nats2", publishers...)
	startNATS("nats2")

	// A cable is cut, until the hub knows: what is published to it meanwhile waits, as far as there
	// is room, and its own subscribers get it.
	w.machines["hub2"].cable(false)
	goesOn(t, "hub2 alone", publishers[1], subscribers[1]...)
	goesOn(t, "without hub2", publishers[0], append(subscribers[0], subscribers[2]...)...)
	testkit.WaitFor(t, "hub2 knows that it is cut off", func() bool { return !hubs[1].stats(t).Connected })
	testkit.WaitFor(t, "there is no room for more", func() bool { s := hubs[1].stats(t); return s.Unsent > 0 && s.Waiting == 2000 })
	w.machines["hub2"].cable(true)
	testkit.WaitFor(t, "hub2 is back", func() bool { return hubs[1].stats(t).Connected })
	everywhere("with hub2", publishers...)

	// A slow cable: more is published than it can carry. The server of NATS keeps some, and cuts
	// the hub off; all of it is bounded.
	w.machines["hub2"].slow("4mbit")
	flood := hubs[0].publish(t, "flood", "t", 2*time.Millisecond, 16<<10) // 64 Mbit/s
	before := hubs[1].stats(t).Disconnects
	testkit.WaitFor(t, "hub2 is cut off for being slow", func() bool { return hubs[1].stats(t).Disconnects > before })
	w.machines["hub2"].slow("")
	goesOn(t, "with a fast cable", flood, all...)
	flood.stop()
	everywhere("with a fast cable", publishers...)
	for _, h := range hubs {
		if f := h.footprint(t); f.RSS > 400<<20 {
			t.Errorf("%s has %v", h.name, f)
		}
	}

	// A hub is killed, and another one comes in its place, with other clients.
	third := append([]*tally(nil), subscribers[2]...)
	hubs[2].Process.Kill()
	hubs[2].stop()
	publishers[2].stop()
	all = append(append([]*tally(nil), subscribers[0]...), subscribers[1]...)
	everywhere("without hub3", publishers[:2]...)
	hubs[2].restart(t)
	subscribers[2] = []*tally{hubs[2].redisCLI(t, "t"), hubs[2].webSocket(t, "t")}
	all = append(all, subscribers[2]...)
	publishers[2] = hubs[2].publish(t, "hub3-again", "t", 2*time.Millisecond, 0)
	everywhere("with a new hub3", publishers...)

	// In the end the books agree.
	for _, p := range publishers {
		p.stop()
	}
	for _, p := range publishers {
		for _, y := range all {
			testkit.WaitForFunc(t, func() bool { n, _ := y.of(p.from); return n == p.published.Load() }, func() string { return y.name + " lacks the last message of " + p.from })
		}
	}
	for i, h := range hubs {
		s := h.stats(t)
		for _, y := range subscribers[i] {
			y.mu.Lock()
			var missing int64
			for from, m := range y.missing {
				if m > 0 && (from == publishers[i].from || i == 0 && from == flood.from) {
					t.Errorf("%s misses %d messages of its own hub, by %s", y.name, m, from)
				}
				missing += m
			}
			if len(y.wrong) > 0 {
				t.Errorf("%s: %d messages twice or out of order: %.200s", y.name, len(y.wrong), y.wrong)
			}
			t.Logf("%s: %d messages, %d missing; the hub counts %d lost, %d received", y.name, y.got, missing, s.Lost, s.Received)
			y.mu.Unlock()
			if missing != s.Lost {
				t.Errorf("%s misses %d messages, and the hub counts %d", y.name, missing, s.Lost)
			}
		}
		t.Logf("%s: %d sent, %d unsent, %d disconnects, %v", h.name, s.Sent, s.Unsent, s.Disconnects, h.footprint(t))
	}
	for _, y := range third {
		if len(y.wrong) > 0 {
			t.Errorf("%s: %.200s", y.name, y.wrong)
		}
	}
	for _, h := range hubs {
		_ = h.Process.Signal(syscall.SIGTERM)
		if code := h.stop(); code != 0 {
			t.Errorf("%s: exit code %d: %s", h.name, code, h.stderr)
		}
	}
}
