package supervisor

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"time"
)

// errDone is the end of a worker whose exit code was 0.
var errDone = errors.New("exit status 0")

// keep starts a worker, and starts it again when it has ended, until the
// supervisor is to stop or gives up.
func (s *Supervisor) keep(index int, all chan<- struct{}) {
	pause := backoff{pace: s.pace}
	for life := 0; !closed(s.draining); life++ {
		if life > 0 {
			s.restarts.Add(1)
		}
		began := time.Now()
		served, err := s.live(index, all)
		lived := time.Since(began)
		if closed(s.draining) {
			s.afterDrain(index, err)
			return
		}
		err = cmp.Or(err, errDone)
		if !served && s.failed(index, err) {
			s.tell(draining)
			return
		}
		wait := pause.after(lived)
		if s.rest(wait); closed(s.draining) {
			s.afterDrain(index, err)
			return
		}
		s.cfg.Log.LogAttrs(context.Background(), slog.LevelWarn, "worker process ended; starting it again",
			slog.Int("worker", index), slog.String("end", err.Error()), slog.Duration("lived", lived),
			slog.Bool("served", served), slog.Duration("waited", wait))
	}
}

// rest waits, unless the supervisor is to stop.
func (s *Supervisor) rest(wait time.Duration) {
	timer := time.NewTimer(wait)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-s.draining:
	}
}

// afterDrain tells of a worker that did not end well when it was to drain, or
// just before: a signal to the whole process group can reach it first.
func (s *Supervisor) afterDrain(index int, err error) {
	if err == nil || err == errDone || closed(s.killing) {
		return
	}
	s.cfg.Log.LogAttrs(context.Background(), slog.LevelWarn, "worker process did not drain well",
		slog.Int("worker", index), slog.String("end", err.Error()))
}

// live is one life of a worker, from its start until it has been waited for.
func (s *Supervisor) live(index int, all chan<- struct{}) (served bool, err error) {
	l, err := s.nursery.spawn(index, s.hear)
	if err != nil {
		return false, err
	}
	s.running.Add(1)
	s.settle(index, l)
	served = s.watch(index, l, all)
	s.settle(index, nil)
	lost := s.bury(index)
	s.running.Add(-1)
	if lost > 0 {
		s.cfg.Log.LogAttrs(context.Background(), slog.LevelWarn, "worker process ended with connections open",
			slog.Int("worker", index), slog.Int("pid", l.pid()), slog.Int64("connections", lost))
	}
	return served, l.err()
}

// watch passes on what the worker is to be told, until it has ended.
func (s *Supervisor) watch(index int, l life, all chan<- struct{}) (served bool) {
	serving, left, draining, killing := l.serving(), l.left(), s.draining, s.killing
	late := time.NewTimer(s.pace.start)
	defer late.Stop()
	for {
		select {
		case <-serving:
			served, serving = true, nil
			if left != nil {
				late.Stop()
			}
			s.serves(index, all)
			s.remind(l)
		case <-left:
			left = nil
			late.Reset(s.pace.exit)
		case <-draining:
			draining = nil
			l.drain()
		case <-killing:
			killing = nil
			l.kill()
		case <-late.C:
			s.cfg.Log.LogAttrs(context.Background(), slog.LevelError, "worker process is late and is killed",
				slog.Int("worker", index), slog.Int("pid", l.pid()), slog.Bool("served", served))
			l.kill()
		case <-l.ended():
			if serving != nil && closed(serving) {
				served = true
				s.serves(index, all)
			}
			return served
		}
	}
}
