package tcp

import (
	"context"
	"errors"
	"net"
	"net/netip"

	"github.com/myriad-go/myriad/internal/engine"
)

// operatorCommands executes the commands of an operator. An engine executes them for the connections of its own
// process. In a worker process, another implementation passes them to all worker processes.
type operatorCommands interface {
	PauseAccept(on bool) error
	ClosePeerConns(peer netip.AddrPort) error
}

// PauseAccepting stops accepting connections. The listeners stay open, and new clients wait in the kernel's queue. If
// that queue is full, the kernel rejects or ignores new clients. Open connections are not affected. PauseAccepting
// returns immediately. A few more connections may be accepted until Stats.AcceptingPaused reports that all loops have
// paused. A drain resets the waiting clients.
//
// With Server.Processes, PauseAccepting applies to all worker processes. It may be called in any of them or in the
// supervisor. A worker process that is restarted later may accept a few connections before it pauses. PauseAccepting
// returns ErrServerClosed before the start, during a drain and after the end, and ErrFull if too many commands wait.
func (s *Server) PauseAccepting() error { return s.setAcceptPaused(true) }

// ResumeAccepting ends the effect of PauseAccepting.
func (s *Server) ResumeAccepting() error { return s.setAcceptPaused(false) }

func (s *Server) setAcceptPaused(paused bool) error {
	to, err := s.workerOrStartedEngine()
	if err != nil {
		return err
	}
	s.paused.Store(paused)
	return publicError(to.PauseAccept(paused))
}

// CloseConns closes the connections from a remote address and port. Usually there is at most one. Behind a proxy
// (TrustedProxies), remote is either the client's address (Conn.RemoteAddr) or the proxy's own address. The server does
// not send pending output. The close reason is ErrClosedByOperator. A connection whose handler call runs on a goroutine
// of its own or of a pool closes after that call. CloseConns does not wait for that.
//
// CloseConns returns ErrFull if 16 calls are already in progress, ErrServerClosed before the start and after the end,
// and ErrBadConfig if remote is not valid. Connections over unix sockets have no valid address, so CloseConns can't
// close them. With Server.Processes, CloseConns closes connections in all worker processes.
func (s *Server) CloseConns(remote netip.AddrPort) error {
	if !remote.IsValid() || remote.Port() == 0 {
		return badConfig("remote address %v; expected an IP address and a port above 0", remote)
	}
	to, err := s.workerOrStartedEngine()
	if err != nil {
		return err
	}
	return publicError(to.ClosePeerConns(netip.AddrPortFrom(remote.Addr().Unmap().WithZone(""), remote.Port())))
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

// startedEngineLocked returns the engine, or an error before the start and after the end. The caller holds s.mu.
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
	errNotStarted     = &kindError{errors.New("myriad: the server has not started yet; call this in Server.Listening or later"), ErrServerClosed}
	errConnsInWorkers = &kindError{errors.New("myriad: worker processes serve the connections (Server.Processes); call this in a worker, see WorkerProcess"), ErrServerClosed}
)

func publicError(err error) error {
	if errors.Is(err, engine.ErrClosed) {
		return ErrServerClosed
	}
	return err
}

// ListenAddr returns the address of the first listener, or nil before the start.
func (s *Server) ListenAddr() net.Addr {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.engine == nil {
		return nil
	}
	return s.engine.Addr()
}

// Drain calls Shutdown with a limit of Limits.ShutdownTimeout. In a worker process, only this process drains.
func (s *Server) Drain() error {
	s.mu.Lock()
	most := s.limits.ShutdownTimeout
	s.mu.Unlock()
	ctx, cancel := context.WithTimeout(context.Background(), most)
	defer cancel()
	return s.Shutdown(ctx)
}
