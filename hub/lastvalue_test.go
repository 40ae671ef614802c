package hub

import (
	"fmt"
	"strings"
	"sync"
	"testing"

	"github.com/myriad-go/myriad/internal/testkit"
)

// TestLastValue checks that a topic's subscribers get its newest message once, after the confirmation, and a
// pattern's don't.
func TestLastValue(t *testing.T) {
	h, addr := startHub(t, &Hub{Limits: Limits{LastValues: 10}})
	publish := func(message string, want int) {
		t.Helper()
		if n, err := h.Publish("a", []byte(message)); n != want || err != nil {
			t.Fatalf("%d receivers, %v; want %d", n, err, want)
		}
	}
	publish("1", 0)
	publish("2", 0)
	p := dialWebSocket(t, addr, "")
	p.exchange(`{"op":"subscribe","pattern":"a*"}`, `{"op":"subscribed","pattern":"a*",*`)
	p.exchange(`{"op":"subscribe","topic":"b"}`, `{"op":"subscribed","topic":"b",*`)
	p.exchange(`{"op":"subscribe","topic":"a"}`, `{"op":"subscribed","topic":"a",*`)
	p.expectText(`{"op":"message","topic":"a","data":"2"}`)
	p.exchange(`{"op":"subscribe","topic":"a"}`, `{"op":"subscribed","topic":"a",*`)
	p.exchange(`{"op":"unsubscribe","pattern":"a*"}`, `{"op":"unsubscribed","pattern":"a*",*`)
	publish("3", 1)
	p.expectText(`{"op":"message","topic":"a","data":"3"}`)
	if s := h.Stats(); s.Published != 3 || s.Delivered != 2 || s.LastValues != 1 || s.LastValueBytes != int64(smallValue) {
		t.Errorf("%+v", s)
	}
}

// TestLastValueGapless checks that subscribers get the newest message and each later one during publishing.
func TestLastValueGapless(t *testing.T) {
	const messages, peers = 2000, 8
	forEachModel(t, func() *Hub { return &Hub{Limits: Limits{LastValues: 1}} }, func(t *testing.T, h *Hub, addr string) {
		var all []wsClient
		for range peers {
			all = append(all, dialWebSocket(t, addr, ""))
		}
		var work sync.WaitGroup
		work.Go(func() {
			for i := range messages {
				_, err := h.Publish("a", fmt.Appendf(nil, "%04d", i))
				testkit.ExpectNoError(t, err)
			}
		})
		defer work.Wait()
		for _, p := range all {
			p.sendText(`{"op":"subscribe","topic":"a"}`)
		}
		for _, p := range all {
			p.expectText(`{"op":"subscribed",*`)
			_, first, err := p.Read(p.ctx)
			testkit.RequireNoError(t, err)
			var from int
			if _, err := fmt.Sscanf(string(first), `{"op":"message","topic":"a","data":"%d"}`, &from); err != nil {
				t.Fatalf("%s: %v", first, err)
			}
			for i := from + 1; i < messages; i++ {
				p.expectText(fmt.Sprintf(`{"op":"message","topic":"a","data":"%04d"}`, i))
			}
		}
	})
}

// smallValue is the size of a value with a name and a message of one byte.
var smallValue = (&lastValue{name: "a", message: make([]byte, 1, 8)}).memoryBytes()

// TestLastValueMemory checks that the accounted bytes are within a quarter of the heap's growth.
func TestLastValueMemory(t *testing.T) {
	for _, size := range []int{0, 10, 100, 1000} {
		const n = 20_000
		h := &Hub{Limits: Limits{LastValues: n, LastValueBytes: 1 << 30}}
		message := strings.Repeat("x", size)
		before := testkit.LiveHeapBytes()
		publish := func(n, base int) {
			for i := range n {
				h.publishAll(t, fmt.Sprintf("topic.%d", base+i), message)
			}
		}
		check := func(when string) {
			t.Helper()
			grown, account := testkit.LiveHeapBytes()-before, h.Stats().LastValueBytes
			t.Logf("%s, messages of %d bytes: the heap has grown by %d bytes, %d are accounted", when, size, grown, account)
			if account < grown*3/4 || account > grown*5/4 {
				t.Errorf("%s, messages of %d bytes: %d bytes are accounted, and the heap has grown by %d", when, size, account, grown)
			}
		}
		publish(n, 0)
		check("new")
		publish(n, 0)
		check("replaced")
		publish(n, n)
		check("evicted")
		h.Limits.LastValueBytes = int(h.Stats().LastValueBytes) / 10
		publish(1, 0)
		check("fewer")
	}
}

func TestLastValueEviction(t *testing.T) {
	large, huge := strings.Repeat("4", smallValue), strings.Repeat("6", 3*smallValue)
	for _, c := range []struct {
		limits  Limits
		script  string // topic and message to publish; a topic alone is subscribed to
		want    string
		evicted int64
	}{
		{Limits{LastValues: 2}, "a1 b2 c3", "c3 b2", 1},
		{Limits{LastValues: 2}, "a1 b2 a3 c4", "c4 a3", 1},
		{Limits{LastValues: 2}, "a1 b2 a c3", "c3 a1", 1},
		{Limits{LastValues: 9, LastValueBytes: 3 * smallValue}, "a1 b2 c3 d4", "d4 c3 b2", 1},
		{Limits{LastValues: 9, LastValueBytes: 3 * smallValue}, "a1 b2 c3 d" + large, "d" + large + " c3", 2},
		{Limits{LastValues: 9, LastValueBytes: 3 * smallValue}, "a1 b2 a" + huge + " b", "b2", 1},
		{Limits{}, "a1 b2 a", "", 0},
	} {
		h := &Hub{Limits: c.limits}
		for step := range strings.FieldsSeq(c.script) {
			if len(step) == 1 {
				testkit.RequireNoError(t, h.subscribeWithoutConn(&client{user: unrestrictedUser}, Topic, step))
			} else {
				h.publishAll(t, step[:1], step[1:])
			}
		}
		s, bytes := h.Stats(), 0
		var kept []string
		for v := h.lastValues.newest; v != nil; v = v.older {
			kept = append(kept, v.name+string(v.message))
			bytes += v.memoryBytes()
		}
		if strings.Join(kept, " ") != c.want || s.Evicted != c.evicted || s.LastValues != int64(len(kept)) || s.LastValueBytes != int64(bytes) {
			t.Errorf("%+v, %s: kept is %q, %+v; want %q, %d evicted", c.limits, c.script, kept, s, c.want, c.evicted)
		}
	}
}
