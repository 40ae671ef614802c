package tcp

import (
	"cmp"
	"context"
	"fmt"
	"net"
	"runtime"
	"slices"

	"github.com/myriad-go/myriad/internal/engine"
	"github.com/myriad-go/myriad/internal/supervisor"
	"github.com/myriad-go/myriad/internal/upgrade"
)

// maxProcesses bounds Server.Processes.
const maxProcesses = 1024

// WorkerProcess says whether this process is a worker of a Server with
// Processes, started by the library, and which: from 0. In a worker, main runs
// as it does in the first process; what is to run only once, such as a listener
// of its own or a handler of signals, belongs where ok is false.
func WorkerProcess() (index int, ok bool) {
	if w := supervisor.CurrentWorker(); w != nil {
		return w.Index, true
	}
	return 0, false
}

// preforks says whether this process is to start workers, not to be one.
func (s *Server) preforks() bool { return s.Processes > 1 && supervisor.CurrentWorker() == nil }

// checkProcesses says what is wrong with Processes.
func (s *Server) checkProcesses() error {
	switch {
	case s.Processes < 0 || s.Processes > maxProcesses:
		return badConfig("Server.Processes is %d; expected 0 (the default: none) to %d", s.Processes, maxProcesses)
	case s.Processes > 1 && runtime.GOOS != "linux":
		return badConfig("Server.Processes is %d; worker processes need Linux, expected 0 or 1 on %s", s.Processes, runtime.GOOS)
	case s.Processes > 1 && s.Limits.MaxConns > 0 && s.Limits.MaxConns < s.Processes:
		return badConfig("Limits.MaxConns is %d; expected at least one connection for each of %d worker processes",
			s.Limits.MaxConns, s.Processes)
	case s.Processes > 1 && s.Limits.AcceptRate > 0 && s.Limits.AcceptRate < s.Processes:
		return badConfig("Limits.AcceptRate is %d; expected 0 (no limit) or at least one connection a second for each of %d worker processes",
			s.Limits.AcceptRate, s.Processes)
	}
	return nil
}

// share is the limits of this process. MaxConns, MaxBuffered and AcceptRate are
// divided among the worker processes; their supervisor looks at the greatest part, which is the first.
func (s *Server) share() Limits {
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
		l.MaxBuffered = defaultBuffered(s.Processes)
	case l.MaxBuffered > 0:
		l.MaxBuffered = max(l.MaxBuffered/s.Processes, 1)
	}
	if l.AcceptRate > 0 {
		l.AcceptRate /= s.Processes
	}
	return l
}

// maxConns is the most connections of all processes, when that of this one is
// known.
func (s *Server) maxConns(share int) int {
	if !s.preforks() {
		return share
	}
	return cmp.Or(s.Limits.MaxConns, share*s.Processes)
}

// processes is how many worker processes there are, and how often they were
// started again.
func (s *Server) processes() (running int, restarts int64) {
	if p, ok := s.engine.(*supervisor.Supervisor); ok {
		return p.Processes(), p.Restarts()
	}
	return 0, 0
}

// startProcesses starts worker processes in place of an engine.
func (s *Server) startProcesses(cfg engine.Config) (engine.Engine, error) {
	p, err := supervisor.Start(supervisor.Config{
		Addrs: addresses(cfg.Listeners), Control: s.Socket.Control, Processes: s.Processes, Log: cfg.Log, OnServing: s.Listening,
		Sockets: handedOver(cfg.Listeners), IsSuccessor: s.predecessor != nil,
	})
	if err != nil {
		return nil, err
	}
	return p, nil
}

// gaveUp is why worker processes have ended though nobody asked them to.
func gaveUp(e engine.Engine) error {
	if p, ok := e.(*supervisor.Supervisor); ok && p.Err() != nil {
		return fmt.Errorf("myriad: %w", p.Err())
	}
	return nil
}

// relay passes broadcasts, and what an operator orders, on to all worker processes.
type relay interface {
	Broadcast(p []byte) error
	orders
}

// addresses are where the worker processes listen.
func addresses(all []engine.Listener) (where []supervisor.Address) {
	for _, l := range all {
		where = append(where, supervisor.Address{Network: l.Network, Addr: l.Addr})
	}
	return where
}

// handedOver are the sockets of another process that they listen with.
func handedOver(all []engine.Listener) (sockets [][]net.Listener) {
	for _, l := range all {
		sockets = append(sockets, l.Sockets)
	}
	return sockets
}

// awaitWorkers waits until all worker processes serve, if there are any. It fails when they
// can't, or the process whose place they take goes on.
func awaitWorkers(e engine.Engine, p *upgrade.Predecessor) error {
	w, ok := e.(*supervisor.Supervisor)
	if !ok {
		return nil
	}
	if err := p.WaitStarted(w.Started()); err != nil {
		return err
	}
	return w.CheckAllServed()
}

// work is ListenAndServe in a worker process.
func (s *Server) work(ctx context.Context, where []Listener) error {
	cfg, _, err := s.open(where) // which has no unix sockets
	if err != nil {
		return err
	}
	w := supervisor.CurrentWorker()
	all, err := w.ClaimListeners(addresses(cfg.Listeners), s.Processes)
	if err != nil {
		return fmt.Errorf("myriad: %w", err)
	}
	for i, sockets := range all {
		cfg.Listeners[i].Sockets = sockets
	}
	cfg.Held = w.Held
	s.mu.Lock()
	s.worker = w
	s.mu.Unlock()
	e, err := s.start(cfg, where)
	if err != nil {
		engine.CloseAll(slices.Concat(all...))
		return err
	}
	defer s.endWorkers()
	if err := w.Run(ctx, e, s.limits.ShutdownTimeout, s.log()); err != nil {
		return fmt.Errorf("myriad: %w", err)
	}
	return nil
}
