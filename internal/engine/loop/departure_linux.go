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

// This file is how a loop hands its connections over: see package handover. Each loop is a sender
// of its own, with copies of its channels in its own descriptor table.
//
// In each turn the loop asks some connections to leave, in the order of their slots, as many as
// there is credit for. Those of which nothing is under way any more are sent, many in a batch.
// Round after round it asks those that could not leave before, until a round has found none.
// While it has no credit it serves its connections.

const (
	// maxLeaving is the most connections that are on their way out of a loop, and so are not
	// served.
	maxLeaving = handover.MaxBatch
	// askSlots is how many slots a turn looks at.
	askSlots = 8 * chunkSize
	// roundEvery is how long after a round the next one begins, and how long the loop sleeps
	// at the most while it waits for connections to come to rest.
	roundEvery = 5 * time.Millisecond
	// giveBackEvery is after how many connections memory is looked for that can be given back.
	giveBackEvery = 8 * chunkSize
)

// departure is a loop's part of a hand-over.
type departure struct {
	sender  handover.Sender
	loop    *Loop
	done    func(engine.ExportResult, error) // nil if none is under way
	casts   uint64                           // so many broadcasts are to reach all first
	slot    uint32                           // the next to be asked
	again   time.Duration                    // when to ask on
	wake    time.Duration                    // when to go on at the latest
	later   bool                             // this round has found some that can leave, or could later
	leaving []engine.Ref                     // have been asked; in order
	left    int                              // connections that have left since memory was given back

	fds     []int
	conns   []*engine.Conn
	records []byte
}

// ExportConns implements engine.Migrator.
func (g *group) ExportConns(ctx context.Context, channels []*os.File) (moved engine.ExportResult, err error) {
	if len(channels) < len(g.loops) {
		return moved, fmt.Errorf("%d channels to hand over the connections of %d loops; expected at least as many", len(channels), len(g.loops))
	}
	defer g.given.StartFreeing()()
	var mu sync.Mutex
	var all sync.WaitGroup
	all.Add(len(g.loops))
	done := func(m engine.ExportResult, e error) {
		mu.Lock()
		defer mu.Unlock()
		moved.Exported += m.Exported
		moved.Unconfirmed += m.Unconfirmed
		err = cmp.Or(err, e)
		all.Done()
	}
	for i, l := range g.loops {
		var fds []int32
		for k := i; k < len(channels); k += len(g.loops) {
			fds = append(fds, int32(channels[k].Fd()))
		}
		if !l.addChore(func() { l.departure.begin(fds, done) }) {
			done(engine.ExportResult{}, engine.ErrClosed)
		}
	}
	stopped := context.AfterFunc(ctx, func() {
		for _, l := range g.loops {
			l.addChore(func() { l.departure.sender.Fail(context.Cause(ctx)) })
		}
	})
	all.Wait()
	stopped()
	return moved, err
}

// ChannelsNeeded implements engine.Migrator.
func (g *group) ChannelsNeeded() int { return len(g.loops) }

// SocketsPerListener implements engine.Migrator.
func (g *group) SocketsPerListener() []int { return engine.CountPerListener(g.numbers, len(g.where)) }

// SendListenerSockets implements engine.Migrator. Every loop has all listeners in its table.
func (g *group) SendListenerSockets(control *os.File, message string) error {
	result := make(chan error, 1)
	l := g.loops[0]
	if !l.addChore(func() { result <- l.sendListeners(int32(control.Fd()), message) }) {
		return engine.ErrClosed
	}
	return <-result
}

func (l *Loop) sendListeners(control int32, word string) error {
	own, err := l.ownCopy(control)
	if err != nil {
		return err
	}
	defer sock.Close(own)
	var fds []int
	for _, fd := range l.group.listeners {
		fds = append(fds, int(fd))
	}
	return sock.SendListeners(own, word, fds)
}

// SetListenersShared implements engine.Migrator.
func (g *group) SetListenersShared(on bool) { g.sharedListeners.Store(on) }

// begin takes copies of the channels, and begins.
func (d *departure) begin(fds []int32, done func(engine.ExportResult, error)) {
	l := d.loop
	if d.done != nil {
		done(engine.ExportResult{}, errors.New("connections are being handed over already"))
		return
	}
	var copies []int32
	var err error
	for _, fd := range fds {
		own, failed := l.ownCopy(fd)
		if failed != nil {
			err = fmt.Errorf("a channel to hand connections over by: %w", failed)
			break
		}
		copies = append(copies, own)
		l.driver.Listen(own)
	}
	*d = departure{sender: handover.NewSender(copies), loop: l, done: done, casts: l.casts.finished + uint64(len(l.casts.all)), left: d.left}
	if err != nil {
		d.sender.Fail(err)
	}
}

// ownCopy gives the loop a descriptor of its own for one of the process's table.
func (l *Loop) ownCopy(fd int32) (int32, error) {
	if l.group.cfg.MaxConnsPerShard > 0 {
		return sock.Fetch(fd)
	}
	return sock.Duplicate(fd)
}

// abort ends it at once.
func (d *departure) abort(err error) {
	if d.done != nil {
		d.sender.Abort(err)
		d.finish()
	}
}

// stayAll has those go on here that have been asked.
func (d *departure) stayAll() {
	for len(d.leaving) > 0 {
		r := d.leaving[0]
		d.leaving = d.leaving[1:]
		d.stay(r, false)
	}
}

// stay has a connection go on here.
func (d *departure) stay(r engine.Ref, forGood bool) {
	if c := r.ConnOwnedBy(&d.loop.host); c != nil && c.DriverFlags()&Busy == 0 && c.IsExporting() {
		c.AbortExport(forGood)
		d.loop.driver.Settle(c)
	}
}

// finish closes the channels, and returns the result.
func (d *departure) finish() {
	d.stayAll()
	for _, o := range d.sender.Channels {
		if !o.Ended {
			d.loop.driver.Unlisten(o.FD)
		}
		sock.Close(o.FD)
	}
	done, left := d.done, d.left
	result, err := d.sender.Result()
	*d = departure{loop: d.loop, left: left}
	done(result, err)
}

func (d *departure) next() (at time.Duration, ok bool) { return d.wake, d.done != nil }

// run does a turn's part.
func (d *departure) run(now time.Duration) {
	if d.done == nil {
		return
	}
	d.wake = now + roundEvery
	if d.sender.IsExporting() && now >= d.again {
		if d.loop.casts.finished >= d.casts {
			d.ask(now)
		}
		d.send(now)
	}
	if d.sender.IsExporting() && d.mayAsk() {
		d.wake = d.again
	}
	over := d.sender.AdvanceStage()
	if !d.sender.IsExporting() {
		d.stayAll()
	}
	if over {
		d.finish()
	}
}

// mayAsk reports whether there are connections to ask, or this was the end of a round.
func (d *departure) mayAsk() bool {
	if len(d.leaving) > 0 && d.slot == d.loop.slab.made {
		return false
	}
	return len(d.leaving) < min(maxLeaving, d.sender.TotalCredit())
}

// ask has some connections leave.
func (d *departure) ask(now time.Duration) {
	l := d.loop
	most, end := min(maxLeaving, d.sender.TotalCredit()), min(d.slot+askSlots, l.slab.made)
	for ; d.slot < end && len(d.leaving) < most; d.slot++ {
		c := l.slab.at(d.slot)
		if c.FD() < 0 || c.DriverFlags()&ClosePending != 0 {
			continue
		}
		err := engine.ErrExportBusy
		if c.DriverFlags()&(Busy|Connecting) == 0 {
			err = c.StartExport()
		}
		if err == nil {
			d.leaving = append(d.leaving, c.Ref())
			l.driver.Settle(c)
		}
		d.later = d.later || err != engine.ErrNotExportable
	}
	switch {
	case len(d.leaving) > 0 || d.slot < l.slab.made:
	case d.later:
		d.slot, d.later, d.again = 0, false, now+roundEvery
	default:
		d.sender.Stop()
	}
}

// atRest takes a connection that may go.
func (d *departure) atRest(c *engine.Conn) {
	c.OnQuiesced()
	if d.done == nil || !d.sender.IsExporting() {
		c.AbortExport(false)
	}
}

// send sends what is at rest, as far as there is credit.
func (d *departure) send(now time.Duration) {
	for len(d.leaving) > 0 {
		o, credit := d.sender.NextChannelWithCredit()
		if o == nil || !d.sendBatch(o, credit, now) {
			return
		}
	}
}

// sendBatch sends one batch, if there is one, and reports whether it has.
func (d *departure) sendBatch(o *handover.OutChannel, credit int, now time.Duration) (sent bool) {
	defer func() {
		if !sent { // or a handler's Save has ended the goroutine
			d.unpack()
		}
		clear(d.conns)
	}()
	d.pack(credit)
	if len(d.conns) == 0 {
		return false
	}
	if !d.sender.SendBatch(o, d.records, d.fds) {
		d.again = now + roundEvery
		return false
	}
	sent = true
	d.left += len(d.conns)
	for _, c := range d.conns {
		c.FinishExport()
		d.loop.SettleLater(c)
	}
	d.loop.settleTouched()
	return true
}

// pack makes the records of a batch. Connections that are not at rest, or have mail on its way,
// wait.
func (d *departure) pack(credit int) {
	d.fds, d.conns, d.records = d.fds[:0], d.conns[:0], d.records[:0]
	most := min(credit, handover.MaxBatch)
	n, rest := 0, d.leaving[:0]
	defer func() { d.leaving = append(rest, d.leaving[n:]...) }() // also when a Save ends the goroutine
	for n < len(d.leaving) && len(d.conns) < most && len(d.records) < handover.MaxBatchBytes {
		ref := d.leaving[n]
		n++
		c := ref.ConnOwnedBy(&d.loop.host)
		if c == nil || c.DriverFlags()&Busy == 0 && !c.IsExporting() {
			continue
		}
		err := engine.ErrExportBusy
		var r engine.Record
		if c.DriverFlags()&Busy == 0 {
			r, err = c.Snapshot()
		}
		switch {
		case err == nil:
			d.records = r.AppendTo(d.records)
			d.fds = append(d.fds, int(c.FD()))
			d.conns = append(d.conns, c)
		case errors.Is(err, engine.ErrExportBusy):
			rest = append(rest, ref)
		case c.IsAborted(): // its Save has panicked
			d.loop.driver.Settle(c)
		case errors.Is(err, engine.ErrSaveLater):
			d.stay(ref, false)
			d.later = true
		default:
			d.stay(ref, true)
		}
	}
}

// unpack has those wait on that have been packed and are not sent.
func (d *departure) unpack() {
	for _, c := range d.conns {
		c.CancelSnapshot()
		d.leaving = append(d.leaving, c.Ref())
	}
}

// receive reads what has come by the channels.
func (d *departure) receive() {
	for _, o := range d.sender.Channels {
		if o.Ended {
			continue
		}
		if d.sender.ReceiveConfirmations(o) != nil {
			d.finish()
			return
		}
		if o.Ended {
			d.loop.driver.Unlisten(o.FD)
		}
	}
}

// giveBack releases memory of connections that have left.
func (d *departure) giveBack() {
	if d.left >= giveBackEvery || d.left > 0 && d.done == nil {
		d.left = 0
		d.loop.group.given.Add(int64(d.loop.slab.giveBack()) * int64(unsafe.Sizeof(chunk{})))
	}
}
