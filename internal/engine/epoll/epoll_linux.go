// Package epoll is the model of event loops on Linux's epoll.
//
// Descriptors are watched level-triggered: each event causes one receive, and epoll reports remaining input again. For
// connections that send much, the loop schedules the reads instead; see Loop.QueueIfBulk. The driver tells the Go
// scheduler that a system call may block only when it waits for events after a check has found none.
package epoll

import (
	"cmp"
	"syscall"
	"time"

	"github.com/myriad-go/myriad/internal/engine"
	"github.com/myriad-go/myriad/internal/engine/loop"
	"github.com/myriad-go/myriad/internal/sock"
)

var Model = engine.Model{
	Name:      "epoll",
	HasLoops:  true,
	Available: func() error { return nil },
	Start: func(cfg engine.Config) (engine.Engine, error) {
		return loop.Start(cfg, func(l *loop.Loop) loop.Driver {
			l.EnableJobsAndDirectIO()
			return &driver{loop: l}
		})
	},
}

// eventBatch is the maximum number of events that the loop handles per iteration.
const eventBatch = 64 // short iterations let AutoWorkers detect slow handlers early

// Tokens in the epoll events of the loop's own descriptors. The token of a connection is its slot number.
const (
	eventfdToken = -1
	acceptToken  = -2
)

// Bits of Conn.DriverFlags that belong to this driver.
const (
	watchedIn  uint16 = 1 << (loop.DriverBits + iota) // watched for input
	watchedOut                                        // watched for writability
	unwatched                                         // removed from epoll by suspendWatch
)

type driver struct {
	loop       *loop.Loop
	poll       *sock.Poll
	readBuffer []byte // valid for one event
	// waitedEvents is the number of events that WaitForEvents has received for HandleEvents.
	waitedEvents int
}

func (d *driver) Open() (err error) {
	if d.poll, err = sock.NewEpoll(eventBatch); err != nil {
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

func (d *driver) HandleEvents() (handled, moreLeft bool) {
	n := d.waitedEvents
	d.waitedEvents = 0
	if n == 0 {
		n = d.poll.TryWait()
	}
	return d.handleEvents(n), false
}

func (d *driver) WaitForEvents(limit time.Duration) { d.waitedEvents = d.poll.Wait(limit) }

func (d *driver) handleEvents(count int) (handledAny bool) {
	for i := range count {
		token, events := d.poll.Event(i)
		switch {
		case token >= 0:
			d.handleConnEvents(d.loop.Conn(uint32(token)), events)
		case token == acceptToken:
			d.loop.AcceptAndReceiveConns()
		default:
			d.loop.Eventfd().Clear()
		}
	}
	if count > 0 {
		d.poll.LimitBatch(d.loop.NextEventBatchSize(count, eventBatch))
	}
	return count > 0
}

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
			d.suspendWatch(c) // the loop reads the input
		} else if c.WantsInput() {
			d.ReadOnce(c)
		} else if (c.IsReadPaused() || c.BothEnded()) && events&sock.Error == 0 {
			// Either this is a unix socket whose peer has gone and which may have input left, or both directions have
			// ended in order and a request on its way will continue the connection.
			d.suspendWatch(c)
		} else if events&(sock.Hup|sock.Error) != 0 {
			// Both directions have ended before all output was sent.
			c.OnTransportError(cmp.Or(sock.TakeSocketError(c.FD()), syscall.ECONNRESET))
		}
	}
	d.PerformActions(c)
}

// suspendWatch removes c from epoll. updateWatchAndExpiry adds c again.
func (d *driver) suspendWatch(c *engine.Conn) {
	d.poll.Remove(c.FD())
	c.SetDriverFlags(c.DriverFlags()&^(watchedIn|watchedOut) | unwatched)
}

// unwatchBeforeClose removes c from epoll. It must be called before c's descriptor is closed.
func (d *driver) unwatchBeforeClose(c *engine.Conn) {
	if c.DriverFlags()&unwatched == 0 {
		d.poll.Remove(c.FD()) // a close does not end the watch while another process has the socket open
	}
}

// WatchForInputOrConnect adds c to epoll. It watches c for input, or for writability while c is being dialled.
func (d *driver) WatchForInputOrConnect(c *engine.Conn) syscall.Errno {
	if c.DriverFlags()&loop.Connecting != 0 {
		c.SetDriverFlags(c.DriverFlags() | watchedOut)
		return d.poll.Add(c.FD(), int32(c.Slot()), sock.Out)
	}
	c.SetDriverFlags(c.DriverFlags() | watchedIn)
	return d.poll.Add(c.FD(), int32(c.Slot()), sock.In)
}

func (d *driver) WatchEstablished(c *engine.Conn) syscall.Errno { return d.updateWatchAndExpiry(c) }

func (d *driver) DropUnopened(c *engine.Conn) {
	d.unwatchBeforeClose(c)
	d.loop.CloseUnopened(c)
}

func (d *driver) CancelReceiveIfSilent(*engine.Conn) {}

func (d *driver) CanRead(*engine.Conn) bool { return true }

// ReadOnce makes one receive call on c and delivers the received bytes. If input remains, epoll reports c again.
func (d *driver) ReadOnce(c *engine.Conn) (gotBytes bool) {
	return d.loop.ReceiveOnceAndDeliver(c, d.readBuffer) > 0
}

func (d *driver) PerformActions(c *engine.Conn) {
	for {
		switch c.AdvanceToNextAction() {
		case engine.Send:
			d.sendOutputOnce(c)
		case engine.SendFile:
			d.loop.SendNextFilePart(c, sock.SendFile)
		case engine.FeedHandler:
			if !d.loop.CallHandlerOrSubmit(c) {
				return
			}
		case engine.DetachOrExport:
			d.suspendWatch(c)
			d.loop.MarkReadyIfExportingElseDetach(c)
		case engine.ShutWrite:
			d.loop.ShutdownWriteOrActAsEOF(c)
		case engine.Close:
			d.unwatchBeforeClose(c)
			d.loop.CloseConn(c)
			return
		case engine.Read:
			if !d.loop.IsReadQueued(c) {
				d.ReadOnce(c)
				continue
			}
			fallthrough
		case engine.Wait:
			if errno := d.updateWatchAndExpiry(c); errno == 0 {
				return
			} else {
				c.OnTransportError(errno)
			}
		}
	}
}

func (d *driver) sendOutputOnce(c *engine.Conn) {
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

func (d *driver) updateWatchAndExpiry(c *engine.Conn) syscall.Errno {
	d.loop.UpdateExpiryTracking(c)
	var want uint16
	var events uint32
	if c.WantsInput() && (!d.loop.IsReadQueued(c) || c.DriverFlags()&watchedIn != 0) { // an existing watch is kept, because c may be dequeued before an event
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
