package engine

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"
	"unsafe"
)

type hookedPoster struct {
	Poster
	hook func()
}

func (h *hookedPoster) Post(c *Conn, gen uint32, r Request) error {
	h.hook()
	return h.Poster.Post(c, gen, r)
}

type hookedChunkPoster struct {
	*mailboxOwner
	hook func()
}

func (h *hookedChunkPoster) PostToChunk(to *GroupChunk, s *Shared) PostOutcomes {
	h.hook()
	return h.mailboxOwner.PostToChunk(to, s)
}

func (o *mailboxOwner) openGroup(n int) (g *Group, refs []Ref) {
	g = new(Group)
	for i := range n {
		refs = append(refs, o.open(uint32(i)).Ref())
		g.Add(refs[i])
	}
	return g, refs
}

func TestGroupSize(t *testing.T) {
	if got := unsafe.Sizeof(Group{}); got > 40 {
		t.Errorf("a group is %d bytes, want at most 40", got)
	}
	r := newMailboxOwner(10, 100).open(1).Ref()
	var g Group
	if n := testing.AllocsPerRun(10, func() {
		g = Group{}
		g.Add(r)
		g.Remove(r)
		g.Add(r)
	}); n > 0 {
		t.Errorf("a group of one takes %v allocations, want none", n)
	}
}

func (g *Group) checkInvariants(t *testing.T) {
	t.Helper()
	if g.members == nil {
		return
	}
	if g.one != (Ref{}) {
		t.Fatal("a group has one and more")
	}
	seen := make(map[*Conn]bool)
	parts := func(l *connList) {
		t.Helper()
		for _, r := range l.refs {
			if seen[r.c] {
				t.Fatal("a connection is in the group twice")
			}
			seen[r.c] = true
		}
		if n := len(l.subscriptions); g.members.latest == nil && n > 0 || g.members.latest != nil && n != len(l.refs) {
			t.Fatalf("%d connections have %d parts in a topic", len(l.refs), n)
		}
	}
	parts(&g.members.list)
	s := g.members.set
	if s == nil {
		return
	}
	if len(g.members.list.refs) > 0 || s.count <= minSetLen || s.broadcasting || s.removed.nonEmpty.Load() {
		t.Fatalf("a set has %d, a list %d", s.count, len(g.members.list.refs))
	}
	for _, o := range s.tables {
		n := 0
		for i, m := range o.chunks {
			n += len(m.refs)
			parts(&m.connList)
			for _, r := range m.refs {
				if o.chunkIndex(r.c) != i || r.c.runtime != o.runtime {
					t.Fatalf("slot %d is in chunk %d, want %d", r.c.slot, i, o.chunkIndex(r.c))
				}
			}
		}
		if n != o.count || n == 0 {
			t.Fatalf("an owner has %d, %d are counted", n, o.count)
		}
		if k := len(o.chunks); k > 1 && 4*n < k*chunkFill {
			t.Fatalf("an owner has %d chunks for %d", k, n)
		}
	}
	if len(seen) != s.count {
		t.Fatalf("a set has %d, %d are counted", len(seen), s.count)
	}
}

// A group must behave like a map of any size. A Ref must not match a later connection in the same
// slot.
func TestGroupRandomly(t *testing.T) {
	for seed := range uint64(6) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) { randomGroup(t, rand.New(rand.NewPCG(seed, 0))) })
	}
}

func randomGroup(t *testing.T, dice *rand.Rand) {
	const conns, steps = 1500, 6000
	owners := []*mailboxOwner{newMailboxOwner(1<<20, 1<<20), newMailboxOwner(1<<20, 1<<20), newMailboxOwner(1<<20, 1<<20)}
	owners[2].host.Poster = &hookedPoster{owners[2], func() {}}
	var all []*Conn
	for i := range conns {
		all = append(all, owners[i%len(owners)].open(uint32(i*dice.IntN(3)+i)))
	}
	var g Group
	want := make(map[Ref]bool)
	var stale []Ref
	up := true
	for step := range steps {
		if step%1000 == 0 {
			up = !up
		}
		c := all[dice.IntN(conns)]
		switch n := dice.IntN(100); {
		case n < 15 && !up || n < 85 && up:
			g.Add(c.Ref())
			want[c.Ref()] = true
		case n < 85:
			for r := range want {
				g.Remove(r)
				delete(want, r)
				break
			}
		case n < 95:
			stale = append(stale, c.Ref())
			c.Abort(nil)
			c.OnClosed()
			c.OnOpen(loopback, false)
		case n < 97 && len(stale) > 0:
			g.Add(stale[dice.IntN(len(stale))])
			g.Remove(stale[dice.IntN(len(stale))])
		case n < 98:
			publishes(t, &g, want)
		case n < 99:
			broadcastAndCheck(t, &g, want, owners, fmt.Sprintf("%d,", step))
		}
		if step%100 == 0 {
			g.checkInvariants(t)
		}
	}
	for _, r := range append(slices.Collect(maps.Keys(want)), stale...) {
		g.Remove(r)
	}
	if g.Len() != 0 {
		t.Errorf("%d are left in the group", g.Len())
	}
}

// deleteClosed does what a broadcast does to a group.
func deleteClosed(want map[Ref]bool) {
	maps.DeleteFunc(want, func(r Ref, _ bool) bool { return r.IsClosed() })
}

func publishes(t *testing.T, g *Group, want map[Ref]bool) {
	t.Helper()
	deleteClosed(want)
	if sent, full := g.SendLatest([]byte("value")); sent != len(want) || full > 0 || g.Len() != len(want) {
		t.Fatalf("published to %d, no room for %d, %d in the group; want %d", sent, full, g.Len(), len(want))
	}
}

// broadcastAndCheck sends one or two messages and checks who has received them.
func broadcastAndCheck(t *testing.T, g *Group, want map[Ref]bool, owners []*mailboxOwner, p string) {
	t.Helper()
	deleteClosed(want)
	for range 2 {
		if sent, full := g.Broadcast([]byte(p)); sent != len(want) || full > 0 || g.Len() != len(want) {
			t.Fatalf("sent to %d, no room for %d, %d in the group; want %d", sent, full, g.Len(), len(want))
		}
	}
	n := 0
	for _, o := range owners {
		for c, got := range o.takeByConn() {
			text := strings.Join(got, "")
			if text == "" { // of a value
				continue
			}
			if n++; text != p+p || !want[c.Ref()] {
				t.Fatalf("a connection got %.20q, %v", text, want[c.Ref()])
			}
			c.dropOutput()
		}
	}
	if n != len(want) {
		t.Fatalf("%d got messages, want %d", n, len(want))
	}
}

// Chunks must be small, whatever the slots of the connections.
func TestGroupChunks(t *testing.T) {
	for _, stride := range []uint32{1, 7, 16, 100, 330, 1024, 10_007} {
		o := newMailboxOwner(1, 100)
		var g Group
		for i := range uint32(10_000) {
			g.Add(o.open(i * stride).Ref())
		}
		g.checkInvariants(t)
		for _, m := range g.members.set.snapshotChunks() {
			if n := len(m.refs); n > 4*chunkFill {
				t.Errorf("of every %dth slot a chunk has %d", stride, n)
			}
		}
	}
}

// A group must not keep owners without connections, nor chunks for few.
func TestGroupOwners(t *testing.T) {
	g, refs := newMailboxOwner(10, 100).openGroup(500)
	other := newMailboxOwner(10, 100).open(1).Ref()
	g.Add(other)
	for _, r := range refs[50:] {
		g.Remove(r)
	}
	g.checkInvariants(t)
	g.Remove(other)
	g.checkInvariants(t)
}

// Waiting messages to the same connections must be one request for each unchanged chunk.
func TestGroupMail(t *testing.T) {
	const conns, messages = 2000, 50
	o := newMailboxOwner(1<<20, 1<<20)
	g, refs := o.openGroup(conns)
	text, chunks := "", len(g.members.set.snapshotChunks())
	broadcast := func(messages, requests int) {
		t.Helper()
		for i := range messages {
			p := fmt.Sprintf("%d,", i)
			g.Broadcast([]byte(p))
			text += p
		}
		if n := len(o.box.queue); n != requests {
			t.Errorf("%d messages to %d chunks are %d pieces of mail, want %d", messages, chunks, n, requests)
		}
	}
	broadcast(messages, chunks)
	g.Remove(refs[0])
	broadcast(messages, chunks+1)
	wantErr(t, "Send", refs[1].Send([]byte("you,")), nil)
	broadcast(1, 2*chunks+2)
	for c, got := range o.takeByConn() {
		all, want := strings.Join(got, ""), text
		switch c {
		case refs[0].c:
			want = text[:len(all)]
		case refs[1].c:
			want = text[:len(text)-2] + "you," + text[len(text)-2:]
		}
		if all != want {
			t.Fatalf("a connection got %q, want %q", all, want)
		}
	}
	if o.box.batchSet != nil {
		t.Error("an empty mailbox keeps a set")
	}
}

// A connection that is removed during a broadcast must get the message before later ones, or not at
// all. A group reduced to one must be small afterwards.
func TestGroupLeaves(t *testing.T) {
	const conns = 1000
	for _, left := range []int{conns / 2, conns - 1} {
		for _, many := range []bool{true, false} {
			o := newMailboxOwner(1<<20, 1<<20)
			g, refs := o.openGroup(conns)
			leave := sync.OnceFunc(func() { // within a broadcast
				for _, r := range refs[:left] {
					g.Remove(r)
					wantErr(t, "Send", o.box.Put(r.c, r.generation, Request{Bytes: []byte("left")}), nil)
				}
			})
			if o.host.Poster = (&hookedPoster{o, leave}); many {
				o.host.Poster = &hookedChunkPoster{o, leave}
			}
			if sent, full := g.Broadcast([]byte("m")); sent != conns-left || full > 0 {
				t.Errorf("sent to %d, no room for %d; want %d, 0", sent, full, conns-left)
			}
			g.checkInvariants(t)
			got := o.takeByConn()
			for i, r := range refs {
				want := "[m]"
				if i < left {
					want = "[left]"
				}
				if text := fmt.Sprint(got[r.c]); text != want {
					t.Fatalf("connection %d got %s, want %s", i, text, want)
				}
			}
			if sent, _ := g.Broadcast([]byte("m")); sent != conns-left || g.Len() != sent {
				t.Errorf("sent to %d of %d afterwards, want %d", sent, g.Len(), conns-left)
			}
			if small := g.members == nil; small != (left == conns-1) {
				t.Errorf("a group of %d is small: %v", g.Len(), small)
			}
		}
	}
}

// Without broadcasts, a group must not grow while open connections are added and as many close.
func TestGroupOfClosing(t *testing.T) {
	for _, open := range []int{1, 2, 20, 1000} {
		o := newMailboxOwner(10, 100)
		g, refs := o.openGroup(open)
		most := 0
		for i := range 20 * open {
			refs[i%open].c.Abort(nil)
			refs[i%open] = o.open(uint32(open + i)).Ref()
			g.Add(refs[i%open])
			most = max(most, g.Len())
		}
		if most > 2*open+maxListLen {
			t.Errorf("%d are in a group with %d open ones", most, open)
		}
		g.checkInvariants(t)
		if open < maxListLen && g.members != nil && g.members.set != nil {
			t.Errorf("%d open connections and some closed ones are many", open)
		}
	}
}

// Values must reach members only, and an empty group keeps no value.
func TestGroupPublish(t *testing.T) {
	for _, conns := range []int{1, 5, 200} {
		o := newMailboxOwner(1<<20, 100)
		g, refs := o.openGroup(conns)
		want := func(when string, want int) {
			t.Helper()
			o.takeByConn()
			n := 0
			for _, r := range refs {
				if r.c.canWriteLatest() {
					r.c.writeSomeLatestValues()
				}
				if r.c.UnsentAndDroppedBytes() > 0 {
					n++
					r.c.OnSent(len(r.c.Output()))
				}
			}
			if n != want {
				t.Errorf("%d of %d got a value, %s; want %d", n, conns, when, want)
			}
		}
		g.SendLatest([]byte("a"))
		g.checkInvariants(t)
		want("at first", conns)
		g.SendLatest([]byte("b"))
		g.Remove(refs[0])
		want("when one has left", conns-1)
		g.Add(refs[0])
		g.SendLatest([]byte("c"))
		g.SendLatest([]byte("d"))
		want("when one has come back", conns)
		if sent, full := g.SendLatest(make([]byte, 101)); sent > 0 || full != conns {
			t.Errorf("too large a value: published to %d, no room for %d", sent, full)
		}
		for _, r := range refs {
			g.Remove(r)
		}
		if g.members != nil || g.Len() != 0 {
			t.Errorf("an empty group has %v", g.members)
		}
		if sent, full := g.SendLatest([]byte("e")); sent+full > 0 || g.members != nil {
			t.Errorf("an empty group: published to %d, no room for %d, %v", sent, full, g.members)
		}
	}
}

// A large group must take little memory, and joins and leaves between two broadcasts must not copy
// unchanged chunks.
func TestGroupMemory(t *testing.T) {
	const conns = 100_000
	o := newMailboxOwner(1<<20, 100)
	g, refs := o.openGroup(conns)
	checkBytes := func() {
		t.Helper()
		n := 0
		for _, owner := range g.members.set.tables {
			for _, m := range owner.chunks {
				n += int(unsafe.Sizeof(*m)+unsafe.Sizeof(m)) + cap(m.refs)*int(unsafe.Sizeof(Ref{}))
			}
		}
		if n /= conns; n > 32 {
			t.Errorf("%d bytes a connection, want at most 32", n)
		}
	}
	checkBytes()
	before := g.members.set.snapshotChunks()
	if n := len(before); n < conns/chunkFill || n > 2*conns/chunkFill {
		t.Errorf("%d connections have %d chunks", conns, n)
	}
	const changes = 5
	for i := range changes {
		g.Remove(refs[i*1000])
		g.Add(o.open(uint32(conns + i*1000)).Ref())
	}
	copied := 0
	for _, m := range g.members.set.snapshotChunks() {
		if !slices.Contains(before, m) {
			copied++
		}
	}
	if copied > 2*changes {
		t.Errorf("%d changes have copied %d chunks", 2*changes, copied)
	}
	g.Broadcast([]byte("x"))
	for i := 1; i < conns; i += 50 {
		g.Remove(refs[i])
		g.Add(refs[i])
	}
	checkBytes()
}
