package engine

import (
	"errors"
	"io"
	"syscall"
)

// Cause is a class of reasons why connections end. Causes are used for counting.
type Cause int

// Values of Cause. Causes up to RefusedOther are for connections that ended before the handler's Opened was called.
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
	why   error
	cause Cause
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

func closeCauseOf(why error) Cause {
	for _, c := range closeCauses {
		if why == c.why {
			return c.cause
		}
	}
	switch why := why.(type) {
	case *PanicError:
		return ClosedPanic
	case *TLSError:
		return ClosedTLS
	case syscall.Errno:
		switch why {
		case syscall.ECONNRESET, syscall.ETIMEDOUT, syscall.EHOSTUNREACH, syscall.ENETUNREACH:
			return ClosedByReset
		}
		return ClosedOther
	}
	return ClosedByHandler
}

func refusalCauseOf(why error) Cause {
	switch {
	case why == ErrTooManyConns:
		return RefusedFull
	case why == ErrOverloaded:
		return RefusedOverload
	case errors.Is(why, ErrHandshakeTimeout):
		return RefusedTimeout
	case errors.Is(why, ErrRefusedSource):
		return RefusedSource
	case errors.Is(why, ErrDenied):
		return RefusedDenied
	case errors.Is(why, ErrProxyHeader):
		return RefusedProxy
	case why == io.EOF, why == ErrServerClosed, why == ErrOverBudget, why == ErrClosed, why == ErrClosedByOperator:
		return RefusedOther
	}
	if _, ok := why.(syscall.Errno); ok {
		return RefusedOther
	}
	return RefusedHandshake
}
