package tcp

import (
	"fmt"
	"io"
	"strings"
	"sync"
	"testing"

	"github.com/myriad-go/myriad/internal/testkit"
)

// groupMembers is a handler that adds each connection to a group, twice.
type groupMembers struct {
	Base
	group  Group
	refs   chan Ref
	closed chan error
}

func newGroupMembers() *groupMembers {
	return &groupMembers{refs: make(chan Ref, 100), closed: make(chan error, 100)}
}

func (g *groupMembers) Opened(c *Conn) {
	g.group.Add(c.Ref())
	g.group.Add(c.Ref())
	g.refs <- c.Ref()
}

func (g *groupMembers) Closed(_ *Conn, why error) { g.closed <- why }

// dialMembers connects n members of the group.
func (g *groupMembers) dialMembers(t *testing.T, addr string, n int) (conns []*testkit.Conn, first Ref) {
	t.Helper()
	for i := range n {
		conns = append(conns, dial(t, addr))
		if ref := testkit.Receive(t, g.refs, "a member"); i == 0 {
			first = ref
		}
	}
	return conns, first
}

func TestGroup(t *testing.T) {
	const members, senders, each = 10, 4, 25
	expect := func(t *testing.T, what string, sent, full, wantSent, wantFull int) {
		t.Helper()
		if sent != wantSent || full != wantFull {
			t.Errorf("%s: %d sent, %d full; want %d, %d", what, sent, full, wantSent, wantFull)
		}
	}
	forEachModel(t, func(t *testing.T, model string, loops int) {
		h := newGroupMembers()
		g := &h.group
		sent, full := g.Broadcast([]byte("nobody"))
		expect(t, "empty", sent, full, 0, 0)
		g.Remove(Ref{})
		s := startServer(t, &Server{Model: model, Loops: loops, Handler: h, Limits: Limits{MaxUnsent: 1000}})
		conns, _ := h.dialMembers(t, s.addr, members)
		for what, broadcast := range map[string]func([]byte) (sent, full int){"Broadcast": g.Broadcast, "SendLatest": g.SendLatest} {
			sent, full = broadcast(make([]byte, 1001))
			expect(t, what+" of too much", sent, full, 0, members)
			p := []byte("news")
			sent, full = broadcast(p)
			expect(t, what, sent, full, members, 0)
			copy(p, "gone") // it was copied
			for _, c := range conns {
				c.Expect("news")
			}
		}
		conns[0].Close()
		s.waitOpen(t, members-1)
		sent, full = g.Broadcast([]byte("more"))
		expect(t, "after one has closed", sent, full, members-1, 0)
		if g.Len() != members-1 {
			t.Errorf("%d in the group, want %d", g.Len(), members-1)
		}

		var all sync.WaitGroup // of broadcasts, which reach all in the same order
		for i := range senders {
			all.Go(func() {
				for j := range each {
					g.Broadcast(fmt.Appendf(nil, "%02d.%02d ", i, j))
					g.Add(Ref{})
					g.Remove(Ref{})
				}
			})
		}
		all.Wait()
		want := ""
		for _, c := range conns[1:] {
			got := make([]byte, len("more")+6*senders*each)
			_, err := io.ReadFull(c.R, got)
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

// A group without broadcasts does not retain all closed connections.
func TestGroupForgetsClosed(t *testing.T) {
	const stay, most = 5, 64
	h := newGroupMembers()
	s := startServer(t, &Server{Handler: h})
	h.dialMembers(t, s.addr, stay)
	for range 10 * most {
		conns, _ := h.dialMembers(t, s.addr, 1)
		conns[0].Close()
		<-h.closed
		if n := h.group.Len(); n > most {
			t.Fatalf("the group has %d connections, of which %d are open; want at most %d", n, stay, most)
		}
	}
	if sent, full := h.group.Broadcast([]byte("x")); sent != stay || full != 0 || h.group.Len() != stay {
		t.Errorf("sent to %d, no room for %d, %d in the group; want %d, 0, %d", sent, full, h.group.Len(), stay, stay)
	}
}

// Server.SlowConsumer applies to a member that does not read, in a group of one, a few and many;
// others get every message.
func TestGroupSlowMember(t *testing.T) {
	t.Parallel() // mostly waits
	const size = 20 << 10
	for _, members := range []int{1, 4, 21} {
		for _, policy := range []SlowConsumer{CloseConn, DropMessage} {
			forEachModel(t, func(t *testing.T, model string, loops int) {
				h := newGroupMembers()
				s := startServer(t, &Server{Model: model, Loops: loops, Handler: h, SlowConsumer: policy,
					Socket: Socket{SendBuffer: 4 << 10}, Limits: Limits{MaxUnsent: 64 << 10}})
				conns, slow := h.dialMembers(t, s.addr, members)
				message := strings.Repeat("x", size)
				waitFor(t, "the slow one is dealt with", func() bool {
					if len(h.closed) > 0 {
						return true
					}
					h.group.Broadcast([]byte(message))
					for _, c := range conns[1:] {
						c.Expect(message)
					}
					dropped := make(chan int64, 1)
					return policy == DropMessage && slow.Do(func(c *Conn) { dropped <- c.Dropped() }) == nil &&
						testkit.Receive(t, dropped, "what it has lost") > 1 && s.Stats().Dropped > 1
				})
				if policy == CloseConn {
					expectReason(t, "the slow one", h.closed, ErrSlowConsumer)
					if n := s.Stats().Closed.SlowConsumer; n != 1 {
						t.Errorf("%d counted as closed, want 1", n)
					}
				}
			})
		}
	}
}
