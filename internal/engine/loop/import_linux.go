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

// This file takes over connections from another engine; see package handover. Channels are watched like listeners.

type connImporter struct {
	loop     *Loop
	channels []*handover.ImportChannel
	buffer   []byte
}

func (e *loopEngine) StartImportingConns(channels []*os.File) error {
	var added sync.WaitGroup
	var mu sync.Mutex
	var failed error
	for i, f := range channels {
		l := e.loops[i%len(e.loops)]
		added.Add(1)
		call := func() {
			defer added.Done()
			if err := l.importer.addChannelCopy(int32(f.Fd())); err != nil {
				mu.Lock()
				defer mu.Unlock()
				failed = err
			}
		}
		if !l.enqueueCallAndWake(call) {
			added.Done()
			mu.Lock()
			failed = engine.ErrClosed
			mu.Unlock()
		}
	}
	added.Wait()
	for _, f := range channels {
		_ = f.Close() // the loops have copies
	}
	return failed
}

func (a *connImporter) addChannelCopy(channelFD int32) error {
	l := a.loop
	channelCopy, err := l.copyFDToLoopTable(channelFD)
	if err != nil {
		return fmt.Errorf("duplicating the takeover channel: %w", err)
	}
	if l.requestedStopStage.Load() >= stageStopping {
		sock.Close(channelCopy)
		return engine.ErrClosed
	}
	in := l.engine.receiver.NewImportChannel(channelCopy, a)
	a.channels = append(a.channels, in)
	l.driver.WatchListener(channelCopy)
	in.ConfirmArrivalsAndGrantCredit()
	return nil
}

func (a *connImporter) ScheduleConfirmArrivals(in *handover.ImportChannel) {
	a.loop.enqueueCallAndWake(func() {
		if slices.Contains(a.channels, in) {
			in.ConfirmArrivalsAndGrantCredit()
		}
	})
}

// closeAllChannels closes the channels. The sending process keeps the connections that were not received.
func (a *connImporter) closeAllChannels() {
	for len(a.channels) > 0 {
		a.closeChannel(a.channels[0])
	}
	a.buffer = nil
}

func (a *connImporter) closeChannel(channel *handover.ImportChannel) {
	a.loop.driver.UnwatchListener(channel.FD)
	sock.Close(channel.FD)
	a.channels = slices.DeleteFunc(a.channels, func(other *handover.ImportChannel) bool { return other == channel })
	channel.ReleaseUnusedReservation()
}

func (a *connImporter) ReserveConns(n int) (reserved int) {
	l, claimed := a.loop, 0
	if l.engine.cfg.MaxConnsPerShard > 0 { // capacity and descriptors are those of this loop's table
		for _, in := range a.channels {
			claimed += in.Credit()
		}
		n = min(n, max(int(l.capacity.Load()-l.connCount.Load())-claimed, 0))
	}
	n = l.engine.admission.ReserveConns(n)
	if claimed += n; l.engine.cfg.MaxConnsPerShard == 0 {
		claimed = l.engine.admission.ReservedConns()
	}
	short := min(sock.DescriptorLimitShortfall(claimed), n)
	a.ReleaseConns(short)
	return n - short
}

func (a *connImporter) ReleaseConns(n int) { a.loop.engine.admission.CancelReservedConns(n) }

func (a *connImporter) receiveWaitingConns() {
	if len(a.channels) == 0 {
		return
	}
	if a.buffer == nil {
		a.buffer = make([]byte, sock.MaxFDMessageSize)
	}
	for _, in := range slices.Clone(a.channels) {
		some, err := in.ReceiveAndImportBatch(a.buffer, a.loop.importOrRejectConn)
		switch {
		case err == nil && some:
			in.ConfirmArrivalsAndGrantCredit()
		case err != nil && err != io.EOF:
			a.loop.host.Log.LogAttrs(context.Background(), slog.LevelError,
				"connections were lost during the hand-over", slog.String("error", err.Error()))
			fallthrough
		case err == io.EOF:
			a.closeChannel(in)
		}
	}
	if len(a.channels) == 0 {
		a.buffer = nil
	}
}

// importOrRejectConn serves a connection that was received from another process. If the engine does not admit the
// connection, importOrRejectConn closes it. The caller must have reserved capacity with ReserveConns.
func (l *Loop) importOrRejectConn(fd int32, record *engine.Record) {
	l.engine.admission.AcquireReservedConn()
	if fd >= engine.MaxFD {
		sock.Close(fd)
		l.engine.admission.ReleaseConn()
		l.pauseAcceptOnError(syscall.EMFILE)
		return
	}
	if err := l.host.MapListenerAndAdmitOrRelease(record); err != nil {
		if len(record.Layer) > 0 { // an unencrypted answer would break TLS
			sock.Close(fd)
		} else {
			l.sendRefusalAndClose(fd, record.Peer, err)
		}
		return
	}
	_ = unix.SetNonblock(int(fd), !l.acceptor.Blocking) // a valid call does not fail
	c := l.acquireConnForFD(fd)
	if errno := l.driver.WatchForInputOrConnect(c); errno != 0 {
		l.host.UndoAdmitImported(record)
		l.driver.DropUnopened(c)
		l.pauseAcceptOnError(errno)
		return
	}
	c.SetListener(record.Listener)
	c.ImportOrAbort(record)
	l.driver.PerformActions(c)
}
