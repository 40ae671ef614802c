package goroutine

import (
	"cmp"
	"context"
	"encoding/binary"
	"errors"
	"io"
	"log/slog"
	"net"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/myriad-go/myriad/internal/engine"
	"github.com/myriad-go/myriad/internal/sock"
)

// This file is how connections move to and from other engines: see engine.Migrator.
//
// Who hands over asks the connections, some at a time, for those that leave are not served, and
// round after round, until all have gone or are known to stay. Each goes by itself, on its
// goroutine, when it has got one credit of a channel. A goroutine for each channel reads what
// credit comes. The lock guards who stays.

const (
	// mostAsked is the most connections that are asked to leave before others are, unless they
	// take longer than roundEvery; which is also how long after a round the next one begins.
	mostAsked  = 64
	roundEvery = 5 * time.Millisecond
	// givenBy is about how many bytes a goroutine and its connection take, and the collector
	// gets back.
	givenBy = 4 << 10
)

// handover is one that is under way.
type handover struct {
	ctx    context.Context
	cancel context.CancelCauseFunc
	credit chan *outlet  // each entry lets one connection go
	asked  atomic.Int64  // connections that were asked and have not answered
	moved  chan struct{} // they have, or credit has come
	gone   atomic.Int64
	// given is how much credit has come, and came how many connections are known to have
	// come: never more.
	given, came atomic.Int64

	giving sync.RWMutex // read-locked while a connection goes
	over   bool         // no more go; guarded by giving

	mu    sync.Mutex
	stays map[*conn]bool
}

// outlet is a channel on the side that hands over.
type outlet struct {
	file    *os.File
	greeted atomic.Bool
	unknown atomic.Int64 // connections that have gone and are not known to have come
	ended   atomic.Bool  // no more will be known
}

// errFull ends a handover because the other side has no room for more.
var errFull = errors.New("the other side has no room")

// HandOver implements engine.Migrator.
func (g *group) HandOver(ctx context.Context, channels []*os.File) (moved engine.Handover, err error) {
	if len(channels) == 0 {
		return moved, errors.New("no channels to hand connections over by; expected at least 1")
	}
	defer g.given.GiveBack()()
	h := &handover{stays: make(map[*conn]bool), moved: make(chan struct{}, 1), credit: make(chan *outlet, len(channels)*engine.ChannelCredit)}
	h.ctx, h.cancel = context.WithCancelCause(ctx)
	defer h.cancel(nil)
	if !g.handover.CompareAndSwap(nil, h) {
		return moved, errors.New("connections are being handed over already")
	}
	outlets, reading := make([]*outlet, len(channels)), sync.WaitGroup{}
	for i, f := range channels {
		own, err := sock.Duplicate(int32(f.Fd()))
		if err != nil {
			h.cancel(err)
			break
		}
		outlets[i] = &outlet{file: os.NewFile(uintptr(own), "channel")}
	}
	outlets = slices.DeleteFunc(outlets, func(o *outlet) bool { return o == nil })
	for _, o := range outlets {
		reading.Go(func() { h.readCredit(o) })
	}
	g.askAll(h, outlets)
	h.stop()
	h.awaitAnswers(outlets)
	for _, o := range outlets {
		o.file.Close()
	}
	reading.Wait()
	g.handover.Store(nil)
	for _, o := range outlets {
		moved.Unknown += int(o.unknown.Load())
	}
	moved.Gone = int(h.gone.Load())
	if err = context.Cause(h.ctx); errors.Is(err, errFull) {
		err = nil
	}
	return moved, err
}

// Ends implements engine.Migrator.
func (g *group) Ends() int { return 1 }

// Sockets implements engine.Migrator.
func (g *group) Sockets() []int { return engine.CountSockets(g.numbers, len(g.host.Entrances)) }

// SendListeners implements engine.Migrator.
func (g *group) SendListeners(control *os.File, word string) error {
	var fds []int
	for _, l := range g.lns {
		fd, err := sock.Detach(l)
		if err != nil {
			return err
		}
		defer sock.Close(fd)
		fds = append(fds, int(fd))
	}
	return sock.SendListeners(int32(control.Fd()), word, fds)
}

// ShareListeners implements engine.Migrator: listeners are closed here, never stopped.
func (g *group) ShareListeners(bool) {}

// askAll asks until nobody is left who could go, and it is known of all that have gone
// whether they have come.
func (g *group) askAll(h *handover, outlets []*outlet) {
	tick := time.NewTicker(roundEvery)
	defer tick.Stop()
	for h.ctx.Err() == nil {
		g.mu.Lock()
		conns := g.conns.all()
		g.mu.Unlock()
		h.mu.Lock()
		conns = slices.DeleteFunc(conns, func(c *conn) bool { return h.stays[c] })
		h.mu.Unlock()
		switch {
		case len(conns) == 0 && !slices.ContainsFunc(outlets, func(o *outlet) bool { return o.unknown.Load() > 0 }):
			return
		case len(conns) > 0 && h.full(outlets):
			h.cancel(errFull)
			return
		}
		h.ask(conns)
		select {
		case <-tick.C:
		case <-h.ctx.Done():
		}
	}
}

// stop has no more connections go, and waits for those that are just going: they are counted then,
// or can be posted to again.
func (h *handover) stop() {
	h.giving.Lock()
	defer h.giving.Unlock()
	h.over = true
}

// awaitAnswers waits until it is known of all that have gone whether they have come: those, too,
// that were under way when no more were asked.
func (h *handover) awaitAnswers(outlets []*outlet) {
	for slices.ContainsFunc(outlets, func(o *outlet) bool { return o.unknown.Load() > 0 && !o.ended.Load() }) {
		<-h.moved
	}
}

// full says that all connections have come that there was credit for, and no more credit with
// them.
func (h *handover) full(outlets []*outlet) bool {
	if slices.ContainsFunc(outlets, func(o *outlet) bool { return !o.greeted.Load() }) {
		return false
	}
	came := h.came.Load() // first: it is the one that is behind
	return came == h.given.Load()
}

// ask asks connections to leave, while there is credit.
func (h *handover) ask(conns []*conn) {
	for len(conns) > 0 && h.ctx.Err() == nil {
		n := min(len(h.credit), mostAsked, len(conns))
		if n == 0 {
			return
		}
		h.asked.Store(int64(n))
		requestAll(conns[:n], leaving)
		conns = conns[n:]
		h.settle()
	}
}

// settle waits until those have answered that were asked, and there is credit for others.
func (h *handover) settle() {
	timer := time.NewTimer(roundEvery)
	defer timer.Stop()
	for h.asked.Load() > 0 || len(h.credit) == 0 {
		select {
		case <-h.moved:
		case <-timer.C:
			return
		case <-h.ctx.Done():
			return
		}
	}
}

// answered says that a connection that was asked has left, or does not.
func (h *handover) answered() {
	if h.asked.Add(-1) <= 0 {
		signal(h.moved)
	}
}

// readCredit reads what comes by a channel until that ends.
func (h *handover) readCredit(o *outlet) {
	raw, err := o.file.SyscallConn()
	for err == nil {
		var p [8]byte
		n, errno := 0, syscall.Errno(0)
		err = raw.Read(func(fd uintptr) bool {
			n, _, errno = sock.ReceiveRights(int32(fd), p[:])
			return errno != syscall.EAGAIN
		})
		switch {
		case err != nil:
			return // it was closed here
		case errno != 0:
			err = errno
		case n != 8:
			err = io.ErrUnexpectedEOF
		default:
			came, more := int64(binary.BigEndian.Uint32(p[:])), min(binary.BigEndian.Uint32(p[4:]), engine.ChannelCredit)
			h.given.Add(int64(more))
			h.came.Add(came)
			o.unknown.Add(-came)
			for range more {
				h.credit <- o
			}
			o.greeted.Store(true)
			signal(h.moved)
		}
	}
	o.ended.Store(true)
	signal(h.moved)
	h.cancel(engine.HandoverFailed(err))
}

// giveAway hands the connection over, or has it go on.
func (c *conn) giveAway() {
	h := c.group.handover.Load()
	c.AtRest()
	if h == nil || !h.give(c) {
		c.Stay(false)
	}
	if h != nil {
		h.answered()
	}
}

// give says whether the connection has gone.
func (h *handover) give(c *conn) bool {
	var o *outlet
	select {
	case o = <-h.credit:
	case <-h.ctx.Done():
		return false
	}
	h.giving.RLock()
	defer h.giving.RUnlock()
	if h.over {
		return false
	}
	r, err := c.Pack()
	if err != nil {
		h.credit <- o
		if !errors.Is(err, engine.ErrNotNow) && !errors.Is(err, engine.ErrSaveLater) {
			h.staysFor(c)
		}
		return false
	}
	o.unknown.Add(1)
	if err := h.send(o, c, &r); err != nil {
		o.unknown.Add(-1)
		signal(h.moved)
		c.Unpack()
		h.cancel(engine.HandoverFailed(err))
		return false
	}
	h.gone.Add(1)
	c.group.given.Add(givenBy)
	c.Left()
	return true
}

// staysFor notes that a connection can't be handed over.
func (h *handover) staysFor(c *conn) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.stays[c] = true
}

// leave asks the connection to leave.
func (c *conn) leave() {
	h := c.group.handover.Load()
	if h == nil {
		return
	}
	switch c.Leave() {
	case nil:
		return // to giveAway
	case engine.ErrStays:
		h.staysFor(c)
	}
	h.answered()
}

// send sends a batch of one.
func (h *handover) send(o *outlet, c *conn, r *engine.Record) error {
	p, fds := r.Append([]byte{engine.BatchInline, 1}), []int{int(c.FD())}
	if len(p) > sock.MaxRightsMessage {
		file, err := sock.MemoryFile(p[2:])
		if err != nil {
			return err
		}
		defer sock.Close(file)
		p, fds = []byte{engine.BatchInFile, 1}, []int{int(file), fds[0]}
	}
	raw, err := o.file.SyscallConn()
	if err != nil {
		return err
	}
	for {
		errno := syscall.Errno(0)
		err := raw.Control(func(fd uintptr) { errno = sock.SendRights(int32(fd), p, fds) })
		switch {
		case err != nil:
			return err
		case errno == 0:
			return nil
		case errno != syscall.EAGAIN && errno != syscall.ETOOMANYREFS && errno != syscall.ENOBUFS:
			return errno
		}
		select {
		case <-time.After(time.Millisecond):
		case <-h.ctx.Done():
			return cmp.Or(context.Cause(h.ctx), error(errno))
		}
	}
}

// TakeOver implements engine.Migrator.
func (g *group) TakeOver(channels []*os.File) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	for _, f := range channels {
		if g.ended {
			f.Close()
			continue
		}
		g.running.Go(func() {
			defer f.Close()
			defer context.AfterFunc(g.stop, func() { f.Close() })()
			if err := g.takeAll(f); err != nil && g.stop.Err() == nil {
				g.cfg.Log.LogAttrs(context.Background(), slog.LevelError,
					"connections that were handed over are lost", slog.String("error", err.Error()))
			}
		})
	}
	if g.ended {
		return engine.ErrClosed
	}
	return nil
}

// takeAll takes what comes by a channel until the other side ends.
func (g *group) takeAll(f *os.File) error {
	raw, err := f.SyscallConn()
	if err != nil {
		return err
	}
	p, credit, came := make([]byte, sock.MaxRightsMessage), 0, 0
	var joined sync.WaitGroup
	defer func() { g.admission.Unpromise(credit) }()
	for owed := true; ; {
		if owed {
			joined.Wait() // who is told that they have come may send to them
			more := g.reserve(engine.ChannelCredit - credit)
			if err := confirm(raw, came, more); err != nil {
				return err
			}
			credit, came = credit+more, 0
		}
		n, fds, errno := 0, []int32(nil), syscall.Errno(0)
		err := raw.Read(func(fd uintptr) bool {
			n, fds, errno = sock.ReceiveRights(int32(fd), p)
			return errno != syscall.EAGAIN || came > 0
		})
		owed = errno == syscall.EAGAIN
		switch {
		case err != nil:
			return err
		case owed:
			continue
		case errno != 0:
			return errno
		case n == 0:
			return nil
		}
		batch, before := slices.Clone(p[:n]), came // the connections use it on their goroutines
		err = engine.EachOfBatch(batch, fds, credit, sock.ReadMemoryFile, func(fd int32, r *engine.Record) {
			credit--
			came++
			joined.Add(1)
			g.join(fd, r, joined.Done)
		}, sock.Close)
		if err != nil {
			return err
		}
		owed = came == before || came >= engine.MaxBatch
	}
}

// confirm says how many connections have come, and how many more may.
func confirm(raw syscall.RawConn, came, more int) error {
	var say [8]byte
	binary.BigEndian.PutUint32(say[:], uint32(came))
	binary.BigEndian.PutUint32(say[4:], uint32(more))
	errno := syscall.Errno(0)
	err := raw.Write(func(fd uintptr) bool {
		errno = sock.SendRights(int32(fd), say[:], nil)
		return errno != syscall.EAGAIN
	})
	if err == nil && errno != 0 && errno != syscall.EPIPE { // what it has sent before its end is still there
		err = errno
	}
	return err
}

// reserve promises places for up to n connections, as far as there are descriptors, and says for
// how many: who sends more loses them.
func (g *group) reserve(n int) int {
	n = g.admission.Promise(n)
	short := min(sock.DescriptorsShort(g.admission.Promised()), n)
	g.admission.Unpromise(short)
	return n - short
}

// join goes on with one connection, for which a place was promised, on its goroutine. It calls done
// when its handler has heard of it, or never will.
func (g *group) join(fd int32, r *engine.Record, done func()) {
	g.admission.AcquirePromised()
	if r.Listener >= len(g.host.Entrances) {
		r.Listener = g.host.Adopted()
	}
	f := os.NewFile(uintptr(fd), "")
	defer f.Close()
	nc, err := net.FileConn(f)
	if err != nil {
		g.counters.Add(engine.AcceptErrors, 1)
		g.leave()
		done()
		return
	}
	if err := g.host.AdmitMoved(r); err != nil {
		g.running.Go(func() { // which Refuse may end
			defer done()
			defer nc.Close()
			turnAway(nc, g.host.Answer(r.Peer, err))
		})
		return
	}
	open := func(c *conn) {
		defer done()
		c.Join(r)
	}
	if !g.serve(nc, r.Listener, nil, open) {
		g.host.DisownMoved(r)
		g.leave()
		done()
	}
}
