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
	watchedIn  uint16 = 1 << (loop.DriverBits + iota) // watched for input
	watchedOut                                        // watched for room
	unwatched                                         // not watched at all: something came while it was busy
)

// driver is the part of a loop that is epoll's.
type driver struct {
	loop       *loop.Loop
	poll       *sock.Poll
	readBuffer []byte // what Recv fills; valid for one event
	// waitedEvents is how many events Wait has brought for the next Poll.
	waitedEvents int
}

func (d *driver) Open() (err error) {
	if d.poll, err = sock.NewPoll(eventBatch); err != nil {
		return err
	}
	d.readBuffer = make([]byte, engine.ReadSize)
	if errno := d.poll.Add(d.loop.Eventfd().FD, eventfdToken, sock.In); errno != 0 {
		d.Close()
		return errno
	}
	return nil
}

func (d *driver) Close() { d.poll.Close() }

func (d *driver) WatchListener(listenerFD int32) { d.poll.Add(listenerFD, acceptToken, sock.In) }

func (d *driver) UnwatchListener(listenerFD int32) { d.poll.Remove(listenerFD) }

func (d *driver) HandleEvents() (handled, left bool) {
	n := d.waitedEvents
	d.waitedEvents = 0
	if n == 0 {
		n = d.poll.TryWait()
	}
	return d.handleEvents(n), false
}

func (d *driver) WaitForEvents(limit time.Duration) { d.waitedEvents = d.poll.Wait(limit) }

// handleEvents handles n events.
func (d *driver) handleEvents(count int) bool {
	for i := range count {
		token, events := d.poll.Event(i)
		switch {
		case token >= 0:
			d.handleConnEvents(d.loop.Conn(uint32(token)), events)
		case token == acceptToken:
			d.loop.AcceptConns()
		default:
			d.loop.Eventfd().Clear()
		}
	}
	return count > 0
}

// handleConnEvents handles the events of one connection.
func (d *driver) handleConnEvents(c *engine.Conn, events uint32) {
	switch {
	case c.FD() < 0 || c.DriverFlags()&loop.ClosePending != 0:
		return // closed earlier in this turn
	case c.DriverFlags()&loop.Connecting != 0:
		d.loop.FinishDial(c)
		return
	case c.DriverFlags()&loop.Busy != 0:
		d.suspendWatch(c)
		return
	}
	if events&sock.Out != 0 {
		c.OnWritable()
	}
	if events&(sock.In|sock.Hup|sock.Error) != 0 {
		if d.loop.IsReadQueued(c) {
			d.suspendWatch(c) // the loop will see
		} else if c.WantsInput() {
			d.ReadOnce(c)
		} else if (c.IsReadPaused() || c.BothEnded()) && events&sock.Error == 0 {
			// A unix socket whose peer has gone, which may have input left; or both directions
			// have ended in order, and mail is on its way, which settles the connection.
			d.suspendWatch(c)
		} else if events&(sock.Hup|sock.Error) != 0 {
			// Both directions have ended while output is unsent.
			c.OnTransportError(cmp.Or(sock.TakeSocketError(c.FD()), syscall.ECONNRESET))
		}
	}
	d.PerformActions(c)
}

// suspendWatch lets go of a connection that would be reported again and again, until
// arm brings it back.
func (d *driver) suspendWatch(c *engine.Conn) {
	d.poll.Remove(c.FD())
	c.SetDriverFlags(c.DriverFlags()&^(watchedIn|watchedOut) | unwatched)
}

// unwatchConn stops watching a descriptor before it is closed. Closing alone does not where another
// process has the socket, too: during a hand-over, or for a moment after a fork. Its events would
// be taken for those of the next connection in the slot.
func (d *driver) unwatchConn(c *engine.Conn) {
	if c.DriverFlags()&unwatched == 0 {
		d.poll.Remove(c.FD())
	}
}

// WatchConn begins with input, or while connecting with room.
func (d *driver) WatchConn(c *engine.Conn) syscall.Errno {
	if c.DriverFlags()&loop.Connecting != 0 {
		c.SetDriverFlags(c.DriverFlags() | watchedOut)
		return d.poll.Add(c.FD(), int32(c.Slot()), sock.Out)
	}
	c.SetDriverFlags(c.DriverFlags() | watchedIn)
	return d.poll.Add(c.FD(), int32(c.Slot()), sock.In)
}

func (d *driver) WatchEstablished(c *engine.Conn) syscall.Errno { return d.updateWatch(c) }

func (d *driver) DropUnopened(c *engine.Conn) {
	d.unwatchConn(c)
	d.loop.CloseUnopened(c)
}

func (d *driver) SweepConn(*engine.Conn) {}

func (d *driver) CanRead(*engine.Conn) bool { return true }

// ReadOnce receives once; what is left is reported again.
func (d *driver) ReadOnce(c *engine.Conn) bool { return d.loop.ReceiveOnce(c, d.readBuffer) > 0 }

func (d *driver) PerformActions(c *engine.Conn) {
	for {
		switch c.NextAction() {
		case engine.Send:
			d.sendOutput(c)
		case engine.SendFile:
			d.loop.SendFile(c, sock.SendFile)
		case engine.FeedHandler:
			if !d.loop.CallHandler(c) {
				return
			}
		case engine.DetachOrExport:
			d.suspendWatch(c)
			d.loop.DetachConn(c)
		case engine.ShutWrite:
			d.loop.ShutdownWrite(c)
		case engine.Close:
			d.unwatchConn(c)
			d.loop.CloseConn(c)
			return
		case engine.Read:
			if !d.loop.IsReadQueued(c) {
				d.ReadOnce(c)
				continue
			}
			fallthrough
		case engine.Wait:
			if errno := d.updateWatch(c); errno == 0 {
				return
			} else {
				c.OnTransportError(errno)
			}
		}
	}
}

func (d *driver) sendOutput(c *engine.Conn) {
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

// updateWatch watches the connection for what it waits for.
func (d *driver) updateWatch(c *engine.Conn) syscall.Errno {
	d.loop.TrackExpiry(c)
	var want uint16
	var events uint32
	if c.WantsInput() && (!d.loop.IsReadQueued(c) || c.DriverFlags()&watchedIn != 0) { // it may be dequeued before it is reported
		want, events = watchedIn, sock.In
	}
	if c.WantsWritable() {
		want, events = want|watchedOut, events|sock.Out
	}
	armed := c.DriverFlags()
	if armed&(watchedIn|watchedOut) == want {
		return 0
	}
	c.SetDriverFlags(armed&^(watchedIn|watchedOut|unwatched) | want)
	if armed&unwatched != 0 {
		return d.poll.Add(c.FD(), int32(c.Slot()), events)
	}
	return d.poll.Modify(c.FD(), int32(c.Slot()), events)
}
