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
	Available: sync.OnceValue(probe),
	Start: func(cfg engine.Config) (engine.Engine, error) {
		return loop.Start(cfg, func(l *loop.Loop) loop.Driver { return &driver{loop: l} })
	},
}

// probe tries what a loop needs, on a thread of its own that ends with it.
func probe() (err error) {
	sock.OwnThread(func() {
		var r *ring
		if r, err = newRing(); err != nil {
			return
		}
		var p *bufferRing
		if p, err = newBufferRing(r); err == nil {
			defer p.close()
			r.next().op = opNop
			if r.enter(enterGetEvents, 1); r.broken != 0 {
				err = setupError(r.broken)
			}
		}
		r.close()
	})
	return err
}

// turnBatch is the most completions that are handled in one turn, of which those of
// sends count a quarter: the sends that they cause each hold a buffer until the next.
// And a turn in which every handler takes long is to end soon, for Auto to see it.
const turnBatch = 64

// mostDeferred is the most pieces of deferred work that a round asks for.
const mostDeferred = 4 * turnBatch

// What a completion is of, in the upper half of its user data; the lower is the
// connection's slot.
const (
	ofRecv uint64 = iota << 32
	ofSend
	ofRoom
	ofPoll
	ofListener
	ofEventfd
	ofNothing
)

// What is under way for a connection, in Conn.Armed.
const (
	receiving uint16 = 1 << (loop.DriverBits + iota) // a multishot receive
	polling                                          // a poll
	sending                                          // a send, or a poll for room for a file
	canceling                                        // the end of the receive has been asked for
	dying                                            // to be closed when nothing is under way
	active                                           // has received since the last sweep
	small                                            // its last receive was small

	underWay = receiving | polling | sending
)

// driver is the part of a loop that is io_uring's.
type driver struct {
	loop     *loop.Loop
	ring     *ring
	buffers  *bufferRing
	accepts  *sock.Poll    // watches the listener
	input    []byte        // for Read
	revived  time.Duration // when the ring was last made anew
	left     uint32        // completions of this round that are not handled
	receives int           // connections with a receive under way
}

func (d *driver) Open() error {
	d.loop.AcceptBlocking() // the ring would not wait on a non-blocking one
	return d.setUp()
}

func (d *driver) setUp() (err error) {
	if d.ring, err = newRing(); err != nil {
		return err
	}
	if d.buffers, err = newBufferRing(d.ring); err != nil {
		d.ring.close()
		return err
	}
	if d.accepts, err = sock.NewPoll(1); err != nil {
		d.ring.close()
		d.buffers.close()
		return err
	}
	d.poll(d.loop.Eventfd().FD, ofEventfd, unix.POLLIN, pollMultishot)
	d.poll(d.accepts.FD(), ofListener, unix.POLLIN, 0)
	return nil
}

func (d *driver) Close() {
	d.ring.close()
	d.buffers.close()
	d.accepts.Close()
}

func (d *driver) Listen(fd int32) { d.accepts.Add(fd, 0, sock.In) }

func (d *driver) Unlisten(fd int32) { d.accepts.Remove(fd) }

// Poll handles completions in rounds. Only when those of a round are handled it has
// the kernel run what it has deferred, or they would pile up, and with them the
// buffers that they hold. But then it always does: what completes at once when it
// is submitted belongs to the next round, or else connections whose sends and
// receives always do would keep all others from being heard.
func (d *driver) Poll() (some, more bool) {
	switch {
	case d.left == 0:
		d.newRound()
	case d.ring.tail != d.ring.submitted:
		d.ring.enter(0, 0)
	}
	some = d.handle()
	return some, d.left > 0
}

// newRound has the kernel run what it has deferred. It does so some 20 pieces at a
// time; as many are wanted as what completes at once, so that connections that wait
// for it get an even share, but no more than a few turns can handle: the sends that they
// cause complete behind the round, and hold a buffer each until then.
func (d *driver) newRound() {
	atOnce := d.ring.completions() + d.ring.tail - d.ring.submitted
	more := min(atOnce, mostDeferred)
	d.ring.enter(enterGetEvents, 0)
	for n := uint32(0); n < more && d.ring.completions() < atOnce+more && d.ring.deferred() && d.ring.broken == 0; n++ {
		d.ring.enter(enterGetEvents, 0)
	}
	d.left = d.ring.completions()
}

// Wait gives the memory of the buffers back when none is in use: no receive is under
// way, and none has left anything.
func (d *driver) Wait(most time.Duration) {
	if d.receives == 0 && d.ring.completions() == 0 {
		d.buffers.releasePages()
	}
	d.ring.wait(most)
	d.left = d.ring.completions()
}

// reviveEvery is the least time between two rings.
const reviveEvery = 100 * time.Millisecond

// revive makes a new ring when the old one is of no more use. Nothing that was
// under way in that will be reported any more: its connections are closed. The
// listener waits for the new one. A ring that fails at once again has nothing
// under way, and waits for its turn.
func (d *driver) revive() {
	errno := d.ring.broken
	time.Sleep(d.revived + reviveEvery - engine.MonotonicNow())
	d.revived, d.left = engine.MonotonicNow(), 0
	d.loop.Log().LogAttrs(context.Background(), slog.LevelError,
		"io_uring has failed; its connections are closed, and it is set up anew", slog.String("error", errno.Error()))
	d.Close()
	if err := d.setUp(); err != nil {
		panic("myriad: io_uring has failed and can't be set up anew: " + err.Error())
	}
	d.loop.Relisten()
	d.loop.Each(func(c *engine.Conn) {
		d.clear(c, underWay|canceling)
		if d.loop.Abort(c, engine.NormalizeError(errno)); c.DriverFlags()&dying != 0 && !c.IsOpen() {
			d.closeWhenIdle(c)
		}
	})
}

// handle handles the completions of the round that are left, up to a batch.
func (d *driver) handle() bool {
	if d.ring.broken != 0 {
		d.revive()
		return true
	}
	some := d.left > 0
	for n := 0; d.left > 0 && n < 4*turnBatch; {
		e := d.ring.take()
		d.left-- // now: a handler may end the goroutine
		n += 4
		switch e.user &^ (1<<32 - 1) {
		case ofRecv:
			d.received(d.loop.Conn(uint32(e.user)), e)
		case ofSend:
			n -= 3
			d.sent(d.loop.Conn(uint32(e.user)), e)
		case ofRoom:
			d.writable(d.loop.Conn(uint32(e.user)))
		case ofPoll:
			d.polled(d.loop.Conn(uint32(e.user)))
		case ofListener:
			d.accept()
		case ofEventfd:
			d.loop.Eventfd().Clear()
			if e.flags&cqeMore == 0 {
				d.poll(d.loop.Eventfd().FD, ofEventfd, unix.POLLIN, pollMultishot)
			}
		}
	}
	return some
}

// accept accepts what waits, and goes on to watch the listener, whatever handlers do.
func (d *driver) accept() {
	d.poll(d.accepts.FD(), ofListener, unix.POLLIN, 0)
	d.loop.Accept()
}

// polled takes the completion of a poll: a silent connection talks, or a dial
// has ended.
func (d *driver) polled(c *engine.Conn) {
	d.clear(c, polling)
	switch {
	case c.DriverFlags()&dying != 0:
		d.Settle(c)
	case c.DriverFlags()&loop.Connecting != 0:
		d.loop.Connected(c)
	default:
		was := c.DriverFlags()
		c.SetDriverFlags(was | active)
		switch {
		case was&(small|loop.Busy) != 0 || !c.WantsInput():
		case was&active != 0: // it has sent much a moment ago
			d.loop.QueueYielded(c)
		default:
			d.Read(c)
		}
		d.Settle(c)
	}
}

// Watch begins with a poll: for input, or while connecting for room.
func (d *driver) Watch(c *engine.Conn) syscall.Errno {
	events := uint32(unix.POLLIN)
	if c.DriverFlags()&loop.Connecting != 0 {
		events = unix.POLLOUT
	}
	c.SetDriverFlags(c.DriverFlags() | polling)
	d.poll(c.FD(), ofPoll|uint64(c.Slot()), events, 0)
	return 0
}

func (d *driver) Established(c *engine.Conn) syscall.Errno {
	if errno := sock.SetBlocking(c.FD()); errno != 0 {
		return errno
	}
	return d.Watch(c)
}

func (d *driver) Drop(c *engine.Conn) { d.closeWhenIdle(c) }

func (d *driver) Settle(c *engine.Conn) {
	switch armed := c.DriverFlags(); {
	case armed&loop.Busy != 0:
		return
	case armed&dying != 0:
		d.closeWhenIdle(c)
		return
	}
	for {
		switch c.NextAction() {
		case engine.Send:
			d.send(c)
		case engine.SendFile:
			d.sendFile(c)
		case engine.FeedHandler:
			if !d.loop.Deliver(c) {
				return
			}
		case engine.DetachOrExport:
			if c.DriverFlags()&underWay != 0 {
				if c.IsExporting() && c.DriverFlags()&sending != 0 {
					d.cancel(ofSend | uint64(c.Slot()))
				}
				d.cancelAll(c)
				return
			}
			d.loop.Detach(c)
		case engine.ShutWrite:
			d.loop.Shut(c)
		case engine.Close:
			d.closeWhenIdle(c)
			return
		case engine.Read:
			switch {
			case c.DriverFlags()&receiving != 0:
				d.stopReceiving(c)
			case !d.loop.ReadQueued(c):
				d.Read(c)
				continue
			}
			fallthrough
		case engine.Wait:
			d.arm(c)
			return
		}
	}
}

// closeWhenIdle closes a connection when nothing of it is under way any more, and sees to
// it that it soon is so.
func (d *driver) closeWhenIdle(c *engine.Conn) {
	armed := c.DriverFlags()
	switch {
	case armed&underWay == 0:
		if c.IsOpen() {
			d.loop.Finish(c)
		} else {
			d.loop.Forget(c)
		}
	case armed&dying == 0:
		c.SetDriverFlags(armed | dying)
		c.DiscardBuffers(armed&sending == 0)
		d.shutdown(c)
	}
}

// shutdown ends the connection but not its descriptor, so that all that is under way
// completes, and the descriptor can be closed. To cancel what is under way on a
// descriptor would have the kernel look at all that is on the ring, and so closing
// many would take time by the square of their number.
func (d *driver) shutdown(c *engine.Conn) {
	if !d.loop.Resets(c) || !sock.Disconnect(c.FD()) {
		sock.Shutdown(c.FD())
	}
}

// arm watches the connection for input if it wants some. Room is what the
// completion of its send tells.
func (d *driver) arm(c *engine.Conn) {
	d.loop.TrackExpiry(c)
	armed := c.DriverFlags()
	switch wants := c.WantsInput() && !d.loop.ReadQueued(c); {
	case wants && armed&(receiving|polling) == 0:
		if armed&active != 0 && (armed&small != 0 || d.receives < mostBuffers) {
			d.receive(c)
		} else {
			c.SetDriverFlags(armed | polling)
			d.poll(c.FD(), ofPoll|uint64(c.Slot()), unix.POLLIN, 0)
		}
	case !wants:
		d.stopReceiving(c)
	}
}

// Sweep ends the receive of a connection that has been silent since the last
// sweep: a poll costs the kernel less.
func (d *driver) Sweep(c *engine.Conn) {
	if armed := c.DriverFlags(); armed&active != 0 {
		c.SetDriverFlags(armed &^ active)
	} else {
		d.stopReceiving(c)
	}
}

// clear takes back what is no longer under way.
func (d *driver) clear(c *engine.Conn, bits uint16) {
	if c.DriverFlags()&bits&receiving != 0 {
		d.receives--
		d.loop.AddUrgent(-1)
	}
	c.SetDriverFlags(c.DriverFlags() &^ bits)
}

func (d *driver) poll(fd int32, user uint64, events, flags uint32) {
	s := d.ring.next()
	s.op, s.fd, s.opFlags, s.len, s.user = opPollAdd, fd, events, flags, user
}

// cancel ends what was submitted with such user data.
func (d *driver) cancel(user uint64) {
	s := d.ring.next()
	s.op, s.flags, s.fd, s.addr, s.user = opAsyncCancel, sqeSkipSuccess, -1, user, ofNothing
}
