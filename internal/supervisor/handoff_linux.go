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

// This file hands connections of worker processes to another server process and takes them over; see engine.Migrator.
//
// The supervisor negotiates with the other process and distributes the channels round-robin to its workers, over their
// OrderConns. Each worker moves connections over its channels like a single process, and reports their number. The
// supervisor waits for all workers without holding s.mu, so that workers that end are restarted meanwhile.

const (
	orderHandOver = "handover"
	orderTakeOver = "takeover"
)

type handoffReply struct {
	engine.ExportResult
	Failed string // the error, if the order failed
}

func (m *handoffReply) toError(workerIndex int, sendErr error) error {
	switch {
	case sendErr != nil:
		return fmt.Errorf("worker process %d has ended or did not reply: %w", workerIndex, sendErr)
	case m.Failed != "":
		return fmt.Errorf("worker process %d: %s", workerIndex, m.Failed)
	}
	return nil
}

// ChannelsNeeded implements engine.Migrator. It assumes that every worker has as many loops as the worker with the most
// loops.
func (s *Supervisor) ChannelsNeeded() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	each := int64(1)
	for i := range s.counters.workerCount() {
		each = max(each, s.counters.workerBlock(i).loops.Load())
	}
	return s.cfg.Processes * int(each)
}

func (s *Supervisor) SocketsPerListener() (counts []int) {
	for _, l := range s.spawner.(*execSpawner).sockets {
		counts = append(counts, len(l))
	}
	return counts
}

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
	return sock.SendFDsInChunks(int32(control.Fd()), message, fds)
}

// SetListenersShared does nothing, because the supervisor and its workers never shut down listeners.
func (s *Supervisor) SetListenersShared(bool) {}

// ExportConns implements engine.Migrator. If a worker dies, its connections that were still open are counted in
// sum.Unconfirmed.
func (s *Supervisor) ExportConns(ctx context.Context, channels []*os.File) (sum engine.ExportResult, err error) {
	var mu sync.Mutex
	err = s.distributeChannelsConcurrently(channels, func(index int, w workerState, part []*os.File) error {
		var m handoffReply
		asked := w.process.(*osProcess).link.SendOrderAndAwaitReply(ctx, orderHandOver, &m, part...)
		if asked != nil {
			m.Unconfirmed = s.waitAndCountLostConns(index, w)
		}
		mu.Lock()
		defer mu.Unlock()
		sum.Exported += m.Exported
		sum.Unconfirmed += m.Unconfirmed
		return m.toError(index, asked)
	})
	return sum, err
}

// waitAndCountLostConns waits up to controlTimeout for the worker w to end. It returns the number of connections that
// were open in the worker when it ended.
func (s *Supervisor) waitAndCountLostConns(workerIndex int, w workerState) int {
	select {
	case <-w.collected:
	case <-time.After(controlTimeout):
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	return int(s.workers[workerIndex].lostConns - w.lostConns)
}

func (s *Supervisor) StartImportingConns(channels []*os.File) error {
	defer func() {
		for _, f := range channels {
			f.Close() // the workers have copies
		}
	}()
	return s.distributeChannelsConcurrently(channels, func(index int, w workerState, part []*os.File) error {
		var m handoffReply
		return m.toError(index, w.process.(*osProcess).link.SendOrderAndAwaitReply(context.Background(), orderTakeOver, &m, part...))
	})
}

// distributeChannelsConcurrently divides the channels among the workers and calls the function send for each running
// worker. part contains the worker's channels. A worker without channels is skipped. The calls of send run
// concurrently. distributeChannelsConcurrently returns the first error.
func (s *Supervisor) distributeChannelsConcurrently(channels []*os.File, send func(index int, w workerState, part []*os.File) error) (err error) {
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
			e := send(i, w, part)
			mu.Lock()
			defer mu.Unlock()
			err = cmp.Or(err, e)
		})
	}
	asking.Wait()
	return err
}

func newHandoffOrderHandler(e engine.Engine, publishCounters func(context.Context)) func(ctx context.Context, order string, files []*os.File) any {
	m, ok := e.(engine.Migrator)
	return func(ctx context.Context, order string, files []*os.File) any {
		var answer handoffReply
		err := errors.ErrUnsupported
		switch {
		case ok && order == orderHandOver:
			if err = e.PauseAccept(true); err == nil {
				publishCounters(ctx) // the supervisor counts these as lost if this process dies
				answer.ExportResult, err = m.ExportConns(ctx, files)
			}
			publishCounters(ctx)
		case ok && order == orderTakeOver:
			if err = m.StartImportingConns(files); err == nil {
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

// startHandoffOrderHandler starts a goroutine that executes the supervisor's handoff orders on e. The function stop
// aborts the current order and waits until the goroutine has ended.
func (w *Worker) startHandoffOrderHandler(e engine.Engine, publishCounters func(context.Context)) (stop func()) {
	if m, ok := e.(engine.Migrator); ok {
		m.SetListenersShared(true) // the supervisor has them as well
	}
	var attending sync.WaitGroup
	attending.Go(func() { w.link.ServeOrders(newHandoffOrderHandler(e, publishCounters)) })
	return func() {
		w.link.Close()
		attending.Wait()
	}
}

var _ engine.Migrator = (*Supervisor)(nil)
