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
	"unsafe"

	"github.com/myriad-go/myriad/internal/engine"
	"github.com/myriad-go/myriad/internal/sock"
)

// This file is how a loop hands its connections over: see engine.Migrator.
//
// In each turn the loop asks some connections to leave, in the order of their slots, as many as
// there is credit for. Those of which nothing is under way any more go by a channel that has
// credit, many in a message. Round after round it asks those that could not leave before, until
// a round has found none. Then it shuts its channels for writing, which gives back what credit
// is left, and is done when the other side has closed them. Each loop has copies of the channels
// in its own descriptor table.
//
// A loop that gets no credit serves on, and asks for some each time that another one is done:
// see parting.

const (
	// mostLeaving is the most connections that are on their way out of a loop, and so are not
	// served.
	mostLeaving = engine.MaxBatch
	// askWalk is how many slots a turn looks at.
	askWalk = 8 * chunkSize
	// roundEvery is how long after a round the next one begins, and how long the loop sleeps
	// at the most while it waits for connections to come to rest.
	roundEvery = 5 * time.Millisecond
	// batchInline is up to how many bytes records are in the message itself.
	batchInline = sock.MaxRightsMessage - 16
	// giveBackEvery is after how many connections memory is looked for that can be given back.
	giveBackEvery = 8 * chunkSize
)

// handover is a loop's part of one that is under way.
type handover struct {
	loop       *Loop
	parting    *parting // nil if none is under way
	stage      handoverStage
	asked      int // when it asked for credit, so many loops were done
	outlets    []*outlet
	nextOutlet int           // the outlet that is sent by
	casts      uint64        // so many broadcasts are to reach all first
	slot       uint32        // the next to be asked
	again      time.Duration // when to ask on
	wake       time.Duration // when to go on at the latest
	later      bool          // this round has found some that can leave, or could later
	leaving    []engine.Ref  // have been asked; in order
	left       int           // connections that have left since memory was given back
	moved      engine.Handover
	done       func(engine.Handover, error)
	err        error

	fds     []int
	conns   []*engine.Conn
	records []byte
}

type handoverStage uint8

const (
	asks  handoverStage = iota // connections to leave
	waits                      // for others to give back room
	over                       // nobody else is asked
	shut                       // and the channels are shut
)

// outlet is a channel on the side that hands over.
type outlet struct {
	fd      int32
	credit  int
	unknown int  // connections that have gone and are not known to have come
	owed    bool // the other side is to say how many may come
	ended   bool // by the other side, after it was shut here
}

// HandOver implements engine.Migrator.
func (g *group) HandOver(ctx context.Context, channels []*os.File) (moved engine.Handover, err error) {
	if len(channels) < len(g.loops) {
		return moved, fmt.Errorf("%d channels to hand over the connections of %d loops; expected at least as many", len(channels), len(g.loops))
	}
	defer g.given.GiveBack()()
	var all sync.WaitGroup
	p := &parting{running: len(g.loops)}
	all.Add(len(g.loops))
	for i, l := range g.loops {
		var fds []int32
		for k, f := range channels {
			if k%len(g.loops) == i {
				fds = append(fds, int32(f.Fd()))
			}
		}
		done := func(m engine.Handover, e error) {
			p.mu.Lock()
			moved.Gone += m.Gone
			moved.Unknown += m.Unknown
			err = cmp.Or(err, e)
			p.mu.Unlock()
			p.done()
			all.Done()
		}
		if !l.addChore(func() { l.handover.begin(p, fds, done) }) {
			done(engine.Handover{}, engine.ErrClosed)
		}
	}
	stopped := context.AfterFunc(ctx, func() {
		for _, l := range g.loops {
			l.addChore(func() { l.handover.fail(context.Cause(ctx)) })
		}
	})
	all.Wait()
	stopped()
	return moved, err
}

// parting is what loops share that hand over together: who has no room on the other side waits
// until others are done, which gives back the room that they do not need. When all are done or
// wait, there is none.
type parting struct {
	mu      sync.Mutex
	running int // neither done nor waiting
	ended   int // that are done
	waiting []*handover
}

// wait has a loop wait, unless another one was done after it has asked.
func (p *parting) wait(h *handover) (waits bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if h.asked < p.ended {
		return false
	}
	p.waiting = append(p.waiting, h)
	if p.running--; p.running == 0 {
		p.tell((*handover).end)
	}
	return true
}

// done says that a loop is done. Those that wait run again.
func (p *parting) done() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.running += len(p.waiting) - 1
	p.ended++
	p.tell((*handover).askForCredit)
}

// doneLoops is how many are done.
func (p *parting) doneLoops() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.ended
}

// tell has all that wait do something. A loop that has ended is done in another way.
func (p *parting) tell(do func(*handover)) {
	for _, h := range p.waiting {
		h.loop.addChore(func() {
			if h.parting == p && h.stage == waits {
				do(h)
			}
		})
	}
	p.waiting = nil
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
	var fds []int
	for _, fd := range l.group.listeners {
		fds = append(fds, int(fd))
	}
	return sock.SendListeners(own, word, fds)
}

// ShareListeners implements engine.Migrator.
func (g *group) ShareListeners(on bool) { g.sharedListeners.Store(on) }

// begin takes copies of the channels, and begins.
func (h *handover) begin(p *parting, fds []int32, done func(engine.Handover, error)) {
	l := h.loop
	if h.parting != nil {
		done(engine.Handover{}, errors.New("connections are being handed over already"))
		return
	}
	*h = handover{loop: l, parting: p, done: done, casts: l.casts.finished + uint64(len(l.casts.all))}
	for _, fd := range fds {
		own, err := l.ownCopy(fd)
		if err != nil {
			h.fail(fmt.Errorf("a channel to hand connections over by: %w", err))
			break
		}
		h.outlets = append(h.outlets, &outlet{fd: own, owed: true})
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
	h.end()
}

// end has no more connections leave. It is over when it is known what has become of the others.
func (h *handover) end() {
	if h.parting != nil {
		h.stage = max(h.stage, over)
		h.stayAll()
	}
}

// abort ends it at once: nothing more will be known.
func (h *handover) abort(err error) {
	if h.parting != nil {
		h.fail(err)
		h.finish()
	}
}

// stayAll has those go on here that have been asked.
func (h *handover) stayAll() {
	for len(h.leaving) > 0 {
		r := h.leaving[0]
		h.leaving = h.leaving[1:]
		h.stay(r, false)
	}
}

// stay has a connection go on here.
func (h *handover) stay(r engine.Ref, forGood bool) {
	if c := r.On(&h.loop.host); c != nil && c.Armed()&Busy == 0 && c.Leaving() {
		c.Stay(forGood)
		h.loop.driver.Settle(c)
	}
}

// finish lets go of the channels, and tells what has come of it.
func (h *handover) finish() {
	for _, o := range h.outlets {
		h.moved.Unknown += o.unknown
		if !o.ended {
			h.loop.driver.Unlisten(o.fd)
		}
		sock.Close(o.fd)
	}
	done, moved, err, left := h.done, h.moved, h.err, h.left
	*h = handover{loop: h.loop, left: left}
	done(moved, err)
}

func (h *handover) next() (at time.Duration, ok bool) { return h.wake, h.parting != nil }

// run does a turn's part.
func (h *handover) run(now time.Duration) {
	if h.parting == nil {
		return
	}
	h.wake = now + roundEvery
	if h.stage != asks {
		h.stayAll() // some are left where a handler has cut the turn short
	}
	if now >= h.again {
		if h.stage == asks && h.loop.casts.finished >= h.casts {
			h.ask(now)
		}
		h.send(now)
	}
	if h.mayAsk() {
		h.wake = h.again
	}
	if slices.ContainsFunc(h.outlets, func(o *outlet) bool { return o.unknown > 0 || o.owed }) {
		return
	}
	switch {
	case h.stage == asks && h.credit() == 0:
		h.stayAll()
		if h.stage = waits; !h.parting.wait(h) {
			h.askForCredit()
		}
	case h.stage == over:
		h.stage = shut
		for _, o := range h.outlets {
			_ = sock.ShutWrite(o.fd) // an error is the other side's end, which is what is waited for
		}
	case h.stage == shut && !slices.ContainsFunc(h.outlets, func(o *outlet) bool { return !o.ended }):
		h.finish()
	}
}

// mayAsk says whether there are connections to ask, or this was the end of a round.
func (h *handover) mayAsk() bool {
	if h.stage != asks || len(h.leaving) > 0 && h.slot == h.loop.slab.made {
		return false
	}
	return len(h.leaving) < min(mostLeaving, h.credit())
}

// credit is how many connections may go.
func (h *handover) credit() (sum int) {
	for _, o := range h.outlets {
		sum += o.credit
	}
	return sum
}

// askForCredit asks the other side, by batches of none, how many may go now.
func (h *handover) askForCredit() {
	h.stage, h.asked = asks, h.parting.doneLoops()
	for _, o := range h.outlets {
		if errno := sock.SendRights(o.fd, []byte{engine.BatchInline, 0}, nil); errno != 0 {
			h.fail(engine.HandoverFailed(errno))
			return
		}
		o.owed = true
	}
}

// ask has some connections leave.
func (h *handover) ask(now time.Duration) {
	l := h.loop
	most, end := min(mostLeaving, h.credit()), min(h.slot+askWalk, l.slab.made)
	for ; h.slot < end && len(h.leaving) < most; h.slot++ {
		c := l.slab.at(h.slot)
		if c.FD() < 0 || c.Armed()&ClosePending != 0 {
			continue
		}
		err := engine.ErrNotNow
		if c.Armed()&(Busy|Connecting) == 0 {
			err = c.Leave()
		}
		if err == nil {
			h.leaving = append(h.leaving, c.Ref())
			l.driver.Settle(c)
		}
		h.later = h.later || err != engine.ErrStays
	}
	switch {
	case len(h.leaving) > 0 || h.slot < l.slab.made:
	case h.later:
		h.slot, h.later, h.again = 0, false, now+roundEvery
	default:
		h.stage = over
	}
}

// atRest takes a connection that may go.
func (h *handover) atRest(c *engine.Conn) {
	c.AtRest()
	if h.stage != asks || h.parting == nil {
		c.Stay(false)
	}
}

// send sends what is at rest, as far as there is credit, by one channel after the other, so that
// each loop of the other side gets its share.
func (h *handover) send(now time.Duration) {
	for len(h.leaving) > 0 && h.credit() > 0 {
		o := h.outlets[h.nextOutlet%len(h.outlets)]
		if o.credit > 0 && !h.sendBatch(o, now) {
			return
		}
		h.nextOutlet++
	}
}

// sendBatch sends one batch, if there is one, and says whether it has.
func (h *handover) sendBatch(o *outlet, now time.Duration) bool {
	sent := false
	defer func() {
		if !sent { // or a handler's Save has ended the goroutine
			h.unpack()
		}
		clear(h.conns)
	}()
	h.pack(o)
	if len(h.conns) == 0 {
		return false
	}
	errno, err := h.sendPacked(o)
	if sent = err == nil && errno == 0; sent {
		o.credit -= len(h.conns)
		o.unknown += len(h.conns)
		h.moved.Gone += len(h.conns)
		h.left += len(h.conns)
		for _, c := range h.conns {
			c.Left()
			h.loop.SettleLater(c)
		}
		h.loop.settleTouched()
		return true
	}
	h.unpack()
	sent = true // there is nothing left to take back
	switch {
	case err != nil:
		h.fail(engine.HandoverFailed(err))
	case errno == syscall.EAGAIN || errno == syscall.ETOOMANYREFS || errno == syscall.ENOBUFS:
		h.again = now + roundEvery
	default:
		h.fail(engine.HandoverFailed(errno))
	}
	return false
}

// pack makes the records of a batch. Connections that are not at rest, or have mail on its way,
// wait.
func (h *handover) pack(o *outlet) {
	h.fds, h.conns, h.records = h.fds[:0], h.conns[:0], h.records[:0]
	most := min(o.credit, engine.MaxBatch)
	n, rest := 0, h.leaving[:0]
	defer func() { h.leaving = append(rest, h.leaving[n:]...) }() // also when a Save ends the goroutine
	for n < len(h.leaving) && len(h.conns) < most && len(h.records) < engine.MaxBatchBytes {
		ref := h.leaving[n]
		n++
		c := ref.On(&h.loop.host)
		if c == nil || c.Armed()&Busy == 0 && !c.Leaving() {
			continue
		}
		err := engine.ErrNotNow
		var r engine.Record
		if c.Armed()&Busy == 0 {
			r, err = c.Pack()
		}
		switch {
		case err == nil:
			h.records = r.Append(h.records)
			h.fds = append(h.fds, int(c.FD()))
			h.conns = append(h.conns, c)
		case errors.Is(err, engine.ErrNotNow):
			rest = append(rest, ref)
		case c.Aborted(): // its Save has panicked
			h.loop.driver.Settle(c)
		case errors.Is(err, engine.ErrSaveLater):
			h.stay(ref, false)
			h.later = true
		default:
			h.stay(ref, true)
		}
	}
}

// unpack has those wait on that have been packed and are not sent.
func (h *handover) unpack() {
	for _, c := range h.conns {
		c.Unpack()
		h.leaving = append(h.leaving, c.Ref())
	}
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
		for !o.ended {
			var p [8]byte
			n, errno := sock.Recv(o.fd, p[:])
			switch {
			case errno == syscall.EAGAIN:
			case errno == syscall.ECONNRESET: // what it has said before is behind that, and its end
				continue
			case errno == 0 && n == 8:
				o.owed = false
				o.unknown -= int(binary.BigEndian.Uint32(p[:]))
				o.credit += int(binary.BigEndian.Uint32(p[4:]))
				continue
			case errno == 0 && n == 0 && h.stage == shut:
				o.ended = true
				h.loop.driver.Unlisten(o.fd)
			case errno == 0:
				h.abort(engine.HandoverFailed(io.ErrUnexpectedEOF))
				return
			default:
				h.abort(engine.HandoverFailed(errno))
				return
			}
			break
		}
	}
}

// giveBack gives back memory of connections that have left.
func (h *handover) giveBack() {
	if h.left >= giveBackEvery || h.left > 0 && h.parting == nil {
		h.left = 0
		h.loop.group.given.Add(int64(h.loop.slab.giveBack()) * int64(unsafe.Sizeof(chunk{})))
	}
}
