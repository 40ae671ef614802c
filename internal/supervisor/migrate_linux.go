package supervisor

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"sync"
	"time"

	"github.com/myriad-go/myriad/internal/engine"
	"github.com/myriad-go/myriad/internal/sock"
)

// This file is how worker processes hand connections over and take them, see engine.Migrator.
//
// The supervisor speaks with the other process, and passes the channels on: it deals them out
// to its workers, in turn, by the link that it has with each. A worker hands its connections
// over by its channels, as a process alone would, and says how many. The supervisor waits for
// all. It holds no lock meanwhile, so that workers that end are started again.

// The orders to workers.
const (
	orderHandOver = "handover"
	orderTakeOver = "takeover"
)

// moved is a worker's answer.
type moved struct {
	engine.ExportResult
	Failed string // why, if it has
}

// err is what is wrong: with asking, or with the worker.
func (m *moved) err(index int, asked error) error {
	switch {
	case asked != nil:
		return fmt.Errorf("worker process %d has ended, or does not answer: %w", index, asked)
	case m.Failed != "":
		return fmt.Errorf("worker process %d: %s", index, m.Failed)
	}
	return nil
}

// ChannelsNeeded implements engine.Migrator: each worker has as many loops as the others.
func (s *Supervisor) ChannelsNeeded() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	each := int64(1)
	for i := range s.counters.workers() {
		each = max(each, s.counters.block(i).loops.Load())
	}
	return s.cfg.Processes * int(each)
}

// SocketsPerListener implements engine.Migrator.
func (s *Supervisor) SocketsPerListener() (counts []int) {
	for _, l := range s.spawner.(*execSpawner).sockets {
		counts = append(counts, len(l))
	}
	return counts
}

// SendListenerSockets implements engine.Migrator.
func (s *Supervisor) SendListenerSockets(control *os.File, message string) error {
	sp := s.spawner.(*execSpawner)
	sp.mu.Lock()
	defer sp.mu.Unlock()
	if sp.closed {
		return engine.ErrClosed
	}
	var fds []int
	for _, f := range slices.Concat(sp.sockets...) {
		fds = append(fds, int(f.Fd()))
	}
	return sock.SendListeners(int32(control.Fd()), message, fds)
}

// SetListenersShared implements engine.Migrator: neither supervisor nor workers stop listeners,
// which each of them has.
func (s *Supervisor) SetListenersShared(bool) {}

// ExportConns implements engine.Migrator. What a worker had that dies meanwhile is unknown: as many
// as it had published last.
func (s *Supervisor) ExportConns(ctx context.Context, channels []*os.File) (sum engine.ExportResult, err error) {
	var mu sync.Mutex
	err = s.askAll(channels, func(index int, w worker, part []*os.File) error {
		var m moved
		asked := w.process.(*osProcess).link.Ask(ctx, orderHandOver, &m, part...)
		if asked != nil {
			m.Unconfirmed = s.lostBy(index, w)
		}
		mu.Lock()
		defer mu.Unlock()
		sum.Exported += m.Exported
		sum.Unconfirmed += m.Unconfirmed
		return m.err(index, asked)
	})
	return sum, err
}

// lostBy is how many connections a worker has lost that has ended, 0 if it has not.
func (s *Supervisor) lostBy(index int, w worker) int {
	select {
	case <-w.over:
	case <-time.After(controlTimeout):
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	return int(s.workers[index].lost - w.lost)
}

// ImportConns implements engine.Migrator.
func (s *Supervisor) ImportConns(channels []*os.File) error {
	defer func() {
		for _, f := range channels {
			f.Close() // the workers have them
		}
	}()
	return s.askAll(channels, func(index int, w worker, part []*os.File) error {
		var m moved
		return m.err(index, w.process.(*osProcess).link.Ask(context.Background(), orderTakeOver, &m, part...))
	})
}

// askAll asks each worker, with its part of the channels, and gives one of the errors. A worker
// that does not run has no connections, and its part ends with the caller's.
func (s *Supervisor) askAll(channels []*os.File, ask func(index int, w worker, part []*os.File) error) (err error) {
	s.mu.Lock()
	workers := slices.Clone(s.workers)
	s.mu.Unlock()
	var mu sync.Mutex
	var asking sync.WaitGroup
	for i, w := range workers {
		var part []*os.File
		for k := i; k < len(channels); k += len(workers) {
			part = append(part, channels[k])
		}
		if w.process == nil || len(part) == 0 {
			continue
		}
		asking.Go(func() {
			e := ask(i, w, part)
			mu.Lock()
			defer mu.Unlock()
			err = cmp.Or(err, e)
		})
	}
	asking.Wait()
	return err
}

// answer carries out what the supervisor orders of a worker's connections. publish has the
// counters published.
func answer(e engine.Engine, publish func(context.Context)) func(ctx context.Context, order string, files []*os.File) any {
	m, ok := e.(engine.Migrator)
	return func(ctx context.Context, order string, files []*os.File) any {
		var answer moved
		err := errors.ErrUnsupported
		switch {
		case ok && order == orderHandOver:
			if err = e.PauseAccept(true); err == nil {
				publish(ctx) // what is lost if this process dies
				answer.ExportResult, err = m.ExportConns(ctx, files)
			}
			publish(ctx)
		case ok && order == orderTakeOver:
			if err = m.ImportConns(files); err == nil {
				return answer
			}
		}
		for _, f := range files {
			_ = f.Close()
		}
		if err != nil {
			answer.Failed = err.Error()
		}
		return answer
	}
}

// attend answers by the link until done, which waits for its end, is called.
func (w *Worker) attend(e engine.Engine, publish func(context.Context)) (done func()) {
	if m, ok := e.(engine.Migrator); ok {
		m.SetListenersShared(true) // the supervisor has them, too
	}
	var attending sync.WaitGroup
	attending.Go(func() { w.link.Answer(answer(e, publish)) })
	return func() {
		w.link.Close()
		attending.Wait()
	}
}

var _ engine.Migrator = (*Supervisor)(nil)
