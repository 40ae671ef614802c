package hub

import (
	"context"
	"strings"
	"testing"

	"github.com/myriad-go/myriad/internal/testkit"
	"github.com/myriad-go/myriad/tcp"
)

// fakeOtherHubs is a Cluster of hubs in this process, which answer after release is closed.
type fakeOtherHubs struct {
	Cluster
	hubs    []*Hub
	release chan struct{} // nil: answer immediately
}

func (n *fakeOtherHubs) waitForRelease(ctx context.Context) {
	if n.release != nil {
		select {
		case <-n.release:
		case <-ctx.Done():
		}
	}
}

func (n *fakeOtherHubs) Subscribers(ctx context.Context, kind Kind, names []string) []int {
	n.waitForRelease(ctx)
	counts := make([]int, len(names))
	for _, h := range n.hubs {
		for i, name := range names {
			counts[i] += h.Subscribers(kind, name)
		}
	}
	return counts
}

func (n *fakeOtherHubs) Names(ctx context.Context, kind Kind, pattern string, maxBytes int) (names []string, omitted int) {
	n.waitForRelease(ctx)
	for _, h := range n.hubs {
		matches := Matcher(pattern)
		h.EachName(kind, func(name string, _ int) bool {
			if !matches(name) {
				return true
			}
			if maxBytes -= len(name); maxBytes < 0 {
				omitted++
			} else {
				names = append(names, name)
			}
			return true
		})
	}
	return names, omitted
}

func (n *fakeOtherHubs) Largest(ctx context.Context, prefix string, limit, _ int) (names []string, omitted int) {
	n.waitForRelease(ctx)
	for _, h := range n.hubs {
		of, total := h.Largest(prefix, limit)
		names, omitted = append(names, of...), omitted+total-len(of)
	}
	return names, omitted
}

func subscribeNames(t *testing.T, h *Hub, kind Kind, names ...string) {
	t.Helper()
	for _, name := range names {
		_, _, err := h.tableForKind(kind).addSubscriber(name, kind, formatWebSocket, h.Limits)
		testkit.RequireNoError(t, err)
	}
}

func newHubInClusterOfThree(t *testing.T) *Hub {
	a, b, c := &Hub{}, &Hub{}, &Hub{}
	subscribeNames(t, a, Topic, "t1", "t1", "t2", "a")
	subscribeNames(t, b, Topic, "t1", "t3", "t3", "t3", "t3")
	subscribeNames(t, c, Topic, "t1", "t2", "t2", "t3", "t4")
	subscribeNames(t, a, Pattern, "x*", "y*", "a-long-one*")
	subscribeNames(t, b, Pattern, "x*", "z*")
	subscribeNames(t, c, Pattern, "a-long-one*")
	a.Cluster = &fakeOtherHubs{hubs: []*Hub{b, c}}
	return a
}

// TestSubscriberCounts checks the lists and counts of a single hub, and of the hubs of a cluster.
func TestSubscriberCounts(t *testing.T) {
	expectBodies := func(t *testing.T, addr string, wants map[string]string) {
		for query, want := range wants {
			_, have := doRequest(t, "GET", "http://"+addr+query, "")
			testkit.WantEqual(t, strings.TrimSpace(have), want, "%s", query)
		}
	}
	alone := &Hub{}
	subscribeNames(t, alone, Topic, "ta", "tb", "tb", "tc", "tc", "other", "other")
	subscribeNames(t, alone, Pattern, "t*")
	addr, _ := serveHub(t, tcp.Auto, alone)
	expectBodies(t, addr, map[string]string{
		"/topics?limit=1":          `{"topics":[{"topic":"other","subscribers":2}],"total":4}`,
		"/topics?prefix=t":         `{"topics":[{"topic":"tb","subscribers":2},{"topic":"tc","subscribers":2},{"topic":"ta","subscribers":1}],"total":3}`,
		"/topics?prefix=t&limit=2": `{"topics":[{"topic":"tb","subscribers":2},{"topic":"tc","subscribers":2}],"total":3}`,
		"/topics?prefix=none":      `{"topics":[],"total":0}`,
	})
	_, addr = startHub(t, newHubInClusterOfThree(t))
	expectBodies(t, addr, map[string]string{
		"/topics/t1":   `{"topic":"t1","subscribers":4}`,
		"/topics/none": `{"topic":"none","subscribers":0}`,
		"/topics":      `{"topics":[{"topic":"t3","subscribers":5},{"topic":"t1","subscribers":4},{"topic":"t2","subscribers":3},{"topic":"a","subscribers":1},{"topic":"t4","subscribers":1}],"total":5}`,
		// The second hub's t1, and the third's t1, t3 and t4, are not listed and count again.
		"/topics?prefix=t&limit=1": `{"topics":[{"topic":"t3","subscribers":5}],"total":7}`,
	})
	p := dialWebSocket(t, addr, "")
	for range 100 { // replies must keep their order
		p.sendText(`{"op":"count","topic":"t1"}`)
		p.sendText(`{"op":"ping"}`)
	}
	for range 100 {
		p.expectText(`{"op":"count","topic":"t1","subscribers":4}`)
		p.expectText(`{"op":"pong"}`)
	}
	p.exchange(`{"op":"count","topic":""}`, `{"op":"error"*`)
}

// TestPatternCountsOfAllHubs checks that NUMPAT counts each listed pattern once on all hubs, and that CHANNELS
// fails if a list was cut.
func TestPatternCountsOfAllHubs(t *testing.T) {
	h := newHubInClusterOfThree(t)
	p := serveVirtual(t, h, tcp.Limits{}).Dial()
	p.Send("PUBSUB NUMPAT\r\nPUBSUB CHANNELS a*\r\n")
	p.Expect(":4\r\n*1\r\n$1\r\na\r\n")

	// 10 of 40 bytes are for an answer, so the long pattern is not listed and counts twice.
	p = serveVirtual(t, h, tcp.Limits{MaxUnsent: 40}).Dial()
	p.Send("PUBSUB NUMPAT\r\n")
	p.Expect(":5\r\n")
	subscribeNames(t, h.Cluster.(*fakeOtherHubs).hubs[0], Topic, strings.Repeat("m", 101))
	p = serveVirtual(t, h, tcp.Limits{MaxUnsent: 400}).Dial()
	p.Send("PUBSUB CHANNELS m*\r\n")
	p.Expect("-ERR the reply exceeds 100 bytes; use a pattern that matches fewer topics\r\n")
}

func TestClusterQueryLimit(t *testing.T) {
	h := newHubInClusterOfThree(t)
	answered := make(chan struct{})
	h.Cluster.(*fakeOtherHubs).release = answered
	addr, _ := serveHub(t, tcp.Goroutine, h)
	h.backgroundReplyMu.Lock()
	var peers []wsClient
	for range maxBackgroundReplies {
		p := dialWebSocket(t, addr, "")
		p.sendText(`{"op":"count","topic":"t1"}`)
		p.sendText(`{"op":"ping"}`)
		peers = append(peers, p)
	}
	testkit.WaitFor(t, "all wait", func() bool { return h.backgroundReplies.Load() == maxBackgroundReplies })
	p := dialWebSocket(t, addr, "")
	p.exchange(`{"op":"count","topic":"t1"}`, `{"op":"error","error":"too many list requests; try again later"}`)
	c := testkit.Dial(t, addr)
	c.Send("CLIENT LIST ID 1\r\nPING\r\n")
	c.Expect("-BUSY too many list requests; try again later\r\n+PONG\r\n")
	close(answered)
	h.backgroundReplyMu.Unlock()
	for _, p := range peers {
		p.expectText(`{"op":"count","topic":"t1","subscribers":4}`)
		p.expectText(`{"op":"pong"}`)
	}
	c.Send("CLIENT LIST ID 1\r\nPING\r\n")
	c.Expect("$")
	for range maxHTTPScans {
		h.api.scanSlots <- struct{}{}
	}
	expectResponse(t, 503, errTooManyHTTPScans.Error(), "GET", "http://"+addr+"/topics/t1", "")
}

func TestUnresponsiveHubsNotCounted(t *testing.T) {
	h := newHubInClusterOfThree(t)
	h.Cluster.(*fakeOtherHubs).hubs = nil
	h.Cluster.(*fakeOtherHubs).release = make(chan struct{})
	addr, _ := serveHub(t, tcp.Goroutine, h)
	p := dialWebSocket(t, addr, "")
	p.exchange(`{"op":"count","topic":"t1"}`, `{"op":"count","topic":"t1","subscribers":2}`)
	expectResponse(t, 200, `"total":3`, "GET", "http://"+addr+"/topics", "")
}
