package engine

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"testing"
	"testing/synctest"
	"time"
)

var admitAll = NewAdmission(&Config{Limits: Limits{MaxConns: 1 << 20}})

// mailBytes is the mailbox's limit in these tests.
const mailBytes = 1 << 20

type mailboxOwner struct {
	box  Mailbox
	host Runtime
}

func newMailboxOwner(maxMail, maxUnsent int) *mailboxOwner {
	o := &mailboxOwner{box: Mailbox{MaxRequests: maxMail, MaxBytes: mailBytes}}
	o.host = Runtime{
		Config: Config{
			Limits:  Limits{MaxMail: maxMail, MaxUnsent: maxUnsent, HighWater: maxUnsent / 2, LowWater: maxUnsent / 2},
			Handler: &recordingHandler{},
		},
		Admission: admitAll, Poster: o, Counters: &Counters{}, Buffers: &FreeList{}, Index: 7,
		Now: func() time.Duration { return 0 },
	}
	return o
}

func (o *mailboxOwner) Post(c *Conn, gen uint32, r Request) error {
	return o.box.Put(c, gen, r)
}

func (o *mailboxOwner) open(slot uint32) *Conn {
	c := &Conn{}
	c.Bind(&o.host, slot, 0)
	c.OnOpen(loopback, false)
	return c
}

func wantErr(t *testing.T, what string, got, want error) {
	t.Helper()
	if !errors.Is(got, want) {
		t.Errorf("%s: error %v, want %v", what, got, want)
	}
}

func TestMailboxBoundsBytes(t *testing.T) {
	o := newMailboxOwner(100, 2*mailBytes)
	big := make([]byte, mailBytes+1)
	wantErr(t, "a message over the bound into an empty box", o.open(1).Ref().Send(big), nil)
	wantErr(t, "a byte more", o.open(2).Ref().Send([]byte("x")), ErrFull)
	wantErr(t, "a request to close", o.open(3).Ref().Close(), nil)
	o.box.TakeQueued()
	wantErr(t, "a message of the bound", o.open(4).Ref().Send(big[1:]), nil)
	wantErr(t, "a byte more", o.open(5).Ref().Send([]byte("x")), ErrFull)
}

func TestMailboxClose(t *testing.T) {
	o := newMailboxOwner(10, 100)
	r := o.open(1).Ref()
	wantErr(t, "Send", r.Send([]byte("before")), nil)
	o.box.RejectFurtherPosts()
	wantErr(t, "Send after Close", r.Send([]byte("after")), ErrClosed)
	wantErr(t, "Close after Close", r.Close(), ErrClosed)
	if mail, data := o.box.TakeQueued(); len(mail) != 1 || string(data) != "before" {
		t.Errorf("took %d messages, %q; want the one from before", len(mail), data)
	}
}

// A request overtakes delayed output for other connections, and ends the delay of output for its own.
func TestMailboxDelay(t *testing.T) {
	o := newMailboxOwner(100, 1000)
	o.host.WriteDelay = time.Second
	o.box.Counters = o.host.Counters
	o.box.EnableOutputDelay(&o.host.Config)
	var refs []Ref
	for slot := range uint32(3) {
		refs = append(refs, o.open(slot).Ref())
	}
	want := func(what string, kinds ...RequestKind) {
		t.Helper()
		var got []RequestKind
		if o.box.HasRequests() {
			mail, data := o.box.TakeQueued()
			for _, m := range mail {
				got = append(got, m.Kind)
			}
			o.host.Counters.Add(Buffered, -int64(o.box.Recycle(mail, data)))
		}
		if !slices.Equal(got, kinds) {
			t.Errorf("%s: took %v, want %v", what, got, kinds)
		}
	}
	wantErr(t, "Send", refs[0].Send([]byte("x")), nil)
	if !o.box.MustWakeOwnerAfterPut(nil) || o.box.MustWakeOwnerAfterPut(nil) {
		t.Error("the owner must be woken once to set its timer")
	}
	wantErr(t, "Close of another", refs[1].Close(), nil)
	want("a request for another connection", RequestClose)
	wantErr(t, "Nudge of another", refs[2].Nudge(), nil)
	wantErr(t, "Nudge", refs[0].Nudge(), nil)
	want("a request behind output", RequestNudge, RequestSend, RequestNudge)
	if _, ok := o.box.EnsureDelayEnd(&o.host); ok {
		t.Error("a delay ends, of an empty mailbox")
	}
	for range 25 {
		want("few messages")
		wantErr(t, "Send", refs[0].Send([]byte("x")), nil)
	}
	want("a quarter of the limit", slices.Repeat([]RequestKind{RequestSend}, 25)...)
	if n := o.host.Counters.Get(Buffered); n != 0 {
		t.Errorf("%d bytes are counted for an empty mailbox", n)
	}
}

// A growing mailbox must grow in proportion, and one with few requests must reuse its memory.
func TestMailboxRoom(t *testing.T) {
	const n, size = 1000, 8 << 10
	fill := func(o *mailboxOwner, n int) func() {
		r, p := o.open(1).Ref(), make([]byte, size)
		return func() {
			for range n {
				wantErr(t, "Send", r.Send(p), nil)
			}
			mail, data := o.box.TakeQueued()
			r.c.releasePostedAndWakeIfLow(len(data))
			o.box.Recycle(mail, data)
		}
	}
	much := newMailboxOwner(n, n*size)
	much.box.MaxBytes = n * size
	if allocs := testing.AllocsPerRun(1, fill(much, n)); allocs > 100 {
		t.Errorf("%v allocations for %d messages, want few", allocs, n)
	}
	batch := fill(newMailboxOwner(n, n*size), maxKeptData/size)
	batch() // AllocsPerRun calls it once more; so both buffers, which take turns, have grown
	if allocs := testing.AllocsPerRun(10, batch); allocs > 0 {
		t.Errorf("%v allocations for each batch of %d bytes, want none", allocs, maxKeptData)
	}
}

// TestMark must count bytes beside the generation, and track waiting senders.
func TestMark(t *testing.T) {
	var m generationAndPosted
	m.v.Store(1<<64 - 1<<32)
	wantErr(t, "reserve in the last generation", m.reservePostedBytes(1<<32-1, 5, 10), nil)
	if m.startNextGeneration(); m.generation() != 0 || m.postedBytes() != 5 {
		t.Errorf("generation %d with %d bytes after the last one, want 0 with 5", m.generation(), m.postedBytes())
	}
	m = generationAndPosted{}
	wantErr(t, "reserve", m.reservePostedBytes(0, 10, 10), nil)
	for _, c := range []struct {
		gen  uint32
		most int
		want bool
	}{{0, 10, false}, {1, 5, false}, {0, 5, true}, {0, 0, true}} {
		if got := m.markSenderWaitingIfAbove(c.gen, c.most); got != c.want {
			t.Errorf("await of %d bytes in generation %d is %v", c.most, c.gen, got)
		}
	}
	if m.postedBytes() != 10 || m.advanceGenerationIfNonePosted() {
		t.Errorf("%d bytes are posted, want 10, and it can't retire", m.postedBytes())
	}
	wantErr(t, "reserve over the limit", m.reservePostedBytes(0, 1, 10), ErrFull)
	wantErr(t, "reserve while somebody waits", m.reservePostedBytes(0, 5, 15), nil)
	if left, wanted := m.releasePostedBytes(5); left != 10 || !wanted {
		t.Errorf("release leaves %d, %v; want 10, and that somebody waits", left, wanted)
	}
	if !m.startNextGeneration() {
		t.Error("next does not say that somebody waits")
	}
	m.clearSenderWaiting()
	if left, wanted := m.releasePostedBytes(10); left != 0 || wanted || m.generation() != 1 {
		t.Errorf("release leaves %d, %v in generation %d; want 0, nobody, 1", left, wanted, m.generation())
	}
}

// Waiting senders must be woken in order, as many as there is space for. One that does not try
// again must not block the next. They give up after WriteTimeout.
func TestMailboxWakesSendersInOrder(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const senders, size = 6, mailBytes / waitersShare / 2
		o := newMailboxOwner(100, mailBytes)
		first := o.open(0)
		wantErr(t, "SendWait to an empty box", first.Ref().SendWait(t.Context(), make([]byte, 2*size)), nil)
		var conns [senders]*Conn
		var errs [senders]error
		ctx, cancel := context.WithCancel(t.Context())
		for i := range conns {
			conns[i] = o.open(uint32(i + 1))
			r := conns[i].Ref()
			go func() { errs[i] = r.SendWait(ctx, make([]byte, size)) }()
			synctest.Wait() // it waits behind those before
		}
		take := func(want ...*Conn) {
			t.Helper()
			mail, data := o.box.TakeQueued()
			var got []*Conn
			for _, m := range mail {
				got = append(got, m.Conn)
				m.Conn.releasePostedAndWakeIfLow(int(m.Size))
			}
			o.box.Recycle(mail, data)
			slices.SortFunc(got, func(a, b *Conn) int { return cmp.Compare(a.slot, b.slot) }) // those woken at once
			if !slices.Equal(got, want) {
				t.Errorf("took %d pieces of mail, want %d", len(got), len(want))
			}
			synctest.Wait()
		}
		conns[2].invalidateRefsAndStartClosing(nil) // and conns[3] comes instead, as the box is empty then
		conns[3].invalidateRefsAndStartClosing(nil)
		take(first)
		take(conns[0], conns[1])
		take(conns[4], conns[5])
		if want := [senders]error{2: ErrClosed, 3: ErrClosed}; errs != want {
			t.Errorf("the senders got %v, want %v", errs, want)
		}
		take()

		o.host.Limits.WriteTimeout = time.Minute
		wantErr(t, "SendWait", first.Ref().SendWait(t.Context(), make([]byte, size)), nil)
		wantErr(t, "SendWait", conns[0].Ref().SendWait(t.Context(), make([]byte, size)), nil)
		began := time.Now()
		wantErr(t, "SendWait to a box that nobody empties", conns[1].Ref().SendWait(ctx, make([]byte, size)), ErrWriteTimeout)
		if took := time.Since(began); took != time.Minute {
			t.Errorf("it has waited %v, want %v", took, time.Minute)
		}
		cancel()
		if len(o.box.waiting) != 0 || o.box.wokenBytes != 0 {
			t.Errorf("%d senders wait, and %d bytes are to come; want none", len(o.box.waiting), o.box.wokenBytes)
		}
	})
}

func TestRefOfReusedSlot(t *testing.T) {
	o := newMailboxOwner(10, 100)
	c := o.open(1)
	old := c.Ref()
	c.CloseWith(nil)
	c.OnClosed()
	c.OnOpen(loopback, false)
	wantErr(t, "Send to the connection before", old.Send([]byte("x")), ErrClosed)
	wantErr(t, "Put for the connection before", o.box.Put(c, old.generation, Request{Kind: RequestSend, Bytes: []byte("x")}), ErrClosed)
	wantErr(t, "Send to this one", c.Ref().Send([]byte("x")), nil)
	if mail, _ := o.box.TakeQueued(); len(mail) != 1 {
		t.Errorf("took %d messages, want 1", len(mail))
	}
}
