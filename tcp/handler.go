package tcp

import (
	"errors"
	"fmt"

	"github.com/myriad-go/myriad/internal/engine"
	"github.com/myriad-go/myriad/pool"
)

// Handler is the user's code: what happens on each connection. The calls for one connection
// come one at a time, in order: Opened once, Received any number of times, Closed once.
// Calls for different connections may come at the same time.
//
// Under a model with event loops a call that blocks holds up all connections of its loop,
// unless Server.Workers is set. A panic in a call closes that connection alone, with a
// *[PanicError] as the reason; it is logged with its stack and counted in Stats.Panics. So does
// runtime.Goexit, as testing.T.FailNow calls it, with [ErrGoexit] as the PanicError's Value.
type Handler interface {
	// Opened is the first call for a connection: it is established. What is written here
	// is sent without waiting for the peer.
	Opened(c *Conn)

	// Received offers input. in is valid during the call only, and must not be changed.
	// Received returns how many bytes of it are used; what is not used comes again with
	// more behind it, and at once if some of it was used. A connection that leaves
	// Limits.MaxMessage bytes or more unused is closed with ErrMessageTooLong.
	Received(c *Conn, in []byte) (used int)

	// Ended says that the peer will send no more; rest is the input that is unused.
	// Answers can still be written. Ended returns how many bytes of rest are used; what is
	// not used is lost, unless the connection is Paused: then it comes again when output
	// has been sent. The connection closes when everything is sent, what Refs had posted
	// included; the peer must take it within Limits.CloseTimeout. Under the goroutine model
	// the end is noticed when output is no longer blocked.
	Ended(c *Conn, rest []byte) (used int)

	// Closed is the last call for a connection. The reason is
	//
	//	nil                  Close was called and everything was sent
	//	the given one        CloseWith was called and everything was sent
	//	io.EOF               the peer ended in order, and has got its answers
	//	syscall.ECONNRESET   the peer has gone, whichever call returned it
	//	*PanicError          a call for this connection panicked
	//	*TLSError            the peer broke TLS, or said in an alert that this
	//	                     side did; Stats.Closed.TLS counts it
	//	ErrMessageTooLong, ErrSlowConsumer, ErrOverBudget,
	//	ErrFirstByteTimeout, ErrMessageTimeout, ErrIdleTimeout,
	//	ErrWriteTimeout, ErrHeartbeatTimeout, ErrCloseTimeout,
	//	ErrServerClosed, ErrWorkersClosed, ErrClosedByOperator,
	//	ErrShortFile, ErrBadUse  as they say
	//	io.ErrUnexpectedEOF  the peer ended within a message (LengthPrefixed),
	//	                     or it ended its transport without TLS's
	//	                     close_notify, so that its last words may be
	//	                     missing: then Ended is not called, what is owed
	//	                     is sent, and Stats.Closed.Peer counts it
	//	what a bufio.SplitFunc returned, or its misuse (Split)
	//
	// or another error of the operating system, as a syscall.Errno.
	Closed(c *Conn, why error)
}

// WritableHandler is a Handler, or a MessageHandler, that wants to know when a
// slow peer has caught up.
type WritableHandler interface {
	// Writable is called when output that had been more than
	// Limits.HighWater bytes has come down to Limits.LowWater.
	Writable(c *Conn)
}

// TimerHandler is a Handler, or a MessageHandler, that uses Conn.SetTimer.
type TimerHandler interface {
	// Timer is called once when the time of Conn.SetTimer has passed, on the event
	// loop also with Server.Workers: it must be quick.
	Timer(c *Conn)
}

// SecuredHandler is a Handler, or a MessageHandler, that uses Conn.StartTLS.
type SecuredHandler interface {
	// Secured is called when the handshake of StartTLS is over, before any input, on the
	// event loop also with Server.Workers: it must be quick.
	Secured(c *Conn)
}

// ALPNHandler is a Handler, or a MessageHandler, that knows which protocols it speaks
// over TLS.
type ALPNHandler interface {
	// NextProtos is called when the server starts, for each TLSConfig with its NextProtos,
	// and gives those to use. It does not change the slice. A configuration that
	// GetConfigForClient returns is used as it is.
	NextProtos(configured []string) []string
}

// DialFailedHandler is a Handler, or a MessageHandler, of Server.Dial that wants to know
// of connections that were not made.
type DialFailedHandler interface {
	// DialFailed is called instead of all other calls, on any goroutine, and must be
	// quick: an event loop may wait for it. d is what Dial was given: its Addr, and its
	// Value; Server.Dial takes it again. err is ErrDialTimeout, ErrFull (as many
	// connections as Limits.MaxConns are open), ErrServerClosed, a *net.DNSError, or a
	// syscall.Errno such as ECONNREFUSED.
	DialFailed(d Dial, err error)
}

// DrainingHandler is a Handler, or a MessageHandler, that wants to know when the
// server begins to shut down.
type DrainingHandler interface {
	// Draining is called once for each connection: it will be closed when its
	// message at hand is done and its output sent. What is written here is
	// sent before that, such as the goodbye of a protocol; Close, too, can be
	// called.
	Draining(c *Conn)
}

// ShedHandler is a Handler that says what is to become of input that no worker of
// Server.Workers will look at, because the pool has no room for its connection or has shed
// it. For other handlers such a connection waits for its turn, and is not read from
// meanwhile. Nothing is shed without Workers, nor under the goroutine model.
//
// A Handler that has Shed as a MessageShedHandler has it, or the other way round, would
// never shed: its server fails to start with ErrBadConfig. A Shed that is none of the
// server's business is hidden by struct{ Handler }{h}.
type ShedHandler interface {
	// Shed is called instead of Received, by the same rules, with the input that it would
	// have got: it answers in the way of its protocol that there is no room, or closes. It
	// runs on the event loop, so it must be quick. To errors.Is, why is ErrOverloaded, and
	// also pool.ErrFull or pool.ErrShed. Only input is shed: where another call is due,
	// even beside input, the connection waits for a worker.
	Shed(c *Conn, in []byte, why error) (used int)
}

// MessageShedHandler is a MessageHandler that does so for messages.
type MessageShedHandler interface {
	// Shed is called instead of Message, in its turn among the messages, as
	// ShedHandler has it.
	Shed(c *Conn, msg []byte, why error)
}

// shedder is how a handler sheds, nil if it does not.
func shedder(h Handler) func(c *engine.Conn, in []byte, why error) int {
	var shed func(c *Conn, in []byte, why error) int
	switch h := h.(type) {
	case *framer:
		if h.shed != nil {
			shed = h.receive
		}
	case ShedHandler:
		shed = h.Shed
	}
	if shed == nil {
		return nil
	}
	return func(c *engine.Conn, in []byte, why error) int { return shed((*Conn)(c), in, overload(why)) }
}

// checkShed finds a Shed that would never be called, because it is the other kind's.
func (s *Server) checkShed() error {
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

// errOverloadFull and errOverloadShed are ErrOverloaded with what the pool says, made once:
// shedding is to be cheap.
var (
	errOverloadFull = fmt.Errorf("%w: %w", ErrOverloaded, pool.ErrFull)
	errOverloadShed = fmt.Errorf("%w: %w", ErrOverloaded, pool.ErrShed)
)

func overload(why error) error {
	if errors.Is(why, pool.ErrFull) {
		return errOverloadFull
	}
	return errOverloadShed
}

// StartHandler is a Handler, or a MessageHandler, that wants to know which Server serves it.
type StartHandler interface {
	// Starting is called once, before s serves.
	Starting(s *Server)
}

// extension gives what a handler does beyond a Handler, nil if it does not.
func extension[T any](h Handler) (t T, ok bool) {
	if f, is := h.(*framer); is {
		t, ok = f.MessageHandler.(T)
		return t, ok
	}
	t, ok = h.(T)
	return t, ok
}

// checkHandler reports what is wrong with a handler that can't be served. what names it.
func checkHandler(what string, h Handler) error {
	switch h := h.(type) {
	case nil:
		return badConfig("%s is nil; expected what to do with connections", what)
	case *framer:
		switch f, isFunc := h.MessageHandler.(MessageFunc); {
		case h.MessageHandler == nil, isFunc && f == nil:
			return badConfig("%s: the MessageHandler of Lines or Split is nil; expected what to do with messages", what)
		case !h.lines && h.split == nil:
			return badConfig("%s: the SplitFunc of Split is nil; expected one such as bufio.ScanWords", what)
		}
	case *Blocking:
		return h.check(what)
	case *NetListener:
		if h == nil || h.come.L == nil {
			return badConfig("%s is a NetListener that was not made; expected that of NewNetListener", what)
		}
	}
	return nil
}

// handlerType names the type of a handler as its author knows it.
func handlerType(h Handler) string {
	if f, ok := h.(*framer); ok {
		return fmt.Sprintf("%T", f.MessageHandler)
	}
	return fmt.Sprintf("%T", h)
}

// Base is a Handler that does nothing: it reads and throws away. Embed it to
// write only the methods that matter.
type Base struct{}

func (Base) Opened(*Conn) {}

func (Base) Received(_ *Conn, in []byte) int { return len(in) }

func (Base) Ended(_ *Conn, rest []byte) int { return len(rest) }

func (Base) Closed(*Conn, error) {}

// The reasons and errors of this side. All are compared with errors.Is.
var (
	// ErrClosed answers calls for a connection that is closing or closed.
	ErrClosed = engine.ErrClosed
	// ErrOutsideCall answers the methods of a Conn that was kept for later and is used when
	// its handler is not being called for it: nothing has been done. Its Ref is for that.
	ErrOutsideCall = engine.ErrOutsideCall
	// ErrFull is Ref's answer when there is no room: the connection already has
	// Limits.MaxUnsent posted bytes to send, or its loop's mailbox is full (Limits.MaxMail,
	// Limits.MaxMailBytes). Nothing was accepted; later there may be room.
	ErrFull = engine.ErrFull
	// ErrTooLarge answers a single Write or Send of more than Limits.MaxUnsent bytes.
	// Nothing was accepted, and never will be.
	ErrTooLarge = engine.ErrTooLarge
	// ErrMessageTooLong closes a connection whose message is longer than Limits.MaxMessage.
	// Answers to earlier messages are sent.
	ErrMessageTooLong = engine.ErrMessageTooLong
	// ErrSlowConsumer closes a connection whose handler writes more than Limits.MaxUnsent
	// bytes that the peer does not take; see Server.SlowConsumer.
	ErrSlowConsumer = engine.ErrSlowConsumer
	// ErrShortFile closes a connection when a file of Conn.SendFile turns out to be shorter
	// than it was, and answers SendFile if it is too short already.
	ErrShortFile = engine.ErrShortFile
	// These close connections whose peers have let a time of Limits pass: CloseTimeout,
	// FirstByteTimeout and so on.
	ErrCloseTimeout     = engine.ErrCloseTimeout
	ErrFirstByteTimeout = engine.ErrFirstByteTimeout
	ErrMessageTimeout   = engine.ErrMessageTimeout
	ErrIdleTimeout      = engine.ErrIdleTimeout
	ErrWriteTimeout     = engine.ErrWriteTimeout
	// ErrHeartbeatTimeout closes a connection whose peer has left Heartbeat.MaxMissed
	// heartbeats unanswered.
	ErrHeartbeatTimeout = engine.ErrHeartbeatTimeout
	// ErrDeadline closes a connection whose Conn.SetDeadline has passed.
	ErrDeadline = engine.ErrDeadline
	// ErrDetached is the reason of connections that Conn.Detach has given up. They are
	// counted in Stats.Closed.Handler.
	ErrDetached = engine.ErrDetached
	// ErrHandedOver is the reason of connections that live on in another process: see
	// Server.Upgrade. They are counted in Stats.HandedOver, and not in Stats.Closed.
	ErrHandedOver = engine.ErrHandedOver
	// ErrClearInput closes a connection that had sent more in clear when StartTLS was called.
	ErrClearInput = engine.ErrClearInput
	// ErrHandshakeTimeout closes a connection whose StartTLS took longer than
	// Limits.HandshakeTimeout.
	ErrHandshakeTimeout = engine.ErrHandshakeTimeout
	// ErrShard answers Conn.Detach of a connection whose event loop has a descriptor table
	// of its own; see Server.Loops.
	ErrShard = engine.ErrShard
	// ErrDialTimeout says that no connection was made within Dial.Timeout.
	ErrDialTimeout = engine.ErrDialTimeout
	// ErrOverBudget closes a connection that has one of the largest buffers when all
	// buffers hold more than Limits.MaxBuffered.
	ErrOverBudget = engine.ErrOverBudget
	// ErrTooManyConns, ErrTooManyFromSource and ErrDenied are what Server.Refuse gets
	// connections that are turned away.
	ErrTooManyConns      = engine.ErrTooManyConns
	ErrTooManyFromSource = engine.ErrRefusedSource
	ErrDenied            = engine.ErrDenied
	// ErrOverloaded is what a ShedHandler gets: no worker has time for a connection's input.
	ErrOverloaded = errors.New("myriad: overloaded")
	// ErrClosedByOperator is the reason of connections that Server.CloseConns has closed.
	ErrClosedByOperator = engine.ErrClosedByOperator
	// ErrWorkersClosed closes connections of a server whose pool (Server.Workers) was closed
	// before it had ended.
	ErrWorkersClosed = engine.ErrPoolClosed
	// ErrServerClosed is the reason of connections that the server closes because it is
	// shutting down, and the answer of a Server that has been shut down.
	ErrServerClosed = engine.ErrServerClosed
	// ErrBadConfig is wrapped by the error of a Server whose fields can't be served with.
	ErrBadConfig = errors.New("bad configuration")
	// ErrGoexit is the Value of the PanicError of a handler that called runtime.Goexit.
	ErrGoexit = engine.ErrGoexit
	// ErrBadUse closes a connection whose Received returned a number outside of 0..len(in),
	// which is logged.
	ErrBadUse = engine.ErrBadUse
)

// badConfig makes an error that wraps ErrBadConfig, badUse one that wraps ErrBadUse.
func badConfig(format string, args ...any) error {
	return &kindError{fmt.Errorf("myriad: "+format, args...), ErrBadConfig}
}

func badUse(format string, args ...any) error {
	return &kindError{fmt.Errorf("myriad: "+format, args...), ErrBadUse}
}

// kindError is of a kind, and reads as its text alone.
type kindError struct {
	error
	kind error
}

func (e *kindError) Unwrap() []error { return []error{e.kind, e.error} }

// PanicError is the reason of a connection whose handler panicked, with the
// panic's value and stack.
type PanicError = engine.PanicError

// TLSError is the reason of a connection whose TLS has broken after the handshake, by a
// wrong record or message, or by the peer's alert. It wraps the error of crypto/tls: a
// *net.OpError (Op is "remote error" for an alert), a tls.RecordHeaderError, or another.
type TLSError = engine.TLSError

// adapter is a Handler as the engines know it.
type adapter struct{ h Handler }

// HandlerType names the handler in the engine's log.
func (a adapter) HandlerType() string { return handlerType(a.h) }

func (a adapter) Opened(c *engine.Conn) { a.h.Opened((*Conn)(c)) }

func (a adapter) Received(c *engine.Conn, in []byte) int { return a.h.Received((*Conn)(c), in) }

func (a adapter) Ended(c *engine.Conn, rest []byte) int { return a.h.Ended((*Conn)(c), rest) }

func (a adapter) Closed(c *engine.Conn, why error) { a.h.Closed((*Conn)(c), why) }

func (a adapter) Secured(c *engine.Conn) {
	if h, ok := extension[SecuredHandler](a.h); ok {
		h.Secured((*Conn)(c))
	}
}
