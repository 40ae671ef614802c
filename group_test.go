package myriad

import (
	"fmt"
	"io"
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
	const stay, most = 5, 64
	h := &opened{refs: make(chan Ref, 1), closed: make(chan Ref, stay+1)}
	s := start(t, &Server{Handler: h})
	var g Group
	for range stay {
		dial(t, s.addr)
		g.Add(<-h.refs)
	}
	for range 10 * most {
		c := dial(t, s.addr)
		g.Add(<-h.refs)
		c.Close()
		<-h.closed
		if n := g.Len(); n > most {
			t.Fatalf("the group has %d connections, of which %d are open; want at most %d", n, stay, most)
		}
	}
	if sent, full := g.Broadcast([]byte("x")); sent != stay || full != 0 || g.Len() != stay {
		t.Errorf("sent to %d, no room for %d, %d in the group; want %d, 0, %d", sent, full, g.Len(), stay, stay)
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
