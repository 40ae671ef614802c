package tcp

import (
	"context"
	"errors"
	"net"
	"net/netip"

	"github.com/myriad-go/myriad/internal/engine"
)

type operatorCommands interface {
	PauseAccept(on bool) error
	QueueCloseOfPeerConns(peer netip.AddrPort) error
}

// PauseAccepting stops accepting connections. Open connections and the listeners stay open. New clients wait in the
// kernel's queue. If the queue is full, the kernel rejects or ignores further clients. If the server is drained during
// the pause, the connections of the waiting clients are reset.
//
// PauseAccepting returns immediately. A few more connections may be accepted until Stats.AcceptingPaused reports that
// all loops have paused.
//
// With Server.Processes, PauseAccepting applies to all worker processes. Call it in any worker or in the supervisor. A
// worker that is restarted later may accept a few connections before it pauses.
//
// PauseAccepting fails with ErrServerClosed before the start, during a drain and after the end of the server. With
// Server.Processes, it fails with ErrFull if too many commands and broadcasts already wait to be forwarded to the
// workers.
func (s *Server) PauseAccepting() error { return s.setAcceptPaused(true) }

// ResumeAccepting ends the effect of PauseAccepting. Its errors are those of PauseAccepting.
func (s *Server) ResumeAccepting() error { return s.setAcceptPaused(false) }

func (s *Server) setAcceptPaused(paused bool) error {
	to, err := s.workerOrStartedEngine()
	if err != nil {
		return err
	}
	s.paused.Store(paused)
	return publicError(to.PauseAccept(paused))
}

// CloseConns closes every connection whose remote address and port are equal to remote. There is usually only one. The
// server does not send pending output. The close reason is ErrClosedByOperator. For a connection behind a proxy
// (Server.TrustedProxies), remote may be the address of the client or of the proxy.
//
// CloseConns does not wait until the connections have closed. If a handler call for a connection runs on a pool or
// another goroutine, this connection closes after the call. With Server.Processes, CloseConns closes connections in all
// worker processes. It can't close connections over unix sockets, because they have no valid address.
//
// CloseConns fails with
//   - ErrFull if 16 earlier requests are still in progress
//   - ErrServerClosed before the start and after the end of the server
//   - ErrBadConfig if the address is not valid
func (s *Server) CloseConns(remote netip.AddrPort) error {
	if !remote.IsValid() || remote.Port() == 0 {
		return badConfig("remote address is %v; expected an IP address and a port above 0", remote)
	}
	to, err := s.workerOrStartedEngine()
	if err != nil {
		return err
	}
	return publicError(to.QueueCloseOfPeerConns(netip.AddrPortFrom(remote.Addr().Unmap().WithZone(""), remote.Port())))
}

func (s *Server) workerOrStartedEngine() (operatorCommands, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.worker != nil && s.engine != nil {
		return s.worker, nil
	}
	return s.startedEngineLocked()
}

func (s *Server) engineServingConns() (engine.Engine, error) {
	if s.isSupervisor() {
		return nil, errConnsInWorkers
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.startedEngineLocked()
}

// startedEngineLocked returns the engine. It returns an error if the server has not started. If the engine has ended,
// it still returns the engine. The caller must hold s.mu.
func (s *Server) startedEngineLocked() (engine.Engine, error) {
	switch {
	case s.engine != nil:
		return s.engine, nil
	case s.closed:
		return nil, ErrServerClosed
	}
	return nil, errNotStarted
}

var (
	errNotStarted     = &kindError{errors.New("myriad: the server has not started; expected a call in Server.Listening or later"), ErrServerClosed}
	errConnsInWorkers = &kindError{errors.New("myriad: worker processes serve the connections (Server.Processes); expected a call in a worker process: see WorkerProcess"), ErrServerClosed}
)

func publicError(err error) error {
	if errors.Is(err, engine.ErrClosed) {
		return ErrServerClosed
	}
	return err
}

// ListenAddr returns the address of the first listener. It returns nil before the start.
func (s *Server) ListenAddr() net.Addr {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.engine == nil {
		return nil
	}
	return s.engine.Addr()
}

// Drain is like Shutdown with a context that ends after Limits.ShutdownTimeout. In a worker process, it affects only
// this process.
func (s *Server) Drain() error {
	s.mu.Lock()
	most := s.limits.ShutdownTimeout
	s.mu.Unlock()
	ctx, cancel := context.WithTimeout(context.Background(), most)
	defer cancel()
	return s.Shutdown(ctx)
}

func (s *Server) logOpenAndDrain() error {
	if stats := s.Stats(); stats.Open > 0 && !stats.Draining {
		s.rateLimitedLogger().Info("draining", "connections", stats.Open, "timeout", s.limits.ShutdownTimeout)
	}
	return s.Drain()
}
