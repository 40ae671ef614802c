package supervisor

import (
	"context"
	"errors"
	"log/slog"
	"time"

	"github.com/myriad-go/myriad/internal/engine"
)

// This file is the way of a broadcast: from a worker, or from the supervisor's own
// program, to the relay, and from there to the connections of all workers.

// Broadcast has a message sent to the connections of all workers. It answers
// engine.ErrFull when too many wait, and engine.ErrTooLarge beyond maxRelayed.
func (w *Worker) Broadcast(p []byte) error {
	frame, err := broadcastFrame(p)
	if err != nil {
		return err
	}
	return w.out.put(frame, 0)
}

// Broadcast implements engine.Engine, as Worker.Broadcast does.
func (s *Supervisor) Broadcast(p []byte) error {
	frame, err := broadcastFrame(p)
	if err != nil {
		return err
	}
	if closed(s.draining) {
		return engine.ErrClosed
	}
	select {
	case s.relayed <- frame:
		return nil
	default:
		return engine.ErrFull
	}
}

// hear takes a worker's broadcast. While there is no room it does not return, so
// that the worker is not read from.
func (s *Supervisor) hear(frame []byte) { s.relayed <- frame }

// relay passes broadcasts on, one after the other, until all workers have ended.
func (s *Supervisor) relay(ended <-chan struct{}) {
	var holding memory
	for {
		select {
		case frame := <-s.relayed:
			if frame = holding.keep(frame); frame == nil {
				continue
			}
			for index, l := range s.all() {
				if l != nil {
					s.pass(index, l, frame)
				}
			}
		case <-ended:
			return
		}
	}
}

// pass passes a broadcast on to one worker.
func (s *Supervisor) pass(index int, l life, frame []byte) {
	if err := l.pass(frame); errors.Is(err, engine.ErrFull) {
		s.cfg.Log.LogAttrs(context.Background(), slog.LevelError, "worker process takes no broadcasts; one is dropped for its connections, or a command",
			slog.Int("worker", index), slog.Int("pid", l.pid()), slog.Int("bytes", len(frame)-headSize))
	}
}

// settle notes which life a worker leads, nil for none.
func (s *Supervisor) settle(index int, l life) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.lives[index] = l
}

// all are the lives of the workers.
func (s *Supervisor) all() []life {
	s.mu.Lock()
	defer s.mu.Unlock()
	return append([]life(nil), s.lives...)
}

// castEvery is how long a worker waits for room before it tries again.
const castEvery = time.Millisecond

// caster sends broadcasts to a worker's own connections.
type caster struct {
	worker *Worker
	engine engine.Engine
	log    *slog.Logger
	rested time.Time // when it last waited for room
}

// cast sends a broadcast. While the engine has no room it waits, so that the
// life-line is not read: for lineTimeout at most, and not again for writeTimeout, so
// that an order behind many broadcasts is heard soon.
func (c *caster) cast(p []byte) {
	err := c.engine.Broadcast(p)
	if errors.Is(err, engine.ErrFull) && time.Since(c.rested) > writeTimeout {
		for tries := int(lineTimeout / castEvery); errors.Is(err, engine.ErrFull) && tries > 0; tries-- {
			time.Sleep(castEvery)
			err = c.engine.Broadcast(p)
		}
		c.rested = time.Now()
	}
	if err != nil && !errors.Is(err, engine.ErrClosed) {
		c.log.LogAttrs(context.Background(), slog.LevelError, "a broadcast is dropped for the connections of this worker process",
			slog.Int("worker", c.worker.Index), slog.Int("bytes", len(p)), slog.String("error", err.Error()))
	}
}
