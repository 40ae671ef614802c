package main

import (
	"encoding/json"
	"fmt"
	"net"
	"strings"
	"sync"
	"syscall"
	"testing"

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
