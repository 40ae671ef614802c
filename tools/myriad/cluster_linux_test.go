package main

import (
	"encoding/json"
	"fmt"
	"net"
	"regexp"
	"strconv"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/myriad-go/myriad/hub"
	"github.com/myriad-go/myriad/hub/natsd"
	"github.com/myriad-go/myriad/internal/testkit"
)

// tally counts what a subscriber has received of messages such as "hub1 7 ", by publisher.
type tally struct {
	name string

	mu      sync.Mutex
	last    map[string]int64 // numbers, on this connection
	newest  map[string]int64 // on all connections
	missing map[string]int64 // before the newest
	wrong   []string         // not above the last one
}

func newTally(name string) *tally {
	return &tally{name: name, last: map[string]int64{}, newest: map[string]int64{}, missing: map[string]int64{}}
}

// numbered matches a message alone, and as the data of a JSON message.
var numbered = regexp.MustCompile(`(?:^|")(\w+) (\d+) `)

// addLine counts the message in a line, if there is one.
func (y *tally) addLine(line string) {
	m := numbered.FindStringSubmatch(line)
	if m == nil {
		return
	}
	from := m[1]
	n, _ := strconv.ParseInt(m[2], 10, 64)
	y.mu.Lock()
	defer y.mu.Unlock()
	if n <= y.last[from] {
		y.wrong = append(y.wrong, fmt.Sprintf("%.40q behind %d", line, y.last[from]))
	}
	y.last[from] = n
	if newest, known := y.newest[from]; n > newest {
		if known {
			y.missing[from] += n - newest - 1
		}
		y.newest[from] = n
	}
}

func (y *tally) newestFrom(from string) int64 {
	y.mu.Lock()
	defer y.mu.Unlock()
	return y.newest[from]
}

// checkOrder fails the test unless each message arrived at most once and in order on each connection, and
// returns how many are missing.
func (y *tally) checkOrder(t *testing.T) (missing int64) {
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

func checkNoneMissing(t *testing.T, all []*tally) {
	t.Helper()
	for _, y := range all {
		if n := y.checkOrder(t); n > 0 {
			t.Errorf("%s misses %d messages", y.name, n)
		}
	}
}

// startSubscribers subscribes clients of a node to t, one for each protocol.
func startSubscribers(t *testing.T, node, addr string) (all []*tally) {
	t.Helper()
	count := func(protocol string, next func() (string, error)) {
		y := newTally(node + "'s " + protocol)
		all = append(all, y)
		go func() {
			for line, err := next(); err == nil; line, err = next() {
				y.addLine(line)
			}
		}()
	}
	redis, events, socket := testkit.Dial(t, addr), testkit.Dial(t, addr), testkit.Dial(t, addr)
	exchangeRESP(redis, "SUBSCRIBE t\r\n", "*3|$9|subscribe|$1|t|:1")
	sendAndExpect(events, "GET /events?topic=t HTTP/1.1\r\nHost: "+addr+"\r\n\r\n", "HTTP/1.1 200 OK\r\n")
	socket.HandshakeWebSocket("/ws", "")
	socket.Send(testkit.MaskedFrame(0x81, `{"op":"subscribe","topic":"t"}`))
	frame := func() (string, error) {
		_, text, err := testkit.ReadFrame(socket.R)
		return text, err
	}
	_, err := frame()
	testkit.RequireNoError(t, err)
	count("Redis", func() (string, error) { return redis.R.ReadString('\n') })
	count("events", func() (string, error) { return events.R.ReadString('\n') })
	count("WebSocket", frame)
	return all
}

// publisher publishes numbered messages to a hub, one after the other, until it is stopped.
type publisher struct {
	from      string
	published atomic.Int64 // answered messages
	stop      func()
}

// startPublisher publishes numbered messages at an interval.
func startPublisher(t *testing.T, c *testkit.Conn, from string, every time.Duration) *publisher {
	p := &publisher{from: from}
	stop, done := make(chan struct{}), make(chan struct{})
	p.stop = sync.OnceFunc(func() {
		close(stop)
		<-done
	})
	t.Cleanup(p.stop)
	go func() {
		defer close(done)
		tick := time.NewTicker(every)
		defer tick.Stop()
		for {
			select {
			case <-stop:
				return
			case <-tick.C:
			}
			fmt.Fprint(c, testkit.RESPCommand("PUBLISH", "t", fmt.Sprint(from, " ", p.published.Load()+1, " x")))
			if line, err := c.R.ReadString('\n'); err != nil || line[0] != ':' {
				return // the hub is gone
			}
			p.published.Add(1)
		}
	}()
	return p
}

// waitForDelivery waits until each subscriber receives a message of each publisher that is published from now on.
func waitForDelivery(t *testing.T, what string, publishers []*publisher, all []*tally) {
	t.Helper()
	for _, p := range publishers {
		from := p.published.Load()
		for _, y := range all {
			testkit.WaitForFunc(t, func() bool { return y.newestFrom(p.from) > from }, func() string {
				return fmt.Sprintf("%s: %s gets nothing of %s behind %d", what, y.name, p.from, y.newestFrom(p.from))
			})
		}
	}
}

// stopPublishersAndDrain stops the publishers and waits until all subscribers have their last messages.
func stopPublishersAndDrain(t *testing.T, publishers []*publisher, all []*tally) {
	t.Helper()
	for _, p := range publishers {
		p.stop()
		for _, y := range all {
			testkit.WaitForFunc(t, func() bool { return y.newestFrom(p.from) == p.published.Load() }, func() string {
				return fmt.Sprintf("%s has %d of %d by %s", y.name, y.newestFrom(p.from), p.published.Load(), p.from)
			})
		}
	}
}

func fetchClusterStats(t *testing.T, srv *server) hub.ClusterStats {
	t.Helper()
	var shown struct{ Stats hub.Stats }
	_, text := httpGet(t, srv.admin+"/hub")
	testkit.RequireNoError(t, json.Unmarshal([]byte(text), &shown))
	return *shown.Stats.Cluster
}

// startNATS starts a NATS server that buffers 4 MiB per client, and returns its address.
func startNATS(t *testing.T) (addr string) {
	t.Helper()
	s, err := natsd.Start(natsd.Config{Addr: "127.0.0.1:0", MaxPending: 4 << 20})
	testkit.RequireNoError(t, err)
	t.Cleanup(s.Close)
	return s.Addr().String()
}

// startCuttableProxy starts a TCP proxy. While cut is locked, data waits unread and without errors.
func startCuttableProxy(t *testing.T, target string, cut *sync.RWMutex) (addr string) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	testkit.RequireNoError(t, err)
	t.Cleanup(func() { l.Close() })
	pass := func(to, from net.Conn) {
		defer to.Close()
		defer from.Close()
		b := make([]byte, 32<<10)
		for {
			n, err := from.Read(b)
			cut.RLock()
			_, failed := to.Write(b[:n])
			cut.RUnlock()
			if err != nil || failed != nil {
				return
			}
		}
	}
	go func() {
		for here, err := l.Accept(); err == nil; here, err = l.Accept() {
			there, err := net.Dial("tcp", target)
			if err != nil {
				here.Close()
				continue
			}
			go pass(here, there)
			go pass(there, here)
		}
	}()
	return l.Addr().String()
}

// TestClusterFails cuts the cable between a hub and its NATS server for a while, without an error on the connection. The
// hub knows after some seconds, serves its own clients meanwhile, keeps as many messages as --cluster-waiting says,
// counts the others, and is back when the cable is. What is lost is tested in package cluster.
func TestClusterFails(t *testing.T) {
	skipIfShort(t)
	t.Parallel()
	var cut sync.RWMutex
	s := startServer(t, "hub", "--node", "far", "--admin", "127.0.0.1:0", "--cluster-waiting", "1000",
		"--nats", "nats://"+startCuttableProxy(t, startNATS(t), &cut))
	all := startSubscribers(t, "far", s.addr)
	publishers := []*publisher{startPublisher(t, testkit.Dial(t, s.addr), "p", time.Millisecond)}
	waitForDelivery(t, "at first", publishers, all)
	cut.Lock()
	waitForDelivery(t, "alone", publishers, all)
	testkit.WaitFor(t, "it knows that it is cut off, and has no room for more", func() bool {
		s := fetchClusterStats(t, s)
		return !s.Connected && s.Unsent > 0 && s.Waiting == 1000
	})
	cut.Unlock()
	testkit.WaitFor(t, "it is back", func() bool { s := fetchClusterStats(t, s); return s.Connected && s.Waiting == 0 })
	stopPublishersAndDrain(t, publishers, all)
	checkNoneMissing(t, all)
	s.Signal(syscall.SIGTERM)
	s.checkStop(t)
}
