package hub

import (
	"context"
	"strings"
	"testing"

	"github.com/myriad-go/myriad/internal/testkit"
	"github.com/myriad-go/myriad/tcp"
)

// neighbours are the other hubs of a cluster, in this process. They answer when wait lets them.
type neighbours struct {
	Cluster
	hubs []*Hub
	wait chan struct{} // closed, or nil
}

func (n *neighbours) waits(ctx context.Context) {
	if n.wait != nil {
		select {
		case <-n.wait:
		case <-ctx.Done():
		}
	}
}

func (n *neighbours) Subscribers(ctx context.Context, k Kind, names []string) []int {
	n.waits(ctx)
	counts := make([]int, len(names))
	for _, h := range n.hubs {
		for i, name := range names {
			counts[i] += h.Subscribers(k, name)
		}
	}
	return counts
}

func (n *neighbours) Names(ctx context.Context, k Kind, pattern string, most int) (names []string, more int) {
	n.waits(ctx)
	for _, h := range n.hubs {
		matches := Matcher(pattern)
		h.EachName(k, func(name string, _ int) bool {
			if !matches(name) {
				return true
			}
			if most -= len(name); most < 0 {
				more++
			} else {
				names = append(names, name)
			}
			return true
		})
	}
	return names, more
}

func (n *neighbours) Largest(ctx context.Context, prefix string, limit, _ int) (names []string, more int) {
	n.waits(ctx)
	for _, h := range n.hubs {
		of, total := h.Largest(prefix, limit)
		names, more = append(names, of...), more+total-len(of)
	}
	return names, more
}

// subscribed subscribes to names, each as often as it is there.
func subscribed(t *testing.T, h *Hub, k Kind, names ...string) {
	t.Helper()
	for _, name := range names {
		if _, _, err := h.tableOf(k).join(name, k, socket, h.Limits); err != nil {
			t.Fatal(err)
		}
	}
}

// amongThree is a hub in a cluster with two others.
func amongThree(t *testing.T) *Hub {
	a, b, c := &Hub{}, &Hub{}, &Hub{}
	subscribed(t, a, Topic, "t1", "t1", "t2", "a")
	subscribed(t, b, Topic, "t1", "t3", "t3", "t3", "t3")
	subscribed(t, c, Topic, "t1", "t2", "t2", "t3", "t4")
	subscribed(t, a, Pattern, "x*", "y*", "a-long-one*")
	subscribed(t, b, Pattern, "x*", "z*")
	subscribed(t, c, Pattern, "a-long-one*")
	a.Cluster = &neighbours{hubs: []*Hub{b, c}}
	return a
}

// TestPresenceOfAll has what is asked about topics answered for all hubs.
func TestPresenceOfAll(t *testing.T) {
	eachFront(t, func() *Hub { return amongThree(t) }, func(t *testing.T, h *Hub, addr string) {
		for query, want := range map[string]string{
			"/topics/t1":       `{"topic":"t1","subscribers":4}`,
			"/topics/none":     `{"topic":"none","subscribers":0}`,
			"/topics":          `{"topics":[{"topic":"t3","subscribers":5},{"topic":"t1","subscribers":4},{"topic":"t2","subscribers":3},{"topic":"a","subscribers":1},{"topic":"t4","subscribers":1}],"total":5}`,
			"/topics?prefix=a": `{"topics":[{"topic":"a","subscribers":1}],"total":1}`,
			// t1 of the second hub, and t1, t3 and t4 of the third, are not told of: they count again.
			"/topics?prefix=t&limit=1": `{"topics":[{"topic":"t3","subscribers":5}],"total":7}`,
		} {
			if _, have := ask(t, "GET", "http://"+addr+query, ""); strings.TrimSpace(have) != want {
				t.Errorf("%s: %s expected %s", query, have, want)
			}
		}
		p := dialHub(t, addr, "")
		p.say(`{"op":"count","topic":"t3","id":7}`)
		p.hear(`{"op":"count","topic":"t3","subscribers":5,"id":7}`)
		for range 100 { // in order, whoever answers
			p.say(`{"op":"count","topic":"t1"}`)
			p.say(`{"op":"ping"}`)
		}
		for range 100 {
			p.hear(`{"op":"count","topic":"t1","subscribers":4}`)
			p.hear(`{"op":"pong"}`)
		}
		p.say(`{"op":"count","topic":""}`)
		p.hear(`{"op":"error"*`)
	})
}

// TestPatternsOfAll: NUMPAT counts a pattern once, on however many hubs it is, as far as the others have told of
// it; CHANNELS is refused where they could not tell of all.
func TestPatternsOfAll(t *testing.T) {
	h := amongThree(t)
	s := virtual(t, h, tcp.Limits{})
	p := s.Dial()
	p.Send("PUBSUB NUMPAT\r\nPUBSUB CHANNELS a*\r\n")
	p.Expect(":4\r\n*1\r\n$1\r\na\r\n")

	// Of 40 bytes, 10 are for an answer: there is no room for the long one, which so counts twice.
	s = virtual(t, h, tcp.Limits{MaxUnsent: 40})
	p = s.Dial()
	p.Send("PUBSUB NUMPAT\r\n")
	p.Expect(":5\r\n")
	subscribed(t, h.Cluster.(*neighbours).hubs[0], Topic, strings.Repeat("m", 101))
	s = virtual(t, h, tcp.Limits{MaxUnsent: 400})
	p = s.Dial()
	p.Send("PUBSUB CHANNELS m*\r\n")
	p.Expect("-ERR the answer would have more than 100 bytes; ask with a pattern that fewer topics match\r\n")
}

// TestAskingBound has as many clients ask the other hubs as may, by WebSocket and by HTTP, and one more.
func TestAskingBound(t *testing.T) {
	h := amongThree(t)
	answered := make(chan struct{})
	h.Cluster.(*neighbours).wait = answered
	addr, _ := serveFront(t, tcp.Goroutine, h)
	h.walks.turn.Lock()
	var peers []peer
	for range maxLater {
		p := dialHub(t, addr, "")
		p.say(`{"op":"count","topic":"t1"}`)
		p.say(`{"op":"ping"}`)
		peers = append(peers, p)
	}
	testkit.WaitFor(t, "all wait", func() bool { return h.walks.n.Load() == maxLater })
	p := dialHub(t, addr, "")
	p.say(`{"op":"count","topic":"t1"}`)
	p.hear(`{"op":"error","error":"too many clients ask for lists; try again"}`)
	close(answered)
	h.walks.turn.Unlock()
	for _, p := range peers {
		p.hear(`{"op":"count","topic":"t1","subscribers":4}`)
		p.hear(`{"op":"pong"}`)
	}
	for range maxScans {
		h.front.scans <- struct{}{}
	}
	wantAnswer(t, 503, errScans.Error(), "GET", "http://"+addr+"/topics/t1", "")
	<-h.front.scans
	wantAnswer(t, 200, `"subscribers":4`, "GET", "http://"+addr+"/topics/t1", "")
}

// TestSilentHubs: who does not answer in time is not in the sum.
func TestSilentHubs(t *testing.T) {
	h := amongThree(t)
	h.Cluster.(*neighbours).hubs = nil
	h.Cluster.(*neighbours).wait = make(chan struct{})
	addr, _ := serveFront(t, tcp.Goroutine, h)
	p := dialHub(t, addr, "")
	p.say(`{"op":"count","topic":"t1"}`)
	p.hear(`{"op":"count","topic":"t1","subscribers":2}`)
	wantAnswer(t, 200, `"total":3`, "GET", "http://"+addr+"/topics", "")
}
