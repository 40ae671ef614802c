package load

import (
	"context"
	"net"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/myriad-go/myriad/internal/testkit"
)

// together runs the parts of a publish/subscribe run, which connect one after the other, at the same
// time. What each has published all are told, but of those who are lost.
func together(t *testing.T, cfg Config, generators int, lost ...int) []*Result {
	t.Helper()
	parts, err := cfg.Divide(slices.Repeat([]float64{1}, generators)...)
	if err != nil {
		t.Fatal(err)
	}
	results := make([]*Result, generators)
	var runs, publishing sync.WaitGroup
	publishing.Add(generators)
	begin, connected := make(chan float64), make(chan struct{}, generators)
	published, since := make([][]int64, generators), time.Now().Round(0)
	for i := range parts {
		p, all := parts[i], make(chan []int64, 1)
		p.PubSub.Since, p.Begin, p.Published = since, begin, all
		p.Observe = func(e Event) {
			switch e.Phase {
			case Connected:
				connected <- struct{}{}
			case Published:
				if published[i] = e.Published; slices.Contains(lost, i) {
					published[i] = slices.Repeat([]int64{-1}, len(e.Published))
				}
				publishing.Done()
				runs.Go(func() {
					publishing.Wait()
					all <- slices.Concat(published...)
				})
			}
		}
		runs.Go(func() {
			var err error
			if results[i], err = Run(context.Background(), p); err != nil {
				t.Error(err)
			}
		})
		testkit.Receive(t, connected, "connections")
	}
	close(begin)
	runs.Wait()
	return results
}

// TestPubSubShared has two generators share the topics: what one publishes reaches the subscribers
// of both, and what is missing, comes again or in another order is counted exactly.
func TestPubSubShared(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		topics, publishers int
		deliver            func(c net.Conn, m [][]byte) error // the first two of publisher 1, which is the other generator's, to each
		lost               []int
		missing, doubled   int64 // at each of 6 subscribers
		reordered          int64
	}{
		"one topic":          {topics: 1, publishers: 2},
		"several":            {topics: 3, publishers: 5},
		"one each":           {topics: 6, publishers: 3},
		"left out":           {topics: 1, publishers: 2, deliver: func(c net.Conn, m [][]byte) error { _, err := c.Write(m[1]); return err }, missing: 1},
		"both":               {topics: 1, publishers: 2, deliver: func(net.Conn, [][]byte) error { return nil }, missing: 2},
		"doubled":            {topics: 1, publishers: 2, deliver: func(c net.Conn, m [][]byte) error { _, err := c.Write(slices.Concat(m[0], m[0], m[1])); return err }, doubled: 1},
		"reordered":          {topics: 1, publishers: 2, deliver: func(c net.Conn, m [][]byte) error { _, err := c.Write(slices.Concat(m[1], m[0])); return err }, reordered: 1},
		"of one that's gone": {topics: 1, publishers: 2, deliver: func(c net.Conn, m [][]byte) error { _, err := c.Write(m[1]); return err }, lost: []int{1}, missing: 1},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			for times := range slower(t) {
				var lock sync.Mutex
				kept, faults := make(map[net.Conn][][]byte), int64(0)
				b := newBroker(t, "redis", func(c net.Conn, _ int, message []byte) error {
					lock.Lock()
					defer lock.Unlock()
					to := c.(subscription).Conn
					if test.deliver == nil || len(kept[to]) == 2 || !strings.Contains(string(message), "\r\n0001") {
						_, err := c.Write(message)
						return err
					}
					if kept[to] = append(kept[to], slices.Clone(message)); len(kept[to]) == 1 {
						return nil
					}
					faults++
					return test.deliver(c, kept[to])
				})
				cfg := Config{
					Target: b.target, Connections: 6, PubSub: &PubSub{Protocol: "redis", Topics: test.topics, Publishers: test.publishers},
					Rate: Rate{PerSecond: 400}, Duration: times * 100 * time.Millisecond, Drain: times * 200 * time.Millisecond,
				}
				results := together(t, cfg, 2, test.lost...)
				r, err := Merge(results...)
				if err != nil {
					t.Fatal(err)
				}
				if test.deliver != nil && faults < 6 {
					continue // it has not come to that
				}
				subscribers, sent := int64(6/test.topics), r.Bytes.Sent/int64(r.MessageSize)
				if got := r.Bytes.Received / int64(r.MessageSize); got != sent*subscribers-6*test.missing {
					t.Errorf("%d of %d messages to %d subscribers were delivered; %d should be missing", got, sent, subscribers, 6*test.missing)
				}
				if r.Undelivered != 6*test.missing || r.Doubled != 6*test.doubled || r.Reordered != 6*test.reordered || r.Mismatched != 0 {
					t.Errorf("%d missing, %d doubled, %d reordered, %v; want 6 times %d, %d, %d", r.Undelivered, r.Doubled, r.Reordered, r.FirstMismatch, test.missing, test.doubled, test.reordered)
				}
				if r.Latency.Count < r.Intended*subscribers*2/3 {
					continue // the windows were too far apart for so short a time
				}
				h, err := decodeHistogram(r.Histogram)
				if err != nil {
					t.Fatal(err)
				}
				if none := h.Distribution()[0]; none.To == 0 && none.Count > 0 {
					t.Errorf("%d deliveries took no time at all: one that begins later has another time", none.Count)
				}
				return
			}
		})
	}
}
