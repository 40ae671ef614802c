package goroutine

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/myriad-go/myriad/internal/engine"
	"github.com/myriad-go/myriad/internal/engine/handover"
	"github.com/myriad-go/myriad/internal/sock"
)

// This file is how connections leave for other engines: see package handover.
//
// ExportConns asks the connections to leave, some at a time, for those that leave are not served, and
// round after round, until all have gone or are known to stay. Each goes by itself, on its
// goroutine, in a batch of one. A goroutine for each channel reads it. The lock guards all of it,
// but isn't held while a handler saves its state.

const (
	// maxRequested limits the connections whose export is requested at a time, unless they take longer than
	// exportRoundInterval, which is also the time between two rounds.
	maxRequested        = 64
	exportRoundInterval = 5 * time.Millisecond
	// resendInterval is how long a connection waits for a channel that is full.
	resendInterval = time.Millisecond
	// goroutineBytes is about the memory of a goroutine and its connection, which the collector gets back.
	goroutineBytes = 4 << 10
)

// handoffState is the engine's part of hand-overs in both directions.
type handoffState struct {
	exporter atomic.Pointer[connExporter] // nil if no hand-over is in progress
	receiver handover.CreditDistributor
}

type connExporter struct {
	progress chan struct{} // signals that there may be more to do

	mu           sync.Mutex
	sender       handover.ExportSender
	unanswered   int     // connections whose export was requested and not decided
	sending      int     // connections being saved or sent
	remaining    []*conn // connections left of this round
	unexportable map[*conn]bool
}

// ExportConns implements engine.Migrator.
func (e *goroutineEngine) ExportConns(ctx context.Context, channels []*os.File) (moved engine.ExportResult, err error) {
	if len(channels) == 0 {
		return moved, errors.New("no hand-over channels; expected at least 1")
	}
	defer e.freedMemory.StartReturningToOS()()
	var files []*os.File
	var fds []int32
	defer func() {
		for _, f := range files {
			f.Close()
		}
	}()
	for _, f := range channels {
		channelCopy, err := sock.DupFD(int32(f.Fd()))
		if err != nil {
			return moved, fmt.Errorf("duplicating the hand-over channel: %w", err)
		}
		files, fds = append(files, os.NewFile(uintptr(channelCopy), "channel")), append(fds, channelCopy)
	}
	d := &connExporter{progress: make(chan struct{}, 1), sender: handover.NewSender(fds), unexportable: make(map[*conn]bool)}
	if !e.handoff.exporter.CompareAndSwap(nil, d) {
		return moved, errors.New("a hand-over is in progress already; wait for its end")
	}
	defer e.handoff.exporter.Store(nil)
	var reading sync.WaitGroup
	for i, o := range d.sender.Channels {
		reading.Go(func() { d.receiveConfirmations(files[i], o) })
	}
	stopped := context.AfterFunc(ctx, func() {
		d.mu.Lock()
		d.sender.Fail(context.Cause(ctx))
		d.mu.Unlock()
		signalUnlessPending(d.progress)
	})
	defer stopped()
	ticker := time.NewTicker(exportRoundInterval)
	defer ticker.Stop()
	for ticked := true; !d.requestExportsOrFinish(e, ticked); {
		select {
		case <-d.progress:
			ticked = false
		case <-ticker.C:
			ticked = true
		}
	}
	for _, f := range files {
		f.Close()
	}
	reading.Wait()
	return d.sender.Result()
}

// receiveConfirmations reads the receiver's messages until the channel ends.
func (d *connExporter) receiveConfirmations(file *os.File, channel *handover.ExportChannel) {
	raw, err := file.SyscallConn()
	if err != nil {
		return // the channel was closed here
	}
	_ = raw.Read(func(uintptr) bool { // fails if the channel was closed here
		d.mu.Lock()
		defer d.mu.Unlock()
		err := d.sender.ReceiveConfirmations(channel)
		signalUnlessPending(d.progress)
		return channel.Ended || err != nil
	})
}

// requestExportsOrFinish requests the export of connections, and reports whether the hand-over is over.
func (d *connExporter) requestExportsOrFinish(e *goroutineEngine, roundDue bool) (finished bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.sender.IsExporting() {
		if roundDue && len(d.remaining) == 0 {
			d.listConnsForRound(e)
		}
		if roundDue || d.unanswered <= 0 {
			n := min(maxRequested, len(d.remaining), max(d.sender.TotalCredit()-d.sending, 0))
			d.unanswered = n
			requestAndWakeAll(d.remaining[:n], requestExport)
			d.remaining = d.remaining[n:]
		}
	}
	return d.sender.ShutChannelsWhenConfirmed() && d.sending == 0
}

// listConnsForRound lists the connections to request. If there are none, the hand-over stops.
func (d *connExporter) listConnsForRound(e *goroutineEngine) {
	e.mu.Lock()
	d.remaining = e.conns.allConns()
	e.mu.Unlock()
	d.remaining = slices.DeleteFunc(d.remaining, func(c *conn) bool { return d.unexportable[c] })
	if len(d.remaining) == 0 {
		d.sender.Stop()
	}
}

func (c *conn) startRequestedExport() {
	d := c.engine.handoff.exporter.Load()
	if d == nil {
		return
	}
	err := c.StartExport()
	if err == nil {
		return // exportOrStayOpen follows
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if err == engine.ErrNotExportable {
		d.unexportable[c] = true
	}
	d.countDecidedRequest()
}

// countDecidedRequest counts a requested connection that was exported, or is not.
func (d *connExporter) countDecidedRequest() {
	if d.unanswered--; d.unanswered <= 0 {
		signalUnlessPending(d.progress)
	}
}

// exportOrStayOpen hands the connection over, or keeps it open here if it cannot.
func (c *conn) exportOrStayOpen() {
	d := c.engine.handoff.exporter.Load()
	c.OnKernelIdleForExport()
	var exported, permanent bool
	if d != nil {
		exported, permanent = d.exportConn(c)
	}
	if !exported {
		c.AbortExport(permanent)
	}
}

// exportConn reports whether c was exported and, if not, whether it can never be.
func (d *connExporter) exportConn(c *conn) (exported, neverExportable bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	defer d.countDecidedRequest()
	if !d.sender.IsExporting() || d.sender.TotalCredit() <= d.sending {
		return false, false
	}
	d.sending++
	defer func() {
		d.sending--
		signalUnlessPending(d.progress)
	}()
	r, err := d.snapshotWithoutLock(c)
	if err != nil {
		if neverExportable = !errors.Is(err, engine.ErrExportBusy) && !errors.Is(err, engine.ErrSaveLater); neverExportable {
			d.unexportable[c] = true
		}
		return false, neverExportable
	}
	record, fds := r.AppendTo(nil), []int{int(c.FD())}
	for d.sender.IsExporting() && !exported {
		channel, _ := d.sender.NextChannelWithCredit()
		if exported = d.sender.SendBatch(channel, record, fds); !exported {
			d.mu.Unlock()
			time.Sleep(resendInterval)
			d.mu.Lock()
		}
	}
	if !exported {
		c.CancelSnapshot()
		return false, false
	}
	c.engine.freedMemory.Add(goroutineBytes)
	c.CloseExported()
	return true, false
}

// snapshotWithoutLock packs a connection with the lock released: a handler may take long, or call runtime.Goexit.
func (d *connExporter) snapshotWithoutLock(c *conn) (engine.Record, error) {
	d.mu.Unlock()
	defer d.mu.Lock()
	return c.Snapshot()
}

// ChannelsNeeded implements engine.Migrator.
func (e *goroutineEngine) ChannelsNeeded() int { return 1 }

// SocketsPerListener implements engine.Migrator.
func (e *goroutineEngine) SocketsPerListener() []int {
	return engine.CountPerListener(e.listenerIndexes, len(e.host.ListenerCounters))
}

// SendListenerSockets implements engine.Migrator.
func (e *goroutineEngine) SendListenerSockets(control *os.File, message string) error {
	var fds []int
	for _, l := range e.listeners {
		fd, err := sock.DupConnDescriptor(l)
		if err != nil {
			return err
		}
		defer sock.Close(fd)
		fds = append(fds, int(fd))
	}
	return sock.SendFDsInChunks(int32(control.Fd()), message, fds)
}

// SetListenersShared implements engine.Migrator: listeners are closed here, never stopped.
func (e *goroutineEngine) SetListenersShared(bool) {}
