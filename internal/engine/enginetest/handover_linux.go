package enginetest

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/myriad-go/myriad/internal/engine"
	"github.com/myriad-go/myriad/internal/sock"
	"github.com/myriad-go/myriad/internal/testkit"
)

func init() {
	handoverCases = []testCase{
		{"hand over", testExport},
		{"hand over output that is not taken", testExportWithOutput},
		{"hand over under load", testExportUnderLoad},
		{"hand over to nobody", testExportToDeadProcess},
		{"hand over that ends while a connection is saved", func(b *testEnv) { testExportPartially(b, true) }},
		{"hand over that ends while a connection is restored", func(b *testEnv) { testExportPartially(b, false) }},
		{"two hand over to who has room for just all", testExportBothWays},
		{"hand over with mail on its way", testExportWithPostedRequests},
		{"hand over while there are always broadcasts", testExportWithBroadcasts},
		{"hand over directly after broadcasts", testExportAfterBroadcasts},
		{"hand over what can't be", testExportObstacles},
	}
}

// withSaveAndRestore saves the script's values of connections.
func withSaveAndRestore(cfg *engine.Config) {
	cfg.Save = func(c *engine.Conn, to []byte) ([]byte, error) {
		n, _ := c.Value().(int)
		return binary.AppendUvarint(to, uint64(n)), nil
	}
	cfg.Restore = func(c *engine.Conn, state []byte) error {
		if len(state) == 0 {
			return nil // an engine without Save
		}
		n, size := binary.Uvarint(state)
		if size <= 0 {
			return errors.New("no state")
		}
		c.SetValue(int(n))
		return nil
	}
}

// startSuccessor starts an engine that imports connections. Its callChecker treats them as opened.
func (b *testEnv) startSuccessor(script *Script, changes ...with) *server {
	return b.startServer(script, append([]with{func(cfg *engine.Config) {
		withSaveAndRestore(cfg)
		restore := cfg.Restore
		cfg.Restore = func(c *engine.Conn, state []byte) error {
			cfg.Handler.(*callChecker).recordOpened(c)()
			return restore(c, state)
		}
	}}, changes...)...)
}

// connectChannels connects each loop of two engines.
func (b *testEnv) connectChannels(from, to *server) (ours []*os.File) {
	b.Helper()
	n := max(from.Loops(), 1)
	if to != nil {
		n *= max(to.Loops(), 1)
	}
	var theirs []*os.File
	for range n {
		pair, err := sock.NewFDSocketpair()
		b.requireNoError(err)
		ours, theirs = append(ours, pair[0]), append(theirs, pair[1])
	}
	b.Cleanup(func() { closeFiles(ours) })
	if to == nil {
		closeFiles(theirs)
		return ours
	}
	b.requireNoError(to.Engine.(engine.Migrator).StartImportingConns(theirs))
	return ours
}

func closeFiles(all []*os.File) {
	for _, f := range all {
		f.Close()
	}
}

// exportConns exports all connections of s.
func (s *server) exportConns(ctx context.Context, channels []*os.File) (engine.ExportResult, error) {
	s.t.Helper()
	testkit.RequireNoError(s.t, s.PauseAccept(true))
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	return s.Engine.(engine.Migrator).ExportConns(ctx, channels)
}

// exportConnsTo exports all connections of s and expects n of them to be exported.
func (s *server) exportConnsTo(b *testEnv, to *server, n int) {
	b.Helper()
	moved, err := s.exportConns(b.Context(), b.connectChannels(s, to))
	if err != nil || moved != (engine.ExportResult{Exported: n}) {
		b.Fatalf("handed over %+v, %v; want %d", moved, err, n)
	}
}

// newCountingScript returns a script that answers each line with the line and the number of earlier
// ones.
func newCountingScript() *Script {
	return &Script{Received: func(c *engine.Conn, in []byte) int {
		line, _, whole := strings.Cut(string(in), "\n")
		if !whole {
			return 0
		}
		n, _ := c.Value().(int)
		c.SetValue(n + 1)
		c.Write([]byte(line + string(rune('0'+n)) + "\n"))
		return len(line) + 1
	}}
}

func testExport(b *testEnv) {
	const n = 300
	from := b.startServer(newCountingScript(), withSaveAndRestore)
	to := b.startSuccessor(newCountingScript())
	clients := from.dialMany(n)
	for _, c := range clients {
		c.Send("a\nb")
		c.Expect("a0\n")
	}
	from.wantBytesIn(3 * n)
	from.exportConnsTo(b, to, n)
	from.wantClosed(slices.Repeat([]error{engine.ErrHandedOver}, n)...)
	to.wantOpened(n)
	for _, c := range clients {
		c.Send("c\nd\n")
		c.Expect("bc1\nd2\n")
	}
	testkit.WaitFor(b, "connections are left", func() bool { return from.Counters()[engine.Open] == 0 })
	if out, in := from.Counters(), to.Counters(); out[engine.ConnsExported] != n || in[engine.ConnsImported] != n || in[engine.Open] != n {
		b.Errorf("counted: %d handed over, %d taken over, %d open", out[engine.ConnsExported], in[engine.ConnsImported], in[engine.Open])
	}
	for _, c := range clients {
		c.CloseWrite()
		c.ExpectEOF("")
	}
}

// testExportWithOutput exports connections with more unsent output than the kernel takes.
func testExportWithOutput(b *testEnv) {
	const n, size = 2, 8 << 20
	big := func(l *engine.Limits) { l.MaxUnsent, l.HighWater, l.LowWater = 2*size, 64<<10, 32<<10 }
	from := b.startServer(answerWith(testPattern(size)), limited(big))
	to := b.startSuccessor(newEchoScript(), limited(big))
	clients := from.dialMany(n)
	for _, c := range clients {
		c.shrinkSocketBuffers()
		c.Send("x")
	}
	testkit.WaitFor(b, "output is not blocked", func() bool { return from.Counters()[engine.Paused] == n })
	from.exportConnsTo(b, to, n)
	all := string(testPattern(size))
	for _, c := range clients {
		c.Expect(all)
	}
}

// testExportUnderLoad exports while all clients exchange lines at full speed.
func testExportUnderLoad(b *testEnv) {
	const n = 50
	from := b.startServer(lines(), withSaveAndRestore)
	to := b.startSuccessor(lines())
	var over atomic.Bool
	ended := make(chan error, n)
	for range n {
		c := from.dial()
		go func() {
			line := strings.Repeat("x", 100) + "\n"
			var err error
			for err == nil && !over.Load() {
				err = errors.Join(c.tryWrite(line), c.tryExpect(line))
			}
			ended <- err
		}()
	}
	from.wantOpened(n)
	from.exportConnsTo(b, to, n)
	before := to.Counters()[engine.BytesIn]
	to.wantBytesIn(int(before) + 10_000)
	over.Store(true)
	for range n {
		b.checkNoError(testkit.Receive(b, ended, "the end of a client"))
	}
}

// testExportToDeadProcess exports to a process that has ended: all connections must stay.
func testExportToDeadProcess(b *testEnv) {
	const n = 20
	from := b.startServer(newCountingScript(), withSaveAndRestore)
	clients := from.dialMany(n)
	for _, c := range clients {
		c.Send("a\nb")
		c.Expect("a0\n")
	}
	moved, err := from.exportConns(b.Context(), b.connectChannels(from, nil))
	if err == nil || moved != (engine.ExportResult{}) {
		b.Errorf("handed over %+v, %v; want an error", moved, err)
	}
	for _, c := range clients {
		c.Send("\n")
		c.Expect("b1\n")
	}
	b.requireNoError(from.PauseAccept(false))
}

// testExportBothWays exports from two engines to one with space for all connections or for a few less. The first gets
// more credit than it needs, and the second must wait until the rest is released. Connections without space stay in
// their engines.
func testExportBothWays(b *testEnv) {
	const each, stay = 20, 5
	for _, left := range []int{0, stay} {
		to := b.startSuccessor(lines(), limited(func(l *engine.Limits) { l.MaxConns = 2*each - left }))
		var clients []*client
		var moving sync.WaitGroup
		var gone atomic.Int64
		for range 2 {
			from := b.startServer(lines())
			clients = append(clients, from.dialMany(each)...)
			from.wantOpened(each)
			channels := b.connectChannels(from, to)
			moving.Go(func() {
				moved, err := from.exportConns(b.Context(), channels)
				if err != nil || moved.Unconfirmed != 0 {
					b.Errorf("handed over %+v, %v", moved, err)
				}
				gone.Add(int64(moved.Exported))
				b.checkNoError(from.PauseAccept(false))
			})
		}
		moving.Wait()
		if int(gone.Load()) != 2*each-left {
			b.Errorf("%d have gone; want %d", gone.Load(), 2*each-left)
		}
		for _, c := range clients {
			c.exchange("a\n")
		}
	}
}

// testExportWithBroadcasts exports while there is always a broadcast under way, to more connections
// than are handled in one turn.
func testExportWithBroadcasts(b *testEnv) {
	const n = 270
	from := b.startServer(newEchoScript(), func(cfg *engine.Config) { cfg.DropMessages, cfg.Loops = true, 1 })
	to := b.startSuccessor(lines())
	clients := from.dialMany(n)
	from.wantOpened(n)
	var over atomic.Bool
	var casting, reading sync.WaitGroup
	for range 2 {
		casting.Go(func() {
			for !over.Load() {
				_ = from.BroadcastToAllConns(testPattern(1000)) // fails without space or connections
				runtime.Gosched()
			}
		})
	}
	for _, c := range clients {
		reading.Go(func() {
			if _, err := io.Copy(io.Discard, c); err != nil {
				b.Error(err)
			}
		})
	}
	from.exportConnsTo(b, to, n)
	over.Store(true)
	casting.Wait()
	for _, r := range to.wantOpened(n) {
		b.requireNoError(r.Close())
	}
	reading.Wait()
}

// testExportAfterBroadcasts exports before broadcasts have reached the connections. None of them may be lost.
func testExportAfterBroadcasts(b *testEnv) {
	const n, messages = 100, 200
	from := b.startServer(newEchoScript(), withSaveAndRestore)
	to := b.startSuccessor(lines())
	clients := from.dialMany(n)
	from.wantOpened(n)
	want := ""
	for i := range messages {
		text := fmt.Sprintf("%d,", i)
		b.requireNoError(from.BroadcastToAllConns([]byte(text)))
		want += text
	}
	from.exportConnsTo(b, to, n)
	for _, c := range clients {
		c.Expect(want)
	}
}

// testExportPartially aborts an export while a connection is saved or restored: each connection must be served by
// exactly one engine, and all exported ones must be confirmed.
func testExportPartially(b *testEnv, inSave bool) {
	const n = 160
	ctx, cancel := context.WithCancel(b.Context())
	defer cancel()
	over := make(chan struct{})
	from := b.startServer(lines(), withSaveAndRestore, func(cfg *engine.Config) {
		cfg.Loops = 1
		save := cfg.Save
		var once sync.Once
		cfg.Save = func(c *engine.Conn, to []byte) ([]byte, error) {
			if inSave {
				once.Do(func() {
					cancel()
					select {
					case <-over:
						b.Error("it is over while a connection is saved")
					case <-time.After(50 * time.Millisecond): // it should be faster
					}
				})
			}
			return save(c, to)
		}
	})
	to := b.startSuccessor(lines(), func(cfg *engine.Config) {
		restore := cfg.Restore
		cfg.Restore = func(c *engine.Conn, state []byte) error {
			cancel()
			return restore(c, state)
		}
	})
	clients := from.dialMany(n)
	refs := from.wantOpened(n)
	moved, err := from.exportConns(ctx, b.connectChannels(from, to))
	close(over)
	if moved.Unconfirmed != 0 || err != nil && !errors.Is(err, context.Canceled) {
		b.Errorf("handed over %+v, %v; want to know of all", moved, err)
	}
	stayed := 0
	for _, r := range refs {
		if err := r.Nudge(); err == nil {
			stayed++
		} else if !errors.Is(err, engine.ErrClosed) {
			b.Errorf("Nudge of a connection that has gone or stayed: %v", err)
		}
	}
	if stayed != n-moved.Exported {
		b.Errorf("%d of %d take messages, %d have gone", stayed, n, moved.Exported)
	}
	for _, c := range clients {
		c.exchange("a\n")
	}
	testkit.WaitFor(b, "not all others have stayed", func() bool { return from.Counters()[engine.Open] == int64(n-moved.Exported) })
	if there := to.Counters()[engine.ConnsImported]; there != int64(moved.Exported) {
		b.Errorf("%d have come of %d that have gone", there, moved.Exported)
	}
	b.requireNoError(from.PauseAccept(false))
}

// testExportWithPostedRequests posts to a connection during the export. Each accepted message must
// arrive in order, or the sender must be told that the connection has moved.
func testExportWithPostedRequests(b *testEnv) {
	from := b.startServer(lines())
	to := b.startSuccessor(lines())
	c := from.dial()
	ref := from.wantOpened(1)[0]
	sent := make(chan int, 1)
	go func() {
		n := 0
		for retryWhileFull(func() error { return ref.Send([]byte{byte(n)}) }) == nil { // full also while it is exported
			if n++; n%100 == 0 {
				time.Sleep(time.Millisecond)
			}
		}
		sent <- n
	}()
	c.Expect(string([]byte{0, 1, 2, 3}))
	from.exportConnsTo(b, to, 1)
	n := testkit.Receive(b, sent, "the end of sending")
	want := make([]byte, n-4)
	for i := range want {
		want[i] = byte(i + 4)
	}
	c.Expect(string(want))
	b.requireNoError(to.wantOpened(1)[0].Send([]byte("z")))
	c.Expect("z")
}

// testExportObstacles checks that connections that can't be exported are still served.
func testExportObstacles(b *testEnv) {
	script := lines()
	script.Received = func(c *engine.Conn, in []byte) int {
		switch string(in) {
		case "keep\n":
			c.SetValue(1) // a value that can't be saved
		case "hold\n":
			c.Retain()
		}
		return answerLine(c, in)
	}
	from := b.startServer(script)
	to := b.startSuccessor(lines())
	kept, held, free := from.dial(), from.dial(), from.dial()
	kept.exchange("keep\n")
	held.exchange("hold\n")
	free.exchange("x\n")
	refs := from.wantOpened(3)
	ctx, cancel := context.WithCancel(b.Context())
	defer cancel()
	channels := b.connectChannels(from, to)
	done := make(chan error, 1)
	go func() {
		moved, err := from.exportConns(ctx, channels)
		if moved.Exported != 2 {
			err = errors.Join(err, fmt.Errorf("%d connections were handed over; expected 2", moved.Exported))
		}
		done <- err
	}()
	to.wantOpened(1)
	held.exchange("y\n")
	for _, r := range refs {
		_ = r.Do(func(c *engine.Conn) { c.Release() }) // ErrClosed for exported connections
	}
	b.checkNoError(testkit.Receive(b, done, "the end of handing over"))
	to.wantOpened(2)
	for _, c := range []*client{kept, held, free} {
		c.exchange("z\n")
	}
	testkit.WaitFor(b, "not 1 has stayed", func() bool { return from.Counters()[engine.Open] == 1 }) // a worker may still be calling Closed
	b.requireNoError(from.PauseAccept(false))
}
