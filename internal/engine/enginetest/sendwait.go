package enginetest

import (
	"context"
	"errors"
	"fmt"
	"io"
	"sync"
	"sync/atomic"

	"github.com/myriad-go/myriad/internal/engine"
	"github.com/myriad-go/myriad/internal/testkit"
)

var sendWaitCases = []testCase{
	{"SendWait is as fast as the client reads", testSendWaitBlocks},
	{"SendWait from ten goroutines", func(b *testEnv) {
		testConcurrentSend(b, func(r engine.Ref) func([]byte) error {
			return func(p []byte) error { return r.SendWait(b.Context(), p) }
		}, func(l *engine.Limits) { l.MaxMail, l.MaxUnsent, l.HighWater, l.LowWater = 8, 1000, 200, 50 })
	}},
	{"SendWait ends with its context, or the connection", testSendWaitEnds},
}

const (
	waitHigh = 32 << 10
	waitLow  = 8 << 10
)

// kernelTakes exceeds what the kernel buffers for a client with small socket buffers.
const kernelTakes = 12 << 20

// blocked is a client that does not read, with a goroutine that sends to it by SendWait.
type blocked struct {
	*client
	s      *server
	ref    engine.Ref
	cancel context.CancelCauseFunc
	all    []byte
	n      atomic.Int64 // bytes accepted so far
	ended  chan error   // error of the last SendWait
}

func (b *testEnv) startBlockedConn() *blocked {
	b.Helper()
	s := b.startServer(&Script{}, limited(func(l *engine.Limits) { l.MaxUnsent, l.HighWater, l.LowWater = 2*waitHigh, waitHigh, waitLow }))
	k := &blocked{client: s.dial(), s: s, all: testPattern(kernelTakes), ended: make(chan error, 1)}
	k.shrinkSocketBuffers()
	k.ref = s.wantOpened(1)[0]
	ctx, cancel := context.WithCancelCause(context.Background())
	b.Cleanup(func() { cancel(nil) })
	k.cancel = cancel
	go func() { k.ended <- k.sendUntilError(ctx, 1000) }()
	testkit.WaitFor(b, "SendWait does not wait", func() bool {
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

// sendUntilError sends in pieces of size bytes.
func (k *blocked) sendUntilError(ctx context.Context, size int) error {
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

// awaitEnd waits for the goroutine's error and returns what was sent.
func (k *blocked) awaitEnd(want error) (sent string) {
	k.t.Helper()
	if err := testkit.Receive(k.t, k.ended, "the end of SendWait"); !errors.Is(err, want) {
		k.t.Errorf("SendWait: %v, want %v", err, want)
	}
	return string(k.all[:k.n.Load()])
}

func testSendWaitBlocks(b *testEnv) {
	k := b.startBlockedConn()
	k.Expect(string(k.all))
	k.awaitEnd(nil)
	k.Close()
	k.s.wantClosed(io.EOF)
}

func testSendWaitEnds(b *testEnv) {
	enough := errors.New("enough")
	k := b.startBlockedConn()
	k.cancel(enough)
	sent := k.awaitEnd(enough)
	ctx, cancel := context.WithCancelCause(b.Context())
	cancel(enough)
	if err := k.ref.SendWait(ctx, []byte("x")); !errors.Is(err, enough) {
		b.Errorf("SendWait with a context that has ended: %v, want its cause", err)
	}
	b.checkNoError(k.ref.Close())
	k.ExpectEOF(sent)
	k.Close()
	k.s.wantClosed(nil)
	if err := k.ref.SendWait(b.Context(), []byte("x")); !errors.Is(err, engine.ErrClosed) {
		b.Errorf("SendWait to a closed connection: %v, want %v", err, engine.ErrClosed)
	}

	k = b.startBlockedConn()
	k.Reset()
	k.awaitEnd(engine.ErrClosed)

	k = b.startBlockedConn()
	b.checkNoError(k.ref.Close())
	k.awaitEnd(engine.ErrClosed)
	if _, err := io.Copy(io.Discard, k); err != nil { // data after the close is not sent
		b.Errorf("client: %v, want the end", err)
	}

	k = b.startBlockedConn()
	k.cancel(enough)
	k.awaitEnd(enough)
	k.waitTooMany(b)
}

// waitTooMany starts more senders than may wait. Those that wait end with their context.
func (k *blocked) waitTooMany(b *testEnv) {
	ctx, cancel := context.WithCancel(b.Context())
	var senders sync.WaitGroup
	var refused, sent atomic.Int64 // sent only if the kernel takes more
	for range 2 * engine.MaxSenders {
		senders.Go(func() {
			switch err := k.ref.SendWait(ctx, make([]byte, 2*waitHigh)); {
			case err == nil:
				sent.Add(1)
			case errors.Is(err, engine.ErrFull):
				refused.Add(1)
			case !errors.Is(err, context.Canceled):
				b.Errorf("SendWait: %v", err)
			}
		})
	}
	testkit.WaitFor(b, "too many senders wait", func() bool { return refused.Load() > 0 && refused.Load()+sent.Load() >= engine.MaxSenders })
	cancel()
	senders.Wait()
}
