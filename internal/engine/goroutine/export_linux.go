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

// This file exports connections to other engines; see package handover.
//
// ExportConns requests the export of some connections at a time, because these connections are not served. It repeats
// rounds until each connection has been exported or cannot be exported. Each connection is sent by its own goroutine,
// in a batch of one. Another goroutine reads each channel. connExporter.mu guards the export, but is not held while a
// handler saves its state.

const (
	maxRequested        = 64 // maximum number of connections that are asked at the same time to export themselves
	exportRoundInterval = 5 * time.Millisecond
	resendInterval      = time.Millisecond // time between two attempts to send over a full channel
	goroutineBytes      = 4 << 10          // approximate memory that the export of a connection frees
)

type handoffState struct {
	exporter atomic.Pointer[connExporter] // nil if no hand-over is in progress
	receiver handover.CreditDistributor
}

type connExporter struct {
	progress chan struct{} // signals that there may be more to do

	mu           sync.Mutex
	sender       handover.ExportSender
	unanswered   int     // connections that were asked to export themselves and have not decided
	sending      int     // connections being saved or sent
	remaining    []*conn // connections not yet asked in this round
	unexportable map[*conn]bool
}

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
	d := &connExporter{progress: make(chan struct{}, 1), sender: handover.NewExportSender(fds), unexportable: make(map[*conn]bool)}
	if !e.handoff.exporter.CompareAndSwap(nil, d) {
		return moved, errors.New("a hand-over is already in progress; wait until it ends")
	}
	defer e.handoff.exporter.Store(nil)
	e.awaitEarlierBroadcasts(ctx) // because an exported connection accepts no requests
	var reading sync.WaitGroup
	for i, o := range d.sender.Channels {
		reading.Go(func() { d.receiveCreditUntilChannelEnds(files[i], o) })
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

// receiveCreditUntilChannelEnds receives messages from the importing engine until the channel ends. The messages
// confirm received connections, or grant credit to send more connections. The parameter file is the channel's socket.
func (d *connExporter) receiveCreditUntilChannelEnds(file *os.File, channel *handover.ExportChannel) {
	raw, err := file.SyscallConn()
	if err != nil {
		return // the channel was closed here
	}
	_ = raw.Read(func(uintptr) bool { // fails if the channel was closed here
		d.mu.Lock()
		defer d.mu.Unlock()
		err := d.sender.ReceiveConfirmationsOrAbortExport(channel)
		signalUnlessPending(d.progress)
		return channel.Ended || err != nil
	})
}

// requestExportsOrFinish asks further connections to export themselves. Normally it first waits until all connections
// have answered the earlier requests. If roundDue is true, it does not wait. If it has already asked every connection,
// it then starts again with all connections that are left. exportOver reports whether the hand-over has ended.
func (d *connExporter) requestExportsOrFinish(e *goroutineEngine, roundDue bool) (exportOver bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.sender.IsExporting() {
		if roundDue && len(d.remaining) == 0 {
			d.listExportableConnsOrStopLocked(e)
		}
		if roundDue || d.unanswered <= 0 {
			n := min(maxRequested, len(d.remaining), max(d.sender.TotalCredit()-d.sending, 0))
			d.unanswered = n
			requestAndWakeAll(d.remaining[:n], requestExport)
			d.remaining = d.remaining[n:]
		}
	}
	return d.sender.TryFinish() && d.sending == 0
}

func (d *connExporter) listExportableConnsOrStopLocked(e *goroutineEngine) {
	e.mu.Lock()
	d.remaining = e.conns.allConns()
	e.mu.Unlock()
	d.remaining = slices.DeleteFunc(d.remaining, func(c *conn) bool { return d.unexportable[c] })
	if len(d.remaining) == 0 {
		d.sender.Stop()
	}
}

func (c *conn) startExportOrDecline() {
	d := c.engine.handoff.exporter.Load()
	if d == nil {
		return
	}
	err := c.RequestExport()
	if err == nil {
		return // exportOrStayOpen follows
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if err == engine.ErrNotExportable {
		d.unexportable[c] = true
	}
	d.countExportAnswerLocked()
}

func (d *connExporter) countExportAnswerLocked() {
	if d.unanswered--; d.unanswered <= 0 {
		signalUnlessPending(d.progress)
	}
}

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

// exportConn exports c to another engine. If the export fails and cannot succeed later, neverExportable is true.
func (d *connExporter) exportConn(c *conn) (exported, neverExportable bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	defer d.countExportAnswerLocked()
	if !d.sender.IsExporting() || d.sender.TotalCredit() <= d.sending {
		return false, false
	}
	d.sending++
	defer func() {
		d.sending--
		signalUnlessPending(d.progress)
	}()
	r, err := d.snapshotReleasingLock(c)
	if err != nil {
		if neverExportable = !errors.Is(err, engine.ErrExportBusy) && !errors.Is(err, engine.ErrSaveLater); neverExportable {
			d.unexportable[c] = true
		}
		return false, neverExportable
	}
	record, fds := r.AppendTo(nil), []int{int(c.FD())}
	for d.sender.IsExporting() && !exported {
		channel, _ := d.sender.NextChannelWithCredit()
		if exported = d.sender.TrySendBatchOrFail(channel, record, fds); !exported {
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
	c.AbortAsHandedOver()
	return true, false
}

// snapshotReleasingLock calls c.BlockPostsAndSnapshot without holding d.mu. The caller must hold d.mu.
func (d *connExporter) snapshotReleasingLock(c *conn) (engine.Record, error) {
	d.mu.Unlock() // BlockPostsAndSnapshot calls a handler, which may block
	defer d.mu.Lock()
	return c.BlockPostsAndSnapshot()
}

func (e *goroutineEngine) ChannelsNeeded() int { return 1 }

func (e *goroutineEngine) SocketsPerListener() []int {
	return engine.CountPerListener(e.listenerIndexes, len(e.host.ListenerCounters))
}

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

// SetListenersShared does nothing. Sharing needs no preparation, because this engine never shuts down a listener that
// another process may use.
func (e *goroutineEngine) SetListenersShared(bool) {}
