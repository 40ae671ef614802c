package tcp

import (
	"cmp"
	"errors"
	"fmt"
	"iter"
	"reflect"
	"slices"

	"github.com/myriad-go/myriad/internal/engine"
	"github.com/myriad-go/myriad/pool"
)

// Handler is the application's code for connections. For one connection, the server calls Opened once, Received any
// number of times, and Closed once, never concurrently. Calls for different connections may be concurrent.
//
// If event loops call the handler, a call that blocks delays all connections of its loop. To prevent this, set
// Server.Workers. A panic in a call closes only the connection of this call. The close reason is a *[PanicError]. The
// server logs the panic with its stack and counts it in Stats.Panics. A call of runtime.Goexit is treated as a panic
// with the value [ErrGoexit].
type Handler interface {
	// Opened is called first, when the connection is established. Output of Opened is sent without waiting for input.
	Opened(c *Conn)

	// Received handles input and returns the number of bytes that it has used. The slice is valid only during the call
	// and must not be changed. If Received uses only a part of the input, the server passes the rest again immediately.
	// If Received uses nothing, the server passes the input again when more arrives. A connection with
	// Limits.MaxMessage or more unused bytes closes with ErrMessageTooLong.
	Received(c *Conn, in []byte) (used int)

	// Ended is called with the unused input when the peer has closed its writing side. Ended can still write answers,
	// and returns the number of bytes that it has used. Unused input is lost, with one exception: if Ended has used a
	// part of the input and the connection is then Paused, the server later calls Ended again with the rest.
	//
	// The connection closes when all output has been sent, including earlier messages of Refs. The peer must receive
	// the output within Limits.CloseTimeout. The goroutine model notices that the peer has closed its writing side only
	// while output is not blocked.
	Ended(c *Conn, rest []byte) (used int)

	// Closed is the last call for a connection. The reason is
	//
	//	nil                  Close was called and everything was sent
	//	the given one        CloseWith was called and everything was sent
	//	io.EOF               the peer ended properly and all answers were sent
	//	syscall.ECONNRESET   the peer reset the connection, whichever call failed
	//	*PanicError          a call for this connection panicked
	//	*TLSError            the peer violated TLS, or sent an alert about a violation
	//	                     by this side; counted in Stats.Closed.TLS
	//	ErrMessageTooLong, ErrSlowConsumer, ErrOverBudget,
	//	ErrFirstByteTimeout, ErrMessageTimeout, ErrIdleTimeout,
	//	ErrWriteTimeout, ErrHeartbeatTimeout, ErrCloseTimeout,
	//	ErrHandshakeTimeout, ErrDeadline, ErrServerClosed,
	//	ErrWorkersClosed, ErrClosedByOperator, ErrClearInput,
	//	ErrDetached, ErrHandedOver, ErrShortFile, ErrBadUse
	//	                     see these errors
	//	ErrClosed            the other connection of a Relay has closed
	//	io.ErrUnexpectedEOF  the peer ended within a message (LengthPrefixed),
	//	                     or without TLS's close_notify, so that its last
	//	                     bytes may be missing: then Ended is not called,
	//	                     and pending output is sent; counted in
	//	                     Stats.Closed.Peer
	//	an error of a bufio.SplitFunc, or for violating its rules (Split)
	//
	// or another error of the operating system, as a syscall.Errno.
	Closed(c *Conn, reason error)
}

// WritableHandler is a Handler or MessageHandler that is told when a slow peer has caught up.
type WritableHandler interface {
	// Writable is called when unsent output has dropped to Limits.LowWater after it had exceeded Limits.HighWater.
	Writable(c *Conn)
}

// MissedHandler is a Handler or MessageHandler that is told when a slow peer has missed messages. The handler can send
// the peer a complete state, or report the gap.
type MissedHandler interface {
	// Missed is called when the peer has caught up: at most Limits.LowWater bytes of output are unsent. If Writable is
	// due as well, Missed is called first. n is the number of messages missed since the last call, at least 1. Unlike
	// Conn.Dropped, n excludes messages missed before an Upgrade.
	Missed(c *Conn, n int64)
}

// TimerHandler is an optional interface of a Handler or MessageHandler for timers set by Conn.SetTimer.
type TimerHandler interface {
	// Timer is called once when the time set by Conn.SetTimer has passed. It runs on the event loop, even with
	// Server.Workers, and must not block.
	Timer(c *Conn)
}

// SecuredHandler is an optional interface of a Handler or MessageHandler. The server calls Secured when the handshake
// of Conn.StartTLS is complete.
type SecuredHandler interface {
	// Secured is called after the handshake of StartTLS, before any input. It runs on the event loop, even with
	// Server.Workers, and must not block.
	Secured(c *Conn)
}

// ALPNHandler is a Handler or MessageHandler that chooses which protocols the server offers to TLS clients (ALPN).
type ALPNHandler interface {
	// NextProtos is called for every TLSConfig when the server starts, and returns the protocols to offer. It gets
	// NextProtos of the configuration, which it must not change. Results of GetConfigForClient are not affected.
	NextProtos(configured []string) []string
}

// DialFailedHandler is a Handler or MessageHandler that is told when a Dial has failed.
type DialFailedHandler interface {
	// DialFailed is called if a dial has failed. No other method is called for this dial. DialFailed may run on any
	// goroutine or event loop and must not block. d is the argument of Dial and can be passed to Server.Dial again. err
	// is ErrDialTimeout, ErrFull (Limits.MaxConns is reached), ErrServerClosed, a *net.DNSError, the error of a failed
	// TLS handshake, or a syscall.Errno such as ECONNREFUSED.
	DialFailed(d Dial, err error)
}

// DrainingHandler is a Handler or MessageHandler that is told when the server begins to shut down.
type DrainingHandler interface {
	// Draining is called once for every connection when the server begins to shut down. It can write a farewell message
	// or call Close. If Draining does not call Close, the connection closes after its current message has been handled
	// and its output sent.
	Draining(c *Conn)
}

// ShedHandler is a Handler that rejects input under overload. The server calls Shed instead of Received if the pool
// Server.Workers is full, or if the pool drops the call of Received from its queue. If a handler is not a ShedHandler,
// its connections wait for the pool instead, and the server does not read from them meanwhile. The server never calls
// Shed in the goroutine model or if Server.Workers is nil.
//
// A Handler must not implement MessageShedHandler, and a MessageHandler must not implement ShedHandler: the server then
// does not start and returns ErrBadConfig. If a Handler h has a method Shed for another purpose, use
// struct{ Handler }{h} instead of h. This hides the method.
type ShedHandler interface {
	// Shed is called instead of Received, under the same rules. It rejects the input as the protocol requires, or
	// closes the connection. It runs on the event loop and must not block. For errors.Is, the reason matches
	// ErrOverloaded and either pool.ErrFull or pool.ErrShed. If a call other than Received is also due, Shed is not
	// called, and the connection waits for a worker.
	Shed(c *Conn, in []byte, reason error) (used int)
}

// MessageShedHandler is a MessageHandler that rejects messages under overload; see ShedHandler.
type MessageShedHandler interface {
	// Shed is called instead of Message, in the order of messages, like Shed of a ShedHandler.
	Shed(c *Conn, msg []byte, reason error)
}

func newShedFuncOrNil(h Handler) func(c *engine.Conn, in []byte, reason error) int {
	var shed func(c *Conn, in []byte, reason error) int
	switch h := h.(type) {
	case *framer:
		if h.shed != nil {
			shed = h.deliverMessages
		}
	case ShedHandler:
		shed = h.Shed
	}
	if shed == nil {
		return nil
	}
	return func(c *engine.Conn, in []byte, reason error) int {
		return shed((*Conn)(c), in, toOverloadFullOrShedError(reason))
	}
}

func checkShedSignature(fieldName string, h Handler) error {
	const text = "%s: the Shed method of %T is that of %s; expected that of %s for a %s: %s"
	switch h := h.(type) {
	case *framer:
		if _, other := h.MessageHandler.(ShedHandler); other {
			return badConfig(text, fieldName, h.MessageHandler, "ShedHandler", "MessageShedHandler", "MessageHandler",
				"Shed(c *tcp.Conn, msg []byte, reason error)")
		}
	case MessageShedHandler:
		return badConfig(text, fieldName, h, "MessageShedHandler", "ShedHandler", "Handler",
			"Shed(c *tcp.Conn, in []byte, reason error) (used int)")
	}
	return nil
}

// Values of the argument reason of ShedHandler.Shed. Each wraps ErrOverloaded and the error with which the pool
// rejected the job.
var (
	errOverloadFull = fmt.Errorf("%w: %w", ErrOverloaded, pool.ErrFull)
	errOverloadShed = fmt.Errorf("%w: %w", ErrOverloaded, pool.ErrShed)
)

func toOverloadFullOrShedError(poolErr error) error {
	if errors.Is(poolErr, pool.ErrFull) {
		return errOverloadFull
	}
	return errOverloadShed
}

// StartHandler is a Handler or MessageHandler that gets its Server before the server starts.
type StartHandler interface {
	// Starting is called once, before s serves.
	Starting(s *Server)
}

// handlerAs returns h as a T, which is an optional interface of handlers. If h was made by Lines or Split, it returns
// the MessageHandler inside h instead. ok is false if the handler does not implement T.
func handlerAs[T any](h Handler) (t T, ok bool) {
	if f, is := h.(*framer); is {
		t, ok = f.MessageHandler.(T)
		return t, ok
	}
	t, ok = h.(T)
	return t, ok
}

// handlers yields Server.Handler and the handlers of Listeners, each with the name of its field.
func (s *Server) handlers() iter.Seq2[string, Handler] {
	return func(yield func(string, Handler) bool) {
		more := s.Handler == nil || yield("Server.Handler", s.Handler)
		for i := 0; more && i < len(s.Listeners); i++ {
			if h := s.Listeners[i].Handler; h != nil {
				more = yield(fmt.Sprintf("Server.Listeners[%d].Handler", i), h)
			}
		}
	}
}

// handlersAs returns all handlers of s that implement the optional interface T, without duplicates.
func handlersAs[T any](s *Server) (all []T) {
	for _, h := range s.handlers() {
		if t, ok := handlerAs[T](h); ok {
			all = appendIfNew(all, t)
		}
	}
	return all
}

func appendIfNew[T any](all []T, h T) []T {
	if reflect.ValueOf(h).Comparable() && slices.ContainsFunc(all, func(other T) bool { return any(other) == any(h) }) {
		return all
	}
	return append(all, h)
}

// listenerHandler returns the handler of the listener with the given number. For -1, it returns the handler of
// connections that belong to no listener: Server.Handler or, if that is nil, Base.
func (s *Server) listenerHandler(number int) Handler {
	if number < 0 {
		return cmp.Or[Handler](s.Handler, Base{})
	}
	return cmp.Or(s.activeListeners[number].Handler, s.Handler)
}

func (s *Server) checkHandlers(listeners []Listener) error {
	if s.Handler == nil && slices.ContainsFunc(listeners, func(l Listener) bool { return l.Handler == nil }) {
		return checkHandler("Server.Handler", nil)
	}
	for field, h := range s.handlers() {
		if err := cmp.Or(checkHandler(field, h), checkShedSignature(field, h)); err != nil {
			return err
		}
	}
	return nil
}

func checkHandler(fieldName string, h Handler) error {
	switch h := h.(type) {
	case nil:
		return badConfig("%s is nil; expected a Handler", fieldName)
	case *framer:
		switch f, isFunc := h.MessageHandler.(MessageFunc); {
		case h.MessageHandler == nil, isFunc && f == nil:
			return badConfig("%s: the MessageHandler of Lines or Split is nil; expected a MessageHandler", fieldName)
		case !h.lines && h.split == nil:
			return badConfig("%s: the SplitFunc of Split is nil; expected one such as bufio.ScanWords", fieldName)
		}
	case *Blocking:
		return h.validate(fieldName)
	case *NetListener:
		if h == nil || h.queued.L == nil {
			return badConfig("%s is an uninitialized NetListener; expected the result of NewNetListener", fieldName)
		}
	}
	return nil
}

func handlerType(h Handler) string {
	if f, ok := h.(*framer); ok {
		return fmt.Sprintf("%T", f.MessageHandler)
	}
	return fmt.Sprintf("%T", h)
}

// Base is a Handler that discards its input. Embed it to implement only some methods.
type Base struct{}

func (Base) Opened(*Conn) {}

func (Base) Received(_ *Conn, in []byte) int { return len(in) }

func (Base) Ended(_ *Conn, rest []byte) int { return len(rest) }

func (Base) Closed(*Conn, error) {}

// Errors and close reasons. Compare them with errors.Is.
var (
	// ErrClosed is returned by methods if the connection is closing or closed.
	ErrClosed = engine.ErrClosed
	// ErrOutsideCall is returned by methods of a Conn that are called outside of a handler call for this Conn. Use the
	// connection's Ref instead.
	ErrOutsideCall = engine.ErrOutsideCall
	// ErrFull is returned by methods if a buffer or queue is full. For a Ref, it means that Limits.MaxUnsent bytes
	// already wait for the connection, or that the mailbox of its loop is full (Limits.MaxMail, Limits.MaxMailBytes).
	// The method has accepted nothing; a later call may succeed.
	ErrFull = engine.ErrFull
	// ErrTooLarge is returned for a single Write or Send of more than Limits.MaxUnsent bytes. The method has accepted
	// nothing.
	ErrTooLarge = engine.ErrTooLarge
	// ErrMessageTooLong closes a connection with a message longer than Limits.MaxMessage. The server still sends the
	// answers to earlier messages.
	ErrMessageTooLong = engine.ErrMessageTooLong
	// ErrSlowConsumer closes a connection when more than Limits.MaxUnsent bytes would wait; see Server.SlowConsumer.
	ErrSlowConsumer = engine.ErrSlowConsumer
	// ErrShortFile is returned by Conn.SendFile if the file is too short. It is the close reason of a connection if the
	// file becomes too short while the server sends it.
	ErrShortFile = engine.ErrShortFile
	// ErrCloseTimeout and the other timeout errors close a connection whose peer exceeded a time limit:
	// Limits.CloseTimeout, FirstByteTimeout and so on.
	ErrCloseTimeout     = engine.ErrCloseTimeout
	ErrFirstByteTimeout = engine.ErrFirstByteTimeout
	ErrMessageTimeout   = engine.ErrMessageTimeout
	ErrIdleTimeout      = engine.ErrIdleTimeout
	ErrWriteTimeout     = engine.ErrWriteTimeout
	// ErrHeartbeatTimeout closes a connection whose peer did not answer Heartbeat.MaxMissed heartbeats.
	ErrHeartbeatTimeout = engine.ErrHeartbeatTimeout
	// ErrDeadline closes a connection when the time set with Conn.SetDeadline has passed.
	ErrDeadline = engine.ErrDeadline
	// ErrDetached is the reason that Closed receives after Conn.Detach. Stats.Closed.Handler counts these connections.
	ErrDetached = engine.ErrDetached
	// ErrHandedOver is the reason that Closed receives for a connection that continues in another process; see
	// Server.Upgrade. Stats.HandedOver counts these connections; Stats.Closed does not.
	ErrHandedOver = engine.ErrHandedOver
	// ErrClearInput closes a connection if unencrypted input follows the command for StartTLS; see Conn.StartTLS.
	ErrClearInput = engine.ErrClearInput
	// ErrHandshakeTimeout closes a connection whose StartTLS exceeded Limits.HandshakeTimeout.
	ErrHandshakeTimeout = engine.ErrHandshakeTimeout
	// ErrShard is returned by Conn.Detach if the event loop has its own descriptor table; see Server.Loops.
	ErrShard = engine.ErrShard
	// ErrDialTimeout is the error of a dial that exceeded Dial.Timeout.
	ErrDialTimeout = engine.ErrDialTimeout
	// ErrOverBudget closes the connections with the largest buffers when all buffers together exceed
	// Limits.MaxBuffered.
	ErrOverBudget = engine.ErrOverBudget
	// ErrTooManyConns, ErrTooManyFromSource and ErrDenied are passed to Server.Refuse for rejected connections.
	ErrTooManyConns      = engine.ErrTooManyConns
	ErrTooManyFromSource = engine.ErrRefusedSource
	ErrDenied            = engine.ErrDenied
	// ErrOverloaded is passed to Shed, wrapped, when no worker is available for a connection's input. It is passed to
	// Server.Refuse when the overload manager refuses a connection; see Server.Overload.
	ErrOverloaded = engine.ErrOverloaded
	// ErrClosedByOperator is the reason of connections closed by Server.CloseConns.
	ErrClosedByOperator = engine.ErrClosedByOperator
	// ErrWorkersClosed closes connections of a server whose pool (Server.Workers) was closed before the server ended.
	ErrWorkersClosed = engine.ErrPoolClosed
	// ErrServerClosed closes connections at a shutdown. Methods of Server return it before the start and after the end.
	ErrServerClosed = engine.ErrServerClosed
	// ErrBadConfig is wrapped by errors about invalid fields of a Server, Dial or other configuration.
	ErrBadConfig = errors.New("bad configuration")
	// ErrGoexit is the Value of the PanicError of a handler that called runtime.Goexit.
	ErrGoexit = engine.ErrGoexit
	// ErrBadUse is returned by methods that are called in a wrong state. It also closes a connection whose Received
	// returns a number outside of 0..len(in).
	ErrBadUse = engine.ErrBadUse
)

func badConfig(format string, args ...any) error {
	return &kindError{fmt.Errorf("myriad: "+format, args...), ErrBadConfig}
}

func badUse(format string, args ...any) error {
	return &kindError{fmt.Errorf("myriad: "+format, args...), ErrBadUse}
}

// kindError wraps an error so that errors.Is also matches kind. The text of the error stays the same.
type kindError struct {
	error
	kind error
}

func (e *kindError) Unwrap() []error { return []error{e.kind, e.error} }

// PanicError is the close reason after a panic in the handler. It contains the value and the stack of the panic.
type PanicError = engine.PanicError

// TLSError is the close reason if TLS fails after the handshake. It wraps the error of crypto/tls, such as a
// tls.RecordHeaderError. If the peer has sent an alert, the wrapped error is a *net.OpError whose Op is "remote error".
type TLSError = engine.TLSError

type handlerAdapter struct{ h Handler }

func (a handlerAdapter) HandlerType() string { return handlerType(a.h) }

func (a handlerAdapter) Opened(c *engine.Conn) { a.h.Opened((*Conn)(c)) }

func (a handlerAdapter) Received(c *engine.Conn, in []byte) int { return a.h.Received((*Conn)(c), in) }

func (a handlerAdapter) Ended(c *engine.Conn, rest []byte) int { return a.h.Ended((*Conn)(c), rest) }

func (a handlerAdapter) Closed(c *engine.Conn, reason error) { a.h.Closed((*Conn)(c), reason) }

func (a handlerAdapter) Secured(c *engine.Conn) {
	if h, ok := handlerAs[SecuredHandler](a.h); ok {
		h.Secured((*Conn)(c))
	}
}
