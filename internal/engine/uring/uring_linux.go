// Package uring is the model of event loops over Linux's io_uring.
//
// Each loop has a ring of its own (single issuer, deferred task run). A
// connection that has been silent is watched by a poll, which costs the kernel
// little memory; one that talks has a multishot receive, which fills buffers
// that the loop provides. Sends are submissions, one under way for each
// connection at a time, and go to the kernel together with everything else in
// one call a turn.
//
// Accepting is a poll followed by accept calls: a multishot accept would not
// tell the peer's address, and asking for it costs the same call again. The ring
// does not poll the listener itself but an epoll instance that watches it: what a
// ring polls stays open until the kernel has torn the ring down, and so after a
// kill the address would stay taken for a while.
//
// A descriptor is closed when nothing of it is under way in the ring any more,
// because completions carry the connection's slot, which is free from then on. Where
// something is, the connection is ended below its descriptor, which completes it.
package uring

import (
	"context"
	"log/slog"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/myriad-go/myriad/internal/engine"
	"github.com/myriad-go/myriad/internal/engine/loop"
	"github.com/myriad-go/myriad/internal/sock"
)

// Model is event loops over io_uring.
var Model = engine.Model{
	Name:      "uring",
	HasLoops:  true,
	Available: sync.OnceValue(probeRing),
	Start: func(cfg engine.Config) (engine.Engine, error) {
		return loop.Start(cfg, func(l *loop.Loop) loop.Driver { return &driver{loop: l} })
	},
}

// probeRing tries what a loop needs, on a thread of its own that ends with it.
func probeRing() (err error) {
	sock.RunOnNewThread(func() {
		var r *ring
		if r, err = newRing(); err != nil {
			return
		}
		var p *bufferRing
		if p, err = newBufferRing(r); err == nil {
			defer p.close()
			r.nextSubmission().op = opNop
			if r.enter(enterGetEvents, 1); r.broken != 0 {
				err = describeSetupError(r.broken)
			}
		}
		r.close()
	})
	return err
}

// completionsPerTurn is the most completions that are handled in one turn, of which those of
// sends count a quarter: the sends that they cause each hold a buffer until the next.
// And a turn in which every handler takes long is to end soon, for Auto to see it.
const completionsPerTurn = 64

// maxDeferredPerRound is the most pieces of deferred work that a round asks for.
const maxDeferredPerRound = 4 * completionsPerTurn

// What a completion is of, in the upper half of its user data; the lower is the
// connection's slot.
const (
	tagRecv uint64 = iota << 32
	tagSend
	tagWritable
	tagPoll
	tagListener
	tagEventfd
	tagIgnored
)

// What is under way for a connection, in Conn.Armed.
const (
	receiving      uint16 = 1 << (loop.DriverBits + iota) // a multishot receive
	polling                                               // a poll
	sending                                               // a send, or a poll for room for a file
	canceling                                             // the end of the receive has been asked for
	closing                                               // to be closed when nothing is under way
	recentlyActive                                        // has received since the last sweep
	smallReceives                                         // its last receive was small

	pendingOps = receiving | polling | sending
)

// driver is the part of a loop that is io_uring's.
type driver struct {
	loop            *loop.Loop
	ring            *ring
	buffers         *bufferRing
	listenerPoll    *sock.Poll    // watches the listener
	readBuffer      []byte        // for Read
	lastRecreated   time.Duration // when the ring was last made anew
	roundLeft       uint32        // completions of this round that are not handled
	pendingReceives int           // connections with a receive under way
}

func (d *driver) Open() error {
	d.loop.UseBlockingSockets() // the ring would not wait on a non-blocking one
	return d.openRing()
}

func (d *driver) openRing() (err error) {
	if d.ring, err = newRing(); err != nil {
		return err
	}
	if d.buffers, err = newBufferRing(d.ring); err != nil {
		d.ring.close()
		return err
	}
	if d.listenerPoll, err = sock.NewPoll(1); err != nil {
		d.ring.close()
		d.buffers.close()
		return err
	}
	d.submitPoll(d.loop.Eventfd().FD, tagEventfd, unix.POLLIN, pollMultishot)
	d.submitPoll(d.listenerPoll.FD(), tagListener, unix.POLLIN, 0)
	return nil
}

func (d *driver) Close() {
	d.ring.close()
	d.buffers.close()
	d.listenerPoll.Close()
}

func (d *driver) WatchListener(listenerFD int32) { d.listenerPoll.Add(listenerFD, 0, sock.In) }

func (d *driver) UnwatchListener(listenerFD int32) { d.listenerPoll.Remove(listenerFD) }

// HandleEvents handles completions in rounds. Only when those of a round are handled it has
// the kernel run what it has deferred, or they would pile up, and with them the
// buffers that they hold. But then it always does: what completes at once when it
// is submitted belongs to the next round, or else connections whose sends and
// receives always do would keep all others from being heard.
func (d *driver) HandleEvents() (handled, left bool) {
	switch {
	case d.roundLeft == 0:
		d.startRound()
	case d.ring.tail != d.ring.submitted:
		d.ring.enter(0, 0)
	}
	handled = d.handleCompletions()
	return handled, d.roundLeft > 0
}

// startRound has the kernel run what it has deferred. It does so some 20 pieces at a
// time; as many are wanted as what completes at once, so that connections that wait
// for it get an even share, but no more than a few turns can handle: the sends that they
// cause complete behind the round, and hold a buffer each until then.
func (d *driver) startRound() {
	immediate := d.ring.completionCount() + d.ring.tail - d.ring.submitted
	more := min(immediate, maxDeferredPerRound)
	d.ring.enter(enterGetEvents, 0)
	for n := uint32(0); n < more && d.ring.completionCount() < immediate+more && d.ring.hasDeferredWork() && d.ring.broken == 0; n++ {
		d.ring.enter(enterGetEvents, 0)
	}
	d.roundLeft = d.ring.completionCount()
}

// WaitForEvents gives the memory of the buffers back when none is in use: no receive is under
// way, and none has left anything.
func (d *driver) WaitForEvents(limit time.Duration) {
	if d.pendingReceives == 0 && d.ring.completionCount() == 0 {
		d.buffers.releasePages()
	}
	d.ring.enterAndWait(limit)
	d.roundLeft = d.ring.completionCount()
}

// recreateInterval is the least time between two rings.
const recreateInterval = 100 * time.Millisecond

// recreateRing makes a new ring when the old one is of no more use. Nothing that was
// under way in that will be reported any more: its connections are closed. The
// listener waits for the new one. A ring that fails at once again has nothing
// under way, and waits for its turn.
func (d *driver) recreateRing() {
	errno := d.ring.broken
	time.Sleep(d.lastRecreated + recreateInterval - engine.MonotonicNow())
	d.lastRecreated, d.roundLeft = engine.MonotonicNow(), 0
	d.loop.Log().LogAttrs(context.Background(), slog.LevelError,
		"io_uring has failed; its connections are closed, and it is set up anew", slog.String("error", errno.Error()))
	d.Close()
	if err := d.openRing(); err != nil {
		panic("myriad: io_uring has failed and can't be set up anew: " + err.Error())
	}
	d.loop.WatchListeners()
	d.loop.ForEachConn(func(c *engine.Conn) {
		d.clearOps(c, pendingOps|canceling)
		if d.loop.AbortConn(c, engine.NormalizeError(errno)); c.DriverFlags()&closing != 0 && !c.IsOpen() {
			d.closeWhenIdle(c)
		}
	})
}

// handleCompletions handles the completions of the round that are left, up to a batch.
func (d *driver) handleCompletions() bool {
	if d.ring.broken != 0 {
		d.recreateRing()
		return true
	}
	handled := d.roundLeft > 0
	for n := 0; d.roundLeft > 0 && n < 4*completionsPerTurn; {
		completion := d.ring.nextCompletion()
		d.roundLeft-- // now: a handler may end the goroutine
		n += 4
		switch completion.user &^ (1<<32 - 1) {
		case tagRecv:
			d.handleRecvCompletion(d.loop.Conn(uint32(completion.user)), completion)
		case tagSend:
			n -= 3
			d.handleSendCompletion(d.loop.Conn(uint32(completion.user)), completion)
		case tagWritable:
			d.handleWritable(d.loop.Conn(uint32(completion.user)))
		case tagPoll:
			d.handlePollCompletion(d.loop.Conn(uint32(completion.user)))
		case tagListener:
			d.acceptConns()
		case tagEventfd:
			d.loop.Eventfd().Clear()
			if completion.flags&cqeMore == 0 {
				d.submitPoll(d.loop.Eventfd().FD, tagEventfd, unix.POLLIN, pollMultishot)
			}
		}
	}
	return handled
}

// acceptConns accepts what waits, and goes on to watch the listener, whatever handlers do.
func (d *driver) acceptConns() {
	d.submitPoll(d.listenerPoll.FD(), tagListener, unix.POLLIN, 0)
	d.loop.AcceptConns()
}

// handlePollCompletion takes the completion of a poll: a silent connection talks, or a dial
// has ended.
func (d *driver) handlePollCompletion(c *engine.Conn) {
	d.clearOps(c, polling)
	switch {
	case c.DriverFlags()&closing != 0:
		d.PerformActions(c)
	case c.DriverFlags()&loop.Connecting != 0:
		d.loop.FinishDial(c)
	default:
		was := c.DriverFlags()
		c.SetDriverFlags(was | recentlyActive)
		switch {
		case was&(smallReceives|loop.Busy) != 0 || !c.WantsInput():
		case was&recentlyActive != 0: // it has sent much a moment ago
			d.loop.QueueYielded(c)
		default:
			d.ReadOnce(c)
		}
		d.PerformActions(c)
	}
}

// WatchConn begins with a poll: for input, or while connecting for room.
func (d *driver) WatchConn(c *engine.Conn) syscall.Errno {
	events := uint32(unix.POLLIN)
	if c.DriverFlags()&loop.Connecting != 0 {
		events = unix.POLLOUT
	}
	c.SetDriverFlags(c.DriverFlags() | polling)
	d.submitPoll(c.FD(), tagPoll|uint64(c.Slot()), events, 0)
	return 0
}

func (d *driver) WatchEstablished(c *engine.Conn) syscall.Errno {
	if errno := sock.SetBlocking(c.FD()); errno != 0 {
		return errno
	}
	return d.WatchConn(c)
}

func (d *driver) DropUnopened(c *engine.Conn) { d.closeWhenIdle(c) }

func (d *driver) PerformActions(c *engine.Conn) {
	switch armed := c.DriverFlags(); {
	case armed&loop.Busy != 0:
		return
	case armed&closing != 0:
		d.closeWhenIdle(c)
		return
	}
	for {
		switch c.NextAction() {
		case engine.Send:
			d.submitSend(c)
		case engine.SendFile:
			d.sendFileOutput(c)
		case engine.FeedHandler:
			if !d.loop.CallHandler(c) {
				return
			}
		case engine.DetachOrExport:
			if c.DriverFlags()&pendingOps != 0 {
				if c.IsExporting() && c.DriverFlags()&sending != 0 {
					d.submitCancel(tagSend | uint64(c.Slot()))
				}
				d.cancelInputOps(c)
				return
			}
			d.loop.DetachConn(c)
		case engine.ShutWrite:
			d.loop.ShutdownWrite(c)
		case engine.Close:
			d.closeWhenIdle(c)
			return
		case engine.Read:
			switch {
			case c.DriverFlags()&receiving != 0:
				d.cancelReceive(c)
			case !d.loop.IsReadQueued(c):
				d.ReadOnce(c)
				continue
			}
			fallthrough
		case engine.Wait:
			d.watchInput(c)
			return
		}
	}
}

// closeWhenIdle closes a connection when nothing of it is under way any more, and sees to
// it that it soon is so.
func (d *driver) closeWhenIdle(c *engine.Conn) {
	armed := c.DriverFlags()
	switch {
	case armed&pendingOps == 0:
		if c.IsOpen() {
			d.loop.CloseConn(c)
		} else {
			d.loop.CloseUnopened(c)
		}
	case armed&closing == 0:
		c.SetDriverFlags(armed | closing)
		c.DiscardBuffers(armed&sending == 0)
		d.shutdownConn(c)
	}
}

// shutdownConn ends the connection but not its descriptor, so that all that is under way
// completes, and the descriptor can be closed. To cancel what is under way on a
// descriptor would have the kernel look at all that is on the ring, and so closing
// many would take time by the square of their number.
func (d *driver) shutdownConn(c *engine.Conn) {
	if !d.loop.ClosesWithReset(c) || !sock.ResetConn(c.FD()) {
		sock.Shutdown(c.FD())
	}
}

// watchInput watches the connection for input if it wants some. Room is what the
// completion of its send tells.
func (d *driver) watchInput(c *engine.Conn) {
	d.loop.TrackExpiry(c)
	armed := c.DriverFlags()
	switch wants := c.WantsInput() && !d.loop.IsReadQueued(c); {
	case wants && armed&(receiving|polling) == 0:
		if armed&recentlyActive != 0 && (armed&smallReceives != 0 || d.pendingReceives < maxBuffers) {
			d.submitReceive(c)
		} else {
			c.SetDriverFlags(armed | polling)
			d.submitPoll(c.FD(), tagPoll|uint64(c.Slot()), unix.POLLIN, 0)
		}
	case !wants:
		d.cancelReceive(c)
	}
}

// SweepConn ends the receive of a connection that has been silent since the last
// sweep: a poll costs the kernel less.
func (d *driver) SweepConn(c *engine.Conn) {
	if armed := c.DriverFlags(); armed&recentlyActive != 0 {
		c.SetDriverFlags(armed &^ recentlyActive)
	} else {
		d.cancelReceive(c)
	}
}

// clearOps takes back what is no longer under way.
func (d *driver) clearOps(c *engine.Conn, bits uint16) {
	if c.DriverFlags()&bits&receiving != 0 {
		d.pendingReceives--
		d.loop.TrackFastSweep(-1)
	}
	c.SetDriverFlags(c.DriverFlags() &^ bits)
}

func (d *driver) submitPoll(fd int32, userData uint64, events, flags uint32) {
	s := d.ring.nextSubmission()
	s.op, s.fd, s.opFlags, s.len, s.user = opPollAdd, fd, events, flags, userData
}

// submitCancel ends what was submitted with such user data.
func (d *driver) submitCancel(userData uint64) {
	s := d.ring.nextSubmission()
	s.op, s.flags, s.fd, s.addr, s.user = opAsyncCancel, sqeSkipSuccess, -1, userData, tagIgnored
}
