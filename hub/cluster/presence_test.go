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
		c.expectReply("subscribe a :1", "SUBSCRIBE", "a")
		c.expectReply(fmt.Sprintf("subscribe b%d\xff :2", i), "SUBSCRIBE", fmt.Sprintf("b%d\xff", i))
		c.expectReply("psubscribe p* :3", "PSUBSCRIBE", "p*")
		c.expectReply(fmt.Sprintf("psubscribe p%d* :4", i), "PSUBSCRIBE", fmt.Sprintf("p%d*", i))
	}
	c := all[1].dial(t)
	c.expectReply("a :3 b0\xff :1 x :0", "PUBSUB", "NUMSUB", "a", "b0\xff", "x")
	c.expectReply("a b0\xff b1\xff b2\xff", "PUBSUB", "CHANNELS")
	c.expectReply("b0\xff b1\xff b2\xff", "PUBSUB", "CHANNELS", "b*")
	c.expectReply("a :0", "PUBSUB", "SHARDNUMSUB", "a")
	c.expectReply(":4", "PUBSUB", "NUMPAT")
	all[2].node.Close()
	for _, p := range all[:2] {
		p.waitForNodes(t, 1)
	}
	c.expectReply("a :2", "PUBSUB", "NUMSUB", "a")
	c.expectReply(":3", "PUBSUB", "NUMPAT")
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
		client.expectReply(fmt.Sprintf("subscribe %s :%d", names[i], i+1), "SUBSCRIBE", names[i])
	}
	names = append(names, strings.Repeat("long", 3000)) // fits into no query
	for i, count := range a.node.Subscribers(t.Context(), hub.Topic, append(names[n:], names[:n]...)) {
		if want := min(i, 1); count != want {
			t.Fatalf("name %d has %d subscribers; expected %d", i, count, want)
		}
	}
	for limit, want := range map[int]int{n: 37, 10: 10} {
		if found, more := a.node.Names(t.Context(), hub.Topic, "0*", limit*(size+8)); len(found) != want || more != n-want {
			t.Errorf("of a pattern: %d names and %d more; expected %d of %d", len(found), more, want, n)
		}
		if found, more := a.node.Largest(t.Context(), "0", limit, 1<<20); len(found) != want || more != n-want {
			t.Errorf("the largest: %d names and %d more; expected %d of %d", len(found), more, want, n)
		}
	}
	over, cancel := context.WithCancel(t.Context())
	cancel()
	if counts := a.node.Subscribers(over, hub.Topic, names[1:2]); counts[0] != 0 {
		t.Errorf("%d, without time to ask", counts[0])
	}
}
