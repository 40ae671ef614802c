// Package engine defines what an I/O model must do, and contains the connection state machine and
// the parts that the models share.
//
// # What a model must supply
//
// A model is a subpackage with a driver. The driver turns what its kernel interface reports into
// events of a [Conn], calls [Conn.AdvanceToNextAction], and performs the action:
//
//	event                                          means
//	Conn.OnDialling                                connecting has started; OnOpen or ResetFailedDial follows
//	Conn.OnOpen                                    the connection is established (accepted or dialled)
//	Conn.OnRead(bytes)                             bytes have been received
//	Conn.OnEOF                                     the peer will send no more
//	Conn.OnSent(n)                                 the kernel took n bytes of Output, or of NextFilePartUnlessLayered
//	Conn.OnSendStarted                             the kernel owns Output; OnSent and OnWritable will follow
//	Conn.OnWritable                                the kernel takes output again
//	Conn.CloseIfTimedOutAfterEmptyRead             a Read has found nothing, or has emptied the socket
//	Conn.OnTransportError(err)                     the transport is broken
//	Conn.HandleOrDeferForPendingLayer(req, bytes)  a request from another goroutine, taken from the mailbox
//	Conn.CallNudgedIfOpen                          a scheduled time has come; see Scheduler
//	Conn.BeginShutdownDrain                        close at the next idle moment (shutdown)
//	Conn.CheckTimeouts(now)                        time has passed
//	Conn.CompleteDetachOrAbort(nc, err)            the connection has become a net.Conn, or could not
//	Conn.OnClosed                                  the descriptor has been closed
//
//	action          asks for
//	Send            send Output, report OnSent (and OnTransportError)
//	SendFile        send NextFilePartUnlessLayered, report OnSent; or call Conn.LoadFilePieceIntoOutput
//	FeedHandler     call Conn.MakeDeferredHandlerCalls with buffered input
//	Read            read once without blocking, report OnRead, OnEOF, OnTransportError or
//	                CloseIfTimedOutAfterEmptyRead
//	ShutWrite       shut the sending direction, report MarkWriteShutAndLingerIfClosing
//	DetachOrExport  once the kernel has no operation in progress, convert to a net.Conn and report
//	                CompleteDetachOrAbort; or report OnKernelIdleForExport if IsExporting
//	Close           close the descriptor, report OnClosed
//	Wait            nothing; wait for the next event
//
// Between events, WantsInput reports whether to read and WantsWritable whether to watch for writability. After each
// event a driver repeats AdvanceToNextAction until it returns Wait or the connection is closed.
//
// # What a model must guarantee
//
//   - A Conn has one owner at a time: a loop, a goroutine or a worker. Only the
//     owner calls the methods of the Conn. Other goroutines use a Ref.
//   - Input reaches the handler in order, and never after OnClosed.
//   - Output is sent in the order it was written, in one call after the handler has
//     returned for all available input. Only a long write may be sent
//     immediately, together with earlier output; see Runtime.SendDirect.
//   - Requests that [Mailbox.Put] has accepted are given to HandleOrDeferForPendingLayer in
//     order. If the peer closes, they are given before the connection is closed.
//   - A loop blocks only in its wait for events. That wait ends when requests
//     arrive and when Config.Scheduler is due.
//   - A peer counts as silent, and a connection as idle in a shutdown, only after a
//     Read has found nothing, because unread input may be in the kernel's buffer.
//   - Every wait is bounded: a closing connection expires at NextTimerDeadlineOrExpiry.
//   - Stop returns once all connections are closed and every goroutine and
//     descriptor of the model is gone.
//   - If accept runs out of descriptors, the model keeps serving its connections
//     and accepts again when some are free, without spinning.
//
// Package enginetest tests these guarantees.
//
// # Connection states
//
//	         OnOpen         OnEOF, CloseWith, BeginShutdownDrain, error
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
	"io"
	"log/slog"
	"math"
	"net"
	"net/netip"
	"time"

	"github.com/myriad-go/myriad/internal/overload"
	"github.com/myriad-go/myriad/internal/sock"
)

// Handler receives the events of connections. The methods are called by the connection's owner, which is a loop, a
// goroutine or a worker of Config.Pool.
type Handler interface {
	// Opened is the first call for a connection.
	Opened(c *Conn)
	// Received gets the unused input and returns the number of bytes used. The slice is valid only during the call. If
	// the number is positive and input remains, the engine calls Received again immediately. If the number is 0, the
	// engine waits for more input first.
	Received(c *Conn, in []byte) (used int)
	// Ended is called with the unused input when the peer will send no more. If Ended uses a part of it and the
	// connection is then paused, Ended is called again later with the rest. Otherwise unused bytes are lost.
	Ended(c *Conn, in []byte) (used int)
	Closed(c *Conn, reason error)
}

// DialFailer is an optional interface that a Handler may implement. The engine calls DialFailed after a failed
// connection attempt.
type DialFailer interface {
	// DialFailed may be called on any goroutine.
	DialFailed(err error)
}

// Nudger is an optional interface that a Handler may implement. After a call of Ref.Nudge, the connection's owner calls
// Nudged.
type Nudger interface {
	Nudged(c *Conn)
}

// Limits contains the limits of an engine and its connections. Sizes are in bytes. If HighWater is 0, Model.Start sets
// HighWater and LowWater. It sets no defaults for the other fields.
type Limits struct {
	MaxConns            int
	MaxMessage          int
	MaxUnsent           int
	HighWater, LowWater int // if HighWater is 0, HighWater is 1/2 and LowWater 1/4 of MaxUnsent
	MaxBuffered         int // 0 means no limit
	MaxMail             int
	MaxMailBytes        int
	CloseTimeout        time.Duration
	Linger              time.Duration
	ShutdownRate        int // connections per second that a stopping engine drains; 0 means no limit
	// ReadRate limits the input bytes per second of a connection, counted after layers have decoded them. MessageRate
	// limits its messages per second. 0 means no limit.
	ReadRate, MessageRate int
	// HandshakeTimeout limits the duration of a handshake. For this field and all fields below, 0 means no limit.
	HandshakeTimeout time.Duration
	FirstByteTimeout time.Duration
	MessageTimeout   time.Duration
	IdleTimeout      time.Duration
	WriteTimeout     time.Duration
	SlowHandlerTime  time.Duration
}

// Config configures an engine.
type Config struct {
	// Network and Addr are the listening address, as for net.Listen. Without Addr and Listeners the engine only dials.
	Network, Addr string
	// Listeners, if not empty, replace Network and Addr. At most MaxListeners are allowed.
	Listeners []Listener
	Handler   Handler
	Limits    Limits
	// Admission contains the rules that decide which clients may connect.
	Admission AdmissionRules
	// Overload, if set, manages overload. It decides which connections and requests are rejected.
	Overload *overload.Manager
	// RefusalReply, if set, returns the bytes to send to a rejected connection. It may be called on any goroutine.
	RefusalReply func(peer netip.AddrPort, reason error) (answer []byte)
	// IsProxy, if set, reports whether the address a belongs to a proxy. A proxy must announce its client's address at
	// the beginning of each connection. listener is the number of the listener that has accepted the connection.
	IsProxy func(listener int, a netip.Addr) bool
	// NewLayer, if set, returns the first layer of a new connection, or nil. The connection's owner calls it.
	NewLayer  func(c *Conn) Layer
	Heartbeat Heartbeat
	// DropMessages makes the engine drop a message that would make the connection's unsent output exceed
	// Limits.MaxUnsent. If DropMessages is false, the engine instead closes the connection with ErrSlowConsumer.
	DropMessages bool
	// WriteDelay is how long the engine may hold back broadcasts and small messages that goroutines send through a Ref.
	// After the delay, the engine can send several messages to a connection with a single write. The goroutine model
	// ignores WriteDelay.
	WriteDelay time.Duration
	// Missed, if set, is called after a connection has missed messages because its peer reads too slowly. n is the
	// number of messages missed since the previous call. The engine delays the call until at most Limits.LowWater bytes
	// of the connection's output are unsent.
	Missed func(c *Conn, n int64)
	// Drained, if set, is called when a connection's unsent output has fallen from above HighWater to LowWater.
	// Draining, if set, is called when a drain begins.
	Drained, Draining func(c *Conn)
	// Timer, if set, is called when a connection's timer fires.
	Timer func(c *Conn)
	// Save, if set, appends the handler's state of a connection to the given slice and returns the extended slice. When
	// the connection moves to another process, Restore gets this state there. If Save is nil, connections with a value
	// stay in this process; see Conn.SetValue.
	Save    func(c *Conn, to []byte) ([]byte, error)
	Restore func(c *Conn, state []byte) error
	// SaveState, if set, writes the part of the handler's state that belongs to no single connection. During an
	// upgrade, RestoreState reads this state in the new process.
	SaveState    func(w io.Writer) error
	RestoreState func(r io.Reader) error
	// RestoreLayer, if set, makes a layer from a state that MovableLayer.AppendState has returned, usually in another
	// process. If RestoreLayer is nil, connections with a layer stay in this process.
	RestoreLayer func(state []byte) (Layer, error)
	// SaveConnHandler and RestoreConnHandler have the roles of Save and Restore for connections with a ConnHandler.
	// RestoreConnHandler must also set the connection's ConnHandler. If SaveConnHandler is nil, connections with a
	// ConnHandler stay in this process.
	SaveConnHandler    func(c *Conn, to []byte) ([]byte, error)
	RestoreConnHandler func(c *Conn, state []byte) error
	// ListenerCallbacks, if not empty, contains the callbacks for the connections of each listener. Element i+1 is for
	// the connections of listener i. Element 0 is for connections without a listener, for example dialled connections.
	// Each element replaces these fields of this Config: Handler, Heartbeat.Send, Heartbeat.Message, Missed, Drained,
	// Draining, Timer, Shed, and the functions that save or restore the state of a connection's handler.
	ListenerCallbacks []*Config
	// PredecessorListeners contains this process's listener number for each listener of the previous process, or -1 for
	// a listener that no longer exists. Imported connections of such a listener are refused. If PredecessorListeners is
	// empty, both processes use the same numbers.
	PredecessorListeners []int
	Server               any
	// Shed, if set, is called on the loop instead of Received while the Pool is full or Overload rejects requests.
	// Without Shed, the connection is not read until the Pool has capacity.
	Shed func(c *Conn, in []byte, reason error) (used int)
	// Loops is the number of loops, at least 1. Models without loops ignore it.
	Loops int
	// StartPaused makes the engine start with accepting paused; see Engine.PauseAccept. The engine also assumes that it
	// shares the listeners with another process; see Migrator.SetListenersShared.
	StartPaused bool
	// MaxConnsPerShard, if positive, limits the connections of each loop. Each loop then has its own descriptor table.
	// All loops together must have capacity for Limits.MaxConns connections.
	MaxConnsPerShard int
	// Spin is how long an idle loop busy-polls before it blocks.
	Spin time.Duration
	// Pool, if set, runs the handlers in models with loops. Close the Pool only after the engine has stopped. If the
	// Pool is closed earlier, each connection is closed with ErrPoolClosed at its next event.
	Pool Pool
	// AutoWorkers lets handlers move between the Pool and the loops. All handlers start on the Pool. Quick handlers
	// move to the loops, and handlers that block a loop move back. Without AutoWorkers, the Pool runs all handlers.
	AutoWorkers bool
	// ResetDialled closes dialled connections with a reset, which avoids TIME_WAIT.
	ResetDialled bool
	// IgnoreHighWater makes the engine read from connections even if more than Limits.HighWater bytes of their output
	// are unsent. It is for handlers that do not answer their input.
	IgnoreHighWater bool
	Socket          Socket
	Scheduler       Scheduler
	Log             *slog.Logger
}

// Scheduler calls the Nudged method of handlers at planned times. Each loop calls the Scheduler once per iteration,
// with the loop's index. In a model without loops, a separate goroutine calls the Scheduler, with loop -1.
//
// now is the current time on the clock of MonotonicNow. next is the time at which the engine should call the Scheduler
// again. The engine may call earlier or, under load, later. If next has passed, the loop does not block. If next is
// negative, the Scheduler needs no further call, but a model without loops still calls it after MaxSchedulerDelay.
//
// nudge calls Nudged for one connection. If another loop or a worker owns the connection, nudge posts a request to that
// owner instead. If the owner's mailbox is full, nudge returns false, and the Scheduler may try again in a later call.
// For a closing connection, nudge has no effect.
//
// Handlers may run within nudge or after the Scheduler has returned. A Scheduler must be quick, because it blocks the
// loop. Panics in a Scheduler are not recovered.
type Scheduler func(loop int, now time.Duration, nudge func(Ref) (ok bool)) (next time.Duration)

// ConnVisitor is an Engine that can run a function on all connections.
type ConnVisitor interface {
	// PostToEveryConn posts a request to each open connection, whose owner then calls s.Do. If the post fails, or if
	// the connection is in its handshake or has begun to close, s.OnLost is called instead. A failed post may be
	// repeated. PostToEveryConn calls beforePost before each post. After the last post, it calls done with the number
	// of connections that were skipped because their mailbox was full. PostToEveryConn does not block.
	PostToEveryConn(s *Shared, beforePost func(), done func(full int)) error
}

// MaxSchedulerDelay and MinSchedulerDelay bound the time between two Scheduler calls in a model without loops.
const (
	MaxSchedulerDelay = 10 * time.Millisecond
	MinSchedulerDelay = 50 * time.Microsecond
)

type Socket struct {
	// SendBuffer and ReceiveBuffer are SO_SNDBUF and SO_RCVBUF in bytes. The default 0 keeps the kernel's setting.
	SendBuffer, ReceiveBuffer int
	// Unsent is the socket option TCP_NOTSENT_LOWAT in bytes. The default 0 keeps the kernel's setting.
	Unsent int
	// Delay leaves the socket option TCP_NODELAY off. The kernel may then delay small writes.
	Delay bool
}

// AdmissionRules restrict which clients may connect.
type AdmissionRules struct {
	// MaxPerSource limits the connections per IPv4 address or per IPv6 prefix of SourcePrefix bits. 0 means no limit.
	MaxPerSource, SourcePrefix int
	// Rate limits the number of accepted connections per second. 0 means no limit.
	Rate int
	// Allow, if not empty, lists the accepted addresses. Deny lists rejected addresses, even if Allow contains them.
	Allow, Deny []netip.Prefix
}

type DialRequest struct {
	Target netip.AddrPort
	// Path, if set, is the unix stream socket to dial, and Target must be zero. On Linux, a Path with the prefix @ is
	// an abstract name. If the listener's queue is full, the dial fails with EAGAIN.
	Path string
	// Source is the local address. The zero value lets the kernel choose. With a Path, Source must be zero.
	Source netip.Addr
	Count  int
	// Handler, if set, becomes the ConnHandler of the dialled connection. Count must then be 1. If the dial fails, the
	// engine calls Handler.DialFailed, and does not call the DialFailed of Config.Handler.
	Handler ConnHandler
	// Timeout limits the duration of each connection attempt. If Timeout is 0, only the limits of the model and the
	// kernel apply.
	Timeout time.Duration
	// Loop, if positive, selects the preferred loop. The value 1 means the loop with index 0.
	Loop int
}

// SocketOptions returns the options for dialled sockets if forDialled is true, and the options for listeners otherwise.
func (c *Config) SocketOptions(forDialled bool) sock.Options {
	s := c.Socket
	return sock.Options{SendBuffer: s.SendBuffer, ReceiveBuffer: s.ReceiveBuffer, NotSentLowat: s.Unsent, KeepNagle: s.Delay, ResetOnClose: forDialled && c.ResetDialled}
}

// NotifyDialFailed calls connHandler.DialFailed after a dial has failed. If connHandler is nil and the engine's Handler
// implements DialFailer, NotifyDialFailed calls DialFailed of the engine's Handler instead.
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

type Engine interface {
	// Addr returns the address of the first listener, or nil if the engine only dials.
	Addr() net.Addr
	ListenerStats() []ListenerStats
	// Loops returns the number of loops, or 0 for a model without loops.
	Loops() int
	// Dial starts connecting and returns immediately. For each connection, Opened or DialFailed is called later.
	// Requests are distributed over the loops in turn. Dial fails with ErrFull if too many are queued, and with
	// ErrClosed after Stop.
	Dial(d DialRequest) error
	// Adopt takes over nc as if the listener with the given number had accepted it; -1 selects the first listener.
	// alreadyRead is input that the caller has read from nc. nc must have a descriptor and no other users.
	//
	// Adopt fails with ErrFull if too many adoptions are queued, and with ErrClosed after Stop. It also fails if the
	// descriptor cannot be taken over. After an error, nc is unchanged.
	Adopt(nc net.Conn, listener int, alreadyRead []byte) error
	// BroadcastToAllConns sends p to all open connections that have completed their handshake. It copies p once and
	// does not block. It fails with ErrFull if too many broadcasts or bytes are in progress, with ErrTooLarge if p
	// exceeds Limits.MaxUnsent, and with ErrClosed after Stop.
	BroadcastToAllConns(p []byte) error
	// PauseAccept stops or resumes accepting. While accepting is paused, new connections wait in the kernel's queues.
	// PauseAccept does not wait for the loops; the counter AcceptPausedCount is the number of loops that have paused.
	// After Stop, PauseAccept has no effect and may return ErrClosed.
	PauseAccept(on bool) error
	// QueueCloseOfPeerConns aborts the connections from a peer address with ErrClosedByOperator, including those that a
	// proxy at this address has made for other clients. QueueCloseOfPeerConns returns before the connections are
	// closed, and does not report whether any existed. It fails with ErrFull if 16 calls are in progress, and with
	// ErrClosed after the engine has ended.
	QueueCloseOfPeerConns(peer netip.AddrPort) error
	// Stop stops accepting and dialling, lets connections finish their current work, closes them, and waits for the end
	// of all goroutines. When ctx ends first, Stop aborts the remaining connections and returns an error with their
	// number; the error wraps the cause of ctx. If handlers do not return, Stop gives up when no connection has closed
	// for KillGrace. A concurrent call of Stop also waits, and its ctx has the same effect.
	Stop(ctx context.Context) error
	// Wait returns once Stop has been called and everything has ended.
	Wait()
	// Counters returns the counters, summed over all loops.
	Counters() Counts
}

type Model struct {
	// Name is the model's name in the configuration.
	Name     string
	HasLoops bool
	// Available returns nil if the model can run on this machine, and otherwise an error with the reason.
	Available func() error
	// Start starts an engine. When Start returns, the engine accepts connections.
	Start func(Config) (Engine, error)
}

// KillGrace limits how long Stop waits for handlers after its ctx has ended. If no connection closes for KillGrace,
// Stop assumes that handlers are stuck, and gives up.
const KillGrace = time.Second

// AwaitStop waits until done is closed. If ctx ends first, AwaitStop calls closeAll, which must abort all open
// connections, and continues to wait. AwaitStop gives up when no connection has closed for KillGrace. If connections
// were open when ctx ended, the error contains their number. If none were open, the error is nil.
func AwaitStop(ctx context.Context, done <-chan struct{}, countOpen func() int64, closeAll func()) error {
	select {
	case <-done:
		return nil
	case <-ctx.Done():
	}
	closed := countOpen()
	closeAll()
	return stopError(ctx, closed, awaitClosedOrStuck(done, countOpen))
}

func awaitClosedOrStuck(done <-chan struct{}, countOpen func() int64) (stuck int64) {
	tick := time.NewTicker(KillGrace)
	defer tick.Stop()
	for left := countOpen(); ; left = stuck {
		select {
		case <-done:
			return 0
		case <-tick.C:
		}
		if stuck = countOpen(); stuck >= left {
			return stuck
		}
	}
}

// stopError returns the error of a Stop whose ctx has ended. unfinishedConns is the number of connections that were
// open when ctx ended. stuckConns is the number of these connections that are still open because their handlers have
// not returned. If unfinishedConns is 0, stopError returns nil.
func stopError(ctx context.Context, unfinishedConns, stuckConns int64) error {
	switch {
	case stuckConns > 0:
		return fmt.Errorf("%d connections were closed before they had finished, and %d are still open because of handlers that have not returned: %w", unfinishedConns-stuckConns, stuckConns, context.Cause(ctx))
	case unfinishedConns == 0:
		return nil
	}
	return fmt.Errorf("%d connections were closed before they had finished: %w", unfinishedConns, context.Cause(ctx))
}

// DrainInterval is the interval at which a stopping engine begins to drain more connections.
const DrainInterval = 10 * time.Millisecond

// MaxDrainedAfter returns how many connections a stopping engine may have begun to drain when the time elapsed has
// passed since the stop began. perSecond is the number of connections to drain per second; 0 means no limit.
func MaxDrainedAfter(perSecond int, elapsed time.Duration) int {
	if perSecond == 0 {
		return math.MaxInt
	}
	return int(float64(perSecond)*(elapsed+DrainInterval).Seconds()) + 1
}
