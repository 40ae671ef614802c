package tcp

import (
	"cmp"
	"context"
	"fmt"
	"net"
	"runtime"
	"slices"

	"github.com/myriad-go/myriad/internal/engine"
	"github.com/myriad-go/myriad/internal/secure"
	"github.com/myriad-go/myriad/internal/supervisor"
	"github.com/myriad-go/myriad/internal/upgrade"
)

const maxProcesses = 1024

// WorkerProcess reports whether this process is a worker of a Server with Processes. index is the number of the worker,
// from 0. Every worker process runs the main function of the program. Code that must run only once, such as another
// listener or a signal handler, should run only if ok is false.
func WorkerProcess() (index int, ok bool) {
	if w := supervisor.CurrentWorker(); w != nil {
		return w.Index, true
	}
	return 0, false
}

func (s *Server) isSupervisor() bool { return s.Processes > 1 && supervisor.CurrentWorker() == nil }

func (s *Server) checkProcesses() error {
	switch {
	case s.Processes < 0 || s.Processes > maxProcesses:
		return badConfig("Server.Processes is %d; expected 0 (the default: none) to %d", s.Processes, maxProcesses)
	case s.Processes > 1 && runtime.GOOS != "linux":
		return badConfig("Server.Processes is %d, but worker processes need Linux; expected 0 or 1 on %s", s.Processes, runtime.GOOS)
	case s.Processes > 1 && s.Limits.MaxConns > 0 && s.Limits.MaxConns < s.Processes:
		return badConfig("Limits.MaxConns is %d; expected at least one connection for each of %d worker processes",
			s.Limits.MaxConns, s.Processes)
	case s.Processes > 1 && s.Limits.AcceptRate > 0 && s.Limits.AcceptRate < s.Processes:
		return badConfig("Limits.AcceptRate is %d; expected 0 (no limit) or at least one connection per second for each of %d worker processes",
			s.Limits.AcceptRate, s.Processes)
	}
	return nil
}

func (s *Server) limitsPerProcess() Limits {
	l := s.Limits
	if s.Processes < 2 {
		return l
	}
	if l.MaxConns > 0 {
		index, _ := WorkerProcess()
		l.MaxConns /= s.Processes
		if index < s.Limits.MaxConns%s.Processes {
			l.MaxConns++
		}
	}
	switch {
	case l.MaxBuffered == 0:
		l.MaxBuffered = defaultMaxBuffered(s.Processes)
	case l.MaxBuffered > 0:
		l.MaxBuffered = max(l.MaxBuffered/s.Processes, 1)
	}
	if l.AcceptRate > 0 {
		l.AcceptRate /= s.Processes
	}
	return l
}

func (s *Server) configuredOrSummedMaxConns(maxConnsPerProcess int) int {
	if !s.isSupervisor() {
		return maxConnsPerProcess
	}
	return cmp.Or(s.Limits.MaxConns, maxConnsPerProcess*s.Processes)
}

func (s *Server) workerCountsLocked() (running int, restarts int64) {
	if p, ok := s.engine.(*supervisor.Supervisor); ok {
		return p.Processes(), p.Restarts()
	}
	return 0, 0
}

func (s *Server) startSupervisor(cfg engine.Config) (engine.Engine, error) {
	initTickets := func(page []byte) {
		if s.predecessor != nil {
			secure.NewSharedTicketKeys(page).SetInitialKeys(s.predecessor.WorkerTickets)
		}
	}
	p, err := supervisor.Start(supervisor.Config{
		Addrs: listenAddresses(cfg.Listeners), Control: s.Socket.Control, Processes: s.Processes, Log: cfg.Log, OnServing: s.Listening,
		Sockets: socketsOfListeners(cfg.Listeners), IsSuccessor: s.predecessor != nil, InitPage: initTickets,
		PredecessorListeners: cfg.PredecessorListeners,
	})
	if err != nil {
		return nil, err
	}
	return p, nil
}

// supervisorTicketKeysOrNil returns the session ticket keys that the worker processes of the supervisor e share. It
// returns nil if e is not a supervisor or has no such keys.
func supervisorTicketKeysOrNil(e engine.Engine) []secure.TicketKey {
	if p, ok := e.(*supervisor.Supervisor); ok {
		if page := p.CopySharedPage(); page != nil {
			return secure.NewSharedTicketKeys(page).Keys()
		}
	}
	return nil
}

func supervisorFailureOrNil(e engine.Engine) error {
	if p, ok := e.(*supervisor.Supervisor); ok && p.Err() != nil {
		return fmt.Errorf("myriad: %w", p.Err())
	}
	return nil
}

type workerForwarder interface {
	BroadcastToAllConns(p []byte) error
	operatorCommands
}

func listenAddresses(listeners []engine.Listener) (where []supervisor.Address) {
	for _, l := range listeners {
		where = append(where, supervisor.Address{Network: l.Network, Addr: l.Addr})
	}
	return where
}

func socketsOfListeners(listeners []engine.Listener) (sockets [][]net.Listener) {
	for _, l := range listeners {
		sockets = append(sockets, l.Sockets)
	}
	return sockets
}

// awaitWorkersServingOrAborted waits until all worker processes serve. It fails if the supervisor has given up or is
// draining, or if the old process aborts the upgrade. If e is not a supervisor, it returns nil immediately.
func awaitWorkersServingOrAborted(e engine.Engine, p *upgrade.Predecessor) error {
	w, ok := e.(*supervisor.Supervisor)
	if !ok {
		return nil
	}
	if err := p.WaitStartedOrAborted(w.Started()); err != nil {
		return err
	}
	return w.CheckAllServed()
}

func (s *Server) serveAsWorker(ctx context.Context, listeners []Listener) error {
	cfg, _, err := s.buildListenersInheritingSockets(listeners) // no cleanup: there are no unix sockets
	if err != nil {
		return err
	}
	w := supervisor.CurrentWorker()
	all, err := w.ClaimListeners(listenAddresses(cfg.Listeners), s.Processes)
	if err != nil {
		return fmt.Errorf("myriad: %w", err)
	}
	for i, sockets := range all {
		cfg.Listeners[i].Sockets = sockets
	}
	cfg.StartPaused = w.Held
	s.mu.Lock()
	s.worker, s.predecessorNumbers = w, w.PredecessorListeners
	s.mu.Unlock()
	e, err := s.configureAndStartEngine(cfg, listeners)
	if err != nil {
		engine.CloseListeners(slices.Concat(all...))
		return err
	}
	defer s.closeOwnPoolAndAwaitHandshakes()
	defer s.startTicker()()
	if err := w.Run(ctx, e, s.limits.ShutdownTimeout, s.rateLimitedLogger()); err != nil {
		return fmt.Errorf("myriad: %w", err)
	}
	return nil
}
