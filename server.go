package myriad

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"sync"

	"github.com/myriad-go/myriad/internal/engine"
	"github.com/myriad-go/myriad/internal/engine/models"
	"github.com/myriad-go/myriad/internal/engine/workers"
)

// Server serves a Handler. Its fields are set before it starts and not changed
// after; the zero value of each but Addr and Handler is a good default. A Server
// serves once. Its methods are safe for concurrent use.
type Server struct {
	// Addr is where ListenAndServe listens, as for net.Listen: host:port,
	// such as ":9000" or "127.0.0.1:0".
	Addr string
	// Network is "tcp" (the default), "tcp4" or "tcp6".
	Network string
	// Handler is what happens on each connection. It is required.
	Handler Handler
	// Model is the I/O model: Goroutine or Epoll. The default is the best
	// that can run on this machine.
	Model string
	// Loops is the number of event loops, for the models that have them, at
	// most 1,024. The default is half of GOMAXPROCS, at least 1.
	Loops int
	// Workers is how many goroutines run the handler, off the event loops,
	// for the models that have them, at most 65,536. Calls for one
	// connection stay in order. When all workers are busy and as many
	// connections wait for one, further ones are not read from until there
	// is room. The default is 0: handlers run on the loops, which is
	// fastest as long as they don't block or compute for long.
	Workers int
	// Limits are the bounds that are kept.
	Limits Limits
	// Log gets what an operator has to know, such as panics and accepts
	// that fail. The default is slog.Default().
	Log *slog.Logger
	// Listening, if set, is called once with the address that is listened
	// on, before ListenAndServe or Serve waits.
	Listening func(addr net.Addr)

	mu      sync.Mutex
	engine  engine.Engine // nil before the start
	model   string
	workers *workers.Pool // nil without
	limits  Limits
	closed  bool
}

// ListenAndServe listens on Addr and serves until ctx ends or Shutdown or Close
// is called. When ctx ends it shuts down like Shutdown, within
// Limits.ShutdownTimeout. It returns when everything that it started has ended:
// nil after an orderly end, an error that wraps context.DeadlineExceeded when
// connections had to be cut off, or what kept it from serving.
func (s *Server) ListenAndServe(ctx context.Context) error {
	if s.Addr == "" {
		return badConfig(`Server.Addr is empty; expected host:port, such as ":9000" or "127.0.0.1:0"`)
	}
	network := s.Network
	switch network {
	case "":
		network = "tcp"
	case "tcp", "tcp4", "tcp6":
	default:
		return badConfig("Server.Network is %q; expected tcp, tcp4 or tcp6", network)
	}
	return s.serve(ctx, engine.Config{Network: network, Addr: s.Addr})
}

// Serve is ListenAndServe on a listener that the caller has made. The server
// owns it from then on and closes it.
func (s *Server) Serve(ctx context.Context, l net.Listener) error {
	err := s.serve(ctx, engine.Config{Listener: l})
	l.Close()
	return err
}

// badConfig makes an error that wraps ErrBadConfig.
func badConfig(format string, args ...any) error {
	return &configError{fmt.Errorf("myriad: "+format, args...)}
}

// configError reads as its text alone.
type configError struct{ error }

func (e *configError) Unwrap() []error { return []error{ErrBadConfig, e.error} }

func (s *Server) serve(ctx context.Context, cfg engine.Config) error {
	e, err := s.start(cfg)
	if err != nil {
		return err
	}
	if s.Listening != nil {
		s.Listening(e.Addr())
	}
	ended := make(chan struct{})
	stopped := context.AfterFunc(ctx, func() {
		defer close(ended)
		limited, cancel := context.WithTimeout(context.WithoutCancel(ctx), s.limits.ShutdownTimeout)
		defer cancel()
		err = s.Shutdown(limited)
	})
	e.Wait()
	s.endWorkers()
	if !stopped() {
		<-ended
	}
	return err
}

// start checks the settings and starts the engine.
func (s *Server) start(cfg engine.Config) (engine.Engine, error) {
	model, limits, err := s.settings()
	if err != nil {
		return nil, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case s.closed:
		return nil, ErrServerClosed
	case s.engine != nil:
		return nil, errors.New("myriad: this Server serves already; a Server serves once")
	}
	cfg.Handler, cfg.Limits, cfg.Loops, cfg.Log = adapter{s.Handler}, limits.engine(), s.Loops, s.Log
	if cfg.Loops == 0 {
		cfg.Loops = defaultLoops()
	}
	if cfg.Log == nil {
		cfg.Log = slog.Default()
	}
	if s.Workers > 0 {
		s.workers = workers.New(s.Workers)
		cfg.Pool = s.workers
	}
	e, err := model.Start(cfg)
	if err != nil {
		s.endWorkers()
		return nil, fmt.Errorf("myriad: %w", err)
	}
	s.engine, s.model, s.limits = e, model.Name, limits
	return e, nil
}

// endWorkers ends the pool, when the engine that fed it has ended.
func (s *Server) endWorkers() {
	if s.workers != nil {
		s.workers.Close()
	}
}

// settings checks what the user has set.
func (s *Server) settings() (m engine.Model, l Limits, err error) {
	if s.Handler == nil {
		return m, l, badConfig("Server.Handler is nil; expected what to do with connections")
	}
	if s.Loops < 0 || s.Loops > maxLoops {
		return m, l, badConfig("Server.Loops is %d; expected 0 (the default, %d here) to %d", s.Loops, defaultLoops(), maxLoops)
	}
	if s.Workers < 0 || s.Workers > maxWorkers {
		return m, l, badConfig("Server.Workers is %d; expected 0 (the default: handlers run on the loops) to %d", s.Workers, maxWorkers)
	}
	if m, err = models.Find(s.Model); err != nil {
		return m, l, badConfig("Server.Model: %w", err)
	}
	l, err = s.Limits.resolve()
	return m, l, err
}

// Shutdown accepts no more, lets each connection finish what it has at hand,
// and closes it: at once where it is idle, otherwise when the message that has
// begun to arrive is complete and all output is sent. It returns when all are
// closed and everything has ended. When ctx ends first, the rest is closed at
// once and Shutdown returns an error that says how many and wraps ctx's cause.
// Further calls wait in the same way.
func (s *Server) Shutdown(ctx context.Context) error {
	s.mu.Lock()
	s.closed = true
	e := s.engine
	s.mu.Unlock()
	if e == nil {
		return nil
	}
	if err := e.Stop(ctx); err != nil {
		return fmt.Errorf("myriad: shutdown: %w", err)
	}
	return nil
}

// Close ends the server at once: every connection is closed without sending
// what it owes. It returns when everything has ended.
func (s *Server) Close() error {
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	_ = s.Shutdown(ctx) // what it says of ctx is what was asked for
	return nil
}
