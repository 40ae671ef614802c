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

// This file takes over connections from another engine; see package handover. Each channel has its own goroutine.

// importChannel is the receiving end of a hand-over channel.
type importChannel struct {
	engine *goroutineEngine
	mu     sync.Mutex
	inlet  *handover.ImportChannel // guarded by mu
}

func (e *goroutineEngine) StartImportingConns(channels []*os.File) (stoppedErr error) {
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
			if err := e.importUntilChannelEnds(f); err != nil && e.stopCtx.Err() == nil {
				e.cfg.Log.LogAttrs(context.Background(), slog.LevelError,
					"connections were lost during the hand-over", slog.String("error", err.Error()))
			}
		})
	}
	if e.closed {
		return engine.ErrClosed
	}
	return nil
}

func (e *goroutineEngine) importUntilChannelEnds(channel *os.File) error {
	raw, err := channel.SyscallConn()
	if err != nil {
		return err
	}
	importing := &importChannel{engine: e}
	if err = raw.Control(func(fd uintptr) { importing.inlet = e.handoff.receiver.NewImportChannel(int32(fd), importing) }); err != nil {
		return err
	}
	defer importing.withLock(importing.inlet.ReleaseUnusedReservation)
	buffer := make([]byte, sock.MaxFDMessageSize)
	var joined sync.WaitGroup
	join := func(fd int32, r *engine.Record) {
		joined.Add(1)
		e.importConn(fd, r, joined.Done)
	}
	for {
		joined.Wait() // only connections that have been opened may be confirmed
		importing.withLock(importing.inlet.ConfirmArrivalsAndGrantCredit)
		received, receiveErr := false, error(nil)
		err := raw.Read(func(uintptr) bool {
			importing.withLock(func() { received, receiveErr = importing.inlet.ReceiveAndImportBatch(buffer, join) })
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

func (a *importChannel) ScheduleConfirmArrivals(in *handover.ImportChannel) {
	a.engine.running.Go(func() { a.withLock(in.ConfirmArrivalsAndGrantCredit) })
}

func (a *importChannel) ReserveConns(n int) (reserved int) {
	e := a.engine
	n = e.admission.ReserveConns(n)
	short := min(sock.DescriptorLimitShortfall(e.admission.ReservedConns()), n)
	e.admission.CancelReservedConns(short)
	return n - short
}

func (a *importChannel) ReleaseConns(n int) { a.engine.admission.CancelReservedConns(n) }

// importConn serves a received connection on a new goroutine. The caller must have reserved capacity with ReserveConns.
// When the connection has been imported or the import has failed, onDone is called once.
func (e *goroutineEngine) importConn(fd int32, record *engine.Record, onDone func()) {
	e.admission.AcquireReservedConn()
	f := os.NewFile(uintptr(fd), "")
	defer f.Close()
	netConn, err := net.FileConn(f)
	if err != nil {
		e.counters.Add(engine.AcceptErrors, 1)
		e.releaseAdmissionAndWakeWaiters()
		onDone()
		return
	}
	if err := e.host.MapListenerAndAdmitOrRelease(record); err != nil {
		e.running.Go(func() { // RefusalReply may call runtime.Goexit
			defer onDone()
			defer netConn.Close()
			if len(record.Layer) > 0 { // an unencrypted answer would break TLS
				return
			}
			sendRejectionAndCloseConn(netConn, e.host.BuildRefusalReply(record.Peer, err))
		})
		return
	}
	open := func(c *conn) {
		defer onDone()
		c.ImportOrAbort(record)
	}
	if !e.startConnOrReportFailure(netConn, record.Listener, nil, open) {
		e.host.UndoAdmitImported(record)
		e.releaseAdmissionAndWakeWaiters()
		onDone()
	}
}
