package enginetest

import (
	"context"
	"encoding/binary"
	"errors"
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
		{"hand over", handOver},
		{"hand over output that is not taken", handOverOutput},
		{"hand over under load", handOverLoad},
		{"hand over to nobody", handOverToNobody},
		{"hand over in part", handOverInPart},
		{"hand over that ends while a connection is saved", handOverEndsInSave},
		{"hand over to who has room for some", handOverFull},
		{"hand over to who has room for just all", handOverExactly},
		{"two hand over to who has room for just all", handOverTogether},
		{"hand over with mail on its way", handOverMail},
		{"hand over while there are always broadcasts", handOverCasts},
		{"hand over what can't be", handOverStays},
	}
}

// saves gives an engine's connections state: what the script keeps as their value.
func saves(cfg *engine.Config) {
	cfg.Save = func(c *engine.Conn, to []byte) ([]byte, error) {
		n, _ := c.Value().(int)
		return binary.AppendUvarint(to, uint64(n)), nil
	}
	cfg.Restore = func(c *engine.Conn, state []byte) error {
		if len(state) == 0 {
			return nil // of an engine without Save
		}
		n, size := binary.Uvarint(state)
		if size <= 0 {
			return errors.New("no state")
		}
		c.SetValue(int(n))
		return nil
	}
}

// successor is an engine that goes on with what another one hands over: its connections are
// opened as far as its witness knows when they have come.
func (b *bench) successor(script *Script, changes ...with) *server {
	return b.serve(script, append([]with{func(cfg *engine.Config) {
		w := cfg.Handler.(*witness)
		saves(cfg)
		restore := cfg.Restore
		cfg.Restore = func(c *engine.Conn, state []byte) error {
			w.enter(c, "Opened", func(*life) { w.opened = append(w.opened, c.Ref()) })()
			return restore(c, state)
		}
	}}, changes...)...)
}

// channels joins each loop of two engines.
func (b *bench) channels(from, to *server) (ours []*os.File) {
	b.Helper()
	n := max(from.Loops(), 1)
	if to != nil {
		n *= max(to.Loops(), 1)
	}
	var theirs []*os.File
	for range n {
		pair, err := sock.NewFDSocketpair()
		b.must(err)
		ours, theirs = append(ours, pair[0]), append(theirs, pair[1])
	}
	b.Cleanup(func() { closeFiles(ours) })
	if to == nil {
		closeFiles(theirs)
		return ours
	}
	b.must(to.Engine.(engine.Migrator).ImportConns(theirs))
	return ours
}

func closeFiles(all []*os.File) {
	for _, f := range all {
		f.Close()
	}
}

// handOver hands all over that s has, and says how many have gone.
func (s *server) handOver(ctx context.Context, channels []*os.File) (engine.ExportResult, error) {
	s.t.Helper()
	if err := s.PauseAccept(true); err != nil {
		s.t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	return s.Engine.(engine.Migrator).ExportConns(ctx, channels)
}

// moves hands all over that s has, and wants n to have gone.
func (s *server) moves(b *bench, to *server, n int) {
	b.Helper()
	moved, err := s.handOver(b.Context(), b.channels(s, to))
	if err != nil || moved != (engine.ExportResult{Exported: n}) {
		b.Fatalf("handed over %+v, %v; want %d", moved, err, n)
	}
}

// counting answers each line with itself and how many there were before on this connection.
func counting() *Script {
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

func handOver(b *bench) {
	const n = 300
	from := b.serve(counting(), saves)
	to := b.successor(counting())
	clients := from.dials(n)
	for _, c := range clients {
		c.Send("a\nb")
		c.Expect("a0\n")
	}
	from.wantBytesIn(3 * n)
	from.moves(b, to, n)
	from.wantClosed(slices.Repeat([]error{engine.ErrHandedOver}, n)...)
	to.wantOpened(n)
	for _, c := range clients {
		c.Send("c\nd\n")
		c.Expect("bc1\nd2\n")
	}
	testkit.WaitFor(b, "connections are left", func() bool { return from.Counters()[engine.Open] == 0 })
	for _, s := range []*server{from, to} {
		count := s.Counters()
		if s == from && (count[engine.ConnsExported] != n || count[engine.Open] != 0) || s == to && (count[engine.ConnsImported] != n || count[engine.Open] != n) {
			b.Errorf("counted: %d handed over, %d taken over, %d open", count[engine.ConnsExported], count[engine.ConnsImported], count[engine.Open])
		}
	}
	for _, c := range clients {
		c.CloseWrite()
		c.ExpectEOF("")
	}
}

// handOverOutput hands connections over that owe their peers more than the kernel takes.
func handOverOutput(b *bench) {
	const n, size = 2, 8 << 20
	big := func(l *engine.Limits) { l.MaxUnsent, l.HighWater, l.LowWater = 2*size, 64<<10, 32<<10 }
	from := b.serve(&Script{Received: func(c *engine.Conn, in []byte) int {
		c.Write(pattern(size))
		return len(in)
	}}, limited(big))
	to := b.successor(echo(), limited(big))
	clients := from.dials(n)
	for _, c := range clients {
		c.smallBuffers()
		c.Send("x")
	}
	testkit.WaitFor(b, "output is not blocked", func() bool { return from.Counters()[engine.Paused] == n })
	from.moves(b, to, n)
	all := string(pattern(size))
	for _, c := range clients {
		c.Expect(all)
	}
}

// handOverLoad hands over while all clients exchange lines as fast as they can.
func handOverLoad(b *bench) {
	const n = 50
	from := b.serve(lines(), saves)
	to := b.successor(lines())
	stop, ended := make(chan struct{}), make(chan error, n)
	for range n {
		c := from.dial()
		go func() {
			line := strings.Repeat("x", 100) + "\n"
			for {
				select {
				case <-stop:
					ended <- nil
					return
				default:
				}
				if err := errors.Join(c.tryWrite(line), c.tryExpect(line)); err != nil {
					ended <- err
					return
				}
			}
		}()
	}
	from.wantOpened(n)
	from.moves(b, to, n)
	before := to.Counters()[engine.BytesIn]
	to.wantBytesIn(int(before) + 10_000)
	close(stop)
	for range n {
		b.ok(testkit.Receive(b, ended, "the end of a client"))
	}
}

// handOverToNobody hands over to a process that has gone: nothing is to change.
func handOverToNobody(b *bench) {
	const n = 20
	from := b.serve(counting(), saves)
	clients := from.dials(n)
	for _, c := range clients {
		c.Send("a\nb")
		c.Expect("a0\n")
	}
	moved, err := from.handOver(b.Context(), b.channels(from, nil))
	if err == nil || moved != (engine.ExportResult{}) {
		b.Errorf("handed over %+v, %v; want an error", moved, err)
	}
	for _, c := range clients {
		c.Send("\n")
		c.Expect("b1\n")
	}
	b.must(from.PauseAccept(false))
}

// handOverFull hands over to an engine that has room for some: the others stay.
func handOverFull(b *bench) {
	const n, room = 30, 10
	from := b.serve(lines())
	to := b.successor(lines(), limited(func(l *engine.Limits) { l.MaxConns = room }))
	clients := from.dials(n)
	from.wantOpened(n)
	from.moves(b, to, room)
	for _, c := range clients {
		c.exchange("a\n")
	}
	testkit.WaitFor(b, "not all others have stayed", func() bool { return from.Counters()[engine.Open] == n-room })
	b.must(from.PauseAccept(false))
}

// handOverExactly hands over to an engine that has room for just so many, from loops of which
// one has most of them: the others need less room than they are promised.
func handOverExactly(b *bench) {
	script := counting()
	script.Opened = func(c *engine.Conn) { c.Write([]byte{byte('0' + c.LoopIndex())}) }
	from := b.serve(script, saves)
	var clients []*client
	var owners [10]int
	for len(clients) < 30 || owners[0] < 20 {
		c := from.dial()
		var owner [1]byte
		_, err := io.ReadFull(c, owner[:])
		b.must(err)
		if owner := owner[0] - '0'; owner == 0 || owners[owner] < 2 {
			owners[owner]++
			clients = append(clients, c)
		} else {
			c.Close()
		}
	}
	testkit.WaitFor(b, "clients have not gone", func() bool { return from.Counters()[engine.Open] == int64(len(clients)) })
	to := b.successor(counting(), limited(func(l *engine.Limits) { l.MaxConns = len(clients) }))
	from.moves(b, to, len(clients))
	for _, c := range clients {
		c.Send("a\n")
		c.Expect("a0\n")
		c.CloseWrite()
		c.ExpectEOF("")
	}
}

// handOverTogether has two engines hand over to one that has room for just so many: the channels of
// the first are promised more than it needs, and the second waits for what is given back. The same
// two go on with what has no room.
func handOverTogether(b *bench) {
	const each, stay = 20, 5
	for _, left := range []int{0, stay} {
		to := b.successor(lines(), limited(func(l *engine.Limits) { l.MaxConns = 2*each - left }))
		var clients []*client
		var moving sync.WaitGroup
		var gone atomic.Int64
		for range 2 {
			from := b.serve(lines())
			clients = append(clients, from.dials(each)...)
			from.wantOpened(each)
			channels := b.channels(from, to)
			moving.Go(func() {
				moved, err := from.handOver(b.Context(), channels)
				if err != nil || moved.Unconfirmed != 0 {
					b.Errorf("handed over %+v, %v", moved, err)
				}
				gone.Add(int64(moved.Exported))
				if err := from.PauseAccept(false); err != nil {
					b.Error(err)
				}
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

// handOverCasts hands over while there is always a broadcast under way: to more connections
// than a turn sends to.
func handOverCasts(b *bench) {
	const n = 270
	from := b.serve(echo(), func(cfg *engine.Config) { cfg.DropMessages, cfg.Loops = true, 1 })
	to := b.successor(lines())
	clients := from.dials(n)
	from.wantOpened(n)
	stop, casting := make(chan struct{}), sync.WaitGroup{}
	for range 2 {
		casting.Go(func() {
			for {
				select {
				case <-stop:
					return
				default:
					_ = from.Broadcast(pattern(1000)) // there is no room, or nobody
					runtime.Gosched()
				}
			}
		})
	}
	var reading sync.WaitGroup
	for _, c := range clients {
		reading.Go(func() {
			if _, err := io.Copy(io.Discard, c); err != nil {
				b.Error(err)
			}
		})
	}
	from.moves(b, to, n)
	close(stop)
	casting.Wait()
	for _, r := range to.wantOpened(n) {
		b.must(r.Close())
	}
	reading.Wait()
}

// handOverInPart ends handing over in the middle: each connection is served by one side or the
// other, and it is known of all that have gone that they have come.
func handOverInPart(b *bench) {
	const n = 160
	from := b.serve(lines(), func(cfg *engine.Config) { cfg.Loops = 1 })
	ctx, cancel := context.WithCancel(b.Context())
	defer cancel()
	to := b.successor(lines(), func(cfg *engine.Config) {
		restore := cfg.Restore
		cfg.Restore = func(c *engine.Conn, state []byte) error {
			cancel()
			return restore(c, state)
		}
	})
	clients := from.dials(n)
	from.wantOpened(n)
	moved, err := from.handOver(ctx, b.channels(from, to))
	if moved.Unconfirmed != 0 || err != nil && !errors.Is(err, context.Canceled) {
		b.Errorf("handed over %+v, %v; want to know of all", moved, err)
	}
	for _, c := range clients {
		c.exchange("a\n")
	}
	testkit.WaitFor(b, "not all others have stayed", func() bool { return from.Counters()[engine.Open] == int64(n-moved.Exported) })
	if there := to.Counters()[engine.ConnsImported]; there != int64(moved.Exported) {
		b.Errorf("%d have come of %d that have gone", there, moved.Exported)
	}
	b.must(from.PauseAccept(false))
}

// handOverEndsInSave ends handing over while a connection is saved: when it is over that one has gone
// or stayed, and is not on its way any more, so that it can be sent to.
func handOverEndsInSave(b *bench) {
	ctx, cancel := context.WithCancel(b.Context())
	over := make(chan struct{})
	from := b.serve(lines(), saves, func(cfg *engine.Config) {
		save := cfg.Save
		cfg.Save = func(c *engine.Conn, to []byte) ([]byte, error) {
			cancel()
			select {
			case <-over:
				b.Error("it is over while a connection is saved")
			case <-time.After(50 * time.Millisecond): // it would not take so long
			}
			return save(c, to)
		}
	})
	to := b.successor(lines())
	c := from.dial()
	refs := from.wantOpened(1)
	moved, err := from.handOver(ctx, b.channels(from, to))
	close(over)
	if moved.Unconfirmed != 0 || err != nil && !errors.Is(err, context.Canceled) {
		b.Errorf("handed over %+v, %v; want to know of all", moved, err)
	}
	if err := refs[0].Send([]byte("x\n")); moved.Exported == 0 && err != nil || moved.Exported == 1 && !errors.Is(err, engine.ErrClosed) {
		b.Errorf("sent to one of whom %d have gone: %v", moved.Exported, err)
	} else if err == nil {
		c.Expect("x\n")
	}
	c.exchange("a\n")
	b.must(from.PauseAccept(false))
}

// handOverMail has a goroutine send to a connection all the time: each message that was taken
// arrives, in order, or is for the next owner, as the sender is told.
func handOverMail(b *bench) {
	from := b.serve(lines())
	to := b.successor(lines())
	c := from.dial()
	ref := from.wantOpened(1)[0]
	sent := make(chan int, 1)
	go func() {
		n := 0
		for ; ; n++ {
			err := ref.Send([]byte{byte(n)})
			for errors.Is(err, engine.ErrFull) {
				time.Sleep(time.Millisecond) // it is being handed over, or the peer is slow
				err = ref.Send([]byte{byte(n)})
			}
			if err != nil {
				break
			}
			if n%100 == 0 {
				time.Sleep(time.Millisecond)
			}
		}
		sent <- n
	}()
	c.Expect(string([]byte{0, 1, 2, 3}))
	from.moves(b, to, 1)
	n := testkit.Receive(b, sent, "the end of sending")
	want := make([]byte, n-4)
	for i := range want {
		want[i] = byte(i + 4)
	}
	c.Expect(string(want))
	b.must(to.wantOpened(1)[0].Send([]byte("z")))
	c.Expect("z")
}

// handOverStays has connections that can't be handed over, yet or at all: they are served on.
func handOverStays(b *bench) {
	script := lines()
	script.Received = func(c *engine.Conn, in []byte) int {
		switch string(in) {
		case "keep\n":
			c.SetValue(1) // which nobody can write down here
		case "hold\n":
			c.Retain()
		}
		return answerLine(c, in)
	}
	from := b.serve(script)
	to := b.successor(lines())
	kept, held, free := from.dial(), from.dial(), from.dial()
	kept.exchange("keep\n")
	held.exchange("hold\n")
	free.exchange("x\n")
	refs := from.wantOpened(3)
	ctx, cancel := context.WithCancel(b.Context())
	defer cancel()
	channels := b.channels(from, to)
	done := make(chan error, 1)
	go func() {
		moved, err := from.handOver(ctx, channels)
		if moved.Exported != 2 {
			err = errors.Join(err, errors.New("not 2 are handed over"))
		}
		done <- err
	}()
	to.wantOpened(1)
	held.exchange("y\n")
	for _, r := range refs {
		_ = r.Do(func(c *engine.Conn) { c.Release() }) // those that have gone say ErrClosed
	}
	b.ok(testkit.Receive(b, done, "the end of handing over"))
	to.wantOpened(2)
	for _, c := range []*client{kept, held, free} {
		c.exchange("z\n")
	}
	testkit.WaitFor(b, "not 1 has stayed", func() bool { return from.Counters()[engine.Open] == 1 }) // a worker calls Closed
	b.must(from.PauseAccept(false))
}
