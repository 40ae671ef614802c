package tcp

import (
	"errors"
	"fmt"
	"net"
	"runtime"

	"github.com/myriad-go/myriad/internal/engine"
)

// maxAdopted is the most bytes that were read of a connection before Adopt.
const maxAdopted = engine.ReadSize

// Adopt takes over a connection that somebody else has accepted, with what was read from
// it already, at most 64 KiB, which is copied: from then on it is as one of the server's
// own, on the loop whose turn it is. Limits, Allow, Deny, TLSConfig and TrustedProxies are
// for it as for those of the first listener; one that is not let in is turned away, and counted. Server.Socket
// and Limits.AcceptRate are not for it. Nothing may read from nc or write to it any more.
//
// nc is a *net.TCPConn or a stream *net.UnixConn; others have no descriptor, such as a
// *tls.Conn, or wrap one and may have read more than they tell: they fail with ErrBadUse.
// It fails with ErrTooLarge when more was read, with ErrFull when 1,024 wait for a loop to
// take them, and with ErrServerClosed before the start, after the end, and where workers
// serve (Processes). After an error nc is the caller's, as it was. It is safe for
// concurrent use, and in a handler.
func (s *Server) Adopt(nc net.Conn, read []byte) error {
	e, err := s.serving()
	if err != nil {
		return err
	}
	if len(read) > maxAdopted {
		return fmt.Errorf("Adopt with %d bytes that were read; expected at most %d: %w", len(read), maxAdopted, ErrTooLarge)
	}
	switch c := nc.(type) {
	case *net.TCPConn:
	case *net.UnixConn:
		if network := c.LocalAddr().Network(); network != "unix" {
			return badUse("Adopt of a connection by %s; expected a stream, by tcp or unix", network)
		}
	default:
		return badUse("Adopt of a %T; expected a *net.TCPConn or a *net.UnixConn, which have a descriptor", nc)
	}
	return named(e.Adopt(nc, -1, read))
}

// Detach gives the connection up, for code that takes a net.Conn and its goroutine. When
// the call at hand has returned and all output has been sent, what Refs have sent by then
// included, the server forgets it: take is called with the connection, a *net.TCPConn or
// *net.UnixConn that is the callee's, and with the input that the handler has not used,
// which it keeps; then Closed, with ErrDetached. take is called on the event loop, also
// with Workers, so that it must be quick: it may start a goroutine. Nothing more is
// received meanwhile. When the connection ends before, take is not called, and Closed
// tells why. Adopt is the way back.
//
// It fails with ErrClosed when the connection is closing or CloseWrite was called; with
// ErrBadUse when it is relayed, has TLS, for which a Blocking handler is, or is given up
// already; with ErrShard; and on Windows with errors.ErrUnsupported.
func (c *Conn) Detach(take func(nc net.Conn, unread []byte)) error {
	if runtime.GOOS == "windows" {
		return fmt.Errorf("myriad: Detach on Windows: %w", errors.ErrUnsupported)
	}
	if !c.core().InHandlerCall() {
		return ErrOutsideCall
	}
	return c.core().Detach(take)
}
