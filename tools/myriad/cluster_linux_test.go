package main

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"net"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/myriad-go/myriad/hub"
	"github.com/myriad-go/myriad/hub/natsd"
	"github.com/myriad-go/myriad/internal/testkit"
)

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

// TestClusterFails cuts the cable between a hub and its NATS server for a while, without an error on the connection.
// The hub knows after some seconds, serves its own clients meanwhile, keeps as many messages as --cluster-waiting
// says, counts the others, and is back when the cable is. What is lost is tested in package cluster.
func TestClusterFails(t *testing.T) {
	skipIfShort(t)
	t.Parallel()
	const room = 1000
	var cut sync.RWMutex
	s := startServer(t, "hub", "--node", "far", "--admin", "127.0.0.1:0", "--cluster-waiting", fmt.Sprint(room),
		"--nats", "nats://"+startCuttableProxy(t, startNATS(t), &cut))
	subscriber, publisher := testkit.Dial(t, s.addr), testkit.Dial(t, s.addr)
	exchangeRESP(subscriber, "SUBSCRIBE t\r\n", "*3|$9|subscribe|$1|t|:1")
	testkit.WaitFor(t, "it is connected", func() bool { return fetchClusterStats(t, s).Connected })
	cut.Lock()
	testkit.WaitFor(t, "it knows that it is cut off", func() bool { return !fetchClusterStats(t, s).Connected })
	sendAndExpect(publisher, strings.Repeat("PUBLISH t x\r\n", room+1), strings.Repeat(":1\r\n", room+1))
	subscriber.Expect(strings.Repeat("*3\r\n$7\r\nmessage\r\n$1\r\nt\r\n$1\r\nx\r\n", room+1))
	if s := fetchClusterStats(t, s); s.Waiting != room || s.Unsent != 1 {
		t.Errorf("%d messages wait and %d are lost; want %d and 1", s.Waiting, s.Unsent, room)
	}
	cut.Unlock()
	testkit.WaitFor(t, "it is back", func() bool { s := fetchClusterStats(t, s); return s.Connected && s.Waiting == 0 })
	s.Signal(syscall.SIGTERM)
	s.checkStop(t)
}

// TestRollingRestart restarts three nodes one after the other while messages are published at another node. Each
// subscriber that must leave subscribes to the next node. None is refused, and no connection receives a message twice
// or out of order.
func TestRollingRestart(t *testing.T) {
	skipIfShort(t)
	t.Parallel()
	var addrs, joined []string
	for i := range 3 {
		addrs, joined = append(addrs, uniqueLoopbackAddr(9091+i)), append(joined, uniqueLoopbackAddr(6222+i))
	}
	start := func(i int) *server {
		cmd := newCommandProcess(t, "hub", "--addr", addrs[i], "--cluster", joined[i], "--join", strings.Join(joined, ","),
			"--node", fmt.Sprint("hub", i+1))
		cmd.Env = append(cmd.Env, clusterSecretVariable+"=s3cret")
		return startProcess(t, cmd)
	}
	nodes := []*server{start(0), start(1), start(2)}
	var received [30]atomic.Int64 // the last message of each subscriber
	var subscribers, publisher sync.WaitGroup
	ctx, cancel := context.WithCancel(context.Background())
	defer func() { cancel(); subscribers.Wait() }()
	for i := range received {
		subscribers.Go(func() {
			for node := i; ctx.Err() == nil; node++ {
				c, err := net.Dial("tcp", addrs[node%3])
				if err != nil {
					t.Errorf("subscriber %d: %v", i, err)
					return
				}
				stop := context.AfterFunc(ctx, func() { c.Close() })
				fmt.Fprint(c, "SUBSCRIBE t\r\n")
				last := 0
				for lines := bufio.NewScanner(c); lines.Scan(); {
					if n, err := strconv.Atoi(lines.Text()); err == nil { // not a length
						if received[i].Store(int64(n)); n <= last {
							t.Errorf("subscriber %d received %d after %d", i, n, last)
						}
						last = n
					}
				}
				stop()
				c.Close()
			}
		})
	}
	published := 0
	for i, node := range nodes {
		c, stopped := testkit.Dial(t, addrs[(i+1)%3]), make(chan struct{})
		publisher.Go(func() {
			for range time.Tick(5 * time.Millisecond) {
				select {
				case <-stopped:
					return
				default:
					published++
					fmt.Fprintf(c, "PUBLISH t %d\r\n", published)
				}
			}
		})
		waitUntilAllReceive := func(when string) {
			t.Helper()
			var before [len(received)]int64
			for i := range received {
				before[i] = received[i].Load()
			}
			for i := range received {
				testkit.WaitFor(t, "a message arrives "+when, func() bool { return received[i].Load() != before[i] })
			}
		}
		waitUntilAllReceive("before a restart")
		if code := node.signalAndWait(syscall.SIGTERM); code != 0 {
			t.Errorf("hub%d: exit code %d", i+1, code)
		}
		start(i)
		waitUntilAllReceive("after a restart")
		close(stopped)
		publisher.Wait()
		for i := range received {
			testkit.WaitFor(t, "the last message arrives", func() bool { return received[i].Load() == int64(published) })
		}
	}
}
