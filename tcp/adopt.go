package tcp

import (
	"errors"
	"fmt"
	"net"
	"runtime"

	"github.com/myriad-go/myriad/internal/engine"
)

const maxAdoptedInput = engine.ReadSize

// Adopt adds a connection that other code has accepted. received is the input that was already read from the
// connection, at most 64 KiB; Adopt copies it. The server then treats nc like a connection of its first listener, but
// Server.Socket and Limits.AcceptRate do not apply. The caller must no longer use nc.
//
// nc must be a *net.TCPConn or a stream *net.UnixConn. Other types fail with ErrBadUse. Adopt fails with ErrTooLarge if
// received is too long, and with ErrFull if 1,024 connections already wait for an event loop. It fails with
// ErrServerClosed before the start, after the end and in a supervisor (Processes). If Adopt fails, nc still belongs to
// the caller. Adopt is safe for concurrent use, also in a handler.
func (s *Server) Adopt(nc net.Conn, received []byte) error {
	e, err := s.engineServingConns()
	if err != nil {
		return err
	}
	if len(received) > maxAdoptedInput {
		return fmt.Errorf("myriad: Adopt with %d bytes of input; expected at most %d: %w", len(received), maxAdoptedInput, ErrTooLarge)
	}
	switch c := nc.(type) {
	case *net.TCPConn:
	case *net.UnixConn:
		if network := c.LocalAddr().Network(); network != "unix" {
			return badUse("Adopt of a %s connection; expected a stream connection, tcp or unix", network)
		}
	default:
		return badUse("Adopt of a %T; expected a *net.TCPConn or *net.UnixConn", nc)
	}
	return publicError(e.Adopt(nc, -1, received))
}

// Detach removes the connection from the server and passes it to code that uses a net.Conn. After the current handler
// call, the server reads no more input and sends all output, including earlier messages of Refs. It then passes the
// connection, a *net.TCPConn or *net.UnixConn, and the unused input to the function take, which owns both. Finally the
// server calls Closed with ErrDetached. take runs on the event loop, even with Workers, and must not block. If the
// connection ends before that, take is not called, and Closed receives the reason.
//
// Detach fails with ErrClosed if the connection is closing or CloseWrite was called. It fails with ErrBadUse if the
// connection is relayed, uses TLS (use a Blocking handler instead) or is already being detached. It fails with ErrShard
// if the loop has its own descriptor table, and with errors.ErrUnsupported on Windows.
func (c *Conn) Detach(take func(nc net.Conn, unread []byte)) error {
	if runtime.GOOS == "windows" {
		return fmt.Errorf("myriad: Detach on Windows: %w", errors.ErrUnsupported)
	}
	if !c.core().InHandlerCall() {
		return ErrOutsideCall
	}
	return c.core().Detach(take)
}
