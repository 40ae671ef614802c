package myriad

import (
	"fmt"
	"io"
	"net"
	"sync"
	"testing"
)

// opened tells what has opened and closed.
type opened struct {
	Base
	refs   chan Ref
	closed chan Ref
}

func (o *opened) Opened(c *Conn) { o.refs <- c.Ref() }

func (o *opened) Closed(c *Conn, _ error) { o.closed <- c.Ref() }

// A group that nobody sends to does not keep all that were ever added.
func TestGroupForgetsClosed(t *testing.T) {
	const stay = 5
	h := &opened{refs: make(chan Ref, 1), closed: make(chan Ref, stay+1)}
	s := start(t, &Server{Handler: h})
	var g Group
	for range stay {
		dial(t, s.addr)
		g.Add(<-h.refs)
	}
	for range 10 * minClean {
		c := dial(t, s.addr)
		g.Add(<-h.refs)
		c.Close()
		<-h.closed
		if n := g.Len(); n > minClean {
			t.Fatalf("the group has %d connections, of which %d are open; want at most %d", n, stay, minClean)
		}
	}
	if sent, full := g.Broadcast([]byte("x")); sent != stay || full != 0 || g.Len() != stay {
		t.Errorf("sent to %d, no room for %d, %d in the group; want %d, 0, %d", sent, full, g.Len(), stay, stay)
	}
	g.Publish([]byte("x"))
	for _, m := range g.all[:cap(g.all)] {
		if m != (listed{}) {
			t.Fatal("the group keeps refs of what was published")
		}
	}
}

// While a broadcast is under way, or waits, others come and go.
func TestGroupDuringBroadcast(t *testing.T) {
	h := &opened{refs: make(chan Ref, 2), closed: make(chan Ref, 2)}
	s := start(t, &Server{Handler: h})
	c := dial(t, s.addr)
	var g Group
	r := <-h.refs
	g.Add(r)
	g.sending.Lock() // as a broadcast does to its end
	g.Remove(r)
	if g.Len() != 0 {
		t.Error("a connection that was removed is there")
	}
	g.Add(r)
	g.sending.Unlock()
	if sent, _ := g.Broadcast([]byte("x")); sent != 1 {
		t.Errorf("sent to %d, want 1", sent)
	}
	if _, err := io.ReadFull(c, make([]byte, 1)); err != nil {
		t.Error(err)
	}
}

// Broadcasts of many goroutines reach all in one order.
func TestGroupOrder(t *testing.T) {
	const conns, senders, each = 3, 4, 25
	onModels(t, func(t *testing.T, model string, loops int) {
		h := &opened{refs: make(chan Ref, conns), closed: make(chan Ref, conns)}
		s := start(t, &Server{Model: model, Loops: loops, Handler: h})
		var g Group
		var in []io.Reader
		for range conns {
			in = append(in, dial(t, s.addr))
			g.Add(<-h.refs)
		}
		var wg sync.WaitGroup
		for i := range senders {
			wg.Go(func() {
				for j := range each {
					g.Broadcast(fmt.Appendf(nil, "%02d.%02d ", i, j))
				}
			})
		}
		wg.Wait()
		want := ""
		for _, r := range in {
			got := make([]byte, 6*senders*each)
			if _, err := io.ReadFull(r, got); err != nil {
				t.Fatal(err)
			}
			if want == "" {
				want = string(got)
			}
			if string(got) != want {
				t.Fatalf("one has got\n%s, and another\n%s", want, got)
			}
		}
	})
}

// misser tells what its connections have missed.
type misser struct {
	member
	missed chan int64
}

func (m misser) Closed(conn *Conn, _ error) { m.missed <- conn.Dropped() }

// A peer that does not read gets the newest value when it does, and one that has left
// the group none. It is not closed, however much is published.
func TestPublish(t *testing.T) {
	const size, most = 8 << 10, 64 << 10
	onModels(t, func(t *testing.T, model string, loops int) {
		var g Group
		h := misser{member{group: &g}, make(chan int64, 2)}
		s := start(t, &Server{Model: model, Loops: loops, Handler: h, Limits: Limits{MaxUnsent: most}, Socket: Socket{SendBuffer: 16 << 10}})
		c := dial(t, s.addr)
		_ = c.(*net.TCPConn).SetReadBuffer(16 << 10)
		eventually(t, func() bool { return g.Len() == 1 }, func() string { return "not in the group" })
		value := make([]byte, size)
		n := 0
		publish := func() {
			n++
			copy(value, fmt.Sprintf("%08d", n))
			if sent, full := g.Publish(value); sent != 1 || full != 0 {
				t.Fatalf("value %d: sent to %d, no room for %d; want 1, 0", n, sent, full)
			}
		}
		for s.Stats().Replaced < 1000 {
			publish()
		}
		if sent, full := g.Publish(make([]byte, most+1)); sent != 0 || full != 1 {
			t.Errorf("more than MaxUnsent: sent to %d, no room for %d; want 0, 1", sent, full)
		}
		publish()
		got, last := make([]byte, size), 0
		taken := 0
		for ; last < n; taken++ {
			if _, err := io.ReadFull(c, got); err != nil {
				t.Fatal(err)
			}
			var i int
			if _, err := fmt.Sscanf(string(got[:8]), "%d", &i); err != nil || i <= last {
				t.Fatalf("value %q after %d", got[:8], last)
			}
			last = i
		}
		replaced := s.Stats().Replaced
		if taken+int(replaced) < n {
			t.Errorf("%d values were taken and %d replaced, of %d", taken, replaced, n)
		}
		for r := range g.refs {
			g.Remove(r)
			break
		}
		if sent, full := g.Publish(value); sent+full != 0 {
			t.Errorf("an empty group took %d and %d", sent, full)
		}
		c.Close()
		if missed := <-h.missed; missed != replaced {
			t.Errorf("the connection has missed %d, want %d", missed, replaced)
		}
	})
}
