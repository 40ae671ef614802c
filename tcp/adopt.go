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
// except that Server.Socket and Limits.AcceptRate do not apply. If the caller has already read input from nc, received
// must contain this input. Adopt copies received, which is limited to 64 KiB.
//
// After a successful call, the server owns nc, and the caller must no longer use it. If Adopt fails, nc still belongs
// to the caller.
//
// Adopt is safe for concurrent use, and may be called in a handler. Its errors are:
//   - ErrBadUse if nc is neither a *net.TCPConn nor a stream *net.UnixConn
//   - ErrTooLarge if received is too long
//   - ErrFull if 1,024 connections already wait for an event loop
//   - ErrServerClosed before the server has started, after it has ended, and in a supervisor (Server.Processes)
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
// server reads no more input. It sends all pending output, including messages that were sent through Refs. It then
// calls take with nc, which is a *net.TCPConn or *net.UnixConn, and with the input that the handler has not used. From
// then on, take owns nc. Finally, the server calls Closed with ErrDetached.
//
// The function take runs on the event loop, even with Server.Workers, and must not block. If the connection closes
// before take can be called, take is never called, and Closed receives the close reason.
//
// Detach fails with
//   - ErrClosed if the connection is closing or CloseWrite was called
//   - ErrBadUse if the connection is relayed, uses TLS or is already being detached; with TLS, use a Blocking handler
//     instead
//   - ErrShard if the event loop has its own descriptor table (Server.Loops)
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
