package tcp

import (
	"errors"
	"fmt"
	"net"
	"runtime"

	"github.com/myriad-go/myriad/internal/engine"
)

const maxAdoptedInput = engine.ReadSize

// Adopt adds a connection that other code has accepted. The server treats nc like a connection of its first listener,
// but does not apply Server.Socket and Limits.AcceptRate. The argument received is the input that was already read from
// nc, at most 64 KiB; Adopt copies it. After a successful call, do not use nc. If Adopt fails, nc still belongs to the
// caller.
//
// Adopt is safe for concurrent use, and may be called in a handler. Its errors are:
//   - ErrBadUse if nc is neither a *net.TCPConn nor a stream *net.UnixConn
//   - ErrTooLarge if received is too long
//   - ErrFull if 1,024 connections already wait for an event loop
//   - ErrServerClosed before the start, after the end, and in a supervisor (Server.Processes)
func (s *Server) Adopt(nc net.Conn, received []byte) error {
	e, err := s.engineServingConns()
	if err != nil {
		return err
	}
	if len(received) > maxAdoptedInput {
		return engine.TooLargeErrorf("myriad: Adopt with %d bytes of input; expected at most %d", len(received), maxAdoptedInput)
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

// Detach removes the connection from the server and passes it to the function take. After the current handler call, the
// server reads no more input and sends all output, including earlier messages from Refs. It then calls take, which owns
// nc from then on. nc is a *net.TCPConn or *net.UnixConn, and unread is the unused input. Finally, the server calls
// Closed with ErrDetached.
//
// The function take runs on the event loop, even with Server.Workers, and must not block. If the connection closes
// first, take is never called, and Closed receives the close reason.
//
// Detach fails with
//   - ErrClosed if the connection is closing or CloseWrite was called
//   - ErrBadUse if the connection is relayed, uses TLS or is already being detached; with TLS, use a Blocking handler
//     instead
//   - ErrShard if the event loop has its own descriptor table
//   - errors.ErrUnsupported on Windows
func (c *Conn) Detach(take func(nc net.Conn, unread []byte)) error {
	if runtime.GOOS == "windows" {
		return fmt.Errorf("myriad: Detach on Windows: %w", errors.ErrUnsupported)
	}
	if !c.core().InHandlerCall() {
		return ErrOutsideCall
	}
	return c.core().Detach(take)
}
