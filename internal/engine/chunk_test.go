package engine

import (
	"fmt"
	"strings"
	"testing"
)

func (o *mailboxOwner) PostToChunk(to *GroupChunk, s *Shared) PostOutcomes {
	return o.box.PutSharedForEachOpenInChunk(to, s)
}

// takeByConn takes the requests and returns them by connection, expanding chunks two connections at
// a time.
func (o *mailboxOwner) takeByConn() map[*Conn][]string {
	mail, data := o.box.TakeQueued()
	got := make(map[*Conn][]string)
	for _, m := range mail {
		for next := 0; ; {
			n := 0
			next = m.ForEachConn(next, 2, func(m QueuedRequest) {
				p := data[:m.Size]
				data = data[m.Size:]
				if m.shared != nil {
					p = m.shared.Bytes
				}
				got[m.Conn] = append(got[m.Conn], string(p))
				m.Conn.HandleOrDeferForPendingLayer(m, p)
				n++
			})
			if n > 4 {
				panic("more connections at once than were asked for")
			}
			if next == 0 {
				if m.batch != nil && m.batch.messages != nil {
					panic("mail that was given out keeps its messages")
				}
				break
			}
		}
	}
	o.box.Recycle(mail, data)
	return got
}

func (o *mailboxOwner) openChunk(n int) (conns []*Conn, to *GroupChunk) {
	var refs []Ref
	for i := range n {
		conns = append(conns, o.open(uint32(i)))
		refs = append(refs, conns[i].Ref())
	}
	return conns, &GroupChunk{connList: connList{refs: refs}, set: new(connSet)}
}

func wantSent(t *testing.T, to *GroupChunk, p string, sent, full, closed int) {
	t.Helper()
	if got := to.broadcastShared(&Shared{Bytes: []byte(p)}); got.sent != sent || got.full != full || len(got.closed) != closed {
		t.Errorf("%.10q was sent to %d, no room for %d, %d closed; want %d, %d, %d",
			p, got.sent, got.full, len(got.closed), sent, full, closed)
	}
}

// Consecutive messages to a chunk are merged, but not across other requests. A connection whose
// limit is exceeded misses only that message.
func TestMany(t *testing.T) {
	o := newMailboxOwner(1000, 100)
	conns, to := o.openChunk(5)
	wantSent(t, to, "a", 5, 0, 0)
	wantSent(t, to, "b", 5, 0, 0)
	wantErr(t, "Send", conns[1].Ref().Send(make([]byte, 95)), nil)
	wantSent(t, to, "c", 5, 0, 0)
	wantSent(t, to, "four", 4, 1, 0)
	wantSent(t, to, "e", 5, 0, 0)
	wantSent(t, to, strings.Repeat("x", 101), 0, 5, 0)
	if n := len(o.box.queue); n != 3 {
		t.Errorf("%d pieces of mail wait, want 3", n)
	}
	got := o.takeByConn()
	for i, c := range conns {
		want := []string{"ab", "cfoure"}
		if i == 1 {
			want = []string{"ab", string(make([]byte, 95)), "c", "e"}
		}
		if fmt.Sprintf("%q", got[c]) != fmt.Sprintf("%q", want) {
			t.Errorf("connection %d got %q, want %q", i, got[c], want)
		}
		if n, want := c.refState.postedBytes(), len(strings.Join(want, "")); n != want {
			t.Errorf("connection %d: %d bytes are posted, want %d", i, n, want)
		}
		c.OnSent(len(c.Output()))
		if n := c.refState.postedBytes(); n != 0 {
			t.Errorf("connection %d: %d bytes are posted when all is sent", i, n)
		}
	}
	conns[0].Abort(nil)
	wantSent(t, to, "f", 4, 0, 1)
	wantSent(t, to, "", 4, 0, 1)
	conns[2].Abort(nil) // with requests on their way
	o.takeByConn()
	for i, c := range conns {
		c.dropOutput()
		if n := c.refState.postedBytes(); n != 0 {
			t.Errorf("connection %d: %d bytes are posted at the end", i, n)
		}
	}
	o.box.RejectFurtherPosts()
	wantSent(t, to, "g", 0, 0, 5)
}

// A request for a chunk counts once, and its merged messages are limited to the size of a buffer.
func TestManyIsBounded(t *testing.T) {
	const most = 10
	o := newMailboxOwner(most, mailBytes)
	_, to := o.openChunk(4)
	for range most {
		wantSent(t, to, "a", 4, 0, 0)
	}
	wantSent(t, to, "b", 0, 4, 0)
	o.takeByConn()
	p := strings.Repeat("x", maxPieceSize/2)
	wantSent(t, to, p, 4, 0, 0)
	wantSent(t, to, p, 4, 0, 0)
	wantSent(t, to, "y", 4, 0, 0)
	if n := len(o.box.queue); n != 2 {
		t.Errorf("%d bytes are %d pieces of mail, want 2", 2*len(p)+1, n)
	}
	o = newMailboxOwner(most, 20)
	_, to = o.openChunk(4)
	wantSent(t, to, "ten bytes.", 4, 0, 0)
	wantSent(t, to, "ten bytes.", 4, 0, 0)
	wantSent(t, to, "z", 0, 4, 0)
}
