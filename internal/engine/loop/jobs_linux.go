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
// The goroutine that runs a loop has a hold. While it runs a job, it does not access the loop. Before it accesses the
// loop again, it must change the state of its hold from running to idle. A goroutine that changes the state from running
// to lost instead becomes responsible for the loop, and starts a goroutine with a new hold. The state changes are atomic,
// so one goroutine at a time accesses the loop. The goroutine that has lost its hold ends when its job has returned. The
// engine waits for it.
//
// Jobs run outside of turns, so that a lost loop has no unfinished work in the local variables of its old goroutine. A
// loop with its own descriptor table, or with an io_uring instance, is bound to its thread and runs no jobs.

// jobHold implements engine.LoopHold for the goroutine that runs a loop.
type jobHold struct {
	loop *Loop
	// state contains the number of jobs that were started, times 2, plus 1 while a job runs, or lostHold.
	state  atomic.Uint64
	thread int // the locked thread of the goroutine that runs the loop
	// job is the running job or, if none runs, the last one. It is set before state, and read after the loop was taken.
	job     engine.LoopJob
	started atomic.Int64 // when the job was started, by MonotonicNow

	continued chan struct{} // closed when the goroutine that continues a lost loop has started
	ended     bool          // the goroutine knows that it has lost the loop; only it accesses this field
}

const (
	lostHold = ^uint64(0)
	// jobCheckInterval is the time between two checks for slow jobs. A check takes the loop from a job that has run for
	// minTimeToTake. While no jobs run, there are no checks.
	jobCheckInterval = 4 * time.Millisecond
	minTimeToTake    = time.Millisecond
	quietJobChecks   = 100 // checks without a job after which the checks stop
)

// AllowOtherThreads makes the loop accept jobs, and lets other goroutines receive from its connections. Drivers call it
// if any thread may use them and the kernel never has a receive of theirs pending.
func (l *Loop) AllowOtherThreads() {
	if l.engine.cfg.MaxConnsPerShard == 0 {
		l.acceptsJobs, l.host.ReceiveDirect = true, receiveDirect
	}
}

// receiveDirect implements Runtime.ReceiveDirect.
func receiveDirect(c *engine.Conn, p []byte) (n int) {
	n, errno := sock.Recv(c.FD(), p)
	if errno != 0 {
		return 0
	}
	return n
}

func (l *Loop) QueueJob(job engine.LoopJob, requests int) (queued bool) {
	if l.acceptsJobs {
		l.jobs.PushBack(job)
		l.jobRequests += requests
	}
	return l.acceptsJobs
}

// jobRequestsPerTurn is the number of requests that one turn should queue for jobs. With more, the memory of the
// requests might not stay in the CPU's caches until they are answered.
const jobRequestsPerTurn = 64

// NextEventBatch returns how many events the next turn should handle. handled is the number of events in the last turn.
func (l *Loop) NextEventBatch(handled, maxBatch int) int {
	n := l.jobRequests
	if l.jobRequests = 0; n <= handled {
		return maxBatch
	}
	return min(jobRequestsPerTurn*handled/n, maxBatch)
}

// runJobs runs queued jobs for a limited time. It stops early if another goroutine takes the loop.
func (l *Loop) runJobs(h *jobHold) {
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
	defer h.returnToLoop() // also after runtime.Goexit
	job.RunOnLoop(h)
}

func (l *Loop) newHold() *jobHold { return &jobHold{loop: l, continued: make(chan struct{})} }

// returnToLoop makes the goroutine responsible for the loop again after a job. If the goroutine has lost the loop, it
// will end. It first waits for the start of its successor, because the engine ends with its last goroutine.
func (h *jobHold) returnToLoop() {
	if h.ended = !h.tryAccessLoop(); h.ended {
		<-h.continued
		return
	}
	h.state.Add(2) // counts the job
	h.loop.performPendingActions()
}

// tryAccessLoop makes a job's goroutine responsible for the loop again, unless another goroutine has taken the loop.
func (h *jobHold) tryAccessLoop() (ok bool) {
	v := h.state.Load()
	return v&1 == 1 && v != lostHold && h.state.CompareAndSwap(v, v-1)
}

func (h *jobHold) Call(r engine.Ref, f func(*engine.Conn)) (stillOnLoop bool) {
	if unix.Gettid() != h.thread || !h.tryAccessLoop() {
		return false // the job has started a goroutine, or has lost the loop
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

// retriedCall is a job that retries a call for which the mailbox was full.
type retriedCall struct {
	ref engine.Ref
	f   engine.ConnCallback
}

func (c retriedCall) RunOnLoop(h engine.LoopHold) { h.CallAndSendLater(c.ref, c.f) }

func (retriedCall) LoopTaken(bool) {}

type connFunc func(*engine.Conn)

func (f connFunc) CallWith(c *engine.Conn) { f(c) }

// callOpenConn calls f with the connection of r and returns the connection, or nil if it is closed. If a worker is using
// the connection or a layer is pending, calledOrClosed is false, and the caller must try again later.
func (l *Loop) callOpenConn(r engine.Ref, f engine.ConnCallback) (c *engine.Conn, calledOrClosed bool) {
	c = r.ConnOwnedBy(&l.host)
	return c, c == nil || c.DriverFlags()&(Busy|Connecting) == 0 && c.CallUnlessLayerPending(f)
}

func (h *jobHold) Started() time.Duration { return time.Duration(h.started.Load()) }

func (h *jobHold) Usage() (_ engine.ThreadUsage, ok bool) {
	u := sock.CurrentThreadUsage()
	return engine.ThreadUsage{CPU: u.CPU, ProcessCPU: sock.ProcessCPU(), Sleeps: u.Sleeps}, h.state.Load() != lostHold
}

func (h *jobHold) Leave() {
	if v := h.state.Load(); v&1 == 1 && v != lostHold && h.state.CompareAndSwap(v, lostHold) {
		h.loop.continueOnNewGoroutine(h, true)
	} else if h.state.Load() == lostHold {
		<-h.continued // until then, the thread still counts as that of a loop
	}
}

// LeaveToWait implements engine.Loop.
func (*Loop) LeaveToWait() (ok bool) {
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

// continueOnNewGoroutine starts a goroutine that runs the loop in place of the goroutine that has lost it.
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
	lost.job.LoopTaken(jobIsSlow)
}

// watchForSlowJobs moves the loops of slow jobs to new goroutines, until ended is closed. It sleeps while no jobs run.
func (e *loopEngine) watchForSlowJobs(ended <-chan struct{}) {
	seen := make([]jobObservation, len(e.loops))
	for {
		select {
		case <-ended:
			return
		case <-e.startJobChecks:
		}
		ticker := time.NewTicker(jobCheckInterval)
		for quiet := 0; quiet < quietJobChecks; quiet++ {
			select {
			case <-ended:
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
			e.startJobChecks <- struct{}{} // a job has started meanwhile
		}
	}
}

// jobObservation is the state of a loop at one check for slow jobs, and the CPU time used until then.
type jobObservation struct {
	hold                  *jobHold
	state                 uint64
	at                    time.Duration
	threadCPU, processCPU time.Duration
}

func observeJob(h *jobHold, state uint64) jobObservation {
	return jobObservation{h, state, engine.MonotonicNow(), sock.ThreadCPU(h.thread), sock.ProcessCPU()}
}

// mustTakeLoop reports whether a slow job must lose its loop, and whether the job itself causes the delay. The receiver
// is the previous observation of the loop. If the job's thread waits for a CPU, the job keeps the loop, because another
// thread would have to wait, too.
func (o jobObservation) mustTakeLoop(now jobObservation) (mustTake, jobIsSlow bool) {
	if now.hold != o.hold {
		return false, false // the next check knows more
	}
	cpu := now.threadCPU - o.threadCPU
	if sock.ThreadIsRunnable(now.hold.thread) {
		computes := cpu-max(now.hold.Started()-o.at, 0) >= minTimeToTake/2 // even if earlier jobs had the CPU all the time
		return computes, computes
	}
	return true, !engine.HadNoCPU(now.at-o.at, now.processCPU-o.processCPU-cpu)
}

// continueLoopsDespiteSlowJobs moves each loop whose job has run for minTimeToTake to a new goroutine. anyJobs reports
// whether a job is running or has started since the previous check.
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
