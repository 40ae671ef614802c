package engine

import (
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"syscall"
)

// Reasons why this server closes a connection or rejects a call. Package tcp re-exports these errors.
var (
	ErrClosed           = errors.New("myriad: connection is closed")
	ErrFull             = errors.New("myriad: no space: the connection has Limits.MaxUnsent unsent bytes, or its mailbox is full (Limits.MaxMail, Limits.MaxMailBytes)")
	ErrOutsideCall      = errors.New("myriad: Conn used outside a handler call for the connection; use its Ref")
	ErrOnLoop           = errors.New("myriad: waiting for a connection would block the event loop; make this call on another goroutine")
	ErrTooLarge         = errors.New("myriad: a single write is larger than Limits.MaxUnsent")
	ErrMessageTooLong   = errors.New("myriad: message is longer than Limits.MaxMessage")
	ErrSlowConsumer     = errors.New("myriad: slow consumer: unsent output would exceed Limits.MaxUnsent")
	ErrCloseTimeout     = errors.New("myriad: peer did not take the pending output within Limits.CloseTimeout")
	ErrFirstByteTimeout = errors.New("myriad: peer sent nothing within Limits.FirstByteTimeout")
	ErrMessageTimeout   = errors.New("myriad: message was not complete within Limits.MessageTimeout")
	ErrIdleTimeout      = errors.New("myriad: peer sent nothing for Limits.IdleTimeout")
	ErrWriteTimeout     = errors.New("myriad: peer did not take the output within Limits.WriteTimeout")
	ErrHeartbeatTimeout = errors.New("myriad: peer did not answer Heartbeat.MaxMissed heartbeats")
	ErrHandshakeTimeout = errors.New("myriad: PROXY header or TLS handshake was not complete within Limits.HandshakeTimeout")
	ErrOverBudget       = errors.New("myriad: all buffers together exceed Limits.MaxBuffered, and this connection's are among the largest")
	ErrDetached         = errors.New("myriad: connection was detached by Conn.Detach")
	ErrDeadline         = errors.New("myriad: the connection's deadline has passed")
	ErrDialTimeout      = errors.New("myriad: connecting took longer than the dial's timeout")
	ErrTooManyConns     = errors.New("myriad: Limits.MaxConns connections are already open")
	ErrRefusedSource    = errors.New("myriad: Limits.MaxConnsPerSource connections from this source are already open")
	ErrDenied           = errors.New("myriad: address is denied by Server.Allow or Server.Deny")
	ErrProxyHeader      = errors.New("myriad: no valid PROXY header from a trusted proxy")
	ErrShortFile        = errors.New("myriad: file is shorter than the range passed to SendFile")
	ErrServerClosed     = errors.New("myriad: server is shutting down")
	ErrClosedByOperator = errors.New("myriad: connection was closed by an operator")
	ErrPoolClosed       = errors.New("myriad: the pool in Server.Workers was closed before the server ended")
	ErrBadUse           = errors.New("myriad: invalid use of a connection, or the handler returned a count outside the range 0 to len(in)")
)

// PanicError is the close reason of a connection whose handler has panicked.
type PanicError struct {
	Value any
	// Stack is the stack trace in the format of debug.Stack.
	Stack []byte
}

func (e *PanicError) Error() string {
	return fmt.Sprintf("myriad: handler panicked: %v", e.Value)
}

func (e *PanicError) Unwrap() error {
	err, _ := e.Value.(error)
	return err
}

type tooLargeError string

// TooLargeErrorf returns an error that matches ErrTooLarge but states a limit other than Limits.MaxUnsent.
func TooLargeErrorf(format string, args ...any) error {
	return tooLargeError(fmt.Sprintf(format, args...))
}

func (e tooLargeError) Error() string { return string(e) }

func (tooLargeError) Is(target error) bool { return target == ErrTooLarge }

// TLSError is the close reason of a connection whose peer has sent an invalid record or an alert after the TLS
// handshake.
type TLSError struct{ Err error }

func (e *TLSError) Error() string { return "myriad: TLS failed: " + e.Err.Error() }

func (e *TLSError) Unwrap() error { return e.Err }

// NormalizeError converts an error of the transport, so that all I/O models report the same error for the same event.
// For example, all errors that mean that the peer is gone become ECONNRESET.
func NormalizeError(transportErr error) error {
	var errno syscall.Errno
	if errors.As(transportErr, &errno) {
		switch errno {
		case syscall.EPIPE, syscall.ECONNABORTED, syscall.ENOTCONN:
			return syscall.ECONNRESET
		}
		return mapWindowsResetErrno(errno)
	}
	switch {
	case errors.Is(transportErr, io.EOF):
		return io.EOF
	case errors.Is(transportErr, net.ErrClosed), errors.Is(transportErr, os.ErrClosed):
		return ErrClosed
	}
	return transportErr
}

func mapWindowsResetErrno(errno syscall.Errno) syscall.Errno {
	const wsaeConnAborted, wsaeConnReset = 10053, 10054 // unused on other systems
	if errno == wsaeConnAborted || errno == wsaeConnReset {
		return syscall.ECONNRESET
	}
	return errno
}
