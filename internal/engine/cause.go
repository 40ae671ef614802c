package engine

import (
	"errors"
	"io"
	"syscall"
)

// Cause is a class of reasons why connections are closed or refused. Each class has a counter.
type Cause int

// Values of Cause. The values up to RefusedOther count connections that ended before the handler's Opened was called.
const (
	RefusedFull      Cause = iota // Limits.MaxConns
	RefusedSource                 // Limits.MaxConnsPerSource
	RefusedDenied                 // AdmissionRules.Allow or Deny
	RefusedProxy                  // invalid PROXY header
	RefusedHandshake              // failed TLS handshake
	RefusedTimeout                // Limits.HandshakeTimeout
	RefusedOverload               // see package overload
	RefusedOther                  // closed before Opened, by the peer or by this side

	ClosedByPeer
	ClosedByReset
	ClosedByHandler
	ClosedFirstByte
	ClosedMessage
	ClosedIdle
	ClosedWrite
	ClosedClose
	ClosedHeartbeat
	ClosedSlow
	ClosedBudget
	ClosedTooLong
	ClosedTLS
	ClosedPanic
	ClosedShutdown
	ClosedByOperator
	ClosedOther
	NumCauses

	NumRefusedCauses = ClosedByPeer
)

var closeCauses = []struct {
	reason error
	cause  Cause
}{
	{nil, ClosedByHandler},
	{io.EOF, ClosedByPeer},
	{io.ErrUnexpectedEOF, ClosedByPeer},
	{ErrFirstByteTimeout, ClosedFirstByte},
	{ErrMessageTimeout, ClosedMessage},
	{ErrIdleTimeout, ClosedIdle},
	{ErrWriteTimeout, ClosedWrite},
	{ErrCloseTimeout, ClosedClose},
	{ErrHeartbeatTimeout, ClosedHeartbeat},
	{ErrSlowConsumer, ClosedSlow},
	{ErrOverBudget, ClosedBudget},
	{ErrMessageTooLong, ClosedTooLong},
	{ErrServerClosed, ClosedShutdown},
	{ErrClosedByOperator, ClosedByOperator},
	{ErrClearInput, ClosedTLS},
	{ErrHandshakeTimeout, ClosedTLS},
	{ErrBadUse, ClosedOther},
	{ErrClosed, ClosedOther},
	{ErrPoolClosed, ClosedOther},
	{ErrShortFile, ClosedOther},
}

func closeCauseOf(reason error) Cause {
	for _, c := range closeCauses {
		if reason == c.reason {
			return c.cause
		}
	}
	switch reason := reason.(type) {
	case *PanicError:
		return ClosedPanic
	case *TLSError:
		return ClosedTLS
	case syscall.Errno:
		switch reason {
		case syscall.ECONNRESET, syscall.ETIMEDOUT, syscall.EHOSTUNREACH, syscall.ENETUNREACH:
			return ClosedByReset
		}
		return ClosedOther
	}
	return ClosedByHandler
}

func refusalCauseOf(reason error) Cause {
	switch {
	case reason == ErrTooManyConns:
		return RefusedFull
	case reason == ErrOverloaded:
		return RefusedOverload
	case errors.Is(reason, ErrHandshakeTimeout):
		return RefusedTimeout
	case errors.Is(reason, ErrRefusedSource):
		return RefusedSource
	case errors.Is(reason, ErrDenied):
		return RefusedDenied
	case errors.Is(reason, ErrProxyHeader):
		return RefusedProxy
	case reason == io.EOF, reason == ErrServerClosed, reason == ErrOverBudget, reason == ErrClosed, reason == ErrClosedByOperator:
		return RefusedOther
	}
	if _, ok := reason.(syscall.Errno); ok {
		return RefusedOther
	}
	return RefusedHandshake
}
