// Package engine defines what an I/O model must do, and contains the connection state machine and
// the parts that the models share.
//
// # What a model must supply
//
// A model is a subpackage with a driver. The driver turns what its kernel interface reports into
// events of a [Conn], calls [Conn.NextAction], and performs the action:
//
//	event                      means
//	Conn.OnDialling            connecting has started; OnOpen follows, or nothing
//	Conn.OnOpen                the connection is established (accepted or dialled)
//	Conn.OnRead(bytes)         bytes have been received
//	Conn.OnEOF                 the peer will send no more
//	Conn.OnSent(n)             the kernel took n bytes of Output, or of NextFilePart
//	Conn.OnSendStarted         the kernel owns Output; OnSent and OnWritable will follow
//	Conn.OnWritable            the kernel takes output again
//	Conn.CloseIfTimedOutAfterEmptyRead           a Read has found nothing, or has emptied the socket
//	Conn.OnTransportError(err) the transport is broken
//	Conn.HandleOrDeferRequest(req, bytes) a request from another goroutine, taken from the mailbox
//	Conn.CallNudgedIfOpen               a scheduled time has come; see Scheduler
//	Conn.StartDrain            close at the next idle moment (shutdown)
//	Conn.CheckTimeouts(now)    time has passed
//	Conn.OnDetached(nc, err)   the connection has become a net.Conn, or could not
//	Conn.OnClosed              the descriptor has been closed
//
//	action                     asks for
//	Send                       send Output, report OnSent (and OnTransportError)
//	SendFile                   send NextFilePart, report OnSent; or call Conn.LoadFilePieceIntoOutput
//	MakeDueHandlerCalls                call Conn.MakeDueHandlerCalls with buffered input
//	Read                       read once without blocking, report OnRead, OnEOF,
//	                           OnTransportError or CloseIfTimedOutAfterEmptyRead
//	ShutWrite                  shut the sending direction, report OnWriteShut
//	DetachOrExport             once the kernel has no operation under way, convert to a
//	                           net.Conn and report OnDetached; or report OnKernelIdleForExport if
//	                           IsExporting
//	Close                      close the descriptor, report OnClosed
//	Wait                       nothing; wait for the next event
//
// Between events, WantsInput reports whether to read and WantsWritable whether to watch for
// writability. After each event a driver repeats NextAction until it returns Wait or the connection
// is closed.
//
// # What a model must guarantee
//
//   - A Conn has one owner at a time, a loop or a goroutine. Only the owner
//     calls its methods. Other goroutines use a Ref.
//   - Input reaches the handler in order, and never after OnClosed.
//   - Output is sent in the order it was written, once per turn, after the handler
//     has returned for all the input at hand. Only a long write may be sent
//     immediately, along with the output before it; see Runtime.SendDirect.
//   - Requests that [Mailbox.Put] has accepted are given to HandleOrDeferRequest in order, and
//     before a connection is closed because its peer has.
//   - A loop blocks only in its wait for events. That wait ends when requests
//     arrive and when Config.Scheduler is due.
//   - A peer is treated as silent, or as idle enough to close in a shutdown, only
//     after a Read has found nothing: bytes in the kernel's buffer count as sent.
//   - Every wait is bounded: a closing connection expires at ExpiresAt.
//   - Stop returns once all connections are closed and every goroutine and
//     descriptor of the model is gone.
//   - If accept runs out of descriptors, the model keeps serving its connections
//     and accepts again when some are free, without spinning.
//
// Package enginetest tests these guarantees.
//
// # Connection states
//
//	         OnOpen         OnEOF, CloseWith, StartDrain, error
//	(free) ───────▶ open ───────────────────────────────▶ closing
//	   ▲                                                     │ all output sent
//	   │ OnClosed                                            ▼
//	   └───────── closed ◀── EOF, expiry, error ──────── shut (lingering)
//
// While open, reading pauses when more than Limits.HighWater bytes are unsent. A shut connection
// still reads and discards input until the peer closes: closing a socket with unread input makes
// the kernel send a reset, which can destroy answers that the peer has not read yet.
package engine

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"time"

	"github.com/myriad-go/myriad/internal/sock"
)

// Handler receives the events of connections, on their owner.
type Handler interface {
	// Opened is the first call for a connection.
	Opened(c *Conn)
	// Received passes input. Bytes that it does not use are passed again with more appended, and
	// immediately if it used some.
	Received(c *Conn, in []byte) (used int)
	// Ended reports that the peer will send no more; in is the unused input. What it does not use
	// is passed again if the connection is paused, and is lost otherwise.
	Ended(c *Conn, in []byte) (used int)
	// Closed is the last call for a connection.
	Closed(c *Conn, why error)
}

// DialFailer is a Handler that is told of failed connection attempts.
type DialFailer interface {
	// DialFailed may be called on any goroutine.
	DialFailed(err error)
}

// Nudger is a Handler that Ref.Nudge can call on a connection's owner.
type Nudger interface {
	Nudged(c *Conn)
}

// Limits are the limits that the core and the models enforce. Callers of Start fill in the
// defaults.
type Limits struct {
	MaxConns            int
	MaxMessage          int
	MaxUnsent           int
	HighWater, LowWater int // 0 means half and a quarter of MaxUnsent
	MaxBuffered         int // 0 means no limit
	MaxMail             int
	MaxMailBytes        int
	CloseTimeout        time.Duration
	Linger              time.Duration
	ShutdownRate        int // 0 means no limit
	// In these, 0 means no limit.
	HandshakeTimeout time.Duration
	FirstByteTimeout time.Duration
	MessageTimeout   time.Duration
	IdleTimeout      time.Duration
	WriteTimeout     time.Duration
	SlowHandlerTime  time.Duration
}

// Config configures a model.
type Config struct {
	// Network and Addr are the address to listen on, as for net.Listen. Without an Addr and
	// Listeners the engine only dials.
	Network, Addr string
	// Listeners, if not empty, replace Network and Addr. There are at most MaxListeners.
	Listeners []Listener
	Handler   Handler
	Limits    Limits
	// Admission limits who may connect, in addition to Limits.MaxConns.
	Admission AdmissionRules
	// RefusalReply, if set, returns the bytes to send to a connection that is not admitted. It is
	// called on any goroutine.
	RefusalReply func(peer netip.AddrPort, why error) (answer []byte)
	// IsProxy, if set, reports whether a peer at a listener is a proxy whose connections announce
	// their client in a layer.
	IsProxy func(listener int, a netip.Addr) bool
	// NewLayer, if set, returns the first layer of a new connection, or nil. It is called on the
	// connection's owner.
	NewLayer  func(c *Conn) Layer
	Heartbeat Heartbeat
	// DropMessages drops messages that exceed a slow peer's output limit, instead of the
	// connection.
	DropMessages bool
	// Drained and Draining, if set, are called when a connection's output has fallen to LowWater,
	// and when a drain begins.
	Drained, Draining func(c *Conn)
	// Timer, if set, is called when a connection's timer fires.
	Timer func(c *Conn)
	// Save appends the handler's state of a connection to a buffer, and Restore reads it in another
	// process. Without them connections that have a value are not exported.
	Save    func(c *Conn, to []byte) ([]byte, error)
	Restore func(c *Conn, state []byte) error
	// SaveConnHandler and RestoreConnHandler do the same for connections with a ConnHandler, which
	// RestoreConnHandler sets. Without them those are not exported.
	SaveConnHandler    func(c *Conn, to []byte) ([]byte, error)
	RestoreConnHandler func(c *Conn, state []byte) error
	// Server is returned by Conn.Server.
	Server any
	// Shed, if set, is called on the loop instead of Received for input that the Pool has no space
	// for or has shed. Without it the connection waits for space and is not read.
	Shed func(c *Conn, in []byte, why error) (used int)
	// Loops is the number of loops, at least 1. Models without loops ignore it.
	Loops int
	// StartPaused starts the engine with accepting paused and its listeners shared; see
	// Engine.PauseAccept and Migrator.SetListenersShared.
	StartPaused bool
	// MaxConnsPerShard, if positive, gives each loop its own descriptor table and limits its
	// connections. All loops together must have space for Limits.MaxConns.
	MaxConnsPerShard int
	// Spin is how long an idle loop busy-polls before it blocks.
	Spin time.Duration
	// Pool, if set, runs the handlers in models with loops. It should outlive the engine. If it is
	// closed earlier, connections are closed with ErrPoolClosed at their next event, and the loop
	// calls Handler.Closed.
	Pool Pool
	// AutoWorkers runs handlers on the loops at first, and moves those that block a loop to the
	// Pool and back. Without it the Pool runs all handlers.
	AutoWorkers bool
	// ResetDialled closes dialled connections with a reset, which avoids TIME_WAIT.
	ResetDialled bool
	// IgnoreHighWater keeps reading while more than HighWater bytes are unsent, for handlers that
	// do not answer what they read.
	IgnoreHighWater bool
	// Socket has the options of dialled sockets.
	Socket Socket
	// Scheduler, if set, calls handlers at times that it plans itself.
	Scheduler Scheduler
	Log       *slog.Logger
}

// Scheduler nudges connections at planned times without using their mailboxes. Each loop calls it
// once a turn; models without loops call it with loop -1 on its own goroutine, until the engine has
// ended. now is MonotonicNow. It returns when to call it next: the engine calls it by then or as
// soon as possible after, possibly earlier; a time in the past keeps the loop from blocking. A
// negative time means on any turn, and without loops every MaxSchedulerDelay.
//
// nudge calls the handler's Nudged for a connection: immediately if the loop owns it, otherwise by
// a request. It has no effect on a connection that has begun to close. It returns false if the
// mailbox is full; try again in a later call. A loop may call handlers of connections nudged
// earlier from within nudge or after the Scheduler has returned, so Scheduler and handler must
// tolerate nesting. A long call blocks the loop. Panics in a Scheduler are not recovered.
type Scheduler func(loop int, now time.Duration, nudge func(Ref) (ok bool)) (next time.Duration)

// ConnVisitor is an Engine that can run a function on all connections.
type ConnVisitor interface {
	// PostToAllConns posts a request to run s.Do on the owner of each open connection whose Opened has
	// been called or is due. It calls beforePost before each post; either s.Do or s.OnLost follows.
	// done is called after the last beforePost, with the number of connections whose mailbox was
	// full. PostToAllConns does not block.
	PostToAllConns(s *Shared, beforePost func(), done func(full int)) error
}

// MaxSchedulerDelay and MinSchedulerDelay bound the time between two calls of a Scheduler in a
// model without loops.
const (
	MaxSchedulerDelay = 10 * time.Millisecond
	MinSchedulerDelay = 50 * time.Microsecond
)

// Socket has socket options.
type Socket struct {
	// SendBuffer and ReceiveBuffer are SO_SNDBUF and SO_RCVBUF in bytes; 0 leaves them to the
	// kernel.
	SendBuffer, ReceiveBuffer int
	// Unsent is TCP_NOTSENT_LOWAT in bytes; 0 leaves it to the kernel.
	Unsent int
	// Delay leaves TCP_NODELAY off.
	Delay bool
}

// AdmissionRules limit who may connect.
type AdmissionRules struct {
	// MaxPerSource limits the connections per source address, or for IPv6 per prefix of
	// SourcePrefix bits; 0 means no limit.
	MaxPerSource, SourcePrefix int
	// Rate limits the accepts per second; 0 means no limit.
	Rate int
	// Addresses in Deny are refused, then those outside of Allow, unless it is empty.
	Allow, Deny []netip.Prefix
}

// DialRequest asks for outgoing connections.
type DialRequest struct {
	Target netip.AddrPort
	// Path, if set instead of Target, is the path of a unix stream socket, or on Linux its abstract
	// name after an @. An attempt fails with EAGAIN if the listener's queue is full.
	Path string
	// Source is the local address; the zero value leaves the choice to the kernel. It must be zero
	// with a Path.
	Source netip.Addr
	// Count is the number of connections.
	Count int
	// Handler, if set, handles the connection; Count must be 1. It is told of a failure instead of
	// a DialFailer.
	Handler ConnHandler
	// Timeout limits the attempt to connect; 0 leaves that to the model and the kernel.
	Timeout time.Duration
	// Loop, if positive, is 1 + the index of the preferred loop.
	Loop int
}

// SocketOptions returns the options of dialled sockets or of listeners.
func (c *Config) SocketOptions(forDialled bool) sock.Options {
	s := c.Socket
	return sock.Options{SendBuffer: s.SendBuffer, ReceiveBuffer: s.ReceiveBuffer, NotSentLowat: s.Unsent, Delay: s.Delay, ResetOnClose: forDialled && c.ResetDialled}
}

// NotifyDialFailed tells connHandler, or without one the engine's DialFailer, that connecting has
// failed.
func (rt *Runtime) NotifyDialFailed(connHandler ConnHandler, err error) {
	err = NormalizeError(err)
	returned := false
	defer rt.reportDialFailedGoexit(&returned)
	if connHandler != nil {
		connHandler.DialFailed(err)
	} else if f, ok := rt.Handler.(DialFailer); ok {
		f.DialFailed(err)
	}
	returned = true
}

// Validate returns an error that describes what is wrong with d.
func (d DialRequest) Validate() error {
	switch {
	case d.Count < 1:
		return fmt.Errorf("dial of %d connections; expected at least 1", d.Count)
	case d.Handler != nil && d.Count != 1:
		return fmt.Errorf("dial of %d connections with a handler for one; expected 1", d.Count)
	case d.Path == "" && !d.Target.IsValid():
		return fmt.Errorf("dial of %d connections to %q; expected a valid address or the path of a unix socket", d.Count, d.Target)
	case d.Path != "" && (d.Target.IsValid() || d.Source.IsValid()):
		return fmt.Errorf("dial of unix socket %q with target %q and source %q; expected only the path", d.Path, d.Target, d.Source)
	}
	return nil
}

// Engine is a running model. Its methods are safe for concurrent use.
type Engine interface {
	// Addr returns the address of the first listener, nil if the engine only dials.
	Addr() net.Addr
	// ListenerStats returns the listeners in order, with their counts.
	ListenerStats() []ListenerStats
	// Loops returns the number of loops, 0 for a model without loops.
	Loops() int
	// Dial starts connecting and returns at once. Each connection ends in Opened or DialFailed. It
	// fails with ErrFull if the mailbox is full and with ErrClosed after Stop. Requests are
	// distributed over the loops in turn.
	Dial(d DialRequest) error
	// Adopt takes over a net.Conn that has a descriptor and is not used otherwise, as if a listener
	// had accepted it: listener is its number, or -1 for the first one. alreadyRead was read from
	// it before. It fails with ErrFull if too many adoptions are queued, with ErrClosed
	// after Stop, and if the descriptor can't be taken. After an error, nc is unchanged.
	Adopt(nc net.Conn, listener int, alreadyRead []byte) error
	// Broadcast sends p to all open connections that have completed their handshake. It keeps one
	// copy and does not block. It fails with ErrFull if too many broadcasts or bytes are under way,
	// with ErrTooLarge for more than Limits.MaxUnsent, and with ErrClosed after Stop.
	Broadcast(p []byte) error
	// PauseAccept stops or resumes accepting; new connections then wait in the kernel's queues. It
	// returns at once: the counter AcceptPausedCount says how many loops have paused. After Stop it
	// returns ErrClosed or does nothing.
	PauseAccept(on bool) error
	// ClosePeerConns aborts the connections of a valid peer address with ErrClosedByOperator,
	// including those whose proxy at that address has announced another client. It returns before
	// that is done and does not report whether there were any. It fails with ErrFull if 16 calls
	// are under way, and with ErrClosed once the engine has ended.
	ClosePeerConns(peer netip.AddrPort) error
	// Stop stops accepting and dialling, lets connections finish what they have at hand, closes
	// them, and waits for everything to end. When ctx ends first, it aborts the rest and returns an
	// error with their number that wraps ctx's cause; if handlers do not return, it gives up when
	// no connection has closed for KillGrace. A concurrent Stop waits as well, and its ctx counts,
	// too.
	Stop(ctx context.Context) error
	// Wait returns once Stop has been called and everything has ended.
	Wait()
	// Counters returns the counters, summed over all loops.
	Counters() Counts
}

// Model describes an I/O model.
type Model struct {
	// Name is the model's name in the configuration.
	Name     string
	HasLoops bool
	// Available returns an error that explains why the model can't run on this machine, or nil.
	Available func() error
	// Start starts an engine that accepts connections when it returns.
	Start func(Config) (Engine, error)
}
