// Package uring is the model of event loops on Linux's io_uring.
//
// Each loop has a ring (single issuer, deferred task run). A poll watches each silent connection, because a poll costs
// the kernel little memory. An active connection has a multishot receive, which fills buffers provided by the loop.
// Output is sent by submissions, at most one per connection at a time. All submissions of a turn go to the kernel in
// one call.
//
// The loop accepts by a poll followed by accept calls. A multishot accept would not return the peer's address, and a
// call for the address costs as much as an accept. The ring does not poll the listener but an epoll instance that
// watches it: after a kill, the kernel keeps polled files open until it has torn down the ring, and the address would
// stay in use.
//
// A descriptor may be closed only when no operation on it is in progress, because completions carry the connection's
// slot, which closing frees. If operations are in progress, the driver first shuts down the connection, which completes
// them.
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

var Model = engine.Model{
	Name:      "uring",
	HasLoops:  true,
	Available: sync.OnceValue(probeRing),
	Start: func(cfg engine.Config) (engine.Engine, error) {
		return loop.Start(cfg, func(l *loop.Loop) loop.Driver { return &driver{loop: l} })
	},
}

// probeRing returns an error if the kernel does not support the io_uring features that a loop uses.
func probeRing() (err error) {
	sock.RunOnNewThread(func() {
		var r *ring
		if r, err = newRing(); err != nil {
			return
		}
		var p *bufferRing
		if p, err = newBufferRing(r); err == nil {
			defer p.close()
			r.nextFreeSubmission().op = opNop
			if r.enter(enterGetEvents, 1); r.broken != 0 {
				err = describeSetupError(r.broken)
			}
		}
		r.close()
	})
	return err
}

// completionsPerTurn is the maximum number of completions that the loop handles per iteration. A completion of a send
// takes little time and counts only as a quarter.
const completionsPerTurn = 64 // short iterations let AutoWorkers detect slow handlers early

const maxDeferredPerRound = 4 * completionsPerTurn

// Operations, as stored in the upper half of a completion's user data. The lower half is the connection's slot number.
const (
	tagRecv uint64 = iota << 32
	tagSend
	tagWritable
	tagPoll
	tagListener
	tagEventfd
	tagIgnored
	tagHeartbeat
)

// Bits of Conn.DriverFlags that belong to this driver.
const (
	receiving     uint16 = 1 << (loop.DriverBits + iota) // a receive is in progress
	polling                                              // a poll is in progress
	sending                                              // a send is in progress, or a poll for writability
	canceling                                            // the receive is being cancelled
	closing                                              // must be closed when no operation is in progress
	frequent                                             // gets receives instead of polls; see frequentInput
	smallReceives                                        // the last receive was small

	pendingOps = receiving | polling | sending
)

type driver struct {
	loop            *loop.Loop
	ring            *ring
	buffers         *bufferRing
	listenerPoll    *sock.Poll    // watches the listeners
	readBuffer      []byte        // used by ReadOnce
	lastRecreated   time.Duration // when the ring was last recreated
	roundLeft       uint32        // unhandled completions of this round
	pendingReceives int           // connections with a receive in progress
}

func (d *driver) Open() error {
	d.loop.UseBlockingSockets() // the ring would not wait for a non-blocking socket
	d.loop.QueueHeartbeats(d.queueHeartbeat, d.submitAndCheckHeartbeats)
	return d.openRingBuffersAndPolls()
}

func (d *driver) openRingBuffersAndPolls() (err error) {
	if d.ring, err = newRing(); err != nil {
		return err
	}
	if d.buffers, err = newBufferRing(d.ring); err != nil {
		d.ring.close()
		return err
	}
	if d.listenerPoll, err = sock.NewEpoll(1); err != nil {
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

// HandleEvents handles some of the completions of the current round. A round consists of the completions that are
// available when it starts. Later completions wait for the next round, so that busy connections cannot starve others.
// moreLeft reports whether the round has unhandled completions.
func (d *driver) HandleEvents() (handled, moreLeft bool) {
	switch {
	case d.roundLeft == 0:
		d.runKernelWorkAndStartRound()
	case d.ring.tail != d.ring.submitted:
		d.ring.enter(0, 0)
	}
	handled = d.handleCompletionBatch()
	return handled, d.roundLeft > 0
}

// runKernelWorkAndStartRound makes the kernel run deferred work and then starts a round of completions.
func (d *driver) runKernelWorkAndStartRound() {
	immediate := d.ring.completionCount() + d.ring.tail - d.ring.submitted
	wanted := min(immediate, maxDeferredPerRound) // so that deferred work does not starve other completions
	d.ring.enter(enterGetEvents, 0)
	for n := uint32(0); n < wanted && d.ring.completionCount() < immediate+wanted && d.ring.hasDeferredWork() && d.ring.broken == 0; n++ {
		d.ring.enter(enterGetEvents, 0)
	}
	d.roundLeft = d.ring.completionCount()
}

// WaitForEvents waits for a completion, or until the duration limit has passed. A negative limit means no limit. If no
// receive is in progress, WaitForEvents first returns the memory of the receive buffers to the operating system.
func (d *driver) WaitForEvents(limit time.Duration) {
	if d.pendingReceives == 0 && d.ring.completionCount() == 0 {
		d.buffers.returnPagesToOS()
	}
	d.ring.enterAndWait(limit)
	d.roundLeft = d.ring.completionCount()
}

const recreateInterval = 100 * time.Millisecond

// abortConnsAndReplaceRing replaces a ring that has failed. It aborts all connections of the loop.
func (d *driver) abortConnsAndReplaceRing() {
	errno := d.ring.broken
	time.Sleep(d.lastRecreated + recreateInterval - engine.MonotonicNow())
	d.lastRecreated, d.roundLeft = engine.MonotonicNow(), 0
	d.loop.Log().LogAttrs(context.Background(), slog.LevelError,
		"io_uring failed: closing its connections and creating a new ring", slog.String("error", errno.Error()))
	d.Close()
	if err := d.openRingBuffersAndPolls(); err != nil {
		panic("myriad: io_uring failed, and no new ring could be created: " + err.Error())
	}
	d.loop.WatchChannelsAndUnpausedListeners()
	d.loop.ForEachConn(func(c *engine.Conn) {
		d.clearOpsAndUncountReceive(c, pendingOps|canceling)
		if d.loop.AbortConnOrFailDial(c, engine.NormalizeError(errno)); c.DriverFlags()&closing != 0 && !c.IsOpen() {
			d.closeOrShutToEndOps(c)
		}
	})
}

func (d *driver) handleCompletionBatch() (handledAny bool) {
	if d.ring.broken != 0 {
		d.abortConnsAndReplaceRing()
		return true
	}
	handled := d.roundLeft > 0
	for n := 0; d.roundLeft > 0 && n < 4*completionsPerTurn; {
		completion := d.ring.popCompletion()
		d.roundLeft-- // before the handler, which may call runtime.Goexit
		n += 4
		switch completion.user &^ (1<<32 - 1) {
		case tagRecv:
			d.handleRecvCompletion(d.loop.Conn(uint32(completion.user)), completion)
		case tagSend:
			n -= 3
			d.handleOrDeferSendCompletion(d.loop.Conn(uint32(completion.user)), completion)
		case tagWritable:
			d.handleOrDeferWritable(d.loop.Conn(uint32(completion.user)))
		case tagPoll:
			d.handleInputOrConnectPoll(d.loop.Conn(uint32(completion.user)))
		case tagHeartbeat:
			d.handleUnsentHeartbeat(d.loop.Conn(uint32(completion.user)), completion.res)
		case tagListener:
			d.rearmListenerPollAndAccept()
		case tagEventfd:
			d.loop.Eventfd().Clear()
			if completion.flags&cqeMore == 0 {
				d.submitPoll(d.loop.Eventfd().FD, tagEventfd, unix.POLLIN, pollMultishot)
			}
		}
	}
	return handled
}

func (d *driver) rearmListenerPollAndAccept() {
	d.submitPoll(d.listenerPoll.FD(), tagListener, unix.POLLIN, 0) // first, because a handler may call runtime.Goexit
	d.loop.AcceptAndReceiveConns()
}

func (d *driver) handleInputOrConnectPoll(c *engine.Conn) {
	d.clearOpsAndUncountReceive(c, polling)
	switch {
	case c.DriverFlags()&closing != 0:
		d.PerformActions(c)
	case c.DriverFlags()&loop.Connecting != 0:
		d.loop.FinishDial(c)
	default:
		d.readOrSubmitReceiveIfFrequent(c)
	}
}

// These limits select between receives and polls. A connection gets receives while it has frequent input, and otherwise
// polls. To cancel a receive, the kernel searches among the receives of all connections, so receives should be few and
// should be kept for some time. For a silent connection, a poll also takes less memory than a receive.
const (
	frequentInput = 200 * time.Millisecond // maximum time between two inputs before a connection gets a receive
	maxSilence    = 2 * time.Second        // time without input after which a sweep cancels the receive
)

func (d *driver) readOrSubmitReceiveIfFrequent(c *engine.Conn) {
	if c.DriverFlags()&loop.Busy == 0 && c.WantsInput() {
		if silence, ok := c.TimeSinceInput(); ok && silence < frequentInput {
			c.SetDriverFlags(c.DriverFlags() | frequent)
		}
		switch armed := c.DriverFlags(); {
		case armed&frequent == 0:
			d.ReadOnce(c)
		case armed&smallReceives == 0: // the peer has sent much a moment ago
			d.loop.QueueForLaterRead(c)
		}
	}
	d.PerformActions(c) // submits a receive if the connection has frequent input and is not queued
}

// WatchForInputOrConnect submits a poll that completes when c has input. If c is being dialled, the poll completes when
// the dial has ended.
func (d *driver) WatchForInputOrConnect(c *engine.Conn) syscall.Errno {
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
	return d.WatchForInputOrConnect(c)
}

func (d *driver) DropUnopened(c *engine.Conn) { d.closeOrShutToEndOps(c) }

func (d *driver) PerformActions(c *engine.Conn) {
	switch armed := c.DriverFlags(); {
	case armed&loop.Busy != 0:
		return
	case armed&closing != 0:
		d.closeOrShutToEndOps(c)
		return
	}
	for {
		switch c.AdvanceToNextAction() {
		case engine.Send:
			d.submitSend(c)
		case engine.SendFile:
			d.sendFilePartBySyscall(c)
		case engine.FeedHandler:
			if !d.loop.CallHandlerOrSubmit(c) {
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
			d.loop.MarkReadyIfExportingElseDetach(c)
		case engine.ShutWrite:
			d.loop.ShutdownWriteOrActAsEOF(c)
		case engine.Close:
			d.closeOrShutToEndOps(c)
			return
		case engine.Read:
			switch {
			case c.DriverFlags()&receiving != 0:
				d.cancelReceiveIfPending(c)
			case !d.loop.IsReadQueued(c):
				d.ReadOnce(c)
				continue
			}
			fallthrough
		case engine.Wait:
			d.updateInputWatch(c)
			return
		}
	}
}

// closeOrShutToEndOps closes c. If operations on c are in progress, it only shuts down the socket, so that the
// operations end. When the last operation has ended, the driver calls closeOrShutToEndOps again.
func (d *driver) closeOrShutToEndOps(c *engine.Conn) {
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
		d.shutdownOrResetKeepingFD(c)
	}
}

func (d *driver) shutdownOrResetKeepingFD(c *engine.Conn) {
	if !d.loop.ClosesWithReset(c) || !sock.ResetConnKeepingFD(c.FD()) {
		sock.Shutdown(c.FD())
	}
}

// updateInputWatch starts a receive or a poll if c wants input. If c wants no input, it cancels a receive in progress.
func (d *driver) updateInputWatch(c *engine.Conn) {
	d.loop.UpdateExpiryTracking(c)
	armed := c.DriverFlags()
	switch wants := c.WantsInput() && !d.loop.IsReadQueued(c); {
	case wants && armed&(receiving|polling) == 0:
		if armed&frequent != 0 && (armed&smallReceives != 0 || d.pendingReceives < maxBuffers) {
			d.submitReceive(c)
		} else {
			c.SetDriverFlags(armed | polling)
			d.submitPoll(c.FD(), tagPoll|uint64(c.Slot()), unix.POLLIN, 0)
		}
	case !wants:
		d.cancelReceiveIfPending(c)
	}
}

// CancelReceiveIfSilent cancels c's receive if nothing has arrived for maxSilence. A poll then replaces the receive.
func (d *driver) CancelReceiveIfSilent(c *engine.Conn) {
	if armed := c.DriverFlags(); armed&(frequent|loop.Busy) == frequent {
		if silence, ok := c.TimeSinceInput(); ok && silence >= maxSilence {
			c.SetDriverFlags(armed &^ frequent)
			d.cancelReceiveIfPending(c)
		}
	}
}

func (d *driver) clearOpsAndUncountReceive(c *engine.Conn, opFlags uint16) {
	if c.DriverFlags()&opFlags&receiving != 0 {
		d.pendingReceives--
		d.loop.AdjustFastSweepReasons(-1)
	}
	c.SetDriverFlags(c.DriverFlags() &^ opFlags)
}

func (d *driver) submitPoll(fd int32, userData uint64, events, flags uint32) {
	s := d.ring.nextFreeSubmission()
	s.op, s.fd, s.opFlags, s.len, s.user = opPollAdd, fd, events, flags, userData
}

func (d *driver) submitCancel(userData uint64) {
	s := d.ring.nextFreeSubmission()
	s.op, s.flags, s.fd, s.addr, s.user = opAsyncCancel, sqeSkipSuccess, -1, userData, tagIgnored
}
