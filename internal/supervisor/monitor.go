package supervisor

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"time"
)

var errExitedZero = errors.New("exit status 0")

func (s *Supervisor) keepWorkerRunningOrGiveUp(workerIndex int) {
	var backoff time.Duration
	for run := 0; !isClosed(s.draining); run++ {
		if run > 0 {
			s.restarts.Add(1)
		}
		began := time.Now()
		served, err := s.runWorkerOnce(workerIndex)
		lived := time.Since(began)
		if isClosed(s.draining) {
			s.logIfDrainFailed(workerIndex, err)
			return
		}
		err = cmp.Or(err, errExitedZero)
		if !served && s.countFailureAndSetErrIfAllFail(workerIndex, err) {
			s.startDrainAndCloseListeners()
			return
		}
		if backoff = min(2*backoff, s.timing.maxBackoff); backoff == 0 || lived >= s.timing.resetAfter {
			backoff = s.timing.backoff
		}
		if !s.sleepUnlessDraining(backoff) {
			s.logIfDrainFailed(workerIndex, err)
			return
		}
		s.cfg.Log.Warn("worker process ended; restarting it",
			"worker", workerIndex, "end", err.Error(), "lived", lived,
			"served", served, "waited", backoff)
	}
}

func (s *Supervisor) sleepUnlessDraining(d time.Duration) (keepRunning bool) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-s.draining:
	}
	return !isClosed(s.draining)
}

// logIfDrainFailed logs the error of a worker that ended during a drain, unless the supervisor has killed it.
func (s *Supervisor) logIfDrainFailed(workerIndex int, err error) {
	if err == nil || err == errExitedZero || isClosed(s.killing) {
		return
	}
	s.cfg.Log.Warn("worker process failed while draining",
		"worker", workerIndex, "end", err.Error())
}

func (s *Supervisor) runWorkerOnce(workerIndex int) (served bool, err error) {
	p, err := s.spawner.spawnWorker(workerIndex, func(frame []byte) { s.messages <- frame })
	if err != nil {
		return false, err
	}
	s.running.Add(1)
	s.setWorkerProcess(workerIndex, p)
	served = s.superviseWithTimeouts(workerIndex, p)
	lost := s.recordWorkerExit(workerIndex)
	s.running.Add(-1)
	if lost > 0 {
		s.cfg.Log.Warn("worker process ended with connections open",
			"worker", workerIndex, "pid", p.pid(), "connections", lost)
	}
	return served, p.err()
}

func (s *Supervisor) superviseWithTimeouts(workerIndex int, p process) (served bool) {
	serving, stopped, draining, killing := p.serving(), p.stopped(), s.draining, s.killing
	timer := time.NewTimer(s.timing.startTimeout)
	defer timer.Stop()
	for {
		select {
		case <-serving:
			served, serving = true, nil
			if stopped != nil {
				timer.Stop()
			}
			s.markServedAndSignalIfAll(workerIndex)
			s.requestPauseStateResend(p)
		case <-stopped:
			stopped = nil
			timer.Reset(s.timing.exitTimeout)
		case <-draining:
			draining = nil
			p.requestDrainAndSIGTERMIfNotServing()
		case <-killing:
			killing = nil
			p.kill()
		case <-timer.C:
			s.cfg.Log.Error("worker process exceeded its time limit; killing it",
				"worker", workerIndex, "pid", p.pid(), "served", served)
			p.kill()
		case <-p.ended():
			if serving != nil && isClosed(serving) {
				served = true
				s.markServedAndSignalIfAll(workerIndex)
			}
			return served
		}
	}
}

func (s *Supervisor) markServedAndSignalIfAll(workerIndex int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	w := &s.workers[workerIndex]
	w.failures = 0
	if w.served {
		return
	}
	w.served = true
	if !slices.ContainsFunc(s.workers, func(w workerState) bool { return !w.served }) {
		close(s.allServed)
	}
}

// countFailureAndSetErrIfAllFail counts a failure of a worker that ended before it served. If all workers have failed
// too often in a row, it sets s.err and returns true.
func (s *Supervisor) countFailureAndSetErrIfAllFail(workerIndex int, cause error) (allWorkersFailing bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.workers[workerIndex].failures++
	attempts := s.timing.maxFailures
	if s.cfg.IsSuccessor && !isClosed(s.allServed) {
		attempts = 1
	}
	if slices.ContainsFunc(s.workers, func(w workerState) bool { return w.failures < attempts }) {
		return false
	}
	s.err = fmt.Errorf("%w: each of %d ended %d times in a row before serving, the last one with %q; "+
		"check their output: main runs again in each worker and must reach the same ListenAndServe",
		ErrGaveUp, s.cfg.Processes, attempts, cause)
	return true
}

func (s *Supervisor) recordWorkerExit(workerIndex int) (lostConns int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	lostConns = s.counters.workerBlock(workerIndex).addToEndedAndClear(&s.ended)
	w := &s.workers[workerIndex]
	w.process = nil
	w.lostConns += lostConns
	close(w.collected)
	return lostConns
}

func (s *Supervisor) setWorkerProcess(workerIndex int, p process) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.workers[workerIndex].process, s.workers[workerIndex].collected = p, make(chan struct{})
}
