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
	// maxAsked is the most connections that are asked to leave before others are, unless they
	// take longer than roundEvery, which is also how long after a round the next one begins.
	maxAsked   = 64
	roundEvery = 5 * time.Millisecond
	// resendEvery is how long after a channel was found full a connection is sent again.
	resendEvery = time.Millisecond
	// goroutineBytes is about how many bytes a goroutine and its connection take, which the
	// collector gets back.
	goroutineBytes = 4 << 10
)

// migration is the part of an engine that hands connections over, and takes some over.
type migration struct {
	departure atomic.Pointer[departure] // nil if none is under way
	receiver  handover.Receiver
}

// departure is a hand-over of this engine's connections that is under way.
type departure struct {
	changed chan struct{} // there may be more to do

	mu     sync.Mutex
	sender handover.Sender
	asked  int // connections that were asked and have not answered
	saving int // connections that are being saved, or sent
	round  []*conn
	stays  map[*conn]bool
}

// ExportConns implements engine.Migrator.
func (g *group) ExportConns(ctx context.Context, channels []*os.File) (moved engine.ExportResult, err error) {
	if len(channels) == 0 {
		return moved, errors.New("no channels to hand connections over by; expected at least 1")
	}
	defer g.given.StartFreeing()()
	var files []*os.File
	var fds []int32
	defer func() {
		for _, f := range files {
			f.Close()
		}
	}()
	for _, f := range channels {
		own, err := sock.Duplicate(int32(f.Fd()))
		if err != nil {
			return moved, fmt.Errorf("a channel to hand connections over by: %w", err)
		}
		files, fds = append(files, os.NewFile(uintptr(own), "channel")), append(fds, own)
	}
	d := &departure{changed: make(chan struct{}, 1), sender: handover.NewSender(fds), stays: make(map[*conn]bool)}
	if !g.migration.departure.CompareAndSwap(nil, d) {
		return moved, errors.New("connections are being handed over already")
	}
	defer g.migration.departure.Store(nil)
	var reading sync.WaitGroup
	for i, o := range d.sender.Channels {
		reading.Go(func() { d.receive(files[i], o) })
	}
	stopped := context.AfterFunc(ctx, func() {
		d.mu.Lock()
		d.sender.Fail(context.Cause(ctx))
		d.mu.Unlock()
		signal(d.changed)
	})
	defer stopped()
	ticker := time.NewTicker(roundEvery)
	defer ticker.Stop()
	for ticked := true; !d.step(g, ticked); {
		select {
		case <-d.changed:
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

// receive reads what comes by a channel until that ends.
func (d *departure) receive(f *os.File, o *handover.OutChannel) {
	raw, err := f.SyscallConn()
	if err != nil {
		return // it was closed here
	}
	_ = raw.Read(func(uintptr) bool { // likewise
		d.mu.Lock()
		defer d.mu.Unlock()
		err := d.sender.ReceiveConfirmations(o)
		signal(d.changed)
		return o.Ended || err != nil
	})
}

// step asks connections to leave, and reports whether the hand-over is over.
func (d *departure) step(g *group, ticked bool) (over bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.sender.IsExporting() {
		if ticked && len(d.round) == 0 {
			d.beginRound(g)
		}
		if ticked || d.asked <= 0 {
			n := min(maxAsked, len(d.round), max(d.sender.TotalCredit()-d.saving, 0))
			d.asked = n
			requestAll(d.round[:n], leaving)
			d.round = d.round[n:]
		}
	}
	return d.sender.AdvanceStage() && d.saving == 0
}

// beginRound lists who is to be asked. Nobody is the end.
func (d *departure) beginRound(g *group) {
	g.mu.Lock()
	d.round = g.conns.all()
	g.mu.Unlock()
	d.round = slices.DeleteFunc(d.round, func(c *conn) bool { return d.stays[c] })
	if len(d.round) == 0 {
		d.sender.Stop()
	}
}

// leave asks the connection to leave.
func (c *conn) leave() {
	d := c.group.migration.departure.Load()
	if d == nil {
		return
	}
	err := c.StartExport()
	if err == nil {
		return // to giveAway
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if err == engine.ErrNotExportable {
		d.stays[c] = true
	}
	d.answered()
}

// answered counts a connection that was asked, and has left or does not.
func (d *departure) answered() {
	if d.asked--; d.asked <= 0 {
		signal(d.changed)
	}
}

// giveAway hands the connection over. One that can't go stays open here.
func (c *conn) giveAway() {
	d := c.group.migration.departure.Load()
	c.OnQuiesced()
	var gone, stays bool
	if d != nil {
		gone, stays = d.give(c)
	}
	if !gone {
		c.AbortExport(stays)
	}
}

// give reports whether the connection has gone, or can't go in any upgrade.
func (d *departure) give(c *conn) (gone, stays bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	defer d.answered()
	if !d.sender.IsExporting() || d.sender.TotalCredit() <= d.saving {
		return false, false
	}
	d.saving++
	defer func() {
		d.saving--
		signal(d.changed)
	}()
	r, err := d.pack(c)
	if err != nil {
		if stays = !errors.Is(err, engine.ErrExportBusy) && !errors.Is(err, engine.ErrSaveLater); stays {
			d.stays[c] = true
		}
		return false, stays
	}
	record, fds := r.AppendTo(nil), []int{int(c.FD())}
	for d.sender.IsExporting() && !gone {
		o, _ := d.sender.NextChannelWithCredit()
		if gone = d.sender.SendBatch(o, record, fds); !gone {
			d.mu.Unlock()
			time.Sleep(resendEvery)
			d.mu.Lock()
		}
	}
	if !gone {
		c.CancelSnapshot()
		return false, false
	}
	c.group.given.Add(goroutineBytes)
	c.FinishExport()
	return true, false
}

// pack packs a connection without the lock: a handler may take its time, or end the goroutine.
func (d *departure) pack(c *conn) (engine.Record, error) {
	d.mu.Unlock()
	defer d.mu.Lock()
	return c.Snapshot()
}

// ChannelsNeeded implements engine.Migrator.
func (g *group) ChannelsNeeded() int { return 1 }

// SocketsPerListener implements engine.Migrator.
func (g *group) SocketsPerListener() []int {
	return engine.CountPerListener(g.numbers, len(g.host.ListenerCounters))
}

// SendListenerSockets implements engine.Migrator.
func (g *group) SendListenerSockets(control *os.File, message string) error {
	var fds []int
	for _, l := range g.lns {
		fd, err := sock.Detach(l)
		if err != nil {
			return err
		}
		defer sock.Close(fd)
		fds = append(fds, int(fd))
	}
	return sock.SendListeners(int32(control.Fd()), message, fds)
}

// SetListenersShared implements engine.Migrator: listeners are closed here, never stopped.
func (g *group) SetListenersShared(bool) {}
