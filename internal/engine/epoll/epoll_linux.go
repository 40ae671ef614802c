// Package epoll is the model of event loops over Linux's epoll.
//
// The descriptors are watched level-triggered: one receive for each report,
// and what is left is reported again. Connections that send much are left to the
// loop: see Loop.NoteRead.
// Calls that cannot block don't tell the Go scheduler; only the wait for events
// does, after a look that found none.
package epoll

import (
	"cmp"
	"syscall"
	"time"

	"github.com/myriad-go/myriad/internal/engine"
	"github.com/myriad-go/myriad/internal/engine/loop"
	"github.com/myriad-go/myriad/internal/sock"
)

// Model is event loops over epoll.
var Model = engine.Model{
	Name:      "epoll",
	HasLoops:  true,
	Available: func() error { return nil },
	Start: func(cfg engine.Config) (engine.Engine, error) {
		return loop.Start(cfg, func(l *loop.Loop) loop.Driver { return &driver{loop: l} })
	},
}

// eventBatch is the most events that are handled in one turn: few enough that a
// turn in which every handler takes long ends soon, for Auto to see it.
const eventBatch = 64

// Tokens of descriptors that are no connections; those carry their slot.
const (
	eventfdToken = -1
	acceptToken  = -2
)

// What a connection is armed for, in Conn.Armed.
const (
	armIn    uint16 = 1 << (loop.DriverBits + iota) // watched for input
	armOut                                          // watched for room
	detached                                        // not watched at all: something came while it was busy
)

// driver is the part of a loop that is epoll's.
type driver struct {
	loop  *loop.Loop
	poll  *sock.Poll
	input []byte // what Recv fills; valid for one event
	// waited is how many events Wait has brought for the next Poll.
	waited int
}

func (d *driver) Open() (err error) {
	if d.poll, err = sock.NewPoll(eventBatch); err != nil {
		return err
	}
	d.input = make([]byte, engine.ReadSize)
	if errno := d.poll.Add(d.loop.Eventfd().FD, eventfdToken, sock.In); errno != 0 {
		d.Close()
		return errno
	}
	return nil
}

func (d *driver) Close() { d.poll.Close() }

func (d *driver) Listen(fd int32) { d.poll.Add(fd, acceptToken, sock.In) }

func (d *driver) Unlisten(fd int32) { d.poll.Remove(fd) }

func (d *driver) Poll() (some, more bool) {
	n := d.waited
	d.waited = 0
	if n == 0 {
		n = d.poll.Look()
	}
	return d.handle(n), false
}

func (d *driver) Wait(most time.Duration) { d.waited = d.poll.Wait(most) }

// handle handles n events.
func (d *driver) handle(n int) bool {
	for i := range n {
		token, events := d.poll.Event(i)
		switch {
		case token >= 0:
			d.ready(d.loop.Conn(uint32(token)), events)
		case token == acceptToken:
			d.loop.Accept()
		default:
			d.loop.Eventfd().Clear()
		}
	}
	return n > 0
}

// ready handles the events of one connection.
func (d *driver) ready(c *engine.Conn, events uint32) {
	switch {
	case c.FD() < 0 || c.DriverFlags()&loop.ClosePending != 0:
		return // closed earlier in this turn
	case c.DriverFlags()&loop.Connecting != 0:
		d.loop.Connected(c)
		return
	case c.DriverFlags()&loop.Busy != 0:
		d.detach(c)
		return
	}
	if events&sock.Out != 0 {
		c.OnWritable()
	}
	if events&(sock.In|sock.Hup|sock.Error) != 0 {
		if d.loop.ReadQueued(c) {
			d.detach(c) // the loop will see
		} else if c.WantsInput() {
			d.Read(c)
		} else if (c.IsReadPaused() || c.BothEnded()) && events&sock.Error == 0 {
			// A unix socket whose peer has gone, which may have input left; or both directions
			// have ended in order, and mail is on its way, which settles the connection.
			d.detach(c)
		} else if events&(sock.Hup|sock.Error) != 0 {
			// Both directions have ended while output is unsent.
			c.OnTransportError(cmp.Or(sock.SocketError(c.FD()), syscall.ECONNRESET))
		}
	}
	d.Settle(c)
}

// detach lets go of a connection that would be reported again and again, until
// arm brings it back.
func (d *driver) detach(c *engine.Conn) {
	d.poll.Remove(c.FD())
	c.SetDriverFlags(c.DriverFlags()&^(armIn|armOut) | detached)
}

// unwatch stops watching a descriptor before it is closed. Closing alone does not where another
// process has the socket, too: during a hand-over, or for a moment after a fork. Its events would
// be taken for those of the next connection in the slot.
func (d *driver) unwatch(c *engine.Conn) {
	if c.DriverFlags()&detached == 0 {
		d.poll.Remove(c.FD())
	}
}

// Watch begins with input, or while connecting with room.
func (d *driver) Watch(c *engine.Conn) syscall.Errno {
	if c.DriverFlags()&loop.Connecting != 0 {
		c.SetDriverFlags(c.DriverFlags() | armOut)
		return d.poll.Add(c.FD(), int32(c.Slot()), sock.Out)
	}
	c.SetDriverFlags(c.DriverFlags() | armIn)
	return d.poll.Add(c.FD(), int32(c.Slot()), sock.In)
}

func (d *driver) Established(c *engine.Conn) syscall.Errno { return d.arm(c) }

func (d *driver) Drop(c *engine.Conn) {
	d.unwatch(c)
	d.loop.Forget(c)
}

func (d *driver) Sweep(*engine.Conn) {}

func (d *driver) MayRead(*engine.Conn) bool { return true }

// Read receives once; what is left is reported again.
func (d *driver) Read(c *engine.Conn) bool { return d.loop.Receive(c, d.input) > 0 }

func (d *driver) Settle(c *engine.Conn) {
	for {
		switch c.NextAction() {
		case engine.Send:
			d.send(c)
		case engine.SendFile:
			d.loop.SendFile(c, sock.SendFile)
		case engine.FeedHandler:
			if !d.loop.Deliver(c) {
				return
			}
		case engine.DetachOrExport:
			d.detach(c)
			d.loop.Detach(c)
		case engine.ShutWrite:
			d.loop.Shut(c)
		case engine.Close:
			d.unwatch(c)
			d.loop.Finish(c)
			return
		case engine.Read:
			if !d.loop.ReadQueued(c) {
				d.Read(c)
				continue
			}
			fallthrough
		case engine.Wait:
			if errno := d.arm(c); errno == 0 {
				return
			} else {
				c.OnTransportError(errno)
			}
		}
	}
}

func (d *driver) send(c *engine.Conn) {
	n, errno := sock.Send(c.FD(), c.Output())
	switch errno {
	case 0:
		c.OnSent(n)
	case syscall.EAGAIN, syscall.ENOBUFS, syscall.ENOMEM:
		c.OnSent(0)
	default:
		c.OnTransportError(errno)
	}
}

// arm watches the connection for what it waits for.
func (d *driver) arm(c *engine.Conn) syscall.Errno {
	d.loop.TrackExpiry(c)
	var want uint16
	var events uint32
	if c.WantsInput() && (!d.loop.ReadQueued(c) || c.DriverFlags()&armIn != 0) { // it may be dequeued before it is reported
		want, events = armIn, sock.In
	}
	if c.WantsWritable() {
		want, events = want|armOut, events|sock.Out
	}
	armed := c.DriverFlags()
	if armed&(armIn|armOut) == want {
		return 0
	}
	c.SetDriverFlags(armed&^(armIn|armOut|detached) | want)
	if armed&detached != 0 {
		return d.poll.Add(c.FD(), int32(c.Slot()), events)
	}
	return d.poll.Modify(c.FD(), int32(c.Slot()), events)
}
