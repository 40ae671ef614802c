package engine

import (
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"syscall"
)

// These are the reasons for which this side closes a connection or rejects a call. Package tcp
// re-exports them.
var (
	ErrClosed           = errors.New("myriad: connection is closed")
	ErrFull             = errors.New("myriad: no room: the connection owes Limits.MaxUnsent bytes already, or its mailbox is full (Limits.MaxMail, Limits.MaxMailBytes)")
	ErrOutsideCall      = errors.New("myriad: Conn used outside of its handler's calls, where nothing would be sent; expected its Ref, or a call for this connection")
	ErrOnLoop           = errors.New("myriad: to wait for a connection on an event loop would hold it up")
	ErrTooLarge         = errors.New("myriad: a single write is larger than Limits.MaxUnsent")
	ErrMessageTooLong   = errors.New("myriad: message is longer than Limits.MaxMessage")
	ErrSlowConsumer     = errors.New("myriad: slow consumer: unsent output would pass Limits.MaxUnsent")
	ErrCloseTimeout     = errors.New("myriad: peer did not take the pending output within Limits.CloseTimeout")
	ErrFirstByteTimeout = errors.New("myriad: peer sent nothing within Limits.FirstByteTimeout")
	ErrMessageTimeout   = errors.New("myriad: message was not complete within Limits.MessageTimeout")
	ErrIdleTimeout      = errors.New("myriad: peer sent nothing for Limits.IdleTimeout")
	ErrWriteTimeout     = errors.New("myriad: peer did not take the output within Limits.WriteTimeout")
	ErrHeartbeatTimeout = errors.New("myriad: peer did not answer as many heartbeats as Heartbeat.MaxMissed")
	ErrHandshakeTimeout = errors.New("myriad: PROXY header or TLS handshake was not complete within Limits.HandshakeTimeout")
	ErrOverBudget       = errors.New("myriad: buffers of all connections hold more than Limits.MaxBuffered, and this one's are among the largest")
	ErrDetached         = errors.New("myriad: connection was given up by Conn.Detach")
	ErrDeadline         = errors.New("myriad: the connection's deadline has passed")
	ErrDialTimeout      = errors.New("myriad: no connection was made within the dial's timeout")
	ErrTooManyConns     = errors.New("myriad: Limits.MaxConns connections are open")
	ErrRefusedSource    = errors.New("myriad: Limits.MaxConnsPerSource connections are open from this source")
	ErrDenied           = errors.New("myriad: address is not let in by Server.Allow and Server.Deny")
	ErrProxyHeader      = errors.New("myriad: no valid PROXY header from a trusted proxy")
	ErrShortFile        = errors.New("myriad: file is shorter than SendFile was told")
	ErrServerClosed     = errors.New("myriad: server is shutting down")
	ErrClosedByOperator = errors.New("myriad: connection was closed by an operator")
	ErrPoolClosed       = errors.New("myriad: the pool of Server.Workers was closed before the server had ended")
	ErrBadUse           = errors.New("myriad: bad use of a connection, or a handler returned a count of used bytes outside of 0..len(in)")
)

// PanicError is the close reason after a panic of the handler.
type PanicError struct {
	// Value is the value of the panic.
	Value any
	// Stack is the stack trace, as formatted by debug.Stack.
	Stack []byte
}

func (e *PanicError) Error() string {
	return fmt.Sprintf("myriad: handler panicked: %v", e.Value)
}

// Unwrap returns the panic's value if it is an error.
func (e *PanicError) Unwrap() error {
	err, _ := e.Value.(error)
	return err
}

// TLSError is the close reason if TLS fails after the handshake: the peer sent invalid records or
// an alert.
type TLSError struct{ Err error }

func (e *TLSError) Error() string { return "myriad: TLS has broken: " + e.Err.Error() }

// Unwrap returns the error of crypto/tls.
func (e *TLSError) Unwrap() error { return e.Err }

// NormalizeError maps the errors of all models to the same values: a bare errno, with ECONNRESET
// for everything that means that the peer is gone.
func NormalizeError(err error) error {
	var errno syscall.Errno
	if errors.As(err, &errno) {
		switch errno {
		case syscall.EPIPE, syscall.ECONNABORTED, syscall.ENOTCONN:
			return syscall.ECONNRESET
		}
		return resetOnWindows(errno)
	}
	switch {
	case errors.Is(err, io.EOF):
		return io.EOF
	case errors.Is(err, net.ErrClosed), errors.Is(err, os.ErrClosed):
		return ErrClosed
	}
	return err
}

// resetOnWindows maps WSAECONNRESET and WSAECONNABORTED, whose numbers are unused elsewhere, to
// ECONNRESET.
func resetOnWindows(errno syscall.Errno) syscall.Errno {
	const wsaeConnAborted, wsaeConnReset = 10053, 10054
	if errno == wsaeConnAborted || errno == wsaeConnReset {
		return syscall.ECONNRESET
	}
	return errno
}
