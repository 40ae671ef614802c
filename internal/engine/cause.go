package engine

import (
	"errors"
	"io"
	"syscall"
)

// Cause sorts the ends of connections, for counting.
type Cause int

// The causes. The first are of connections that never got to their handler.
const (
	RefusedFull      Cause = iota // Limits.MaxConns
	RefusedSource                 // Limits.MaxConnsPerSource
	RefusedDenied                 // kept out by address
	RefusedProxy                  // a wrong PROXY header
	RefusedHandshake              // a TLS handshake that failed
	RefusedTimeout                // Limits.HandshakeTimeout
	RefusedOther                  // ended before, by the peer or by our own end

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
	ClosedExpelled
	ClosedOther
	Causes

	RefusedCauses = ClosedByPeer
)

// closeCause is the cause of a connection that has ended for a reason. What is
// none of ours nor the system's is the handler's own.
func closeCause(why error) Cause {
	switch why {
	case nil:
		return ClosedByHandler
	case io.EOF, io.ErrUnexpectedEOF:
		return ClosedByPeer
	case ErrFirstByteTimeout:
		return ClosedFirstByte
	case ErrMessageTimeout:
		return ClosedMessage
	case ErrIdleTimeout:
		return ClosedIdle
	case ErrWriteTimeout:
		return ClosedWrite
	case ErrCloseTimeout:
		return ClosedClose
	case ErrHeartbeatTimeout:
		return ClosedHeartbeat
	case ErrSlowConsumer:
		return ClosedSlow
	case ErrOverBudget:
		return ClosedBudget
	case ErrMessageTooLong:
		return ClosedTooLong
	case ErrServerClosed:
		return ClosedShutdown
	case ErrExpelled:
		return ClosedExpelled
	case ErrClearInput, ErrHandshakeTimeout:
		return ClosedTLS
	case ErrBadUse, ErrClosed, ErrPoolClosed, ErrShortFile:
		return ClosedOther
	}
	switch why := why.(type) {
	case *PanicError:
		return ClosedPanic
	case *TLSError:
		return ClosedTLS
	case syscall.Errno:
		return systemCause(why)
	}
	return ClosedByHandler
}

// systemCause is the cause of an error of the operating system.
func systemCause(why syscall.Errno) Cause {
	switch why {
	case syscall.ECONNRESET, syscall.ETIMEDOUT, syscall.EHOSTUNREACH, syscall.ENETUNREACH:
		return ClosedByReset
	}
	return ClosedOther
}

// refuseCause is the cause of one that ended before its handler heard of it.
func refuseCause(why error) Cause {
	switch {
	case why == ErrTooManyConns:
		return RefusedFull
	case errors.Is(why, ErrHandshakeTimeout):
		return RefusedTimeout
	case errors.Is(why, ErrRefusedSource):
		return RefusedSource
	case errors.Is(why, ErrDenied):
		return RefusedDenied
	case errors.Is(why, ErrProxyHeader):
		return RefusedProxy
	case why == io.EOF, why == ErrServerClosed, why == ErrOverBudget, why == ErrClosed, why == ErrExpelled:
		return RefusedOther
	}
	if _, ok := why.(syscall.Errno); ok {
		return RefusedOther
	}
	return RefusedHandshake
}
