package tcp

import (
	"context"
	"fmt"
	"log/slog"
	"runtime/debug"
	"sync"
	"time"

	"github.com/myriad-go/myriad/internal/engine"
)

const minTickInterval = time.Millisecond

func (s *Server) checkTicker() error {
	switch {
	case s.OnTick == nil && s.TickInterval != 0:
		return badConfig("Server.TickInterval is %v although OnTick is nil; expected both or neither", s.TickInterval)
	case s.OnTick != nil && s.TickInterval < minTickInterval:
		return badConfig("Server.TickInterval is %v; expected at least %v, because OnTick is set", s.TickInterval, minTickInterval)
	}
	return nil
}

// startTicker starts a goroutine that calls OnTick periodically. stop ends the goroutine and waits for its end.
func (s *Server) startTicker() (stop func()) {
	if s.OnTick == nil || s.isSupervisor() {
		return func() {}
	}
	ended := make(chan struct{})
	var running sync.WaitGroup
	running.Go(func() { engine.RerunAfterGoexitThenExit(func() { s.callOnTickAtFixedInterval(ended) }) })
	return func() {
		close(ended)
		running.Wait()
	}
}

func (s *Server) callOnTickAtFixedInterval(ended <-chan struct{}) {
	if s.handoverDone != nil {
		select {
		case <-s.handoverDone:
		case <-ended:
			return
		}
	}
	ticker := time.NewTicker(s.TickInterval)
	defer ticker.Stop()
	for {
		select {
		case <-ticker.C:
		case <-ended:
			return
		}
		select {
		case s.ticking <- struct{}{}:
			s.callOnTickLoggingPanicThenRelease()
		case <-ended:
			return
		}
	}
}

func (s *Server) callOnTickLoggingPanicThenRelease() {
	returned := false
	defer func() {
		<-s.ticking
		if returned {
			return
		}
		v := recover()
		if v == nil {
			v = ErrGoexit
		}
		s.rateLimitedLogger().LogAttrs(context.Background(), slog.LevelError, "Server.OnTick panicked",
			slog.Any("panic", v), slog.String("stack", string(debug.Stack())))
	}()
	s.OnTick()
	returned = true
}

// pauseTicks waits for a running call of OnTick, and prevents further calls until resumeTicks is called. If ctx ends
// first, pauseTicks returns an error and prevents no calls.
func (s *Server) pauseTicks(ctx context.Context) error {
	select {
	case s.ticking <- struct{}{}:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("waiting for Server.OnTick: %w", context.Cause(ctx))
	}
}

func (s *Server) resumeTicks() { <-s.ticking }
