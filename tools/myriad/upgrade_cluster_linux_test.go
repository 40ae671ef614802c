package main

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/coder/websocket"

	"github.com/myriad-go/myriad/hub"
	"github.com/myriad-go/myriad/hub/natsd"
	"github.com/myriad-go/myriad/internal/testkit"
)

// follow has a tally note the messages that next gives, until it says that there are none any more.
func follow(t *testing.T, name string, c io.Closer, next func() (text string, ok bool)) *tally {
	t.Helper()
	y, done := newTally(name), make(chan struct{})
	go func() {
		defer close(done)
		for text, ok := next(); ok; text, ok = next() {
			if strings.Contains(text, " ") {
				y.note(text)
			}
		}
	}()
	t.Cleanup(func() {
		_ = c.Close()
		<-done
	})
	return y
}

// linesOf gives the lines of a stream, as they are or their data.
func linesOf(in io.Reader, data func(line string) string) func() (string, bool) {
	s := bufio.NewScanner(in)
	return func() (string, bool) {
		ok := s.Scan()
		return data(s.Text()), ok
	}
}

// dataOf is the data of a message in JSON.
func dataOf(text string) string {
	var m struct{ Data string }
	_ = json.Unmarshal([]byte(strings.TrimPrefix(text, "data: ")), &m)
	return m.Data
}

// subscribers are clients of a node, one of each protocol, that are subscribed to t.
func subscribers(t *testing.T, node, addr string) []*tally {
	t.Helper()
	redis := dial(t, addr)
	talk(t, redis, "SUBSCRIBE t\r\n", "*3|$9|subscribe|$1|t|:1")
	events, err := http.Get("http://" + addr + "/events?topic=t")
	must(t, err)
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	t.Cleanup(cancel)
	socket, _, err := websocket.Dial(ctx, "ws://"+addr+"/ws", nil)
	must(t, err)
	must(t, socket.Write(ctx, websocket.MessageText, []byte(`{"op":"subscribe","topic":"t"}`)))
	return []*tally{
		follow(t, node+"'s Redis", redis, linesOf(redis, strings.TrimSpace)),
		follow(t, node+"'s events", events.Body, linesOf(events.Body, dataOf)),
		follow(t, node+"'s WebSocket", closer(socket.CloseNow), func() (string, bool) {
			_, text, err := socket.Read(ctx)
			return dataOf(string(text)), err == nil
		}),
	}
}

type closer func() error

func (f closer) Close() error { return f() }

// TestUpgradeHubCluster has a new process take over the clients of a node, of all protocols, while
// messages of its own and of another node come thick and fast: each subscriber gets each message once and in
// order, here and there.
func TestUpgradeHubCluster(t *testing.T) {
	nats, err := natsd.Start(natsd.Config{Addr: "127.0.0.1:0"})
	must(t, err)
	t.Cleanup(nats.Close)
	url := "nats://" + nats.Addr().String()
	far := serveHere(t, "hub --node far --admin 127.0.0.1:0 --nats "+url)
	near := upgradable(t, "", "hub", "--node", "near", "--nats", url)
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("near: %s", near.stderr)
		}
	})
	stats := func(of *server) (s hub.Stats) {
		t.Helper()
		var shown struct{ Stats hub.Stats }
		_, text := get(t, of.admin+"/hub")
		must(t, json.Unmarshal([]byte(text), &shown))
		return shown.Stats
	}
	const idle = 500 // clients, whose move takes its time
	for range idle {
		talk(t, dial(t, near.addr), "SUBSCRIBE u\r\n", "*3|$9|subscribe|$1|u|:1")
	}
	all := append(subscribers(t, "near", near.addr), subscribers(t, "far", far.addr)...)
	var publishers []*publisher
	for i, addr := range []string{far.addr, far.addr, far.addr, near.addr, near.addr} {
		publishers = append(publishers, publishTo(t, dial(t, addr), fmt.Sprint("p", i), "t", 500*time.Microsecond, 10))
	}
	everywhere := func(what string) {
		t.Helper()
		for _, p := range publishers {
			goesOn(t, what, p, all...)
		}
	}
	everywhere("before")
	next := near.upgrade(t, idle+3+2)
	everywhere("with a new process")
	testkit.WaitFor(t, "it is subscribed to its topics alone", func() bool { return !stats(near).Cluster.All })
	everywhere("with its own topics")
	for _, p := range publishers {
		p.stop()
		for _, y := range all {
			testkit.WaitForFunc(t, func() bool { n, _ := y.of(p.from); return n == p.published.Load() }, func() string {
				n, _ := y.of(p.from)
				return fmt.Sprintf("%s has %d as the last of %d by %s", y.name, n, p.published.Load(), p.from)
			})
		}
	}
	testkit.WaitFor(t, "word of the other node", func() bool {
		nodes := stats(near).Cluster.Nodes
		return len(nodes) == 1 && nodes[0].Name == "far" && nodes[0].Here
	})
	for name, of := range map[string]*server{"near": near, "far": far} {
		s := stats(of).Cluster
		t.Logf("%s: %d received, %d again, %d lost", name, s.Received, s.Duplicates, s.Lost)
		if s.Lost != 0 || s.Unsent != 0 {
			t.Errorf("%s: %d lost, %d unsent; expected none", name, s.Lost, s.Unsent)
		}
	}
	for _, y := range all {
		y.mu.Lock()
		for from, n := range y.missing {
			if n > 0 {
				t.Errorf("%s misses %d messages of %s", y.name, n, from)
			}
		}
		if len(y.wrong) > 0 {
			t.Errorf("%s: %d twice or out of order: %.300s", y.name, len(y.wrong), y.wrong)
		}
		y.mu.Unlock()
	}
	near.endNext(t, next)
}

// A hub with a server of NATS inside refuses an upgrade, says what to do, and goes on.
func TestUpgradeHubPeers(t *testing.T) {
	t.Setenv(secretVariable, "s3cret")
	s := upgradable(t, "", "hub", "--cluster", "127.0.0.1:0", "--admin-control", "--admin-token-file", tokenFile(t))
	const why = "a hub with --cluster can't be upgraded, because the nats-server inside it can't hand its listener to a new process; " +
		"this process goes on: restart one node after the other with SIGTERM, or run nats-server beside the hubs and use --nats, which keeps clients connected"
	if status, text := s.tryOrder(t, "upgrade", secret); status != http.StatusConflict || !strings.Contains(text, why) {
		t.Errorf("an order: %d, %q; expected %q", status, text, why)
	}
	must(t, s.Process.Signal(syscall.SIGUSR2))
	word := syscall.SIGUSR2.String() + ": " + why
	testkit.WaitForFunc(t, func() bool { return strings.Contains(s.stderr.String(), word) }, func() string { return "word of the signal: " + s.stderr.String() })
	talk(t, dial(t, s.addr), "PUBLISH a 1\r\n", ":0")
	must(t, s.Process.Signal(syscall.SIGTERM))
	if code := s.stop(); code != 0 {
		t.Errorf("exit code %d: %s", code, s.stderr)
	}
}
