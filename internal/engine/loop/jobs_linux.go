package loop

import (
	"runtime"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/myriad-go/myriad/internal/engine"
	"github.com/myriad-go/myriad/internal/sock"
)

// This file runs jobs on a loop's goroutine, and continues a loop on another goroutine if a job takes long.
//
// The goroutine that runs a loop has a hold. While the goroutine runs a job, it does not access the loop. Before it
// accesses the loop again, it must change the state of its hold from running to idle. A goroutine that changes the
// state from running to lost instead becomes responsible for the loop, and starts a goroutine with a new hold. The
// state changes are atomic, so one goroutine at a time accesses the loop. The goroutine that has lost its hold ends
// when its job has returned. The engine waits for it.
//
// Jobs run outside of turns, so that a lost loop has no unfinished work in the local variables of its old goroutine. A
// loop with its own descriptor table, or with an io_uring instance, is bound to its thread and runs no jobs.

// jobHold represents the right of a goroutine to run a loop. It implements engine.LoopHold for the goroutine's jobs.
type jobHold struct {
	loop *Loop
	// state is twice the number of finished jobs, plus 1 while a job runs and does not access the loop. After another
	// goroutine has taken the loop, state is lostHold.
	state  atomic.Uint64
	thread int // the locked thread of the goroutine that runs the loop
	// job is the running job or, if none runs, the last one. It is set before state is changed, and read by the
	// goroutine that has taken the loop.
	job     engine.LoopJob
	started atomic.Int64 // when the job was started, by MonotonicNow

	continued chan struct{} // closed when the goroutine that continues a lost loop has started
	ended     bool          // the goroutine knows that it has lost the loop; only it accesses this field
}

const (
	lostHold         = ^uint64(0)
	jobCheckInterval = 4 * time.Millisecond // between two checks for slow jobs
	minTimeToTake    = time.Millisecond     // a check takes the loop from a job that has run for at least this time
	quietJobChecks   = 100                  // checks without a job after which the checks stop
)

// EnableJobsAndDirectIO lets the loop accept jobs. It also lets other goroutines receive and send on the loop's
// connections. A driver may call EnableJobsAndDirectIO only if the driver can run on any thread, and never leaves a
// receive operation pending in the kernel. If the loop has its own descriptor table, the call has no effect.
func (l *Loop) EnableJobsAndDirectIO() {
	if l.engine.cfg.MaxConnsPerShard == 0 {
		l.acceptsJobs, l.host.ReceiveDirect, l.host.SendFromOthers = true, receiveDirect, sendDirect
	}
}

func receiveDirect(c *engine.Conn, p []byte) (n int) {
	n, errno := sock.Recv(c.FD(), p)
	if errno != 0 {
		return 0
	}
	return n
}

func (l *Loop) QueueJobOnLoop(job engine.LoopJob, requests int) (queued bool) {
	if l.acceptsJobs {
		l.jobs.PushBack(job)
		l.jobRequests += requests
	}
	return l.acceptsJobs
}

// jobRequestsPerTurn is the number of requests for jobs that one loop iteration should get. NextEventBatchSize limits
// the number of events accordingly.
const jobRequestsPerTurn = 64 // more could leave the CPU's caches before they are answered

// NextEventBatchSize returns the number of events to handle in the next loop iteration, at most maxBatch. lastHandled
// is the number of events that the last iteration has handled. If each of these events brought several requests on
// average, NextEventBatchSize reduces the number, so that the iteration gets about jobRequestsPerTurn requests.
func (l *Loop) NextEventBatchSize(lastHandled, maxBatch int) int {
	n := l.jobRequests
	if l.jobRequests = 0; n <= lastHandled {
		return maxBatch
	}
	return min(jobRequestsPerTurn*lastHandled/n, maxBatch)
}

// runQueuedJobsWithinTimeSlice runs queued jobs on the calling goroutine. It returns when no job is left or the time
// slice has passed. It also returns if another goroutine has taken over the loop.
func (l *Loop) runQueuedJobsWithinTimeSlice(h *jobHold) {
	if l.jobs.Len() == 0 {
		return
	}
	start := engine.MonotonicNow()
	for now := start; !h.ended && l.jobs.Len() > 0 && now-start < maxTaskTime; now = engine.MonotonicNow() {
		h.run(l.jobs.PopFront(), now)
	}
}

func (h *jobHold) run(job engine.LoopJob, now time.Duration) {
	h.job = job
	h.started.Store(int64(now))
	h.state.Store(h.state.Load() + 1)
	if e := h.loop.engine; !e.checkingJobs.Load() && e.checkingJobs.CompareAndSwap(false, true) {
		e.startJobChecks <- struct{}{}
	}
	defer h.returnToLoopUnlessLost() // also after runtime.Goexit
	job.RunOnLoop(h)
}

func (l *Loop) newHold() *jobHold { return &jobHold{loop: l, continued: make(chan struct{})} }

// returnToLoopUnlessLost continues the loop after a job. If another goroutine has taken over the loop during the job,
// returnToLoopUnlessLost sets h.ended and waits until the other goroutine has started.
func (h *jobHold) returnToLoopUnlessLost() {
	if h.ended = !h.tryAccessLoop(); h.ended {
		<-h.continued
		return
	}
	h.state.Add(2) // counts the finished job
	h.loop.performPendingActions()
}

// tryAccessLoop lets a job's goroutine access the loop again, unless another goroutine has taken over the loop.
func (h *jobHold) tryAccessLoop() (ok bool) {
	v := h.state.Load()
	return v&1 == 1 && v != lostHold && h.state.CompareAndSwap(v, v-1)
}

func (h *jobHold) Call(r engine.Ref, f func(*engine.Conn)) (calledOrClosed bool) {
	if unix.Gettid() != h.thread || !h.tryAccessLoop() {
		return false // the caller is a goroutine that the job has started, or the job has lost the loop
	}
	c, called := h.loop.callOpenConn(r, connFunc(f))
	if called && c != nil && c.FD() >= 0 && c.IsOpen() {
		h.loop.driver.PerformActions(c)
	}
	h.state.Add(1)
	return called
}

func (h *jobHold) CallAndSendLater(r engine.Ref, f engine.ConnCallback) (stillOnLoop bool) {
	if !h.tryAccessLoop() {
		return false
	}
	if c, called := h.loop.callOpenConn(r, f); c != nil && called {
		h.loop.PerformActionsLater(c)
	} else if !called && r.Do(f.CallWith) == engine.ErrFull {
		h.loop.jobs.PushBack(retriedCall{r, f})
	}
	h.state.Add(1)
	return true
}

// retriedCall is a job that repeats a call for which the loop's mailbox was full.
type retriedCall struct {
	ref engine.Ref
	f   engine.ConnCallback
}

func (c retriedCall) RunOnLoop(h engine.LoopHold) { h.CallAndSendLater(c.ref, c.f) }

func (retriedCall) LoopContinuedElsewhere(bool) {}

type connFunc func(*engine.Conn)

func (f connFunc) CallWith(c *engine.Conn) { f(c) }

// callOpenConn calls f with the connection that r refers to, and returns the connection. If the connection is closed,
// callOpenConn does not call f, and c is nil. If the connection is open but cannot be used at present, for example
// because a worker uses it, calledOrClosed is false. The caller must then try again later.
func (l *Loop) callOpenConn(r engine.Ref, f engine.ConnCallback) (c *engine.Conn, calledOrClosed bool) {
	c = r.ConnIfOwnedBy(&l.host)
	return c, c == nil || c.DriverFlags()&(Busy|Connecting) == 0 && c.CallIfReady(f)
}

func (h *jobHold) Started() time.Duration { return time.Duration(h.started.Load()) }

func (h *jobHold) Usage() (_ engine.ThreadUsage, ok bool) {
	u := sock.CurrentThreadUsage()
	return engine.ThreadUsage{CPU: u.CPU, ProcessCPU: sock.ProcessCPU(), Sleeps: u.Sleeps}, h.state.Load() != lostHold
}

func (h *jobHold) Leave() (left bool) {
	if v := h.state.Load(); v&1 == 1 && v != lostHold && h.state.CompareAndSwap(v, lostHold) {
		h.loop.continueOnNewGoroutine(h, true)
		return true
	}
	if h.state.Load() == lostHold {
		<-h.continued // until then, the thread still counts as that of a loop
	}
	return false
}

// LeaveToWait implements engine.Loop. It prepares the calling goroutine for a wait. If the goroutine runs a job of a
// loop, another goroutine takes over the loop. If the goroutine runs the loop itself, mayWait is false, because the
// wait would delay the loop.
func (*Loop) LeaveToWait() (mayWait bool) {
	l := currentLoop()
	if l == nil {
		return true
	}
	switch h := l.hold.Load(); {
	case h.thread != unix.Gettid(): // another goroutine has continued the loop
	case h.state.Load()&1 == 0:
		return false
	default:
		h.Leave()
	}
	return true
}

// continueOnNewGoroutine starts a goroutine that continues the loop, while the old goroutine still runs a job. lost is
// the hold of the old goroutine. jobIsSlow is passed to the job's method LoopContinuedElsewhere.
func (l *Loop) continueOnNewGoroutine(lost *jobHold, jobIsSlow bool) {
	loopsByThread.Delete(lost.thread)
	l.counters.Add(engine.LoopsContinued, 1)
	h := l.newHold()
	l.engine.runningLoops.Go(func() {
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		l.runUntilFinishedOrLost(h)
	})
	close(lost.continued)
	lost.job.LoopContinuedElsewhere(jobIsSlow)
}

// watchForSlowJobs regularly looks for slow jobs. If a job is slow, a new goroutine continues the job's loop.
// watchForSlowJobs returns when done is closed.
func (e *loopEngine) watchForSlowJobs(done <-chan struct{}) {
	seen := make([]jobObservation, len(e.loops))
	for {
		select {
		case <-done:
			return
		case <-e.startJobChecks:
		}
		ticker := time.NewTicker(jobCheckInterval)
		for quiet := 0; quiet < quietJobChecks; quiet++ {
			select {
			case <-done:
				ticker.Stop()
				return
			case <-ticker.C:
			}
			if e.continueLoopsDespiteSlowJobs(seen) {
				quiet = 0
			}
		}
		ticker.Stop()
		e.checkingJobs.Store(false)
		if e.continueLoopsDespiteSlowJobs(seen) && e.checkingJobs.CompareAndSwap(false, true) {
			e.startJobChecks <- struct{}{} // a job has started in the meantime
		}
	}
}

// jobObservation records the state of a loop and the CPU times of its thread and of the process, at the time of a check
// for slow jobs.
type jobObservation struct {
	hold                  *jobHold
	state                 uint64
	at                    time.Duration
	threadCPU, processCPU time.Duration
}

func observeJob(h *jobHold, state uint64) jobObservation {
	return jobObservation{h, state, engine.MonotonicNow(), sock.ThreadCPU(h.thread), sock.ProcessCPU()}
}

// mustTakeLoop compares now, an observation of a loop, with o, the previous observation of the same loop. If the job
// delays the loop so long that another goroutine must continue the loop, mustTake is true. If the only cause of the
// delay is a lack of CPU time, jobIsSlow is false.
func (o jobObservation) mustTakeLoop(now jobObservation) (mustTake, jobIsSlow bool) {
	if now.hold != o.hold {
		return false, false // the next check can compare with this observation
	}
	cpu := now.threadCPU - o.threadCPU
	if sock.ThreadIsRunnable(now.hold.thread) {
		computes := cpu-max(now.hold.Started()-o.at, 0) >= minTimeToTake/2 // if earlier jobs used all CPU time before it
		return computes, computes
	}
	return true, !engine.HadNoCPU(now.at-o.at, now.processCPU-o.processCPU-cpu)
}

// continueLoopsDespiteSlowJobs checks all loops once. If a loop is delayed by a slow job, a new goroutine continues the
// loop. seen contains the observations of the previous check. continueLoopsDespiteSlowJobs replaces them with new
// observations. anyJobs reports whether any job has run since the previous check.
func (e *loopEngine) continueLoopsDespiteSlowJobs(seen []jobObservation) (anyJobs bool) {
	for i, l := range e.loops {
		h := l.hold.Load()
		if h == nil {
			continue
		}
		now := observeJob(h, h.state.Load())
		runs := now.state&1 == 1
		anyJobs = anyJobs || runs || seen[i].hold != h || seen[i].state != now.state
		if runs && now.state != lostHold && now.at-h.Started() >= minTimeToTake {
			if takes, jobIsSlow := seen[i].mustTakeLoop(now); takes && h.state.CompareAndSwap(now.state, lostHold) {
				l.continueOnNewGoroutine(h, jobIsSlow)
			}
		}
		seen[i] = now
	}
	return anyJobs
}
