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

// Taking over connections from another engine; see package handover. Each channel has a goroutine.

// importChannel is a channel with its inlet; mu guards the inlet.
type importChannel struct {
	engine *goroutineEngine
	mu     sync.Mutex
	inlet  *handover.Inlet
}

// TakeOver implements engine.Migrator.
func (e *goroutineEngine) TakeOver(channels []*os.File) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	for _, f := range channels {
		if e.closed {
			f.Close()
			continue
		}
		e.running.Go(func() {
			defer f.Close()
			defer context.AfterFunc(e.stopCtx, func() { f.Close() })()
			if err := e.importFrom(f); err != nil && e.stopCtx.Err() == nil {
				e.cfg.Log.LogAttrs(context.Background(), slog.LevelError,
					"connections lost in hand-over", slog.String("error", err.Error()))
			}
		})
	}
	if e.closed {
		return engine.ErrClosed
	}
	return nil
}

func (e *goroutineEngine) importFrom(channel *os.File) error {
	raw, err := channel.SyscallConn()
	if err != nil {
		return err
	}
	importing := &importChannel{engine: e}
	if err = raw.Control(func(fd uintptr) { importing.inlet = e.handoff.receiver.NewInlet(int32(fd), importing) }); err != nil {
		return err
	}
	defer importing.withLock(importing.inlet.Close)
	buffer := make([]byte, sock.MaxRightsMessage)
	var joined sync.WaitGroup
	join := func(fd int32, r *engine.Record) {
		joined.Add(1)
		e.importConn(fd, r, joined.Done)
	}
	for {
		joined.Wait() // confirm only what was opened: the sender may send mail then
		importing.withLock(importing.inlet.Confirm)
		received, receiveErr := false, error(nil)
		err := raw.Read(func(uintptr) bool {
			importing.withLock(func() { received, receiveErr = importing.inlet.Receive(buffer, join) })
			return received || receiveErr != nil
		})
		switch err = cmp.Or(receiveErr, err); err {
		case nil:
		case io.EOF:
			return nil
		default:
			return err
		}
	}
}

func (a *importChannel) withLock(f func()) {
	a.mu.Lock()
	defer a.mu.Unlock()
	f()
}

// ConfirmLater implements handover.Owner.
func (a *importChannel) ConfirmLater(in *handover.Inlet) {
	a.engine.running.Go(func() { a.withLock(in.Confirm) })
}

// Promise implements handover.Owner.
func (a *importChannel) Promise(n int) int {
	e := a.engine
	n = e.admission.Promise(n)
	short := min(sock.DescriptorsShort(e.admission.Promised()), n)
	e.admission.Unpromise(short)
	return n - short
}

// Unpromise implements handover.Owner.
func (a *importChannel) Unpromise(n int) { a.engine.admission.Unpromise(n) }

// importConn serves a connection whose place Promise has reserved, on its own goroutine. It calls onOpened
// when the handler knows of the connection, or never will.
func (e *goroutineEngine) importConn(fd int32, record *engine.Record, onOpened func()) {
	e.admission.AcquirePromised()
	if record.Listener >= len(e.host.Entrances) {
		record.Listener = e.host.Adopted()
	}
	f := os.NewFile(uintptr(fd), "")
	defer f.Close()
	netConn, err := net.FileConn(f)
	if err != nil {
		e.counters.Add(engine.AcceptErrors, 1)
		e.releaseAdmission()
		onOpened()
		return
	}
	if err := e.host.AdmitMoved(record); err != nil {
		e.running.Go(func() { // Refuse may call runtime.Goexit
			defer onOpened()
			defer netConn.Close()
			rejectConn(netConn, e.host.Answer(record.Peer, err))
		})
		return
	}
	open := func(c *conn) {
		defer onOpened()
		c.Join(record)
	}
	if !e.startConn(netConn, record.Listener, nil, open) {
		e.host.DisownMoved(record)
		e.releaseAdmission()
		onOpened()
	}
}
