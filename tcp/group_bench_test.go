package tcp

import (
	"fmt"
	"runtime"
	"testing"

	"github.com/myriad-go/myriad/internal/engine"
)

// fakeOwner owns connections that have no sockets.
type fakeOwner struct {
	box  engine.Mailbox
	host engine.Runtime
}

func newFakeOwner() *fakeOwner {
	o := &fakeOwner{box: engine.Mailbox{MaxRequests: 1 << 30, MaxBytes: 1 << 40}}
	o.host = engine.Runtime{Config: engine.Config{Limits: engine.Limits{MaxUnsent: 1 << 20}}, Poster: o, Counters: &engine.Counters{}}
	return o
}

func (o *fakeOwner) Post(c *engine.Conn, generation uint32, r engine.Request) error {
	return o.box.Put(c, generation, r)
}

func (o *fakeOwner) PostToChunk(to *engine.ConnChunk, s *engine.Shared) engine.PostTally {
	return o.box.PutToChunk(to, s)
}

// deliverMail delivers the mailbox to its connections and returns the number of messages.
func (o *fakeOwner) deliverMail() (n int) {
	mail, data := o.box.TakeAll()
	for _, m := range mail {
		for next := 0; ; {
			if next = m.ForEachConn(next, 1024, func(m engine.QueuedRequest) { n++; m.Conn.OnRequest(m, data[:m.Size]); data = data[m.Size:] }); next == 0 {
				break
			}
		}
	}
	o.box.Recycle(mail, data)
	return n
}

func (o *fakeOwner) openConns(n int) []Ref {
	conns, refs := make([]engine.Conn, n), make([]Ref, n)
	for i := range conns {
		conns[i].Bind(&o.host, uint32(i), 0)
		refs[i] = Ref{conns[i].Ref()}
	}
	return refs
}

// BenchmarkGroup measures the time per member to post and deliver a message, and the memory of
// the group.
func BenchmarkGroup(b *testing.B) {
	for _, members := range []int{1, 10, 1000, 100_000} {
		b.Run(fmt.Sprint(members), func(b *testing.B) {
			o := newFakeOwner()
			refs := o.openConns(members)
			before := liveHeapBytes()
			var g Group
			for _, r := range refs {
				g.Add(r)
			}
			p := make([]byte, 64)
			for range b.N {
				if sent, full := g.Broadcast(p); sent != members {
					b.Fatalf("sent to %d, no room for %d", sent, full)
				}
				if n := o.deliverMail(); n != members {
					b.Fatalf("%d messages have arrived", n)
				}
			}
			b.ReportMetric(float64(b.Elapsed())/float64(b.N*members), "ns/member")
			b.ReportMetric(float64(liveHeapBytes()-before)/float64(members), "bytes/member")
			runtime.KeepAlive(refs)
		})
	}
}
