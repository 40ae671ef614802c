package loop

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"os"
	"slices"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/myriad-go/myriad/internal/engine"
	"github.com/myriad-go/myriad/internal/engine/handover"
	"github.com/myriad-go/myriad/internal/sock"
)

// This file is how a loop takes connections over that another engine hands over: see package
// handover. The loop watches its channels as it watches listeners.

// arrivals is a loop's channels.
type arrivals struct {
	loop   *Loop
	inlets []*handover.Inlet
	buffer []byte
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
			if err := l.arrivals.begin(int32(f.Fd())); err != nil {
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

func (a *arrivals) begin(fd int32) error {
	l := a.loop
	own, err := l.ownCopy(fd)
	if err != nil {
		return fmt.Errorf("a channel to take connections over by: %w", err)
	}
	if l.wanted.Load() >= stopping {
		sock.Close(own)
		return engine.ErrClosed
	}
	in := l.group.receiver.NewInlet(own, a)
	a.inlets = append(a.inlets, in)
	l.driver.Listen(own)
	in.Confirm()
	return nil
}

// ConfirmLater implements handover.Owner.
func (a *arrivals) ConfirmLater(in *handover.Inlet) {
	a.loop.addChore(func() {
		if slices.Contains(a.inlets, in) {
			in.Confirm()
		}
	})
}

// end closes all channels: what has not come stays with the other side.
func (a *arrivals) end() {
	for len(a.inlets) > 0 {
		a.drop(a.inlets[0])
	}
	a.buffer = nil
}

func (a *arrivals) drop(in *handover.Inlet) {
	a.loop.driver.Unlisten(in.FD)
	sock.Close(in.FD)
	a.inlets = slices.DeleteFunc(a.inlets, func(other *handover.Inlet) bool { return other == in })
	in.Close()
}

// Promise implements handover.Owner.
func (a *arrivals) Promise(n int) int {
	l, claimed := a.loop, 0
	if l.group.cfg.Shard > 0 { // places and descriptors of this table
		for _, in := range a.inlets {
			claimed += in.Credit()
		}
		n = min(n, max(int(l.room.Load()-l.used.Load())-claimed, 0))
	}
	n = l.group.admission.ReserveConns(n)
	if claimed += n; l.group.cfg.Shard == 0 {
		claimed = l.group.admission.ReservedConns()
	}
	short := min(sock.MissingDescriptors(claimed), n)
	a.Unpromise(short)
	return n - short
}

// Unpromise implements handover.Owner.
func (a *arrivals) Unpromise(n int) { a.loop.group.admission.CancelReservedConns(n) }

// receive takes what waits at the channels, about a batch of each.
func (a *arrivals) receive() {
	if len(a.inlets) == 0 {
		return
	}
	if a.buffer == nil {
		a.buffer = make([]byte, sock.MaxFDMessageSize)
	}
	for _, in := range slices.Clone(a.inlets) {
		some, err := in.Receive(a.buffer, a.loop.join)
		switch {
		case err == nil && some:
			in.Confirm()
		case err != nil && err != io.EOF:
			a.loop.host.Log.LogAttrs(context.Background(), slog.LevelError,
				"connections that were handed over are lost", slog.String("error", err.Error()))
			fallthrough
		case err == io.EOF:
			a.drop(in)
		}
	}
	if len(a.inlets) == 0 {
		a.buffer = nil
	}
}

// join goes on with one connection, for which a place was promised.
func (l *Loop) join(fd int32, r *engine.Record) {
	l.group.admission.AcquireReservedConn()
	if fd >= engine.MaxFD {
		sock.Close(fd)
		l.group.admission.ReleaseConn()
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
