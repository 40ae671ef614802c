package main

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/coder/websocket"

	"github.com/myriad-go/myriad/hub"
	"github.com/myriad-go/myriad/hub/natsd"
	"github.com/myriad-go/myriad/internal/testkit"
)

// messageTally counts what one subscriber has received of messages such as "hub1 7": by publisher,
// the newest number and how many are missing before it.
type messageTally struct {
	name string

	mu              sync.Mutex
	newest, missing map[string]int64
	wrong           []string
}

func newMessageTally(name string) *messageTally {
	return &messageTally{name: name, newest: make(map[string]int64), missing: make(map[string]int64)}
}

// addMessage counts a message. A number that is not above the last one is wrong.
func (y *messageTally) addMessage(message string) {
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
}

// newestFrom returns the newest number of a publisher.
func (y *messageTally) newestFrom(from string) int64 {
	y.mu.Lock()
	defer y.mu.Unlock()
	return y.newest[from]
}

// checkOrder fails the test unless each message arrived at most once and in order, and returns how
// many are missing.
func (y *messageTally) checkOrder(t *testing.T) (missing int64) {
	t.Helper()
	y.mu.Lock()
	defer y.mu.Unlock()
	if len(y.wrong) > 0 {
		t.Errorf("%s: %d messages twice or out of order: %.200s", y.name, len(y.wrong), y.wrong)
	}
	for _, n := range y.missing {
		missing += n
	}
	return missing
}

// tallyMessages counts the messages that next returns, on a goroutine, until it returns false.
func tallyMessages(t *testing.T, name string, end func() error, next func() (text string, ok bool)) *messageTally {
	t.Helper()
	y, done := newMessageTally(name), make(chan struct{})
	go func() {
		defer close(done)
		for text, ok := next(); ok; text, ok = next() {
			if strings.Contains(text, " ") {
				y.addMessage(text)
			}
		}
	}()
	t.Cleanup(func() {
		_ = end()
		<-done
	})
	return y
}

// lineReaderFunc returns a function that reads lines and passes them through data.
func lineReaderFunc(in io.Reader, data func(line string) string) func() (string, bool) {
	s := bufio.NewScanner(in)
	return func() (string, bool) {
		ok := s.Scan()
		return data(s.Text()), ok
	}
}

// jsonData returns the data of a JSON message.
func jsonData(text string) string {
	var m struct{ Data string }
	_ = json.Unmarshal([]byte(strings.TrimPrefix(text, "data: ")), &m)
	return m.Data
}

// startSubscribers subscribes clients of a node to t, one for each protocol.
func startSubscribers(t *testing.T, node, addr string) []*messageTally {
	t.Helper()
	redis := dial(t, addr)
	exchangeRESP(t, redis, "SUBSCRIBE t\r\n", "*3|$9|subscribe|$1|t|:1")
	events, err := http.Get("http://" + addr + "/events?topic=t")
	failOnError(t, err)
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	t.Cleanup(cancel)
	socket, _, err := websocket.Dial(ctx, "ws://"+addr+"/ws", nil)
	failOnError(t, err)
	failOnError(t, socket.Write(ctx, websocket.MessageText, []byte(`{"op":"subscribe","topic":"t"}`)))
	_, _, err = socket.Read(ctx)
	failOnError(t, err)
	return []*messageTally{
		tallyMessages(t, node+"'s Redis", redis.Close, lineReaderFunc(redis, strings.TrimSpace)),
		tallyMessages(t, node+"'s events", events.Body.Close, lineReaderFunc(events.Body, jsonData)),
		tallyMessages(t, node+"'s WebSocket", socket.CloseNow, func() (string, bool) {
			_, text, err := socket.Read(ctx)
			return jsonData(string(text)), err == nil
		}),
	}
}

// publisher publishes numbered messages to a hub, one after the other, until it is stopped.
type publisher struct {
	from      string
	published atomic.Int64 // answered messages
	stop      func()
}

// startPublisher publishes numbered messages of the given size at an interval.
func startPublisher(t *testing.T, addr, from string, every time.Duration, size int) *publisher {
	t.Helper()
	c, p := dial(t, addr), &publisher{from: from}
	stop, done := make(chan struct{}), make(chan struct{})
	p.stop = sync.OnceFunc(func() {
		close(stop)
		<-done
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
			_, _ = fmt.Fprintf(c, "*3\r\n$7\r\nPUBLISH\r\n$1\r\nt\r\n$%d\r\n%s\r\n", len(m), m)
			if line, err := in.ReadString('\n'); err != nil || line[0] != ':' {
				return // the hub is gone
			}
			p.published.Add(1)
		}
	}()
	return p
}

// waitForDelivery waits until each subscriber receives a message published from now on.
func waitForDelivery(t *testing.T, what string, p *publisher, all ...*messageTally) {
	t.Helper()
	from := p.published.Load()
	for _, y := range all {
		testkit.WaitForFunc(t, func() bool { return y.newestFrom(p.from) > from }, func() string {
			return fmt.Sprintf("%s: %s gets nothing of %s behind %d; %d are published", what, y.name, p.from, y.newestFrom(p.from), p.published.Load())
		})
	}
}

// stopPublishersAndDrain stops the publishers and waits until all subscribers have received their
// last messages.
func stopPublishersAndDrain(t *testing.T, publishers []*publisher, all []*messageTally) {
	t.Helper()
	for _, p := range publishers {
		p.stop()
		for _, y := range all {
			testkit.WaitForFunc(t, func() bool { return y.newestFrom(p.from) == p.published.Load() }, func() string {
				return fmt.Sprintf("%s has %d as the last of %d by %s", y.name, y.newestFrom(p.from), p.published.Load(), p.from)
			})
		}
	}
}

func fetchClusterStats(t *testing.T, srv *server) hub.ClusterStats {
	t.Helper()
	var shown struct{ Stats hub.Stats }
	_, text := httpGet(t, srv.admin+"/hub")
	failOnError(t, json.Unmarshal([]byte(text), &shown))
	return *shown.Stats.Cluster
}

// startNATS starts a NATS server that buffers 4 MiB per client, and returns its address.
func startNATS(t *testing.T) (addr string) {
	t.Helper()
	s, err := natsd.Start(natsd.Config{Addr: "127.0.0.1:0", MaxPending: 4 << 20})
	failOnError(t, err)
	t.Cleanup(s.Close)
	return s.Addr().String()
}

// cuttableProxy is a TCP proxy. While it is cut, data waits unread and without errors.
type cuttableProxy struct {
	down, up chan struct{} // to the client and to the server; copying takes the token and returns it
}

// newCuttableProxy starts a proxy to target and returns it with its address.
func newCuttableProxy(t *testing.T, target string) (c *cuttableProxy, addr string) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	failOnError(t, err)
	c = &cuttableProxy{down: make(chan struct{}, 1), up: make(chan struct{}, 1)}
	c.down <- struct{}{}
	c.up <- struct{}{}
	var all sync.WaitGroup
	ctx, cancel := context.WithCancel(context.Background())
	copyConn := func(target, from net.Conn, way chan struct{}) {
		defer target.Close()
		defer from.Close()
		b := make([]byte, 32<<10)
		for {
			n, err := from.Read(b)
			select {
			case whole := <-way:
				way <- whole
			case <-ctx.Done():
				return
			}
			if _, failed := target.Write(b[:n]); err != nil || failed != nil {
				return
			}
		}
	}
	all.Go(func() {
		for {
			here, err := l.Accept()
			if err != nil {
				return
			}
			there, err := net.Dial("tcp", target)
			if err != nil {
				here.Close()
				continue
			}
			_ = there.(*net.TCPConn).SetReadBuffer(64 << 10) // or much waits here
			context.AfterFunc(ctx, func() { here.Close(); there.Close() })
			all.Go(func() { copyConn(here, there, c.down) })
			all.Go(func() { copyConn(there, here, c.up) })
		}
	})
	t.Cleanup(func() {
		cancel()
		l.Close()
		all.Wait()
	})
	return c, l.Addr().String()
}

// TestClusterFails has two hubs with a server of NATS, to which one of them has a cable that is cut for a while. What is published on one hub is received on both, in order and once, by clients of all protocols; what
// gets lost is counted by the hub where it is missed: as many as its subscribers miss.
func TestClusterFails(t *testing.T) {
	skipIfShort(t)
	t.Parallel()
	nats := startNATS(t)
	wire, far := newCuttableProxy(t, nats)
	var hubs []*server
	var all []*messageTally
	var publishers []*publisher
	for i, url := range []string{nats, far} {
		name := fmt.Sprint("hub", i+1)
		h := startServer(t, "hub", "--node", name, "--admin", "127.0.0.1:0", "--nats", "nats://"+url, "--cluster-waiting", "1000")
		hubs = append(hubs, h)
	}
	for _, h := range hubs {
		testkit.WaitFor(t, "both know each other", func() bool {
			nodes := fetchClusterStats(t, h).Nodes
			return len(nodes) == 1 && nodes[0].Here
		})
	}
	for i, h := range hubs {
		name := fmt.Sprint("hub", i+1)
		all = append(all, startSubscribers(t, name, h.addr)...)
		publishers = append(publishers, startPublisher(t, h.addr, name, time.Millisecond, 0))
	}
	here, there := all[:3], all[3:]
	everywhere := func(what string) {
		t.Helper()
		for _, p := range publishers {
			waitForDelivery(t, what, p, all...)
		}
	}
	publishers = append(publishers, startPublisher(t, hubs[0].addr, "flood", time.Millisecond, 16<<10))
	everywhere("at first")

	// The cable is cut, until the hub knows: what is published to it meanwhile waits, as far as there
	// is room, and its own subscribers get it. What the others publish is more than the server of NATS keeps for it.
	<-wire.down
	<-wire.up
	waitForDelivery(t, "hub2 alone", publishers[1], there...)
	waitForDelivery(t, "without hub2", publishers[0], here...)
	testkit.WaitFor(t, "hub2 knows that it is cut off, and has no room for more", func() bool {
		s := fetchClusterStats(t, hubs[1])
		return !s.Connected && s.Unsent > 0 && s.Waiting == 1000
	})
	wire.down <- struct{}{}
	wire.up <- struct{}{}
	testkit.WaitFor(t, "hub2 is back", func() bool { return fetchClusterStats(t, hubs[1]).Connected })
	everywhere("with hub2")

	stopPublishersAndDrain(t, publishers, all)
	for i, h := range hubs {
		s := fetchClusterStats(t, h)
		for _, y := range all[3*i : 3*i+3] {
			if missing := y.checkOrder(t); missing != s.Lost {
				t.Errorf("%s misses %d messages, and the hub counts %d", y.name, missing, s.Lost)
			}
			if own := publishers[i].from; y.missing[own] > 0 {
				t.Errorf("%s misses %d messages of its own hub", y.name, y.missing[own])
			}
		}
		t.Logf("hub%d: %d lost, %d received, %d sent, %d unsent, %d disconnects", i+1, s.Lost, s.Received, s.Sent, s.Unsent, s.Disconnects)
		if code := h.signalAndWait(t, syscall.SIGTERM); code != 0 {
			t.Errorf("hub%d: exit code %d: %s", i+1, code, h.stderr)
		}
	}
}

// roamingSubscriber subscribes at the next node when its node ends.
type roamingSubscriber struct {
	*messageTally                     // of all connections: what is missed between two of them is missing
	refused, repeated int64           // connections; messages, by the next node, which may be behind the last one
	moved             []time.Time     // when it had subscribed again
	gaps              []time.Duration // from its last message of a connection to the first of the next
	last              time.Time       // message
}

// subscribeInTurn stays subscribed at one node at a time until ctx ends. It holds the mutex while
// it changes fields that are read elsewhere.
func (w *roamingSubscriber) subscribeInTurn(ctx context.Context, addrs []string, firstNode int, subscribed *atomic.Int64) {
	for first := true; ctx.Err() == nil; firstNode, first = firstNode+1, false {
		c, err := net.DialTimeout("tcp", addrs[firstNode%len(addrs)], patience)
		if err != nil {
			w.refused++
			continue
		}
		end := context.AfterFunc(ctx, func() { c.Close() })
		w.tallyUntilClosed(c, first, subscribed)
		end()
		c.Close()
	}
}

// tallyUntilClosed subscribes and counts messages until the connection ends.
func (w *roamingSubscriber) tallyUntilClosed(c net.Conn, first bool, subscribed *atomic.Int64) {
	fmt.Fprint(c, "SUBSCRIBE t\r\n")
	in := bufio.NewReader(c)
	here := newMessageTally("")
	for n := 0; ; n++ { // the confirmation has 6 lines, and a message 7
		line, err := in.ReadString('\n')
		if err != nil {
			w.mu.Lock()
			w.wrong = append(w.wrong, here.wrong...)
			w.mu.Unlock()
			return
		}
		now := time.Now()
		switch {
		case n == 5:
			subscribed.Add(1)
			if !first {
				w.mu.Lock()
				w.moved = append(w.moved, now)
				w.mu.Unlock()
			}
		case n > 5 && (n-5)%7 == 0:
			if n == 12 && !first {
				w.gaps = append(w.gaps, now.Sub(w.last))
			}
			w.last = now
			text := strings.TrimSpace(line)
			here.addMessage(text)
			from, _, _ := strings.Cut(text, " ")
			if here.newestFrom(from) > w.newestFrom(from) {
				w.addMessage(text)
			} else {
				w.repeated++
			}
		}
	}
}

// TestRollingRestart ends three nodes one after the other, and starts each again, while messages
// are published and subscribers listen. Each subscriber is told to go, at the rate of the drain,
// and finds another node at once; none is refused, and on no connection
// does anything come twice or out of order.
func TestRollingRestart(t *testing.T) {
	skipIfShort(t)
	t.Parallel()
	const (
		clients = 150
		rate    = 50 // clients that are told to go in a second
	)
	var addrs, joined []string
	for i := range 3 {
		addrs, joined = append(addrs, uniqueLoopbackAddr(9091+i)), append(joined, uniqueLoopbackAddr(6222+i))
	}
	start := func(i int) *server {
		cmd := newCommandProcess(t, "hub", "--addr", addrs[i], "--cluster", joined[i], "--join", strings.Join(joined, ","),
			"--node", fmt.Sprint("hub", i+1), "--drain-rate", fmt.Sprint(rate))
		cmd.Env = append(cmd.Env, clusterSecretVariable+"=s3cret")
		return startProcess(t, cmd)
	}
	nodes := []*server{start(0), start(1), start(2)}
	var subscribed atomic.Int64
	var wandering sync.WaitGroup
	ctx, cancel := context.WithCancel(context.Background())
	end := func() {
		cancel()
		wandering.Wait()
	}
	defer end()
	wanderers := make([]*roamingSubscriber, clients)
	for i := range wanderers {
		w := &roamingSubscriber{messageTally: newMessageTally(fmt.Sprint("client ", i))}
		wanderers[i] = w
		wandering.Go(func() { w.subscribeInTurn(ctx, addrs, i%len(addrs), &subscribed) })
	}
	testkit.WaitFor(t, "all have subscribed", func() bool { return subscribed.Load() == clients })
	everywhere := func(what string, p *publisher) {
		t.Helper()
		for _, w := range wanderers {
			waitForDelivery(t, what, p, w.messageTally)
		}
	}
	moves := func() (times []time.Time) {
		for _, w := range wanderers {
			w.mu.Lock()
			times = append(times, w.moved...)
			w.mu.Unlock()
		}
		slices.SortFunc(times, time.Time.Compare)
		return times
	}
	restart := func(i int) {
		t.Helper()
		before := len(moves())
		if code := nodes[i].signalAndWait(t, syscall.SIGTERM); code != 0 {
			t.Errorf("hub%d: exit code %d: %s", i+1, code, nodes[i].stderr)
		}
		_, said, _ := strings.Cut(nodes[i].stderr.String(), "draining ")
		var draining int
		if _, err := fmt.Sscan(said, &draining); err != nil {
			t.Fatalf("%v: %s", err, nodes[i].stderr)
		}
		nodes[i] = start(i)
		// The publisher, if it was here, is no subscriber.
		testkit.WaitFor(t, "its clients are elsewhere", func() bool { return len(moves()) >= before+draining-1 })
		times := moves()[before:]
		spread := times[len(times)-1].Sub(times[0])
		t.Logf("hub%d: %d clients were told to go, and had subscribed elsewhere within %v", i+1, draining, spread.Round(time.Millisecond))
		if least := time.Duration(len(times)-1) * time.Second / rate / 2; spread < least {
			t.Errorf("hub%d: all came back within %v; expected %v at the least, by the rate of the drain", i+1, spread, least)
		}
	}
	// One publisher is at a node that goes last; then one at a node that has come again.
	first := startPublisher(t, addrs[2], "a", 5*time.Millisecond, 0)
	everywhere("at first", first)
	restart(0)
	everywhere("with a new hub1", first)
	restart(1)
	everywhere("with a new hub2", first)
	first.stop()
	second := startPublisher(t, addrs[0], "b", 5*time.Millisecond, 0)
	everywhere("another publisher", second)
	restart(2)
	everywhere("with a new hub3", second)
	second.stop()
	end()

	var gaps []time.Duration
	var missing []int64
	var repeated int64
	for _, w := range wanderers {
		if w.refused > 0 {
			t.Errorf("%s was refused %d times", w.name, w.refused)
		}
		repeated += w.repeated
		missing = append(missing, w.checkOrder(t))
		gaps = append(gaps, w.gaps...)
	}
	slices.Sort(gaps)
	slices.Sort(missing)
	at := func(q float64) time.Duration { return gaps[int(q*float64(len(gaps)-1))].Round(time.Microsecond) }
	t.Logf("%d reconnections of %d clients; time from the last message to the next: p50 %v, p99 %v, longest %v",
		len(gaps), clients, at(0.5), at(0.99), at(1))
	t.Logf("messages that a client has missed, of %d: median %d, most %d; got again from the next node: %d by all together",
		first.published.Load()+second.published.Load(), missing[clients/2], missing[clients-1], repeated)
}
