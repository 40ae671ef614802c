package web

import (
	"net/netip"
	"time"

	"github.com/myriad-go/myriad/internal/engine"
	"github.com/myriad-go/myriad/internal/overload"
	"github.com/myriad-go/myriad/tcp"
)

// The functions in this file use the engine behind tcp.Conn. Call them only during a call of c's handler.

// maxSavedState is the maximum size in bytes of the state that a connection passes to the new process in an upgrade.
const maxSavedState = engine.MaxState

func core(c *tcp.Conn) *engine.Conn { return (*engine.Conn)(c) }

// yieldToOtherConns makes the event loop serve other connections before it passes c's handler the remaining input.
func yieldToOtherConns(c *tcp.Conn) { core(c).YieldInput() }

// setHandlerMemory sets the number of bytes that the handler uses for c. These bytes count towards
// tcp.Limits.MaxBuffered. If messageIncomplete is set, the peer must complete its message within Limits.MessageTimeout.
func setHandlerMemory(c *tcp.Conn, bytes int, messageIncomplete bool) {
	core(c).SetHandlerMemory(bytes, messageIncomplete)
}

// unusedInputBytes returns the number of input bytes that the previous call of c's handler did not use.
func unusedInputBytes(c *tcp.Conn) int { return core(c).RefusedBytes() }

// closeAfterPeerEnd closes c with the given reason after the peer has ended its sending direction. If the peer does not
// do this within Limits.CloseTimeout, c closes anyway.
func closeAfterPeerEnd(c *tcp.Conn, reason error) { core(c).CloseWaitingForPeerEOF(reason) }

// loopHold gives an HTTP handler access to its event loop. The field hold is nil if the handler runs on a worker.
type loopHold struct {
	hold engine.LoopHold
	ref  engine.Ref
	// workerMaySend means that a worker may send without the connection's owner, because the owner has nothing to send.
	workerMaySend bool
	// started is the time at which the job started on a loop. It is set only for the job's first request.
	started time.Duration
}

// queueOnLoopIfItRunsJobs queues a job for c's event loop. The job answers x and the requests after x. If the loop
// cannot run jobs, queueOnLoopIfItRunsJobs does nothing and returns false.
func (x *exchange) queueOnLoopIfItRunsJobs(c *tcp.Conn) (queued bool) {
	n := 0
	for y := x; y != nil; y = y.next {
		n++
	}
	return core(c).QueueLoopJob(x.job, n)
}

// call runs f on the event loop, and then sends the connection's output. If the connection has closed, f does not run.
// If the handler does not run on the loop, call does nothing and returns false.
func (h loopHold) call(f func(*tcp.Conn)) (called bool) {
	return h.hold != nil && h.hold.Call(h.ref, func(c *engine.Conn) { f((*tcp.Conn)(c)) })
}

// sendReadyResponsesOnLoop calls sendReadyResponses on the event loop. It returns false and does nothing if the handler
// no longer runs on the loop, or if another tcp.Handler takes over the connection.
func (x *exchange) sendReadyResponsesOnLoop() (called bool) {
	return x.loop.hold != nil && x.switchHandler == nil && x.loop.hold.CallAndSendLater(x.loop.ref, (*responseSender)(x))
}

// postSendReadyResponses makes the goroutine that owns the connection call sendReadyResponses, and does not wait for
// the call. It returns an error if the mailbox is full or the connection has closed.
func (x *exchange) postSendReadyResponses() error { return x.loop.ref.DoShared(&x.sendReady) }

type sharedCall = engine.Shared

func (x *exchange) initSendReadyResponsesCall() {
	if x.sendReady.Do == nil {
		x.sendReady.Do = func(c *engine.Conn) { x.sendReadyResponses((*tcp.Conn)(c)) }
	}
}

type responseSender exchange

func (x *responseSender) CallWith(c *engine.Conn) { (*exchange)(x).sendReadyResponses((*tcp.Conn)(c)) }

func overloadManager(c *tcp.Conn) *overload.Manager { return core(c).Overload() }

// askOverloadManagerToAdmit asks the overload manager whether to serve x and the requests after x. If admitted is
// false, the caller must reject all of them. If runsNow is true, the requests do not wait in a queue, and the ticket t
// is zero. Otherwise, the ticket records how long the requests wait, and the caller must pass it to the manager's Start
// or Abandon.
func (x *exchange) askOverloadManagerToAdmit(c *tcp.Conn, runsNow bool) (t overload.Ticket, admitted bool) {
	e, priority := core(c), max(x.priority, core(c).Priority())
	if runsNow {
		return t, e.Overload().Admit(nil, e.Peer().Addr(), priority)
	}
	admitted = e.Overload().Admit(&t, e.Peer().Addr(), priority)
	return t, admitted
}

// mustEndKeepAlive reports whether c must close after the response to the current request, because the server is
// overloaded.
func mustEndKeepAlive(c *tcp.Conn) bool { return core(c).Overload().IsActive(overload.EndKeepAlive) }

// shortenIfOverloaded returns idleTimeout. While the server is overloaded, it returns a fraction of idleTimeout.
func shortenIfOverloaded(c *tcp.Conn, idleTimeout time.Duration) time.Duration {
	if core(c).Overload().IsActive(overload.ShortenIdle) {
		return idleTimeout / overload.IdleDivisor
	}
	return idleTimeout
}

// canReceiveDirectly reports whether receiveDirectly may be used once c is paused and its handler has used all input.
func canReceiveDirectly(c *tcp.Conn) bool { return core(c).CanReceiveDirectly() }

// receiveDirectly receives from the socket of a paused connection on the caller's goroutine, without blocking. It
// returns 0 if no bytes are available or the connection has ended.
func (h loopHold) receiveDirectly(p []byte) (n int) { return h.ref.ReceiveAssumingReadingOff(p) }

// trySendOnWorker tries to send head and p on the calling worker, and returns the number of bytes sent. If bytes
// remain, the connection's owner must send them and all further output of the request.
func (h *loopHold) trySendOnWorker(head, p []byte) (sent int) {
	if len(head) == 0 {
		head, p = p, nil
	}
	switch {
	case h.hold != nil || !h.workerMaySend || len(head) == 0:
		return 0
	case len(p) == 0:
		sent = h.ref.SendAssumingEmptyOutput(head)
	default:
		sent = h.ref.SendAssumingEmptyOutput(head, p)
	}
	h.workerMaySend = sent == len(head)+len(p)
	return sent
}

type threadUsage = engine.ThreadUsage

// isSlow reports whether a call computed for long, or waited for something other than a CPU. took is the duration of
// the call. used contains the CPU time and the number of sleeps of the calling thread during the call.
func isSlow(took time.Duration, used threadUsage) bool {
	return used.CPU >= slowCall/2 || used.Sleeps > 0 && !engine.HadNoCPU(took, used.ProcessCPU-used.CPU)
}

func monotonicNow() time.Duration { return engine.MonotonicNow() }

func connRef(c *tcp.Conn) engine.Ref { return core(c).Ref() }

// RunOnLoop implements engine.LoopJob. It runs the handlers of the job on the event loop. If the route has moved to
// workers since the job was queued, RunOnLoop submits the job to the pool instead.
func (j *exchangeJob) RunOnLoop(hold engine.LoopHold) {
	if !j.route.onLoop.Load() {
		j.submitToPoolOrDrop()
		return
	}
	defer j.recordLoopJobEnded() // also after runtime.Goexit
	j.runHandlers(hold)
}

func (j *exchangeJob) LoopContinuedElsewhere(isSlow bool) {
	if j.onLoopState.CompareAndSwap(jobOnLoop, jobTaken) {
		j.route.countLoopLosingCallOrMove(isSlow)
	}
}

func (j *exchangeJob) recordLoopJobEnded() {
	if j.onLoopState.Swap(jobEnded) == jobTaken {
		j.route.takenCalls.Add(-1)
	}
}

// runHandlers calls the handlers of the job's requests. If the requests have waited too long, it answers them with the
// status 503 instead. If the connection has closed, it does nothing. holdOrNil gives access to the event loop. It is
// nil on a worker.
func (j *exchangeJob) runHandlers(holdOrNil engine.LoopHold) {
	x := j.takeExchange()
	if x == nil {
		j.overload.Abandon(&j.ticket)
		return
	}
	if !j.overload.Start(&j.ticket) {
		x.rejectThisAndFollowing(holdOrNil)
		return
	}
	defer j.overload.Done(&j.ticket)
	if holdOrNil != nil {
		x.loop.started = holdOrNil.Started()
	}
	for buffered := 0; x != nil; {
		x.loop.hold = holdOrNil
		x, buffered = x.runHandler(buffered)
	}
}

// rejectThisAndFollowing answers x and the requests after x with the status 503. holdOrNil is nil on a worker.
func (x *exchange) rejectThisAndFollowing(holdOrNil engine.LoopHold) {
	for ; x != nil; x = x.markReadyAndPostResponses() {
		x.loop.hold = holdOrNil
		x.writeServiceUnavailable()
	}
}

func isDraining(c *tcp.Conn) bool { return core(c).IsDraining() }

func fileCapacity(c *tcp.Conn) int { return core(c).FileQueueSpace() }

// maxUnsent returns the effective value of tcp.Limits.MaxUnsent for c's server, in bytes.
func maxUnsent(c *tcp.Conn) int { return core(c).Limits().MaxUnsent }

// maxMessage returns the effective value of tcp.Limits.MaxMessage for c's server, in bytes.
func maxMessage(c *tcp.Conn) int { return core(c).MaxMessage() }

// clock returns the time at which c's event loop began its current iteration, measured from an arbitrary moment.
func clock(c *tcp.Conn) time.Duration { return core(c).Clock() }

// readCount returns a number that changes whenever c's event loop reads from any connection.
func readCount(c *tcp.Conn) int64 { return core(c).LoopReads() }

// peerAddr returns the address of c's peer, or the zero AddrPort for a unix socket.
func peerAddr(c *tcp.Conn) netip.AddrPort { return core(c).Peer() }
