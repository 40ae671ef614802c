package enginetest

import (
	"net"
	"net/netip"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/myriad-go/myriad/internal/engine"
	"github.com/myriad-go/myriad/internal/testkit"
)

var refCases = []testCase{
	{"Ref tells while connections come and go", testRefManyConcurrently},
}

// refValues has the results of a Ref's methods.
type refValues struct {
	peer, local        netip.AddrPort
	value              any
	peered, at, valued bool
}

func readRef(r engine.Ref) (t refValues) {
	t.peer, t.peered = r.Peer()
	t.local, t.at = r.LocalAddr()
	t.value, t.valued = r.Value()
	return t
}

// wantRefValues returns the expected results for a client's connection.
func (c *client) wantRefValues(value any) refValues {
	at := func(a net.Addr) netip.AddrPort { return a.(*net.TCPAddr).AddrPort() }
	return refValues{at(c.LocalAddr()), at(c.RemoteAddr()), value, true, true, true}
}

func testRefValues(b *testEnv) {
	inCall := make(chan refValues, 1)
	var firstClosed sync.Once
	s := b.startServer(&Script{
		Opened: func(c *engine.Conn) { c.SetValue("first") },
		Received: func(c *engine.Conn, in []byte) int {
			c.SetValue(string(in))
			inCall <- readRef(c.Ref())
			return len(in)
		},
		Closed: func(c *engine.Conn, _ error) { firstClosed.Do(func() { inCall <- readRef(c.Ref()) }) },
	})
	c := s.dial()
	r := s.wantOpened(1)[0]
	if got, want := readRef(r), c.wantRefValues("first"); got != want {
		b.Errorf("a Ref tells %+v, want %+v", got, want)
	}
	if n := testing.AllocsPerRun(100, func() { r.Peer(); r.Value(); r.ID() }); n > 0 {
		b.Errorf("to look at a connection allocates %v times", n)
	}
	c.Send("second")
	want := c.wantRefValues("second")
	if got := testkit.Receive(b, inCall, "Received"); got != want {
		b.Errorf("a Ref tells %+v in a call, want %+v", got, want)
	}
	c.Close()
	if got := testkit.Receive(b, inCall, "Closed"); got != (refValues{}) {
		b.Errorf("a Ref tells %+v in Closed, want nothing", got)
	}
	_, slot, _ := r.Location()
	ids := map[uint64]bool{engine.Ref{}.ID(): true, r.ID(): true}
	for n := 2; ; n++ { // until its slot is used again
		next := s.dial()
		ref := s.wantOpened(n)[n-1]
		if got, want := readRef(ref), next.wantRefValues("first"); got != want {
			b.Errorf("the Ref of another one tells %+v, want %+v", got, want)
		}
		if ids[ref.ID()] {
			b.Errorf("two connections have the ID %d, or it is that of none", ref.ID())
		}
		ids[ref.ID()] = true
		if _, n, _ := ref.Location(); n == slot {
			break
		}
	}
	if got := readRef(r); got != (refValues{}) {
		b.Errorf("a Ref of a connection that has closed tells %+v", got)
	}
}

// testRefManyConcurrently reads Refs on other goroutines while their connections, and others in the
// same slots, open and close.
func testRefManyConcurrently(b *testEnv) {
	const rounds = 10
	var last [2]atomic.Pointer[engine.Ref]
	var next atomic.Int64
	s := b.startServer(&Script{Opened: func(c *engine.Conn) {
		r := c.Ref()
		c.SetValue(r)
		last[next.Add(1)%int64(len(last))].Store(&r)
		c.WriteString("hello")
	}})
	var looking sync.WaitGroup
	var over atomic.Bool
	for i := range last {
		looking.Go(func() {
			for !over.Load() {
				runtime.Gosched()
				r := last[i].Load()
				if r == nil {
					continue
				}
				got := readRef(*r)
				if got.valued && got.value != nil && got.value != *r {
					b.Errorf("the Ref of %d tells the value of %d", r.ID(), got.value.(engine.Ref).ID())
					return
				}
				if got.peered && !got.peer.IsValid() || got.at && got.local.String() != s.Addr().String() {
					b.Errorf("a Ref tells %+v", got)
					return
				}
			}
		})
	}
	for range rounds {
		for i, c := range s.dialMany(8) {
			c.Expect("hello")
			if i%2 == 0 {
				c.Reset()
			} else {
				c.Close()
			}
		}
	}
	over.Store(true)
	looking.Wait()
}
