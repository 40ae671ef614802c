package cluster

import (
	"context"
	"fmt"
	"strings"
	"testing"

	"github.com/myriad-go/myriad/hub"
	"github.com/myriad-go/myriad/hub/natsd"
)

func TestSubscriberCountsOfAllNodes(t *testing.T) {
	all := startThreePeers(t)
	for i, p := range all {
		c := p.dial(t)
		c.expectReply(t, "subscribe a :1", "SUBSCRIBE", "a")
		c.expectReply(t, fmt.Sprintf("subscribe b%d\xff :2", i), "SUBSCRIBE", fmt.Sprintf("b%d\xff", i))
		c.expectReply(t, "psubscribe p* :3", "PSUBSCRIBE", "p*")
		c.expectReply(t, fmt.Sprintf("psubscribe p%d* :4", i), "PSUBSCRIBE", fmt.Sprintf("p%d*", i))
	}
	c := all[1].dial(t)
	c.expectReply(t, "a :3 b0\xff :1 x :0", "PUBSUB", "NUMSUB", "a", "b0\xff", "x")
	c.expectReply(t, "a b0\xff b1\xff b2\xff", "PUBSUB", "CHANNELS")
	c.expectReply(t, "b0\xff b1\xff b2\xff", "PUBSUB", "CHANNELS", "b*")
	c.expectReply(t, "a :0", "PUBSUB", "SHARDNUMSUB", "a")
	c.expectReply(t, ":4", "PUBSUB", "NUMPAT")
	all[2].node.Close()
	for _, p := range all[:2] {
		p.waitForNodes(t, 1)
	}
	c.expectReply(t, "a :2", "PUBSUB", "NUMSUB", "a")
	c.expectReply(t, ":3", "PUBSUB", "NUMPAT")
}

// TestQueriesSplit checks that queries are split to fit into messages and omitted names counted.
func TestQueriesSplit(t *testing.T) {
	s := startNATS(t, natsd.Config{Addr: "127.0.0.1:0", MaxPayload: 8 << 10})
	c := Config{URLs: []string{"nats://" + s.Addr().String()}}
	a, b := startTestNode(t, new(hub.Hub), c), startTestNode(t, new(hub.Hub), c)
	a.waitForNodes(t, 1)
	const size, n = 100, 100 // 10,800 bytes; 4,096 fit 37 names
	client := b.dial(t)
	names := make([]string, 0, n+1)
	for i := range n {
		names = append(names, fmt.Sprintf("%0*d", size, i))
		client.expectReply(t, fmt.Sprintf("subscribe %s :%d", names[i], i+1), "SUBSCRIBE", names[i])
	}
	names = append(names, strings.Repeat("long", 3000)) // fits into no query
	for i, count := range a.node.Subscribers(t.Context(), hub.Topic, append(names[n:], names[:n]...)) {
		if want := min(i, 1); count != want {
			t.Fatalf("name %d has %d subscribers; expected %d", i, count, want)
		}
	}
	for what, ask := range map[string]func() ([]string, int){
		"of a pattern": func() ([]string, int) { return a.node.Names(t.Context(), hub.Topic, "0*", 1<<20) },
		"the largest":  func() ([]string, int) { return a.node.Largest(t.Context(), "0", n, 1<<20) },
	} {
		if found, more := ask(); len(found) != 37 || more != n-37 {
			t.Errorf("%s: %d names and %d more; expected 37 of %d", what, len(found), more, n)
		}
	}
	for what, ask := range map[string]func() ([]string, int){
		"of a pattern": func() ([]string, int) { return a.node.Names(t.Context(), hub.Topic, "0*", 10*(size+8)) },
		"the largest":  func() ([]string, int) { return a.node.Largest(t.Context(), "0", 10, 1<<20) },
	} {
		if found, more := ask(); len(found) != 10 || more != n-10 {
			t.Errorf("%s, of 10: %d names and %d more; expected 10 of %d", what, len(found), more, n)
		}
	}
	over, cancel := context.WithCancel(t.Context())
	cancel()
	if counts := a.node.Subscribers(over, hub.Topic, names[1:2]); counts[0] != 0 {
		t.Errorf("%d, without time to ask", counts[0])
	}
}
