package loop

import (
	"context"
	"encoding/binary"
	"fmt"
	"io"
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
	t.loop.group.admission.Unpromise(in.credit)
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
		t.loop.group.admission.Unpromise(more)
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
	return l.group.admission.Promise(n)
}

// receive takes what waits at the channels, about a batch of each.
func (t *takeover) receive() {
	if len(t.inlets) == 0 {
		return
	}
	if t.buffer == nil {
		t.buffer = make([]byte, sock.MaxRightsMessage)
	}
	for _, in := range slices.Clone(t.inlets) {
		if some, err := t.receiveFrom(in); err != nil {
			if err != io.EOF {
				t.loop.host.Log.LogAttrs(context.Background(), slog.LevelError,
					"connections that were handed over are lost", slog.String("error", err.Error()))
			}
			t.drop(in)
		} else if some {
			t.confirm(in)
		}
	}
	if len(t.inlets) == 0 {
		t.buffer = nil
	}
}

// receiveFrom takes what waits at one channel, and says whether that was something.
func (t *takeover) receiveFrom(in *inlet) (some bool, err error) {
	some = in.came > 0 // and could not be confirmed
	for most := in.came + engine.MaxBatch; in.came < most; {
		n, fds, errno := sock.ReceiveRights(in.fd, t.buffer)
		switch {
		case errno == syscall.EAGAIN:
			return some, nil
		case errno != 0:
			return some, errno
		case n == 0:
			return some, io.EOF
		}
		if err := t.take(in, t.buffer[:n], fds); err != nil {
			return some, err
		}
		some = true
	}
	return some, nil
}

// take goes on with the connections of a batch.
func (t *takeover) take(in *inlet, p []byte, fds []int32) error {
	return engine.EachOfBatch(p, fds, in.credit, sock.ReadMemoryFile, func(fd int32, r *engine.Record) {
		in.credit--
		in.came++
		t.loop.join(fd, r)
	}, sock.Close)
}

// join goes on with one connection, for which a place was promised.
func (l *Loop) join(fd int32, r *engine.Record) {
	l.group.admission.AcquirePromised()
	if fd >= engine.MaxFD {
		sock.Close(fd)
		l.group.admission.Release()
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
