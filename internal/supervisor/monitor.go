package supervisor

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"time"
)

// errExitedZero is the end of a worker whose exit code was 0.
var errExitedZero = errors.New("exit status 0")

// monitor starts a worker, and starts it again when it has ended, until the
// supervisor drains or gives up.
func (s *Supervisor) monitor(index int) {
	var backoff time.Duration
	for run := 0; !closed(s.draining); run++ {
		if run > 0 {
			s.restarts.Add(1)
		}
		began := time.Now()
		served, err := s.run(index)
		lived := time.Since(began)
		if closed(s.draining) {
			s.logBadDrain(index, err)
			return
		}
		err = cmp.Or(err, errExitedZero)
		if !served && s.failed(index, err) {
			s.drain()
			return
		}
		if backoff = min(2*backoff, s.timing.maxBackoff); backoff == 0 || lived >= s.timing.settled {
			backoff = s.timing.backoff
		}
		if !s.sleep(backoff) {
			s.logBadDrain(index, err)
			return
		}
		s.cfg.Log.Warn("worker process ended; starting it again",
			"worker", index, "end", err.Error(), "lived", lived,
			"served", served, "waited", backoff)
	}
}

// sleep waits; it reports false if the supervisor drains.
func (s *Supervisor) sleep(d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-s.draining:
	}
	return !closed(s.draining)
}

// logBadDrain logs that a worker failed in a drain, or just before: a signal to the
// whole process group can reach it first.
func (s *Supervisor) logBadDrain(index int, err error) {
	if err == nil || err == errExitedZero || closed(s.killing) {
		return
	}
	s.cfg.Log.Warn("worker process did not drain well",
		"worker", index, "end", err.Error())
}

// run is one run of a worker, from its start until it has been waited for.
func (s *Supervisor) run(index int) (served bool, err error) {
	p, err := s.spawner.spawn(index, func(frame []byte) { s.messages <- frame })
	if err != nil {
		return false, err
	}
	s.running.Add(1)
	s.setProcess(index, p)
	served = s.watch(index, p)
	lost := s.collect(index)
	s.running.Add(-1)
	if lost > 0 {
		s.cfg.Log.Warn("worker process ended with connections open",
			"worker", index, "pid", p.pid(), "connections", lost)
	}
	return served, p.err()
}

// watch drains and kills the worker when that is due, until it has ended.
func (s *Supervisor) watch(index int, p process) (served bool) {
	serving, stopped, draining, killing := p.serving(), p.stopped(), s.draining, s.killing
	late := time.NewTimer(s.timing.start)
	defer late.Stop()
	for {
		select {
		case <-serving:
			served, serving = true, nil
			if stopped != nil {
				late.Stop()
			}
			s.serves(index)
			s.repeatCommand(p)
		case <-stopped:
			stopped = nil
			late.Reset(s.timing.exit)
		case <-draining:
			draining = nil
			p.drain()
		case <-killing:
			killing = nil
			p.kill()
		case <-late.C:
			s.cfg.Log.Error("worker process is late and is killed",
				"worker", index, "pid", p.pid(), "served", served)
			p.kill()
		case <-p.ended():
			if serving != nil && closed(serving) {
				served = true
				s.serves(index)
			}
			return served
		}
	}
}

// serves notes that a worker serves.
func (s *Supervisor) serves(index int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	w := &s.workers[index]
	w.failures = 0
	if w.served {
		return
	}
	w.served = true
	if !slices.ContainsFunc(s.workers, func(w worker) bool { return !w.served }) {
		close(s.allServe)
	}
}

// failed notes a run that ended before it served. It reports whether to give up,
// because all workers fail again and again.
func (s *Supervisor) failed(index int, cause error) (over bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.workers[index].failures++
	attempts := s.timing.attempts
	if s.cfg.Succeeds && !closed(s.allServe) {
		attempts = 1
	}
	if slices.ContainsFunc(s.workers, func(w worker) bool { return w.failures < attempts }) {
		return false
	}
	s.err = fmt.Errorf("%w: each of %d ended %d times in a row before it served, the last one with %q; "+
		"see what they have printed: main runs again in each of them and has to come to the same ListenAndServe",
		ErrGaveUp, s.cfg.Processes, attempts, cause)
	return true
}

// collect adds the counters of a worker whose process has ended to the past.
func (s *Supervisor) collect(index int) (lost int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	lost = s.counters.block(index).collect(&s.past)
	w := &s.workers[index]
	w.process = nil
	w.lost += lost
	close(w.over)
	return lost
}

// setProcess sets the process of a worker.
func (s *Supervisor) setProcess(index int, p process) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.workers[index].process, s.workers[index].over = p, make(chan struct{})
}
