package enginetest

import (
	"errors"
	"fmt"
	"io"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/myriad-go/myriad/internal/engine"
)

var mailCases = []testCase{
	{"Send from ten goroutines", sendConcurrently},
	{"Send while the client half-closes", sendAtHalfClose},
	{"Send to a client that does not read", sendUntilFull},
	{"Send from one connection's handler to another", sendToAnother},
	{"Ref after its connection has closed", refAfterClose},
	{"Ref after its slot was used again", refAfterReuse},
	{"Close from outside", closeFromOutside},
	{"Nudge", nudge},
	{"Send to a connection that has been reset", mailAtReset},
}

const senders = 10

// sendAll sends n messages "sender:number" to r, from each of ten goroutines,
// until done or refused with ErrClosed. It says how many were accepted of each.
func sendAll(b *bench, r engine.Ref, n int) (accepted []int) {
	accepted = make([]int, senders)
	var wg sync.WaitGroup
	for s := range senders {
		wg.Go(func() {
			for accepted[s] < n {
				switch err := r.Send(fmt.Appendf(nil, "%d:%d\n", s, accepted[s])); {
				case err == nil:
					accepted[s]++
				case errors.Is(err, engine.ErrFull):
					runtime.Gosched()
				case errors.Is(err, engine.ErrClosed):
					return
				default:
					b.Errorf("Send: %v", err)
					return
				}
			}
		})
	}
	wg.Wait()
	return accepted
}

// checkMail checks that what a client got is each sender's messages in order.
func checkMail(b *bench, got string, accepted []int) {
	b.Helper()
	next := make([]int, senders)
	for line := range strings.Lines(got) {
		var s, i int
		if _, err := fmt.Sscanf(line, "%d:%d\n", &s, &i); err != nil || s < 0 || s >= senders {
			b.Fatalf("client: got line %q: %v", line, err)
		}
		if i != next[s] {
			b.Fatalf("client: got message %d of sender %d when %d was due", i, s, next[s])
		}
		next[s]++
	}
	for s := range senders {
		if next[s] != accepted[s] {
			b.Errorf("client: got %d messages of sender %d, %d were accepted", next[s], s, accepted[s])
		}
	}
}

func sendConcurrently(b *bench) {
	const each = 300
	s := b.serve(&Script{}, limited(func(l *engine.Limits) { l.MaxMail = 64 }))
	c := s.dial()
	r := s.wantOpened(1)[0]
	got := readAll(c)
	accepted := sendAll(b, r, each)
	for s, n := range accepted {
		if n != each {
			b.Errorf("%d messages of sender %d were accepted, want %d", n, s, each)
		}
	}
	c.endSending()
	checkMail(b, receive(b, got, "the end of the connection"), accepted)
	s.wantClosed(io.EOF)
}

// readAll reads to the end in the background.
func readAll(c *client) <-chan string {
	got := make(chan string, 1)
	go func() {
		all, err := io.ReadAll(c)
		if err != nil {
			c.t.Errorf("client: got %d bytes, then %v instead of the end", len(all), err)
		}
		got <- string(all)
	}()
	return got
}

// sendAtHalfClose has the connection close in order while others send: what
// was accepted must arrive.
func sendAtHalfClose(b *bench) {
	s := b.serve(&Script{})
	for i := range 20 {
		c := s.dial()
		r := s.wantOpened(i + 1)[i]
		got := readAll(c)
		var once sync.Once
		go once.Do(func() { c.CloseWrite() })
		accepted := sendAll(b, r, 1<<30)
		checkMail(b, receive(b, got, "the end of the connection"), accepted)
	}
}

func sendUntilFull(b *bench) {
	const unsent = 64 << 10
	s := b.serve(&Script{}, limited(func(l *engine.Limits) { l.MaxUnsent = unsent }))
	c := s.dial()
	c.smallBuffers()
	r := s.wantOpened(1)[0]
	if err := r.Send(make([]byte, unsent+1)); !errors.Is(err, engine.ErrTooLarge) {
		b.Errorf("Send of more than MaxUnsent: %v, want %v", err, engine.ErrTooLarge)
	}
	// The kernel takes some, then the connection owes MaxUnsent, and stays
	// full. Each full answer is followed by one for half as much.
	sent := 0
	for size := unsent; size > 0; {
		switch err := r.Send(make([]byte, size)); {
		case err == nil:
			sent += size
		case errors.Is(err, engine.ErrFull):
			if n := s.Counters(); n[engine.BytesOut] == int64(sent) {
				continue // all was sent: this was the mailbox
			}
			size /= 2
		default:
			b.Fatalf("Send: %v", err)
		}
	}
	c.expect(string(make([]byte, sent)))
	eventually(b, "Send is still refused when all has been read", func() bool { return r.Send([]byte("again")) == nil })
	c.expect("again")
}

func sendToAnother(b *bench) {
	var other atomic.Pointer[engine.Ref]
	s := b.serve(&Script{Received: func(c *engine.Conn, in []byte) int {
		r := c.Ref()
		if to := other.Swap(&r); to != nil {
			if err := to.Send(in); err != nil {
				b.Errorf("Send: %v", err)
			}
		}
		return len(in)
	}})
	clients := []*client{s.dial(), s.dial(), s.dial(), s.dial()}
	clients[0].send("first\n")
	eventually(b, "the first handler does not run", func() bool { return other.Load() != nil })
	for i := range 100 {
		from, to := clients[(i+1)%4], clients[i%4]
		line := fmt.Sprintf("message %d\n", i)
		from.send(line)
		to.expect(line)
	}
}

func wantClosedRef(b *bench, r engine.Ref) {
	b.Helper()
	if err := r.Send([]byte("wrong")); !errors.Is(err, engine.ErrClosed) {
		b.Errorf("Send to a closed connection: %v, want %v", err, engine.ErrClosed)
	}
	if err := r.Close(); !errors.Is(err, engine.ErrClosed) {
		b.Errorf("Close of a closed connection: %v, want %v", err, engine.ErrClosed)
	}
	if err := r.Nudge(); !errors.Is(err, engine.ErrClosed) {
		b.Errorf("Nudge of a closed connection: %v, want %v", err, engine.ErrClosed)
	}
}

func refAfterClose(b *bench) {
	inClosed := make(chan error, 1)
	s := b.serve(&Script{Closed: func(c *engine.Conn, _ error) { inClosed <- c.Ref().Send([]byte("late")) }})
	c := s.dial()
	r := s.wantOpened(1)[0]
	c.Close()
	if err := receive(b, inClosed, "Closed"); !errors.Is(err, engine.ErrClosed) {
		b.Errorf("Send in Closed: %v, want %v", err, engine.ErrClosed)
	}
	s.wantClosed(io.EOF)
	wantClosedRef(b, r)
}

func refAfterReuse(b *bench) {
	s := b.serve(echo())
	first := s.dial()
	old := s.wantOpened(1)[0]
	first.Close()
	s.wantClosed(io.EOF)
	owner, slot, _ := old.Slot()
	var clients []*client
	for reused := false; !reused; {
		if len(clients) > 100 {
			b.Fatalf("slot %d of loop %d is not used again by %d connections", slot, owner, len(clients))
		}
		clients = append(clients, s.dial())
		o, n, _ := s.wantOpened(len(clients) + 1)[len(clients)].Slot()
		reused = o == owner && n == slot
	}
	wantClosedRef(b, old)
	for _, c := range clients {
		c.exchange("right")
	}
}

func closeFromOutside(b *bench) {
	s := b.serve(&Script{})
	c := s.dial()
	r := s.wantOpened(1)[0]
	if err := r.Send([]byte("goodbye")); err != nil {
		b.Errorf("Send: %v", err)
	}
	if err := r.Close(); err != nil {
		b.Errorf("Close: %v", err)
	}
	c.expectEnd("goodbye")
	c.Close()
	s.wantClosed(nil)
}

func nudge(b *bench) {
	s := b.serve(&Script{Nudged: func(c *engine.Conn) { c.WriteString("awake") }})
	c := s.dial()
	r := s.wantOpened(1)[0]
	for range 3 {
		if err := r.Nudge(); err != nil {
			b.Errorf("Nudge: %v", err)
		}
		c.expect("awake")
	}
	c.Close()
	s.wantClosed(io.EOF)
}
