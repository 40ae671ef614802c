package tcp

import (
	"context"
	"errors"
	"net"
	"net/netip"

	"github.com/myriad-go/myriad/internal/engine"
)

// This file is what an operator may do to a server that runs; package admin has a
// page for it.

// orders are what an operator may order of a server that runs. An engine obeys
// them, and with worker processes a relay passes them on to all.
type orders interface {
	PauseAccept(on bool) error
	ClosePeerConns(peer netip.AddrPort) error
}

// PauseAccepting has the server accept no more connections: its listener stays, and
// those who connect wait in the kernel's queue, which refuses or leaves unanswered
// those beyond its length. Connections that are open are served as before. It
// returns at once; Stats.AcceptingPaused says when all loops have paused, and
// until then a few may be let in. A drain resets those that wait.
//
// With Server.Processes it reaches all worker processes, from any of them and from
// their supervisor; one that is started again later may let a few in before it is
// told. It answers ErrServerClosed before the start, while the server drains and
// after the end, and ErrFull when too much waits for the worker processes. Called in a
// worker process it does not tell of a drain: then it does nothing.
func (s *Server) PauseAccepting() error { return s.hold(true) }

// ResumeAccepting ends what PauseAccepting has begun.
func (s *Server) ResumeAccepting() error { return s.hold(false) }

func (s *Server) hold(on bool) error {
	to, err := s.obedient()
	if err != nil {
		return err
	}
	s.paused.Store(on)
	return named(to.PauseAccept(on))
}

// CloseConns closes the connections from a remote address and port: mostly one, or none,
// which it does not tell. Behind a proxy (TrustedProxies) it may be the client's address, as
// Conn.RemoteAddr has it, or the proxy's own, as the kernel has it; should it be the one of
// one connection and the other of another, both are closed. They are closed at once, without
// sending what they owe, for the reason ErrClosedByOperator, which Stats.Closed.Operator
// counts; one whose handler runs on a worker or a goroutine when that has returned.
// CloseConns returns before that: it is safe in a handler, too.
//
// It goes through all connections, with event loops 512 a turn. At most 16
// calls may be under way, beyond it answers ErrFull. With Server.Processes it reaches
// all worker processes. It answers ErrServerClosed before the start and after the
// end, and fails for an address that is not valid, as those of unix sockets are.
func (s *Server) CloseConns(remote netip.AddrPort) error {
	if !remote.IsValid() || remote.Port() == 0 {
		return badConfig("remote address %v; expected an IP address and a port above 0", remote)
	}
	to, err := s.obedient()
	if err != nil {
		return err
	}
	return named(to.ClosePeerConns(netip.AddrPortFrom(remote.Addr().Unmap().WithZone(""), remote.Port())))
}

// obedient returns what obeys orders, or an error if the server has not started.
func (s *Server) obedient() (orders, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.worker != nil && s.engine != nil {
		return s.worker, nil
	}
	return s.started()
}

// serving returns the engine that has this process's connections.
func (s *Server) serving() (engine.Engine, error) {
	if s.preforks() {
		return nil, errNoConnsHere
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.started()
}

// started returns the engine, or an error if there is none. The caller holds mu.
func (s *Server) started() (engine.Engine, error) {
	switch {
	case s.engine != nil:
		return s.engine, nil
	case s.closed:
		return nil, ErrServerClosed
	}
	return nil, errNotStarted
}

// What is ErrServerClosed by kind, and is not for its reason.
var (
	errNotStarted  = &kindError{errors.New("myriad: the server has not started yet; expected the call when Server.Listening is called, or later"), ErrServerClosed}
	errNoConnsHere = &kindError{errors.New("myriad: worker processes have the connections (Server.Processes); expected the call in one of them, see WorkerProcess"), ErrServerClosed}
)

// named is an error of the engines as users know it.
func named(err error) error {
	if errors.Is(err, engine.ErrClosed) {
		return ErrServerClosed
	}
	return err
}

// ListenAddr is the address that is listened on; nil before the start.
func (s *Server) ListenAddr() net.Addr {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.engine == nil {
		return nil
	}
	return s.engine.Addr()
}

// Drain is Shutdown within Limits.ShutdownTimeout, as it is when the context of
// ListenAndServe ends. In a worker process it drains that one alone.
func (s *Server) Drain() error {
	s.mu.Lock()
	most := s.limits.ShutdownTimeout
	s.mu.Unlock()
	ctx, cancel := context.WithTimeout(context.Background(), most)
	defer cancel()
	return s.Shutdown(ctx)
}
