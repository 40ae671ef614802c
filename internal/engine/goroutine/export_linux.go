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
	// maxRequested is the most connections that are asked to leave before others are, unless they
	// take longer than exportRoundInterval, which is also how long after a round the next one begins.
	maxRequested        = 64
	exportRoundInterval = 5 * time.Millisecond
	// resendInterval is how long after a channel was found full a connection is sent again.
	resendInterval = time.Millisecond
	// goroutineBytes is about how many bytes a goroutine and its connection take, which the
	// collector gets back.
	goroutineBytes = 4 << 10
)

// handoffState is the part of an engine that hands connections over, and takes some over.
type handoffState struct {
	exporter atomic.Pointer[connExporter] // nil if none is under way
	receiver handover.Receiver
}

// connExporter is a hand-over of this engine's connections that is under way.
type connExporter struct {
	progress chan struct{} // there may be more to do

	mu           sync.Mutex
	sender       handover.Sender
	unanswered   int // connections that were asked and have not answered
	sending      int // connections that are being saved, or sent
	remaining    []*conn
	unexportable map[*conn]bool
}

// ExportConns implements engine.Migrator.
func (e *goroutineEngine) ExportConns(ctx context.Context, channels []*os.File) (moved engine.ExportResult, err error) {
	if len(channels) == 0 {
		return moved, errors.New("no channels to hand connections over by; expected at least 1")
	}
	defer e.freedMemory.StartFreeing()()
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
			return moved, fmt.Errorf("a channel to hand connections over by: %w", err)
		}
		files, fds = append(files, os.NewFile(uintptr(channelCopy), "channel")), append(fds, channelCopy)
	}
	d := &connExporter{progress: make(chan struct{}, 1), sender: handover.NewSender(fds), unexportable: make(map[*conn]bool)}
	if !e.handoff.exporter.CompareAndSwap(nil, d) {
		return moved, errors.New("connections are being handed over already")
	}
	defer e.handoff.exporter.Store(nil)
	var reading sync.WaitGroup
	for i, o := range d.sender.Channels {
		reading.Go(func() { d.readChannel(files[i], o) })
	}
	stopped := context.AfterFunc(ctx, func() {
		d.mu.Lock()
		d.sender.Fail(context.Cause(ctx))
		d.mu.Unlock()
		notify(d.progress)
	})
	defer stopped()
	ticker := time.NewTicker(exportRoundInterval)
	defer ticker.Stop()
	for ticked := true; !d.requestExports(e, ticked); {
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

// readChannel reads what comes by a channel until that ends.
func (d *connExporter) readChannel(file *os.File, channel *handover.OutChannel) {
	raw, err := file.SyscallConn()
	if err != nil {
		return // it was closed here
	}
	_ = raw.Read(func(uintptr) bool { // likewise
		d.mu.Lock()
		defer d.mu.Unlock()
		err := d.sender.ReceiveConfirmations(channel)
		notify(d.progress)
		return channel.Ended || err != nil
	})
}

// requestExports asks connections to leave, and reports whether the hand-over is over.
func (d *connExporter) requestExports(e *goroutineEngine, roundDue bool) (over bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.sender.IsExporting() {
		if roundDue && len(d.remaining) == 0 {
			d.startRound(e)
		}
		if roundDue || d.unanswered <= 0 {
			n := min(maxRequested, len(d.remaining), max(d.sender.TotalCredit()-d.sending, 0))
			d.unanswered = n
			requestAllAndWake(d.remaining[:n], requestExport)
			d.remaining = d.remaining[n:]
		}
	}
	return d.sender.AdvanceStage() && d.sending == 0
}

// startRound lists who is to be asked. Nobody is the end.
func (d *connExporter) startRound(e *goroutineEngine) {
	e.mu.Lock()
	d.remaining = e.conns.allConns()
	e.mu.Unlock()
	d.remaining = slices.DeleteFunc(d.remaining, func(c *conn) bool { return d.unexportable[c] })
	if len(d.remaining) == 0 {
		d.sender.Stop()
	}
}

// startExport asks the connection to leave.
func (c *conn) startExport() {
	d := c.engine.handoff.exporter.Load()
	if d == nil {
		return
	}
	err := c.StartExport()
	if err == nil {
		return // to finishExport
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if err == engine.ErrNotExportable {
		d.unexportable[c] = true
	}
	d.countAnswer()
}

// countAnswer counts a connection that was asked, and has left or does not.
func (d *connExporter) countAnswer() {
	if d.unanswered--; d.unanswered <= 0 {
		notify(d.progress)
	}
}

// finishExport hands the connection over. One that can't go stays open here.
func (c *conn) finishExport() {
	d := c.engine.handoff.exporter.Load()
	c.OnQuiesced()
	var exported, permanent bool
	if d != nil {
		exported, permanent = d.exportConn(c)
	}
	if !exported {
		c.AbortExport(permanent)
	}
}

// exportConn reports whether the connection has gone, or can't go in any upgrade.
func (d *connExporter) exportConn(c *conn) (exported, permanent bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	defer d.countAnswer()
	if !d.sender.IsExporting() || d.sender.TotalCredit() <= d.sending {
		return false, false
	}
	d.sending++
	defer func() {
		d.sending--
		notify(d.progress)
	}()
	r, err := d.packUnlocked(c)
	if err != nil {
		if permanent = !errors.Is(err, engine.ErrExportBusy) && !errors.Is(err, engine.ErrSaveLater); permanent {
			d.unexportable[c] = true
		}
		return false, permanent
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
	c.FinishExport()
	return true, false
}

// packUnlocked packs a connection without the lock: a handler may take its time, or end the goroutine.
func (d *connExporter) packUnlocked(c *conn) (engine.Record, error) {
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
