package loop

import (
	"cmp"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"sync"
	"syscall"
	"time"

	"github.com/myriad-go/myriad/internal/engine"
	"github.com/myriad-go/myriad/internal/sock"
)

// This file is how a loop hands its connections over: see engine.Migrator.
//
// In each turn the loop asks some connections to leave, in the order of their slots. Those of
// which nothing is under way any more are ready, and go by a channel that has credit, many in a
// message. Round after round it asks those that could not leave before, until a round has
// found none. Each loop has copies of the channels in its own descriptor table, and closes
// them when it is done.

const (
	// askBatch is the most connections that a turn asks to leave, mostReady how many may
	// be ready, and so are not served, before no more are asked.
	askBatch  = 2 * engine.MaxBatch
	mostReady = 2 * engine.MaxBatch
	// roundEvery is how long after a round the next one begins.
	roundEvery = 5 * time.Millisecond
	// batchInline is up to how many bytes records are in the message itself.
	batchInline = sock.MaxRightsMessage - 16
)

// handover is a loop's part of one that is under way.
type handover struct {
	loop    *Loop
	active  bool
	over    bool // no more are asked
	outlets []*outlet
	slot    uint32        // the next to be asked
	again   time.Duration // when to go on
	later   bool          // this round has found some that can leave, or could later
	ready   []engine.Ref  // at rest
	moved   engine.Handover
	done    func(engine.Handover, error)
	err     error

	fds     []int
	conns   []*engine.Conn
	records []byte
}

// outlet is a channel on the side that hands over.
type outlet struct {
	fd      int32
	credit  int
	unknown int  // connections that have gone and are not known to have come
	greeted bool // the other side has said how many may come
}

// full says that the other side has no room: it would have given credit.
func (o *outlet) full() bool { return o.greeted && o.credit == 0 && o.unknown == 0 }

// HandOver implements engine.Migrator.
func (g *group) HandOver(ctx context.Context, channels []*os.File) (moved engine.Handover, err error) {
	if len(channels) < len(g.loops) {
		return moved, fmt.Errorf("%d channels to hand over the connections of %d loops; expected at least as many", len(channels), len(g.loops))
	}
	var mu sync.Mutex
	var all sync.WaitGroup
	for i, l := range g.loops {
		var fds []int32
		for k, f := range channels {
			if k%len(g.loops) == i {
				fds = append(fds, int32(f.Fd()))
			}
		}
		all.Add(1)
		done := func(m engine.Handover, e error) {
			defer all.Done()
			mu.Lock()
			defer mu.Unlock()
			moved.Gone += m.Gone
			moved.Unknown += m.Unknown
			err = cmp.Or(err, e)
		}
		if !l.addChore(func() { l.handover.begin(fds, done) }) {
			done(engine.Handover{}, engine.ErrClosed)
		}
	}
	stopped := context.AfterFunc(ctx, func() {
		for _, l := range g.loops {
			l.addChore(func() { l.handover.end(context.Cause(ctx)) })
		}
	})
	all.Wait()
	stopped()
	return moved, err
}

// Ends implements engine.Migrator.
func (g *group) Ends() int { return len(g.loops) }

// Sockets implements engine.Migrator.
func (g *group) Sockets() []int { return engine.CountSockets(g.numbers, len(g.where)) }

// SendListeners implements engine.Migrator. Every loop has all listeners in its table.
func (g *group) SendListeners(control *os.File, word string) error {
	result := make(chan error, 1)
	l := g.loops[0]
	if !l.addChore(func() { result <- l.sendListeners(int32(control.Fd()), word) }) {
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
	for some := range slices.Chunk(l.group.listeners, sock.MaxRights) {
		var fds []int
		for _, fd := range some {
			fds = append(fds, int(fd))
		}
		if errno := sock.SendRights(own, []byte(word), fds); errno != 0 {
			return fmt.Errorf("listeners can't be handed over: %w", errno)
		}
	}
	return nil
}

// ShareListeners implements engine.Migrator.
func (g *group) ShareListeners(on bool) { g.sharedListeners.Store(on) }

// begin takes copies of the channels, and begins.
func (h *handover) begin(fds []int32, done func(engine.Handover, error)) {
	l := h.loop
	if h.active {
		done(engine.Handover{}, errors.New("connections are being handed over already"))
		return
	}
	*h = handover{loop: l, active: true, done: done}
	for _, fd := range fds {
		own, err := l.ownCopy(fd)
		if err != nil {
			h.fail(fmt.Errorf("a channel to hand connections over by: %w", err))
			break
		}
		h.outlets = append(h.outlets, &outlet{fd: own})
		l.driver.Listen(own)
	}
}

// ownCopy gives the loop a descriptor of its own for one of the process's table.
func (l *Loop) ownCopy(fd int32) (int32, error) {
	if l.group.cfg.Shard > 0 {
		return sock.Fetch(fd)
	}
	return sock.Duplicate(fd)
}

// fail ends it for an error, the first of which counts.
func (h *handover) fail(err error) {
	h.err = cmp.Or(h.err, err)
	h.end(nil)
}

// end has no more connections leave. It is over when it is known what has become of the others.
func (h *handover) end(err error) {
	if !h.active {
		return
	}
	h.err = cmp.Or(h.err, err)
	h.over = true
	for _, r := range h.ready {
		h.stay(r, false)
	}
	h.ready = nil
	if err != nil {
		h.finish()
	}
}

// stay has a connection go on here.
func (h *handover) stay(r engine.Ref, forGood bool) {
	if c := r.On(&h.loop.host); c != nil && c.Leaving() {
		c.Stay(forGood)
		h.loop.driver.Settle(c)
	}
}

// finish lets go of the channels, and tells what has come of it.
func (h *handover) finish() {
	for _, o := range h.outlets {
		h.moved.Unknown += o.unknown
		h.loop.driver.Unlisten(o.fd)
		sock.Close(o.fd)
	}
	h.loop.Each(func(c *engine.Conn) { // those that have been asked, and are not ready
		if c.Armed()&(Busy|Connecting) == 0 && c.IsOpen() {
			c.Stay(false)
			h.loop.driver.Settle(c)
		}
	})
	done, moved, err := h.done, h.moved, h.err
	*h = handover{loop: h.loop}
	done(moved, err)
}

// run does a turn's part.
func (h *handover) run(now time.Duration) {
	if !h.active {
		return
	}
	if !h.over && now >= h.again && len(h.loop.casts.all) == 0 { // a broadcast is to reach all first
		h.ask(now)
	}
	h.send()
	if !h.over && !slices.ContainsFunc(h.outlets, func(o *outlet) bool { return !o.full() }) {
		h.end(nil)
	}
	if h.over && !slices.ContainsFunc(h.outlets, func(o *outlet) bool { return o.unknown > 0 }) {
		h.finish()
	}
}

// ask has some connections leave.
func (h *handover) ask(now time.Duration) {
	l := h.loop
	for asked := 0; h.slot < l.slab.made && asked < askBatch && len(h.ready) < mostReady; h.slot++ {
		c := l.slab.at(h.slot)
		if c.FD() < 0 || c.Armed()&ClosePending != 0 {
			continue
		}
		err := engine.ErrNotNow
		if c.Armed()&(Busy|Connecting) == 0 {
			err = c.Leave()
		}
		if err == nil {
			asked++
			l.driver.Settle(c)
		}
		h.later = h.later || err != engine.ErrStays
	}
	if h.slot < l.slab.made || len(h.ready) > 0 {
		return
	}
	h.over = !h.later
	h.slot, h.later, h.again = 0, false, now+roundEvery
}

// atRest takes a connection that is ready.
func (h *handover) atRest(c *engine.Conn) {
	c.AtRest()
	if h.active && !h.over {
		h.ready = append(h.ready, c.Ref())
	} else {
		c.Stay(false)
	}
}

// send sends what is ready, as far as there is credit.
func (h *handover) send() {
	for n := 0; len(h.ready) > 0; {
		i := slices.IndexFunc(h.outlets, func(o *outlet) bool { return o.credit > 0 })
		if i < 0 {
			return
		}
		left := len(h.ready)
		if !h.sendBatch(h.outlets[i]) {
			return
		}
		if n++; n == 4 || len(h.ready) >= left {
			return // mail is on its way to those that are left
		}
	}
}

// sendBatch sends one batch, and says whether to go on.
func (h *handover) sendBatch(o *outlet) bool {
	h.pack(o)
	if len(h.conns) == 0 {
		return true
	}
	defer clear(h.conns)
	errno, err := h.sendPacked(o)
	switch {
	case err == nil && errno == 0:
		o.credit -= len(h.conns)
		o.unknown += len(h.conns)
		h.moved.Gone += len(h.conns)
		for _, c := range h.conns {
			c.Left()
			h.loop.driver.Settle(c)
		}
		return true
	case err == nil && (errno == syscall.EAGAIN || errno == syscall.ETOOMANYREFS || errno == syscall.ENOBUFS):
		h.again = h.loop.host.Clock() + roundEvery
	}
	for _, c := range h.conns {
		c.Unpack()
		h.ready = append(h.ready, c.Ref())
	}
	if err == nil && h.again <= h.loop.host.Clock() {
		err = errno
	}
	if err != nil {
		h.fail(engine.HandoverFailed(err))
	}
	return false
}

// pack makes the records of a batch. Those of connections that can't leave yet wait.
func (h *handover) pack(o *outlet) {
	h.fds, h.conns, h.records = h.fds[:0], h.conns[:0], h.records[:0]
	most := min(o.credit, engine.MaxBatch)
	var again []engine.Ref
	n := 0
	for ; n < len(h.ready) && len(h.conns) < most && len(h.records) < engine.MaxBatchBytes; n++ {
		ref := h.ready[n]
		c := ref.On(&h.loop.host)
		if c == nil || !c.Leaving() {
			continue
		}
		switch r, err := c.Pack(); {
		case err == nil:
			h.records = r.Append(h.records)
			h.fds = append(h.fds, int(c.FD()))
			h.conns = append(h.conns, c)
		case errors.Is(err, engine.ErrNotNow):
			again = append(again, ref)
		case c.Aborted(): // its Save has panicked
			h.loop.driver.Settle(c)
		case errors.Is(err, engine.ErrSaveLater):
			h.stay(ref, false)
			h.later = true
		default:
			h.stay(ref, true)
		}
	}
	h.ready = append(h.ready[n:], again...)
}

// sendPacked sends them.
func (h *handover) sendPacked(o *outlet) (syscall.Errno, error) {
	head := binary.AppendUvarint([]byte{engine.BatchInline}, uint64(len(h.conns)))
	if len(h.records) <= batchInline {
		return sock.SendRights(o.fd, append(head, h.records...), h.fds), nil
	}
	head[0] = engine.BatchInFile
	file, err := sock.MemoryFile(h.records)
	if err != nil {
		return 0, err
	}
	defer sock.Close(file)
	return sock.SendRights(o.fd, head, append([]int{int(file)}, h.fds...)), nil
}

// readCredit reads what has come by the channels.
func (h *handover) readCredit() {
	for _, o := range h.outlets {
		for {
			var p [8]byte
			n, _, errno := sock.ReceiveRights(o.fd, p[:])
			if errno == syscall.EAGAIN {
				break
			}
			if errno != 0 || n != 8 {
				err := error(io.ErrUnexpectedEOF)
				if errno != 0 {
					err = errno
				}
				h.err = cmp.Or(h.err, engine.HandoverFailed(err))
				h.end(h.err)
				return
			}
			o.greeted = true
			o.unknown -= int(binary.BigEndian.Uint32(p[:]))
			o.credit += int(binary.BigEndian.Uint32(p[4:]))
		}
	}
}
