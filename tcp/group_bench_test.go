package tcp

import (
	"fmt"
	"runtime"
	"testing"
	"time"

	"github.com/myriad-go/myriad/internal/engine"
)

// memoryBox is an owner of connections that have no sockets.
type memoryBox struct {
	box  engine.Mailbox
	host engine.Host
}

func newMemoryBox() *memoryBox {
	o := &memoryBox{box: engine.Mailbox{Max: 1 << 30, MaxBytes: 1 << 40}}
	o.host = engine.Host{Config: engine.Config{Limits: engine.Limits{MaxUnsent: 1 << 20}}, Poster: o, Counters: &engine.Counters{}}
	return o
}

func (o *memoryBox) Post(c *engine.Conn, generation uint32, r engine.Request) error {
	return o.box.Put(c, generation, r)
}

func (o *memoryBox) PostMany(to *engine.Many, s *engine.Shared) engine.Tally {
	return o.box.PutMany(to, s)
}

// give gives the mail to its connections.
func (o *memoryBox) give() (n int) {
	mail, data := o.box.Take()
	for _, m := range mail {
		for next := 0; ; {
			if next = m.Some(next, 1024, func(m engine.Mail) { n++; m.Conn.Mailed(m, data[:m.Size]); data = data[m.Size:] }); next == 0 {
				break
			}
		}
	}
	o.box.Done(mail, data)
	return n
}

// open opens connections.
func (o *memoryBox) open(n int) []Ref {
	conns, refs := make([]engine.Conn, n), make([]Ref, n)
	for i := range conns {
		conns[i].Bind(&o.host, uint32(i), 0)
		refs[i] = Ref{conns[i].Ref()}
	}
	return refs
}

// BenchmarkGroupMemory is what groups take when each was sent to, by their members.
func BenchmarkGroupMemory(b *testing.B) {
	const conns = 100_000
	for _, members := range []int{1, 2, 10, 100, 1000, conns} {
		b.Run(fmt.Sprint(members), func(b *testing.B) {
			o := newMemoryBox()
			refs, groups := o.open(conns), make([]*Group, conns/members)
			before := heap()
			for range b.N {
				for i := range groups {
					groups[i] = new(Group)
					for _, r := range refs[i*members:][:members] {
						groups[i].Add(r)
					}
					groups[i].Broadcast([]byte("message"))
					o.give()
				}
			}
			after := heap()
			b.ReportMetric(float64(after-before)/float64(len(groups)), "bytes/group")
			b.ReportMetric(float64(after-before)/conns, "bytes/member")
			b.ReportMetric(0, "ns/op")
			runtime.KeepAlive(groups)
			runtime.KeepAlive(refs)
		})
	}
}

// BenchmarkGroupBroadcast is the time for each member, to post a message and to give it to the connections,
// with one that leaves and one that joins between two of them, or without.
func BenchmarkGroupBroadcast(b *testing.B) {
	for _, members := range []int{1, 10, 100, 1000, 10_000, 100_000, 1_000_000} {
		for _, churn := range []bool{false, true} {
			if churn && members == 1 {
				continue
			}
			b.Run(fmt.Sprintf("members=%d/churn=%v", members, churn), func(b *testing.B) {
				o := newMemoryBox()
				refs := o.open(members)
				var g Group
				for _, r := range refs {
					g.Add(r)
				}
				p := make([]byte, 64)
				var posting, giving, changing time.Duration
				for i := range b.N {
					start := time.Now()
					if churn {
						r := refs[i*7919%members]
						g.Remove(r)
						g.Add(r)
					}
					changed := time.Now()
					if sent, full := g.Broadcast(p); sent != members {
						b.Fatalf("sent to %d, no room for %d", sent, full)
					}
					posted := time.Now()
					if n := o.give(); n != members {
						b.Fatalf("%d messages have arrived", n)
					}
					changing += changed.Sub(start)
					posting += posted.Sub(changed)
					giving += time.Since(posted)
				}
				all := float64(b.N * members)
				b.ReportMetric(float64(posting)/all, "post-ns/member")
				b.ReportMetric(float64(giving)/all, "give-ns/member")
				if churn {
					b.ReportMetric(float64(changing)/float64(b.N), "churn-ns")
				}
			})
		}
	}
}

// BenchmarkGroupBurst is 32 messages to a group before any is given to the connections.
func BenchmarkGroupBurst(b *testing.B) {
	for _, members := range []int{10, 16, 20, 1000, 100_000} {
		b.Run(fmt.Sprint(members), func(b *testing.B) {
			o := newMemoryBox()
			var g Group
			for _, r := range o.open(members) {
				g.Add(r)
			}
			p := make([]byte, 64)
			for range b.N {
				for range 32 {
					g.Broadcast(p)
				}
				o.give()
			}
			b.ReportMetric(float64(b.Elapsed())/float64(b.N*members*32), "ns/message")
		})
	}
}

// BenchmarkGroupAdd is the time to add connections to a group, and to let them go.
func BenchmarkGroupAdd(b *testing.B) {
	for _, members := range []int{1, 10, 1000, 100_000, 1_000_000} {
		b.Run(fmt.Sprint(members), func(b *testing.B) {
			refs := newMemoryBox().open(members)
			var g Group
			var add, remove, slowest time.Duration
			for range b.N {
				start := time.Now()
				last := start
				for i, r := range refs {
					g.Add(r)
					if i%64 == 0 {
						now := time.Now()
						slowest = max(slowest, now.Sub(last))
						last = now
					}
				}
				added := time.Now()
				for _, r := range refs {
					g.Remove(r)
				}
				add += added.Sub(start)
				remove += time.Since(added)
			}
			all := float64(b.N * members)
			b.ReportMetric(float64(add)/all, "add-ns")
			b.ReportMetric(float64(remove)/all, "remove-ns")
			b.ReportMetric(float64(slowest.Microseconds()), "slowest-64-adds-us")
		})
	}
}
