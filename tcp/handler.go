package tcp

import (
	"errors"
	"fmt"

	"github.com/myriad-go/myriad/internal/engine"
	"github.com/myriad-go/myriad/pool"
)

// Handler is the user's code for connections. For each connection its methods are called one at a
// time: Opened once, Received any number of times, Closed once. Calls for different connections
// may be concurrent.
//
// Under a model with event loops, a call that blocks delays all connections of its loop, unless
// Server.Workers is set. A panic in a call closes only that connection, with a *[PanicError] as
// the reason; it is logged with its stack and counted in Stats.Panics. The same holds for
// runtime.Goexit, which testing.T.FailNow calls; then the PanicError's Value is [ErrGoexit].
type Handler interface {
	// Opened is the first call, when the connection is established. What it writes is sent
	// without waiting for the peer.
	Opened(c *Conn)

	// Received handles input. in is valid only during the call and must not be changed. Received
	// returns the number of bytes that it has used. The rest is passed again together with more
	// input, or at once if some of it was used. A connection with Limits.MaxMessage or more
	// unused bytes is closed with ErrMessageTooLong.
	Received(c *Conn, in []byte) (used int)

	// Ended is called when the peer has ended its direction; rest is the unused input. Answers
	// can still be written. Ended returns the number of bytes used. The rest is lost unless the
	// connection is Paused; then it is passed again after output has been sent. The connection
	// closes after all output has been sent, including what Refs sent before; the peer must take
	// it within Limits.CloseTimeout. The goroutine model detects the end only while output is not
	// blocked.
	Ended(c *Conn, rest []byte) (used int)

	// Closed is the last call for a connection. The reason is
	//
	//	nil                  Close was called and everything was sent
	//	the given one        CloseWith was called and everything was sent
	//	io.EOF               the peer ended properly and all answers were sent
	//	syscall.ECONNRESET   the peer reset the connection, whichever call failed
	//	*PanicError          a call for this connection panicked
	//	*TLSError            the peer violated TLS, or reported in an alert that this
	//	                     side did; counted in Stats.Closed.TLS
	//	ErrMessageTooLong, ErrSlowConsumer, ErrOverBudget,
	//	ErrFirstByteTimeout, ErrMessageTimeout, ErrIdleTimeout,
	//	ErrWriteTimeout, ErrHeartbeatTimeout, ErrCloseTimeout,
	//	ErrServerClosed, ErrWorkersClosed, ErrClosedByOperator,
	//	ErrShortFile, ErrBadUse  see there
	//	io.ErrUnexpectedEOF  the peer ended within a message (LengthPrefixed),
	//	                     or without TLS's close_notify, so that its last
	//	                     bytes may be missing: then Ended is not called,
	//	                     pending output is sent, and Stats.Closed.Peer
	//	                     counts it
	//	an error of a bufio.SplitFunc, or for violating its rules (Split)
	//
	// or another error of the operating system, as a syscall.Errno.
	Closed(c *Conn, why error)
}

// WritableHandler is a Handler or MessageHandler that is told when a slow peer has caught up.
type WritableHandler interface {
	// Writable is called when unsent output that had exceeded Limits.HighWater has dropped to
	// Limits.LowWater.
	Writable(c *Conn)
}

// TimerHandler is a Handler or MessageHandler that uses Conn.SetTimer.
type TimerHandler interface {
	// Timer is called once when the time of Conn.SetTimer has passed. It runs on the event loop,
	// also with Server.Workers, so it must not block.
	Timer(c *Conn)
}

// SecuredHandler is a Handler or MessageHandler that uses Conn.StartTLS.
type SecuredHandler interface {
	// Secured is called after the handshake of StartTLS, before any input. It runs on the event
	// loop, also with Server.Workers, so it must not block.
	Secured(c *Conn)
}

// ALPNHandler is a Handler or MessageHandler that determines the protocols offered over TLS.
type ALPNHandler interface {
	// NextProtos is called when the server starts, for each TLSConfig with its NextProtos, and
	// returns the protocols to use. It must not change the slice. Configurations returned by
	// GetConfigForClient are not adjusted.
	NextProtos(configured []string) []string
}

// DialFailedHandler is a Handler or MessageHandler for Server.Dial that is told about failures.
type DialFailedHandler interface {
	// DialFailed is called instead of all other methods if no connection was made. It may run on
	// any goroutine, also on an event loop, so it must not block. d is the argument of Dial; it
	// can be passed to Server.Dial again. err is ErrDialTimeout, ErrFull (Limits.MaxConns
	// connections are open), ErrServerClosed, a *net.DNSError, or a syscall.Errno such as
	// ECONNREFUSED.
	DialFailed(d Dial, err error)
}

// DrainingHandler is a Handler or MessageHandler that is told when the server begins to shut
// down.
type DrainingHandler interface {
	// Draining is called once for each connection when the server begins to shut down. The
	// connection closes after its current message has been handled and its output sent. What
	// Draining writes, such as a farewell message of the protocol, is sent before that. It may
	// also call Close.
	Draining(c *Conn)
}

// ShedHandler is a Handler that rejects input for which no worker of Server.Workers is available,
// because the pool is full or has shed the connection. With other handlers such a connection
// waits, and is not read from meanwhile. Nothing is shed without Workers or in the goroutine
// model.
//
// A Handler whose Shed has the signature of MessageShedHandler, or vice versa, would never shed;
// the server fails to start with ErrBadConfig. To hide an unrelated Shed method, use struct{
// Handler }{h}.
type ShedHandler interface {
	// Shed is called instead of Received, under the same rules: it rejects the input as the
	// protocol requires, or closes the connection. It runs on the event loop and must not block.
	// why matches ErrOverloaded and either pool.ErrFull or pool.ErrShed with errors.Is. Only
	// input is shed; if another call is also due, the connection waits for a worker.
	Shed(c *Conn, in []byte, why error) (used int)
}

// MessageShedHandler is a MessageHandler that rejects messages under overload; see ShedHandler.
type MessageShedHandler interface {
	// Shed is called instead of Message, in the order of messages, as in ShedHandler.
	Shed(c *Conn, msg []byte, why error)
}

// newShedFunc returns the function with which h sheds input, or nil if h does not shed.
func newShedFunc(h Handler) func(c *engine.Conn, in []byte, why error) int {
	var shed func(c *Conn, in []byte, why error) int
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
	return func(c *engine.Conn, in []byte, why error) int { return shed((*Conn)(c), in, toOverloadError(why)) }
}

// checkShedSignature rejects a Shed method with the signature of the other interface.
func (s *Server) checkShedSignature() error {
	const text = "Server.Handler: %T has Shed as %s has it; expected that of %s, because it is a %s: %s"
	switch h := s.Handler.(type) {
	case *framer:
		if _, other := h.MessageHandler.(ShedHandler); other {
			return badConfig(text, h.MessageHandler, "ShedHandler", "MessageShedHandler", "MessageHandler",
				"Shed(c *tcp.Conn, msg []byte, why error)")
		}
	case MessageShedHandler:
		return badConfig(text, h, "MessageShedHandler", "ShedHandler", "Handler",
			"Shed(c *tcp.Conn, in []byte, why error) (used int)")
	}
	return nil
}

// errOverloadFull and errOverloadShed combine ErrOverloaded with the pool's reason. They are
// allocated once to keep shedding cheap.
var (
	errOverloadFull = fmt.Errorf("%w: %w", ErrOverloaded, pool.ErrFull)
	errOverloadShed = fmt.Errorf("%w: %w", ErrOverloaded, pool.ErrShed)
)

func toOverloadError(poolErr error) error {
	if errors.Is(poolErr, pool.ErrFull) {
		return errOverloadFull
	}
	return errOverloadShed
}

// StartHandler is a Handler or MessageHandler that is told which Server it serves.
type StartHandler interface {
	// Starting is called once, before s serves.
	Starting(s *Server)
}

// handlerAs returns h, or the MessageHandler that it frames, as the optional interface T.
func handlerAs[T any](h Handler) (t T, ok bool) {
	if f, is := h.(*framer); is {
		t, ok = f.MessageHandler.(T)
		return t, ok
	}
	t, ok = h.(T)
	return t, ok
}

// checkHandler reports why h can't be served. name is used in the error.
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

// handlerType returns the type of the user's handler for log messages.
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
	// ErrOutsideCall is returned by methods of a Conn that was kept and is used outside of a call
	// for it. The method has done nothing. Use its Ref instead.
	ErrOutsideCall = engine.ErrOutsideCall
	// ErrFull is returned by methods of Ref if a buffer is full: the connection already has
	// Limits.MaxUnsent bytes posted, or its loop's mailbox is full (Limits.MaxMail,
	// Limits.MaxMailBytes). Nothing was accepted; a later call may succeed.
	ErrFull = engine.ErrFull
	// ErrTooLarge is returned for a single Write or Send of more than Limits.MaxUnsent bytes.
	// Nothing was accepted, and a later call will fail, too.
	ErrTooLarge = engine.ErrTooLarge
	// ErrMessageTooLong closes a connection with a message longer than Limits.MaxMessage. Answers
	// to earlier messages are sent.
	ErrMessageTooLong = engine.ErrMessageTooLong
	// ErrSlowConsumer closes a connection when more than Limits.MaxUnsent bytes would wait for
	// its peer; see Server.SlowConsumer.
	ErrSlowConsumer = engine.ErrSlowConsumer
	// ErrShortFile is returned by Conn.SendFile if the file is too short. It closes a connection
	// if a file turns out to be too short while it is sent.
	ErrShortFile = engine.ErrShortFile
	// These close a connection whose peer exceeded a time limit: Limits.CloseTimeout,
	// FirstByteTimeout and so on.
	ErrCloseTimeout     = engine.ErrCloseTimeout
	ErrFirstByteTimeout = engine.ErrFirstByteTimeout
	ErrMessageTimeout   = engine.ErrMessageTimeout
	ErrIdleTimeout      = engine.ErrIdleTimeout
	ErrWriteTimeout     = engine.ErrWriteTimeout
	// ErrHeartbeatTimeout closes a connection whose peer did not answer Heartbeat.MaxMissed
	// heartbeats.
	ErrHeartbeatTimeout = engine.ErrHeartbeatTimeout
	// ErrDeadline closes a connection after its Conn.SetDeadline has passed.
	ErrDeadline = engine.ErrDeadline
	// ErrDetached is the reason of connections that were removed by Conn.Detach. They are counted
	// in Stats.Closed.Handler.
	ErrDetached = engine.ErrDetached
	// ErrHandedOver is the reason of connections that continue in another process; see
	// Server.Upgrade. They are counted in Stats.HandedOver, not in Stats.Closed.
	ErrHandedOver = engine.ErrHandedOver
	// ErrClearInput closes a connection with further unencrypted input when StartTLS was called.
	ErrClearInput = engine.ErrClearInput
	// ErrHandshakeTimeout closes a connection whose StartTLS exceeded Limits.HandshakeTimeout.
	ErrHandshakeTimeout = engine.ErrHandshakeTimeout
	// ErrShard is returned by Conn.Detach if the connection's event loop has its own descriptor
	// table; see Server.Loops.
	ErrShard = engine.ErrShard
	// ErrDialTimeout reports that a connection was not made within Dial.Timeout.
	ErrDialTimeout = engine.ErrDialTimeout
	// ErrOverBudget closes connections with the largest buffers when all buffers together exceed
	// Limits.MaxBuffered.
	ErrOverBudget = engine.ErrOverBudget
	// ErrTooManyConns, ErrTooManyFromSource and ErrDenied are passed to Server.Refuse for
	// rejected connections.
	ErrTooManyConns      = engine.ErrTooManyConns
	ErrTooManyFromSource = engine.ErrRefusedSource
	ErrDenied            = engine.ErrDenied
	// ErrOverloaded is passed to Shed when no worker is available for a connection's input.
	ErrOverloaded = errors.New("myriad: overloaded")
	// ErrClosedByOperator is the reason of connections closed by Server.CloseConns.
	ErrClosedByOperator = engine.ErrClosedByOperator
	// ErrWorkersClosed closes connections of a server whose pool (Server.Workers) was closed
	// before the server had ended.
	ErrWorkersClosed = engine.ErrPoolClosed
	// ErrServerClosed is the reason of connections that a shutdown closes. Methods of Server
	// return it before the start or after a shutdown.
	ErrServerClosed = engine.ErrServerClosed
	// ErrBadConfig is wrapped by errors about invalid fields of a Server, Dial or other
	// configuration.
	ErrBadConfig = errors.New("bad configuration")
	// ErrGoexit is the Value of the PanicError of a handler that called runtime.Goexit.
	ErrGoexit = engine.ErrGoexit
	// ErrBadUse is returned by methods that are called in a wrong state. It closes a connection
	// whose Received returned a number outside of 0..len(in), which is logged.
	ErrBadUse = engine.ErrBadUse
)

// badConfig returns an error that wraps ErrBadConfig.
func badConfig(format string, args ...any) error {
	return &kindError{fmt.Errorf("myriad: "+format, args...), ErrBadConfig}
}

// badUse returns an error that wraps ErrBadUse.
func badUse(format string, args ...any) error {
	return &kindError{fmt.Errorf("myriad: "+format, args...), ErrBadUse}
}

// kindError wraps kind without repeating its text.
type kindError struct {
	error
	kind error
}

func (e *kindError) Unwrap() []error { return []error{e.kind, e.error} }

// PanicError is the reason of a connection whose handler panicked. It contains the panic's value
// and stack.
type PanicError = engine.PanicError

// TLSError is the reason of a connection whose TLS failed after the handshake, by an invalid
// record or message or an alert of the peer. It wraps the error of crypto/tls: a *net.OpError (Op
// is "remote error" for an alert), a tls.RecordHeaderError, or another.
type TLSError = engine.TLSError

// handlerAdapter adapts a Handler to the engine's interface.
type handlerAdapter struct{ h Handler }

// HandlerType returns the type of the handler for the engine's log messages.
func (a handlerAdapter) HandlerType() string { return handlerType(a.h) }

func (a handlerAdapter) Opened(c *engine.Conn) { a.h.Opened((*Conn)(c)) }

func (a handlerAdapter) Received(c *engine.Conn, in []byte) int { return a.h.Received((*Conn)(c), in) }

func (a handlerAdapter) Ended(c *engine.Conn, rest []byte) int { return a.h.Ended((*Conn)(c), rest) }

func (a handlerAdapter) Closed(c *engine.Conn, why error) { a.h.Closed((*Conn)(c), why) }

func (a handlerAdapter) Secured(c *engine.Conn) {
	if h, ok := handlerAs[SecuredHandler](a.h); ok {
		h.Secured((*Conn)(c))
	}
}
