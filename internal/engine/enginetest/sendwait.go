package enginetest

import (
	"context"
	"errors"
	"fmt"
	"io"
	"sync"
	"sync/atomic"

	"github.com/myriad-go/myriad/internal/engine"
)

var sendWaitCases = []testCase{
	{"SendWait is as fast as the client reads", sendWaitPaces},
	{"SendWait of long messages", sendWaitLong},
	{"SendWait from many goroutines", sendWaitMany},
	{"SendWait ends with its context, or the connection", sendWaitEnds},
	{"SendWait has a bound of senders", sendWaitBound},
	{"SendWait for a mailbox that is full", sendWaitMailbox},
	{"SendWait in a handler", sendWaitInHandler},
}

const (
	waitUnsent = 64 << 10
	waitHigh   = 32 << 10
	waitLow    = 8 << 10
)

func waterMarks(l *engine.Limits) {
	l.MaxUnsent, l.HighWater, l.LowWater = waitUnsent, waitHigh, waitLow
}

// kernelTakes is more than the kernel's buffers take for a client with small ones.
const kernelTakes = 12 << 20

// blocked is a client that does not read, with a goroutine that sends to it by SendWait, as
// much as there is room for.
type blocked struct {
	*client
	s      *server
	ref    engine.Ref
	cancel context.CancelCauseFunc
	all    []byte
	n      atomic.Int64 // how many of them were taken
	ended  chan error   // what the last SendWait has answered
}

func (b *bench) block() *blocked {
	b.Helper()
	s := b.serve(&Script{}, limited(waterMarks))
	k := &blocked{client: s.dial(), s: s, all: pattern(kernelTakes), ended: make(chan error, 1)}
	k.smallBuffers()
	k.ref = s.wantOpened(1)[0]
	ctx, cancel := context.WithCancelCause(context.Background())
	b.Cleanup(func() { cancel(nil) })
	k.cancel = cancel
	go func() { k.ended <- k.sendAll(ctx, 1000) }()
	eventually(b, "SendWait does not wait", func() bool {
		select {
		case err := <-k.ended:
			b.Fatalf("SendWait of %d bytes to a client that does not read: %v", k.n.Load(), err)
		default:
		}
		return k.unsent() > waitLow
	})
	return k
}

func (k *blocked) unsent() int64 { return k.n.Load() - k.s.Counters()[engine.BytesOut] }

// sendAll sends in pieces.
func (k *blocked) sendAll(ctx context.Context, size int) error {
	for {
		at := int(k.n.Load())
		if at == len(k.all) {
			return nil
		}
		m := min(size, len(k.all)-at)
		if err := k.ref.SendWait(ctx, k.all[at:at+m]); err != nil {
			return err
		}
		k.n.Add(int64(m))
		if n := k.unsent(); n > waitHigh {
			return fmt.Errorf("%d bytes are unsent, want %d at the most", n, waitHigh)
		}
	}
}

// end waits for the end of that, and gives what was taken.
func (k *blocked) end(want error) (sent string) {
	k.t.Helper()
	if err := receive(k.t, k.ended, "the end of SendWait"); !errors.Is(err, want) {
		k.t.Errorf("SendWait: %v, want %v", err, want)
	}
	return string(k.all[:k.n.Load()])
}

func sendWaitPaces(b *bench) {
	k := b.block()
	k.expect(string(k.all))
	k.end(nil)
	k.Close()
	k.s.wantClosed(io.EOF)
}

// sendWaitLong sends messages for which there is room only when little, or nothing, waits
// before them.
func sendWaitLong(b *bench) {
	const n = 60
	s := b.serve(&Script{}, limited(waterMarks))
	c := s.dial()
	c.smallBuffers()
	r := s.wantOpened(1)[0]
	if err := r.SendWait(b.Context(), make([]byte, waitUnsent+1)); !errors.Is(err, engine.ErrTooLarge) {
		b.Errorf("SendWait of more than MaxUnsent: %v, want %v", err, engine.ErrTooLarge)
	}
	sizes := []int{1, waitHigh, waitUnsent - waitLow, waitUnsent, 0}
	want := ""
	for i := range n {
		want += string(pattern(sizes[i%len(sizes)]))
	}
	sent := make(chan error, 1)
	go func() {
		for i := range n {
			if err := r.SendWait(context.Background(), pattern(sizes[i%len(sizes)])); err != nil {
				sent <- err
				return
			}
		}
		sent <- nil
	}()
	c.expect(want)
	if err := receive(b, sent, "the end of sending"); err != nil {
		b.Errorf("SendWait: %v", err)
	}
}

func sendWaitMany(b *bench) {
	const each = 300
	s := b.serve(&Script{}, limited(func(l *engine.Limits) {
		l.MaxMail, l.MaxUnsent, l.HighWater, l.LowWater = 8, 1000, 200, 50
	}))
	c := s.dial()
	r := s.wantOpened(1)[0]
	got := readAll(c)
	accepted := make([]int, senders)
	var wg sync.WaitGroup
	for i := range senders {
		wg.Go(func() {
			for ; accepted[i] < each; accepted[i]++ {
				if err := r.SendWait(b.Context(), fmt.Appendf(nil, "%d:%d\n", i, accepted[i])); err != nil {
					b.Errorf("SendWait: %v", err)
					return
				}
			}
		})
	}
	wg.Wait()
	c.endSending()
	checkMail(b, receive(b, got, "the end of the connection"), accepted)
	s.wantClosed(io.EOF)
}

func sendWaitEnds(b *bench) {
	enough := errors.New("enough")
	k := b.block()
	k.cancel(enough)
	sent := k.end(enough)
	ctx, cancel := context.WithCancelCause(b.Context())
	cancel(enough)
	if err := k.ref.SendWait(ctx, []byte("x")); !errors.Is(err, enough) {
		b.Errorf("SendWait with a context that has ended: %v, want its cause", err)
	}
	if err := k.ref.Close(); err != nil {
		b.Errorf("Close: %v", err)
	}
	k.expectEnd(sent)
	k.Close()
	k.s.wantClosed(nil)
	if err := k.ref.SendWait(b.Context(), []byte("x")); !errors.Is(err, engine.ErrClosed) {
		b.Errorf("SendWait to a closed connection: %v, want %v", err, engine.ErrClosed)
	}

	k = b.block()
	k.reset()
	k.end(engine.ErrClosed)

	k = b.block()
	if err := k.ref.Close(); err != nil {
		b.Errorf("Close: %v", err)
	}
	k.end(engine.ErrClosed)
	if _, err := io.Copy(io.Discard, k); err != nil { // what came behind the close is not sent
		b.Errorf("client: %v, want the end", err)
	}
}

// sendWaitBound has senders wait for an owner that is held up.
func sendWaitBound(b *bench) {
	h := newHolder()
	s := b.serve(&Script{}, h.with, limited(waterMarks))
	c := s.dial()
	r := s.wantOpened(1)[0]
	h.hold(b, r)
	first := string(pattern(waitHigh))
	if err := r.SendWait(b.Context(), []byte(first)); err != nil {
		b.Errorf("SendWait where there is room: %v", err)
	}
	ctx, cancel := context.WithCancel(b.Context())
	var wg sync.WaitGroup
	var refused atomic.Int64
	for range 2 * engine.MaxSenders {
		wg.Go(func() {
			switch err := r.SendWait(ctx, []byte("x")); {
			case errors.Is(err, engine.ErrFull):
				refused.Add(1)
			case !errors.Is(err, context.Canceled):
				b.Errorf("SendWait: %v", err)
			}
		})
	}
	eventually(b, "too many senders wait", func() bool { return refused.Load() == engine.MaxSenders })
	cancel()
	wg.Wait()
	close(h.release)
	c.expect(first)
	if err := r.SendWait(b.Context(), []byte("goes on")); err != nil {
		b.Errorf("SendWait when all has been read: %v", err)
	}
	c.expect("goes on")
}

// sendWaitMailbox has what is sent wait for an owner that is held up.
func sendWaitMailbox(b *bench) {
	const most, n = 4, 3 * 4
	h := newHolder()
	s := b.serve(&Script{}, h.with, limited(func(l *engine.Limits) { l.MaxMail = most }))
	c := s.dial()
	r := s.wantOpened(1)[0]
	h.hold(b, r)
	var sent atomic.Int64
	done := make(chan error, 1)
	go func() {
		for i := range n {
			if err := r.SendWait(context.Background(), fmt.Appendf(nil, "%d\n", i)); err != nil {
				done <- err
				return
			}
			sent.Add(1)
		}
		done <- nil
	}()
	eventually(b, "the mailbox is not full", func() bool { return sent.Load() == most })
	close(h.release)
	for i := range n {
		c.expect(fmt.Sprintf("%d\n", i))
	}
	if err := receive(b, done, "the end of sending"); err != nil {
		b.Errorf("SendWait: %v", err)
	}
	if sent.Load() != n {
		b.Errorf("%d messages were sent, want %d", sent.Load(), n)
	}
}

// sendWaitInHandler finds that a loop is not held up.
func sendWaitInHandler(b *bench) {
	answer := make(chan error, 1)
	s := b.serve(&Script{Nudged: func(c *engine.Conn) {
		var err error
		for err == nil {
			err = c.Ref().SendWait(context.Background(), make([]byte, waitLow))
		}
		answer <- err
	}}, limited(waterMarks))
	if s.Loops() == 0 {
		return // there is no loop to hold up
	}
	s.dial()
	if err := s.wantOpened(1)[0].Nudge(); err != nil {
		b.Errorf("Nudge: %v", err)
	}
	if err := receive(b, answer, "Nudged"); !errors.Is(err, engine.ErrOnLoop) {
		b.Errorf("SendWait on a loop: %v, want %v", err, engine.ErrOnLoop)
	}
}
