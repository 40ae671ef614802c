package tcp

import (
	"fmt"
	"io"
	"net"
	"sync"
	"testing"

	"github.com/myriad-go/myriad/internal/testkit"
)

// refRecorder sends the Refs of opened and closed connections to channels.
type refRecorder struct {
	Base
	refs   chan Ref
	closed chan Ref
}

func (o *refRecorder) Opened(c *Conn) { o.refs <- c.Ref() }

func (o *refRecorder) Closed(c *Conn, _ error) { o.closed <- c.Ref() }

// A group without broadcasts does not retain all closed connections.
func TestGroupForgetsClosed(t *testing.T) {
	const stay, most = 5, 64
	h := &refRecorder{refs: make(chan Ref, 1), closed: make(chan Ref, stay+1)}
	s := startServer(t, &Server{Handler: h})
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

// Broadcasts of several goroutines reach all members in the same order.
func TestGroupOrder(t *testing.T) {
	const conns, senders, each = 3, 4, 25
	forEachModel(t, func(t *testing.T, model string, loops int) {
		h := &refRecorder{refs: make(chan Ref, conns), closed: make(chan Ref, conns)}
		s := startServer(t, &Server{Model: model, Loops: loops, Handler: h})
		var g Group
		var in []*testkit.Conn
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
			_, err := io.ReadFull(r, got)
			requireNoError(t, err)
			if want == "" {
				want = string(got)
			}
			if string(got) != want {
				t.Fatalf("one has got\n%s, and another\n%s", want, got)
			}
		}
	})
}

// stalled is a group member that reports its Ref and its close reason.
type stalled struct {
	groupJoiner
	refs chan Ref
	why  chan error
}

func (s stalled) Opened(c *Conn) {
	s.groupJoiner.Opened(c)
	s.refs <- c.Ref()
}

func (s stalled) Closed(_ *Conn, why error) { s.why <- why }

// Server.SlowConsumer applies to a member that does not read, in a group of one, a few and many;
// others get every message.
func TestGroupSlowMember(t *testing.T) {
	for _, others := range []int{0, 3, 20} {
		for _, policy := range []SlowConsumer{CloseConn, DropMessage} {
			forEachModel(t, func(t *testing.T, model string, loops int) {
				var g Group
				h := stalled{groupJoiner{group: &g}, make(chan Ref, others+1), make(chan error, others+1)}
				s := startServer(t, &Server{Model: model, Loops: loops, Handler: h, SlowConsumer: policy,
					Socket: Socket{SendBuffer: 4 << 10}, Limits: Limits{MaxUnsent: 64 << 10}})
				dial(t, s.addr)
				slow := testkit.Receive(t, h.refs, "the slow one")
				var in []net.Conn
				for range others {
					in = append(in, dial(t, s.addr))
					testkit.Receive(t, h.refs, "another")
				}
				message, got := make([]byte, 20<<10), make([]byte, 20<<10)
				dropped := func() (n int64) {
					asked := make(chan int64, 1)
					if slow.Do(func(c *Conn) { asked <- c.Dropped() }) == nil {
						n = testkit.Receive(t, asked, "what it has lost")
					}
					return n
				}
				testkit.WaitFor(t, "the slow one is dealt with", func() bool {
					if policy == CloseConn && len(h.why) > 0 {
						return true
					}
					g.Broadcast(message)
					for _, c := range in {
						if _, err := io.ReadFull(c, got); err != nil {
							t.Fatal(err)
						}
					}
					return policy == DropMessage && dropped() > 1 && s.Stats().Dropped > 1
				})
				if policy == CloseConn {
					if why := <-h.why; why != ErrSlowConsumer || s.Stats().Closed.SlowConsumer != 1 {
						t.Errorf("it is closed for %v, %+v; want %v", why, s.Stats().Closed, ErrSlowConsumer)
					}
				}
			})
		}
	}
}

// A message to many members takes the mailbox space of one, and reaches all of them even if it is
// sent on their loop.
func TestGroupMailbox(t *testing.T) {
	const conns, messages, size = 40, 3, 1000
	forEachModel(t, func(t *testing.T, model string, loops int) {
		var g Group
		h := stalled{groupJoiner{group: &g}, make(chan Ref, conns), make(chan error, conns)}
		s := startServer(t, &Server{Model: model, Loops: loops, Handler: h, Limits: Limits{MaxMail: conns, MaxMailBytes: 2 * messages * size}})
		var in []net.Conn
		var refs []Ref
		for range conns {
			in = append(in, dial(t, s.addr))
			refs = append(refs, testkit.Receive(t, h.refs, "a member"))
		}
		sent := make(chan int, messages)
		expectNoError(t, refs[0].Do(func(*Conn) {
			for range messages {
				n, _ := g.Broadcast(make([]byte, size))
				sent <- n
			}
		}))
		for range messages {
			if n := testkit.Receive(t, sent, "a message"); n != conns {
				t.Fatalf("sent to %d, want %d", n, conns)
			}
		}
		for _, c := range in {
			if _, err := io.ReadFull(c, make([]byte, messages*size)); err != nil {
				t.Error(err)
			}
		}
	})
}
