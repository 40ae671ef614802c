// Package engine is the seam between Myriad and the operating system: what an
// I/O model must do, the state machine of a connection that all models share,
// and the few parts that more than one of them needs.
//
// # What a model must supply
//
// A model is a folder beside this file with a driver in it. A driver turns
// what its kernel interface reports into events of a [Conn], asks the Conn
// with [Conn.Next] what is to be done, and does it:
//
//	event                      means
//	Conn.Dialling              the connection is being made; Open follows, or nothing
//	Conn.Open                  the connection is established (accepted or dialled)
//	Conn.Arrived(bytes)        bytes have been received
//	Conn.OnEOF            the peer will send no more (end of file)
//	Conn.Sent(n)               n bytes of Output, or of File, were taken by the kernel
//	Conn.Offered               Output was given to the kernel; Sent and Room will follow
//	Conn.Room                  the kernel takes output again
//	Conn.Empty                 a Read has found nothing, or all there was
//	Conn.Failed(err)           the transport is broken
//	Conn.Mailed(mail, bytes)   a message from outside, taken from the mailbox
//	Conn.Touched               a planned time has come; see Pace
//	Conn.Drain                 close at the next idle moment (shutdown)
//	Conn.Expire(now)           time has passed
//	Conn.Detached(nc, err)     the connection was made one of package net, or was not
//	Conn.Finish                the descriptor has been closed
//
//	action                     asks for
//	Send                       send Output, report with Sent (and Failed)
//	SendFile                   send File, report with Sent, or call Conn.Load
//	Deliver                    call Conn.Deliver: held-back input may go on
//	Read                       read once without waiting, report with Arrived,
//	                           OnEOF, Failed or Empty
//	Shut                       shut the sending direction, report with OnWriteShut
//	Detach                     with nothing under way in the kernel, make the connection one
//	                           of package net, report with Detached; or, if it is Leaving,
//	                           report with OnQuiesced
//	Close                      close the descriptor, report with Finish
//	Wait                       nothing; wait for the next event
//
// Between two events, WantsInput says whether to read and WantsWritable whether to
// watch for room. After each event a driver repeats Next until it answers Wait
// or the connection is closed.
//
// # What a model must promise
//
//   - A Conn has one owner at a time, a loop or a goroutine. Only the owner
//     calls its methods. Only Ref's methods are for everyone.
//   - Input is offered in the order it arrived, and never after Finish.
//   - Output is sent in the order it was written, once per turn: when the
//     handler has returned for all the input at hand. Only a long piece may be
//     sent as soon as it is written, with what is before it; see Host.Direct.
//   - Mail that [Mailbox.Put] has taken is given to Mailed, in order, before a
//     connection whose peer has closed is closed in turn.
//   - Nothing on a loop blocks but the one wait for events, and that wait ends
//     when mail comes, and when Config.Pace wants to be called.
//   - Nobody is judged silent, or idle enough to be closed in a shutdown, before a
//     Read has found nothing: what the kernel has taken from the peer counts.
//   - Every wait has a bound: a closing connection is expired at its Due time.
//   - Stop returns when all connections are finished and every goroutine and
//     descriptor that the model started or opened is gone.
//   - When descriptors run out at accept, the model goes on serving what it
//     has and accepts again when some are free, without spinning.
//
// Package enginetest holds these promises as a test suite. A model that fails
// one case does not ship.
//
// # Where a connection's states are
//
//	         Open          OnEOF, Close, Drain, error
//	(free) ───────▶ open ───────────────────────────────▶ closing
//	   ▲                                                     │ all output sent
//	   │ Finish                                              ▼
//	   └───────── closed ◀── peer's end, Due, Failed ──── shut (lingering)
//
// While open, reading pauses when more output is unsent than Limits.HighWater. A
// connection that is shut still reads, and throws away,
// until the peer ends too: closing a socket with unread input makes the kernel
// send a reset, which can destroy answers that the peer has not read yet.
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

// Handler is what the core calls, on the connection's owner.
type Handler interface {
	// Opened is the first call for a connection.
	Opened(c *Conn)
	// Received offers input. What it does not use comes again with more
	// behind it, and at once if it used some.
	Received(c *Conn, in []byte) (used int)
	// Ended says that the peer will send no more; in is the unused input.
	// What it does not use is offered again if the connection is Paused,
	// and is lost otherwise.
	Ended(c *Conn, in []byte) (used int)
	// Closed is the last call for a connection.
	Closed(c *Conn, why error)
}

// DialFailer is a Handler that wants to know of failed attempts to connect.
type DialFailer interface {
	// NotifyDialFailed may be called on any goroutine.
	DialFailed(err error)
}

// Nudger is a Handler that can be called on a connection's owner from outside,
// by Ref.Nudge.
type Nudger interface {
	Nudged(c *Conn)
}

// Limits are the bounds that the core and the models keep. All are set: the
// callers of Start have filled in the defaults.
type Limits struct {
	MaxConns            int
	MaxMessage          int
	MaxUnsent           int
	HighWater, LowWater int // 0 for a half and a quarter of MaxUnsent
	MaxBuffered         int // 0 for no bound
	MaxMail             int
	MaxMailBytes        int
	CloseTimeout        time.Duration
	Linger              time.Duration
	ShutdownRate        int // 0 for no bound
	// Of these 0 stands for no bound.
	HandshakeTimeout time.Duration
	FirstByteTimeout time.Duration
	MessageTimeout   time.Duration
	IdleTimeout      time.Duration
	WriteTimeout     time.Duration
	SlowHandlerTime  time.Duration
}

// Config is what a model is started with.
type Config struct {
	// Network and Addr say where to listen, as for net.Listen. Without an
	// Addr and Listeners the engine only dials.
	Network, Addr string
	// Listeners, if there are any, are where to listen instead: MaxListeners
	// at most.
	Listeners []Listener
	Handler   Handler
	Limits    Limits
	// Admission is who is let in, beyond Limits.MaxConns.
	Admission AdmissionRules
	// RefusalReply, if set, gives the answer to a connection that is not admitted;
	// it is called on any goroutine.
	RefusalReply func(peer netip.AddrPort, why error) (answer []byte)
	// IsProxy, if set, says which peers at a listener, by its number, are proxies
	// whose connections say later, in a layer, whose they are.
	IsProxy func(listener int, a netip.Addr) bool
	// NewLayer, if set, gives a connection that is about to be opened its
	// first layer; nil is none. It is called on the connection's owner.
	NewLayer  func(c *Conn) Layer
	Heartbeat Heartbeat
	// DropMessages drops what a peer that reads too slowly has no room for,
	// instead of the connection.
	DropMessages bool
	// Drained and Draining, if set, are the handler's calls for a connection
	// whose output has got below LowWater again, and for one that is told to
	// drain.
	Drained, Draining func(c *Conn)
	// Timer, if set, is the handler's call for a connection whose timer has run out.
	Timer func(c *Conn)
	// Save and Restore, if set, are the handler's calls that write its state of a connection
	// behind what is given, and read it again in another process. Without them connections
	// with a value stay where they are.
	Save    func(c *Conn, to []byte) ([]byte, error)
	Restore func(c *Conn, state []byte) error
	// SaveConnHandler and RestoreConnHandler are the same for connections with a handler of their own,
	// which RestoreConnHandler sets. Without them those stay.
	SaveConnHandler    func(c *Conn, to []byte) ([]byte, error)
	RestoreConnHandler func(c *Conn, state []byte) error
	// Server is for the caller to find again from a connection: see Conn.Owner.
	Server any
	// Shed, if set, is the handler's call for input that finds no room in the
	// Pool, or that the Pool has shed: instead of Received, and on the loop.
	// Without it the connection waits for room, and is not read from.
	Shed func(c *Conn, in []byte, why error) (used int)
	// Loops is the number of loops, at least 1; models without loops
	// ignore it.
	Loops int
	// StartPaused starts the engine as after Hold, and its listeners as after SetListenersShared.
	StartPaused bool
	// MaxConnsPerShard, if above 0, gives each loop a descriptor table of its own, and
	// is the most connections that one takes. All loops together must have
	// room for Limits.MaxConns.
	MaxConnsPerShard int
	// Spin is how long a loop without work busy-polls before it blocks.
	Spin time.Duration
	// Pool, if set, runs the handlers of the models that have loops. It
	// should outlive the engine. When it is closed before, connections are
	// closed with ErrPoolClosed as soon as something is due for their
	// handler, which is called on the loop for no more than their end.
	Pool Pool
	// AutoWorkers starts handlers on the loops and moves those that hold a loop to
	// the Pool, and back. Without it the Pool runs all.
	AutoWorkers bool
	// ResetDialled closes dialled connections with a reset, so that they leave no
	// TIME_WAIT behind.
	ResetDialled bool
	// IgnoreHighWater goes on reading from a connection with more unsent than HighWater:
	// for a handler that does not answer what it reads.
	IgnoreHighWater bool
	// Socket are options of the sockets of dialled connections.
	Socket Socket
	// Scheduler, if set, has the handler called at times that it plans itself.
	Scheduler Scheduler
	Log       *slog.Logger
}

// Scheduler is called to call connections at planned times, without mail: by each loop
// once a turn, on the loop, or with loop -1 by a goroutine of its own in a model
// without loops. now is the time of Since. It answers when it wants to be called
// next, by the same clock: it is called by then or as soon after that as can be,
// and may be called before; a time that has passed keeps the loop from waiting. A
// negative one stands for whenever there is a turn, and without loops for every
// MaxSchedulerDelay. It is called until the engine has ended.
//
// touch has the handler's Nudged called for a connection: at once if the loop owns
// it, otherwise by mail. Nothing comes of it when that connection has begun to
// close. It answers false if there was no room for the mail, so that nothing has
// come of it: try again in a later call. On a loop the handler may be called for
// any connection that was touched before, in the course of a touch and after Pace
// has returned; so Pace and the handler must bear to be nested. A call that touches
// very many holds the loop up as long. A panic in Pace is not contained.
type Scheduler func(loop int, now time.Duration, touch func(Ref) (ok bool)) (next time.Duration)

// ConnVisitor is an Engine whose connections can all be visited.
type ConnVisitor interface {
	// VisitConns has s.Do called for each connection that is open and has no layer at work
	// before Opened, on its owner, some in a turn, by mail. put is called before for each
	// of them, and either s.Do or s.Lost after it; done when there is nobody left to call
	// put for, with how many had no room for mail. It returns at once.
	VisitConns(s *Shared, put func(), done func(full int)) error
}

// MaxSchedulerDelay is the longest time between two calls of a Pace, and MinSchedulerDelay the
// shortest, in a model without loops.
const (
	MaxSchedulerDelay = 10 * time.Millisecond
	MinSchedulerDelay = 50 * time.Microsecond
)

// Socket are options of sockets.
type Socket struct {
	// SendBuffer and ReceiveBuffer are SO_SNDBUF and SO_RCVBUF, in bytes; 0
	// leaves them to the kernel.
	SendBuffer, ReceiveBuffer int
	// Unsent is TCP_NOTSENT_LOWAT, in bytes; 0 leaves it to the kernel.
	Unsent int
	// Delay leaves TCP_NODELAY off.
	Delay bool
}

// AdmissionRules are who is let in.
type AdmissionRules struct {
	// MaxPerSource is the most connections of one source, which for IPv6 is
	// a prefix of SourcePrefix bits; 0 for no bound.
	MaxPerSource, SourcePrefix int
	// Rate is the most accepts a second; 0 for no bound.
	Rate int
	// Deny keeps out, and then Allow lets in, all if it is empty.
	Allow, Deny []netip.Prefix
}

// DialRequest asks for connections to be made.
type DialRequest struct {
	// Target is where to.
	Target netip.AddrPort
	// Path is set instead of Target for a unix stream socket: its path, or on
	// Linux, with @ in front, its abstract name. An attempt that finds the
	// queue of the listener full has failed with EAGAIN.
	Path string
	// Source is the local address to connect from; the zero value leaves
	// the choice to the kernel. With a Path there is none.
	Source netip.Addr
	// Count is how many connections.
	Count int
	// Handler, if set, is the handler of the connection, which is one. It hears of a
	// failure instead of a DialFailer.
	Handler ConnHandler
	// Timeout bounds the attempt to connect; 0 leaves that to the model and the kernel.
	Timeout time.Duration
	// Loop, if above 0, is 1 + the number of the loop to make it on, if that has room.
	Loop int
}

// SocketOptions are the options of sockets, of those that are dialled or of listeners.
func (c *Config) SocketOptions(forDialled bool) sock.Options {
	s := c.Socket
	return sock.Options{SendBuffer: s.SendBuffer, ReceiveBuffer: s.ReceiveBuffer, Unsent: s.Unsent, Delay: s.Delay, Reset: forDialled && c.ResetDialled}
}

// NotifyDialFailed tells the handler of the connection, if it has one of its own, or that of
// all, that no connection was made.
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

// Validate says what is wrong with an order, for models.
func (d DialRequest) Validate() error {
	switch {
	case d.Count < 1:
		return fmt.Errorf("dial of %d connections; expected at least 1", d.Count)
	case d.Handler != nil && d.Count != 1:
		return fmt.Errorf("dial of %d connections with one handler of their own; expected 1", d.Count)
	case d.Path == "" && !d.Target.IsValid():
		return fmt.Errorf("dial of %d connections to %q; expected a valid address, or the path of a unix socket", d.Count, d.Target)
	case d.Path != "" && (d.Target.IsValid() || d.Source.IsValid()):
		return fmt.Errorf("dial of the unix socket %q and to %q from %q; expected the path alone", d.Path, d.Target, d.Source)
	}
	return nil
}

// Engine is a running model. Its methods are safe for concurrent use.
type Engine interface {
	// Addr is where the engine listens first, nil if it only dials.
	Addr() net.Addr
	// ListenerStats is where it listens, in order, and what has come there.
	ListenerStats() []ListenerStats
	// Loops is the number of loops, 0 for a model without loops.
	Loops() int
	// DialRequest starts connecting and returns at once; each connection ends in
	// Opened or in NotifyDialFailed. It fails with ErrFull when the mailbox has
	// no room and with ErrClosed after Stop. One order is for one loop:
	// the loops take turns.
	Dial(d DialRequest) error
	// Adopt takes a connection of package net with a descriptor, which is not used by
	// others any more, as if it had been accepted at a listener, by number, or with -1 at the
	// first one, with bytes that were read from it already. It fails with ErrFull when the loop has too many orders, with ErrClosed
	// after Stop, and otherwise where the descriptor can't be taken; then nc is as it was.
	Adopt(nc net.Conn, listener int, read []byte) error
	// Broadcast sends p to all connections that are open and have no layer at
	// work before Opened: it keeps one copy for all. It returns at once:
	// ErrFull when too many, or too many bytes, are under way, ErrTooLarge
	// for more than Limits.MaxUnsent, ErrClosed after Stop.
	Broadcast(p []byte) error
	// PauseAccept has nothing accepted while it is on: those who connect wait in the
	// kernel's queues. It returns at once; Counters has in Holding how many
	// have heard of it. After Stop it answers ErrClosed or does nothing.
	PauseAccept(on bool) error
	// ClosePeerConns closes the connections whose Peer is this one, which is valid, and those that come
	// from it by a proxy that has told another, with ErrClosedByOperator, at once, without sending their
	// output. It returns before that is done,
	// and does not say whether there are any. It answers ErrFull when 16 or
	// more are under way, and ErrClosed after the end.
	ClosePeerConns(peer netip.AddrPort) error
	// Stop accepts and dials no more, lets connections finish what they
	// have at hand, closes them, and waits for everything. When ctx ends
	// first it closes what is left at once and returns an error that says
	// how many those were and wraps ctx's cause; it does so when for
	// KillGrace none could be closed, because handlers have not returned. A second Stop waits like the
	// first, and its ctx counts too.
	Stop(ctx context.Context) error
	// Wait returns when Stop has been called and everything has ended.
	Wait()
	// Counters is a copy of the counters, summed over all loops.
	Counters() Counts
}

// Model is an entry in the list of models.
type Model struct {
	// Name is what users call it.
	Name string
	// HasLoops says that it has loops.
	HasLoops bool
	// Available says why the model can't run on this machine, nil if it can.
	Available func() error
	// Start starts it: when it returns, connections are being accepted.
	Start func(Config) (Engine, error)
}
