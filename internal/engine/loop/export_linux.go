package loop

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"sync"
	"time"
	"unsafe"

	"github.com/myriad-go/myriad/internal/engine"
	"github.com/myriad-go/myriad/internal/engine/handover"
	"github.com/myriad-go/myriad/internal/sock"
)

// This file hands connections over to another process; see package handover. Each loop has its own sender, and copies
// of its channels in its own descriptor table.
//
// Each turn requests the export of some connections, in the order of their slots, up to the credit of the channels.
// Connections without an operation in progress are sent in batches. Further rounds try connections that could not be
// exported, until a round finds none. A loop without credit serves its connections as usual.

const (
	maxExporting        = handover.MaxBatch // connections that a loop exports at a time, and does not serve
	exportSlotsPerTurn  = 8 * chunkSize
	exportRoundInterval = 5 * time.Millisecond // between two rounds of an export
	freeMemoryEvery     = 8 * chunkSize        // number of exports after which unused chunks are freed
)

type connExporter struct {
	sender            handover.ExportSender
	loop              *Loop
	onDone            func(engine.ExportResult, error) // nil if no hand-over is in progress
	broadcastsBefore  uint64                           // broadcastSender.finishedCount at which the export may start
	nextSlot          uint32                           // slot of the next connection whose export to request
	requestAt         time.Duration                    // when to request the export of more connections
	wakeAt            time.Duration                    // when the loop must continue at the latest
	needsAnotherRound bool                             // some connections can be exported, now or later
	exporting         []engine.Ref                     // connections being exported, in order of their slots
	exportedSinceFree int                              // connections exported since chunks were last freed

	batchFDs     []int
	batchConns   []*engine.Conn
	batchRecords []byte
}

func (e *loopEngine) ExportConns(ctx context.Context, channels []*os.File) (moved engine.ExportResult, err error) {
	if len(channels) < len(e.loops) {
		return moved, fmt.Errorf("%d hand-over channels for %d loops; expected at least one for each loop", len(channels), len(e.loops))
	}
	defer e.freedMemory.StartReturningToOS()()
	var mu sync.Mutex
	var pending sync.WaitGroup
	pending.Add(len(e.loops))
	onDone := func(result engine.ExportResult, e error) {
		mu.Lock()
		defer mu.Unlock()
		moved.Exported += result.Exported
		moved.Unconfirmed += result.Unconfirmed
		err = cmp.Or(err, e)
		pending.Done()
	}
	for i, l := range e.loops {
		var fds []int32
		for k := i; k < len(channels); k += len(e.loops) {
			fds = append(fds, int32(channels[k].Fd()))
		}
		if !l.enqueueCallAndWake(func() { l.exporter.startHandOver(fds, onDone) }) {
			onDone(engine.ExportResult{}, engine.ErrClosed)
		}
	}
	stopped := context.AfterFunc(ctx, func() {
		for _, l := range e.loops {
			l.enqueueCallAndWake(func() { l.exporter.sender.Fail(context.Cause(ctx)) })
		}
	})
	pending.Wait()
	stopped()
	return moved, err
}

func (e *loopEngine) ChannelsNeeded() int { return len(e.loops) }

func (e *loopEngine) SocketsPerListener() []int {
	return engine.CountPerListener(e.listenerIndexes, len(e.listenerConfigs))
}

func (e *loopEngine) SendListenerSockets(control *os.File, message string) error {
	result := make(chan error, 1)
	l := e.loops[0]
	if !l.enqueueCallAndWake(func() { result <- l.sendListenerFDs(int32(control.Fd()), message) }) {
		return engine.ErrClosed
	}
	return <-result
}

func (l *Loop) sendListenerFDs(controlFD int32, message string) error {
	controlCopy, err := l.copyFDToLoopTable(controlFD)
	if err != nil {
		return err
	}
	defer sock.Close(controlCopy)
	var fds []int
	for _, fd := range l.engine.listenerFDs {
		fds = append(fds, int(fd))
	}
	return sock.SendFDsInChunks(controlCopy, message, fds)
}

func (e *loopEngine) SetListenersShared(shared bool) { e.listenersShared.Store(shared) }

// startHandOver starts to move the loop's connections to another engine over the sockets channelFDs. When the hand-over
// has ended or failed, the loop calls onDone.
func (d *connExporter) startHandOver(channelFDs []int32, onDone func(engine.ExportResult, error)) {
	l := d.loop
	if d.onDone != nil {
		onDone(engine.ExportResult{}, errors.New("a hand-over is already in progress; wait until it ends"))
		return
	}
	var copies []int32
	var err error
	for _, fd := range channelFDs {
		channelCopy, copyErr := l.copyFDToLoopTable(fd)
		if copyErr != nil {
			err = fmt.Errorf("duplicating the hand-over channel: %w", copyErr)
			break
		}
		copies = append(copies, channelCopy)
		l.driver.WatchListener(channelCopy)
	}
	*d = connExporter{sender: handover.NewExportSender(copies), loop: l, onDone: onDone, broadcastsBefore: l.broadcasts.finishedCount + uint64(len(l.broadcasts.active)), exportedSinceFree: d.exportedSinceFree}
	if err != nil {
		d.sender.Fail(err)
	}
}

func (l *Loop) copyFDToLoopTable(processFD int32) (int32, error) {
	if l.engine.cfg.MaxConnsPerShard > 0 {
		return sock.CopyFDFromProcessTable(processFD)
	}
	return sock.DupFD(processFD)
}

func (d *connExporter) abortHandOver(err error) {
	if d.onDone != nil {
		d.sender.Abort(err)
		d.finishHandOver()
	}
}

func (d *connExporter) cancelPendingExports() {
	for len(d.exporting) > 0 {
		r := d.exporting[0]
		d.exporting = d.exporting[1:]
		d.cancelExport(r, false)
	}
}

// cancelExport cancels the export of one connection, which then continues in this loop. If permanent is true, later
// attempts to export the connection will fail, too.
func (d *connExporter) cancelExport(ref engine.Ref, permanent bool) {
	if c := ref.ConnIfOwnedBy(&d.loop.host); c != nil && c.DriverFlags()&Busy == 0 && c.IsExporting() {
		c.AbortExport(permanent)
		d.loop.driver.PerformActions(c)
	}
}

func (d *connExporter) finishHandOver() {
	d.cancelPendingExports()
	for _, o := range d.sender.Channels {
		if !o.Ended {
			d.loop.driver.UnwatchListener(o.FD)
		}
		sock.Close(o.FD)
	}
	done, left := d.onDone, d.exportedSinceFree
	result, err := d.sender.Result()
	*d = connExporter{loop: d.loop, exportedSinceFree: left}
	done(result, err)
}

func (d *connExporter) nextDue() (at time.Duration, ok bool) { return d.wakeAt, d.onDone != nil }

func (d *connExporter) runIfDue(now time.Duration) {
	if d.onDone == nil {
		return
	}
	d.wakeAt = now + exportRoundInterval
	if d.sender.IsExporting() && now >= d.requestAt {
		if d.loop.broadcasts.finishedCount >= d.broadcastsBefore {
			d.startExportsOrStop(now)
		}
		d.sendBatches(now)
	}
	if d.sender.IsExporting() && d.canStartMoreExports() {
		d.wakeAt = d.requestAt
	}
	finished := d.sender.TryFinish()
	if !d.sender.IsExporting() {
		d.cancelPendingExports()
	}
	if finished {
		d.finishHandOver()
	}
}

func (d *connExporter) canStartMoreExports() bool {
	if len(d.exporting) > 0 && d.nextSlot == d.loop.conns.slotCount {
		return false
	}
	return len(d.exporting) < min(maxExporting, d.sender.TotalCredit())
}

func (d *connExporter) startExportsOrStop(now time.Duration) {
	l := d.loop
	limit, end := min(maxExporting, d.sender.TotalCredit()), min(d.nextSlot+exportSlotsPerTurn, l.conns.slotCount)
	for ; d.nextSlot < end && len(d.exporting) < limit; d.nextSlot++ {
		c := l.conns.conn(d.nextSlot)
		if c.FD() < 0 || c.DriverFlags()&ClosePending != 0 {
			continue
		}
		err := engine.ErrExportBusy
		if c.DriverFlags()&(Busy|Connecting) == 0 {
			err = c.RequestExport()
		}
		if err == nil {
			d.exporting = append(d.exporting, c.Ref())
			l.driver.PerformActions(c)
		}
		d.needsAnotherRound = d.needsAnotherRound || err != engine.ErrNotExportable
	}
	switch {
	case len(d.exporting) > 0 || d.nextSlot < l.conns.slotCount:
	case d.needsAnotherRound:
		d.nextSlot, d.needsAnotherRound, d.requestAt = 0, false, now+exportRoundInterval
	default:
		d.sender.Stop()
	}
}

func (d *connExporter) markReadyOrCancelExport(c *engine.Conn) {
	c.OnKernelIdleForExport()
	if d.onDone == nil || !d.sender.IsExporting() {
		c.AbortExport(false)
	}
}

func (d *connExporter) sendBatches(now time.Duration) {
	for len(d.exporting) > 0 {
		channel, credit := d.sender.NextChannelWithCredit()
		if channel == nil || !d.exportReadyBatch(channel, credit, now) {
			return
		}
	}
}

func (d *connExporter) exportReadyBatch(channel *handover.ExportChannel, credit int, now time.Duration) (sentAny bool) {
	defer func() {
		if !sentAny { // or a handler's Save has called runtime.Goexit
			d.requeueUnsentBatch()
		}
		clear(d.batchConns)
	}()
	d.packBatchOfReadyConns(credit)
	if len(d.batchConns) == 0 {
		return false
	}
	if !d.sender.TrySendBatchOrFail(channel, d.batchRecords, d.batchFDs) {
		d.requestAt = now + exportRoundInterval
		return false
	}
	sentAny = true
	clear(d.batchRecords) // the records may contain secrets of TLS connections
	d.exportedSinceFree += len(d.batchConns)
	for _, c := range d.batchConns {
		c.AbortAsHandedOver()
		d.loop.PerformActionsLater(c)
	}
	d.loop.performPendingActions()
	return true
}

func (d *connExporter) packBatchOfReadyConns(credit int) {
	d.batchFDs, d.batchConns, d.batchRecords = d.batchFDs[:0], d.batchConns[:0], d.batchRecords[:0]
	limit := min(credit, handover.MaxBatch)
	n, notReady := 0, d.exporting[:0]
	defer func() { d.exporting = append(notReady, d.exporting[n:]...) }() // also after a runtime.Goexit in Save
	for n < len(d.exporting) && len(d.batchConns) < limit && len(d.batchRecords) < handover.MaxBatchBytes {
		ref := d.exporting[n]
		n++
		c := ref.ConnIfOwnedBy(&d.loop.host)
		if c == nil || c.DriverFlags()&Busy == 0 && !c.IsExporting() {
			continue
		}
		err := engine.ErrExportBusy
		var r engine.Record
		if c.DriverFlags()&Busy == 0 {
			r, err = c.BlockPostsAndSnapshot()
		}
		switch {
		case err == nil:
			d.batchRecords = r.AppendTo(d.batchRecords)
			d.batchFDs = append(d.batchFDs, int(c.FD()))
			d.batchConns = append(d.batchConns, c)
		case errors.Is(err, engine.ErrExportBusy):
			notReady = append(notReady, ref)
		case c.IsAborted(): // Save has panicked
			d.loop.driver.PerformActions(c)
		case errors.Is(err, engine.ErrSaveLater):
			d.cancelExport(ref, false)
			d.needsAnotherRound = true
		default:
			d.cancelExport(ref, true)
		}
	}
}

func (d *connExporter) requeueUnsentBatch() {
	for _, c := range d.batchConns {
		c.CancelSnapshot()
		d.exporting = append(d.exporting, c.Ref())
	}
}

func (d *connExporter) readConfirmationsOrEndExport() {
	for _, o := range d.sender.Channels {
		if o.Ended {
			continue
		}
		if d.sender.ReceiveConfirmationsOrAbortExport(o) != nil {
			d.finishHandOver()
			return
		}
		if o.Ended {
			d.loop.driver.UnwatchListener(o.FD)
		}
	}
}

func (d *connExporter) freeEmptyConnChunksAfterManyExportsOrAtEnd() {
	if d.exportedSinceFree >= freeMemoryEvery || d.exportedSinceFree > 0 && d.onDone == nil {
		d.exportedSinceFree = 0
		d.loop.engine.freedMemory.Add(int64(d.loop.conns.freeChunksWithoutConns()) * int64(unsafe.Sizeof(connChunk{})))
	}
}
