package goroutine

import (
	"cmp"
	"context"
	"io"
	"log/slog"
	"net"
	"os"
	"sync"

	"github.com/myriad-go/myriad/internal/engine"
	"github.com/myriad-go/myriad/internal/engine/handover"
	"github.com/myriad-go/myriad/internal/sock"
)

// This file is how connections arrive from other engines: see package handover. A goroutine for
// each channel takes what comes by it.

// arrivals is a channel, whose lock guards the inlet.
type arrivals struct {
	group *group
	mu    sync.Mutex
	inlet *handover.Inlet
}

// TakeOver implements engine.Migrator.
func (g *group) TakeOver(channels []*os.File) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	for _, f := range channels {
		if g.ended {
			f.Close()
			continue
		}
		g.running.Go(func() {
			defer f.Close()
			defer context.AfterFunc(g.stop, func() { f.Close() })()
			if err := g.takeAll(f); err != nil && g.stop.Err() == nil {
				g.cfg.Log.LogAttrs(context.Background(), slog.LevelError,
					"connections that were handed over are lost", slog.String("error", err.Error()))
			}
		})
	}
	if g.ended {
		return engine.ErrClosed
	}
	return nil
}

// takeAll takes what comes by a channel until the other side ends.
func (g *group) takeAll(f *os.File) error {
	raw, err := f.SyscallConn()
	if err != nil {
		return err
	}
	a := &arrivals{group: g}
	if err = raw.Control(func(fd uintptr) { a.inlet = g.migration.receiver.NewInlet(int32(fd), a) }); err != nil {
		return err
	}
	defer a.locked(a.inlet.Close)
	buffer := make([]byte, sock.MaxFDMessageSize)
	var joined sync.WaitGroup
	join := func(fd int32, r *engine.Record) {
		joined.Add(1)
		g.join(fd, r, joined.Done)
	}
	for {
		joined.Wait() // who is told that they have come may send to them
		a.locked(a.inlet.Confirm)
		some, failed := false, error(nil)
		err := raw.Read(func(uintptr) bool {
			a.locked(func() { some, failed = a.inlet.Receive(buffer, join) })
			return some || failed != nil
		})
		switch err = cmp.Or(failed, err); err {
		case nil:
		case io.EOF:
			return nil
		default:
			return err
		}
	}
}

func (a *arrivals) locked(do func()) {
	a.mu.Lock()
	defer a.mu.Unlock()
	do()
}

// ConfirmLater implements handover.Owner.
func (a *arrivals) ConfirmLater(in *handover.Inlet) {
	a.group.running.Go(func() { a.locked(in.Confirm) })
}

// Promise implements handover.Owner.
func (a *arrivals) Promise(n int) int {
	g := a.group
	n = g.admission.ReserveConns(n)
	short := min(sock.MissingDescriptors(g.admission.ReservedConns()), n)
	g.admission.CancelReservedConns(short)
	return n - short
}

// Unpromise implements handover.Owner.
func (a *arrivals) Unpromise(n int) { a.group.admission.CancelReservedConns(n) }

// join goes on with one connection, for which a place was promised, on its goroutine. It calls done
// when its handler has heard of it, or never will.
func (g *group) join(fd int32, r *engine.Record, done func()) {
	g.admission.AcquireReservedConn()
	if r.Listener >= len(g.host.Entrances) {
		r.Listener = g.host.Adopted()
	}
	f := os.NewFile(uintptr(fd), "")
	defer f.Close()
	nc, err := net.FileConn(f)
	if err != nil {
		g.counters.Add(engine.AcceptErrors, 1)
		g.leave()
		done()
		return
	}
	if err := g.host.AdmitMoved(r); err != nil {
		g.running.Go(func() { // which Refuse may end
			defer done()
			defer nc.Close()
			turnAway(nc, g.host.Answer(r.Peer, err))
		})
		return
	}
	open := func(c *conn) {
		defer done()
		c.Join(r)
	}
	if !g.serve(nc, r.Listener, nil, open) {
		g.host.DisownMoved(r)
		g.leave()
		done()
	}
}
