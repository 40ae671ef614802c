package loop

import (
	"context"
	"encoding/binary"
	"fmt"
	"log/slog"
	"os"
	"slices"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/myriad-go/myriad/internal/engine"
	"github.com/myriad-go/myriad/internal/sock"
)

// This file is how a loop goes on with connections that another engine hands over. It watches
// its channels as it watches listeners, and gives them credit for as many connections as its
// descriptor table has room for.

// takeover is a loop's channels.
type takeover struct {
	loop   *Loop
	inlets []*inlet
	buffer []byte
}

// inlet is a channel on the side that takes over.
type inlet struct {
	fd     int32
	credit int // that it has given, and that has not been used
	came   int // connections that have come and are not confirmed
}

// TakeOver implements engine.Migrator.
func (g *group) TakeOver(channels []*os.File) error {
	var fetched sync.WaitGroup
	var mu sync.Mutex
	var failed error
	for i, f := range channels {
		l := g.loops[i%len(g.loops)]
		fetched.Add(1)
		chore := func() {
			defer fetched.Done()
			if err := l.takeover.begin(int32(f.Fd())); err != nil {
				mu.Lock()
				defer mu.Unlock()
				failed = err
			}
		}
		if !l.addChore(chore) {
			fetched.Done()
			failed = engine.ErrClosed
		}
	}
	fetched.Wait()
	for _, f := range channels {
		_ = f.Close() // the loops have copies
	}
	return failed
}

func (t *takeover) begin(fd int32) error {
	l := t.loop
	own, err := l.ownCopy(fd)
	if err != nil {
		return fmt.Errorf("a channel to take connections over by: %w", err)
	}
	if l.wanted.Load() >= stopping {
		sock.Close(own)
		return engine.ErrClosed
	}
	in := &inlet{fd: own}
	t.inlets = append(t.inlets, in)
	l.driver.Listen(own)
	t.confirm(in)
	return nil
}

// end lets go of all channels: what has not come stays with the other side.
func (t *takeover) end() {
	for len(t.inlets) > 0 {
		t.drop(t.inlets[0])
	}
	t.buffer = nil
}

func (t *takeover) drop(in *inlet) {
	t.loop.group.promised.Add(int64(-in.credit))
	t.loop.driver.Unlisten(in.fd)
	sock.Close(in.fd)
	t.inlets = slices.DeleteFunc(t.inlets, func(other *inlet) bool { return other == in })
}

// confirm says what has come, and gives credit for more.
func (t *takeover) confirm(in *inlet) {
	more := t.withDescriptors(t.reserve(engine.ChannelCredit - in.credit))
	var p [8]byte
	binary.BigEndian.PutUint32(p[:], uint32(in.came))
	binary.BigEndian.PutUint32(p[4:], uint32(more))
	if sock.SendRights(in.fd, p[:], nil) == 0 {
		in.credit += more
		in.came = 0
	} else { // the next one says it
		t.loop.group.promised.Add(int64(-more))
	}
}

// reserve promises room for up to n connections.
func (t *takeover) reserve(n int) int {
	l := t.loop
	if l.group.cfg.Shard > 0 {
		room := int(l.room.Load() - l.used.Load())
		for _, other := range t.inlets {
			room -= other.credit
		}
		n = min(n, max(room, 0))
	}
	for {
		promised := l.group.promised.Load()
		n = max(min(n, l.host.Limits.MaxConns-int(l.group.admission.Open()+promised)), 0)
		if l.group.promised.CompareAndSwap(promised, promised+int64(n)) {
			return n
		}
	}
}

// receive takes what waits at the channels, a batch of each.
func (t *takeover) receive() {
	for _, in := range slices.Clone(t.inlets) {
		if t.buffer == nil {
			t.buffer = make([]byte, sock.MaxRightsMessage)
		}
		n, fds, errno := sock.ReceiveRights(in.fd, t.buffer)
		switch {
		case errno == syscall.EAGAIN:
		case errno == 0 && n > 0:
			t.take(in, t.buffer[:n], fds)
		default:
			if errno != 0 {
				t.loop.host.Log.LogAttrs(context.Background(), slog.LevelError,
					"connections that were handed over are lost", slog.String("error", errno.Error()))
			}
			t.drop(in)
		}
	}
	if len(t.inlets) == 0 {
		t.buffer = nil
	}
}

// take goes on with the connections of a batch.
func (t *takeover) take(in *inlet, p []byte, fds []int32) {
	records, fds, err := engine.OpenBatch(p, fds, sock.ReadMemoryFile)
	for i, fd := range fds {
		var r engine.Record
		if err == nil {
			r, records, err = engine.ReadRecord(records)
		}
		if err != nil {
			t.loop.host.Log.LogAttrs(context.Background(), slog.LevelError,
				"connections that were handed over are lost", slog.Int("connections", len(fds)-i), slog.String("error", err.Error()))
			for _, fd := range fds[i:] {
				sock.Close(fd)
			}
			t.drop(in)
			return
		}
		t.loop.join(fd, &r)
	}
	t.loop.group.promised.Add(int64(-len(fds)))
	in.credit -= len(fds)
	in.came += len(fds)
	t.confirm(in)
}

// join goes on with one connection.
func (l *Loop) join(fd int32, r *engine.Record) {
	if fd >= engine.MaxFD {
		sock.Close(fd)
		l.pause(syscall.EMFILE)
		return
	}
	if r.Listener >= len(l.host.Entrances) {
		r.Listener = l.host.Adopted()
	}
	if err := l.host.AdmitMoved(r); err != nil {
		l.turnAway(fd, r.Peer, err)
		return
	}
	_ = unix.SetNonblock(int(fd), !l.acceptor.Blocking) // a valid call does not fail
	c := l.take(fd)
	if errno := l.driver.Watch(c); errno != 0 {
		l.host.DisownMoved(r)
		l.driver.Drop(c)
		l.pause(errno)
		return
	}
	c.SetListener(r.Listener)
	c.Join(r)
	l.driver.Settle(c)
}
