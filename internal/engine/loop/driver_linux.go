package loop

import (
	"syscall"
	"time"

	"github.com/myriad-go/myriad/internal/engine"
)

// Driver is the model's part of a loop. It watches descriptors and moves bytes between them and the connections. The
// loop calls the methods on the loop's goroutine. Within a method, the driver may call the loop's exported methods.
//
// A driver must pass the size of each read to Loop.QueueIfBulk. It must not watch a connection for input while
// Loop.IsReadQueued returns true.
//
// A driver stores its state of a connection in Conn.DriverFlags, above the loop's bits. If a connection is Busy, the
// driver may access only these flags, and must defer the connection's events with Loop.DeferUntilWorkerReturns.
type Driver interface {
	// Open allocates the driver's resources, on the thread that will use them, and starts to watch the loop's eventfd.
	Open() error
	// Close releases the driver's resources. All connections have been closed before.
	Close()

	// HandleEvents handles pending events, up to a limit, without blocking. left reports whether more are pending.
	HandleEvents() (handled, left bool)
	// WaitForEvents blocks until events are pending, the eventfd is signalled, or the limit has passed. A negative
	// limit means no limit. The next HandleEvents handles the events.
	WaitForEvents(limit time.Duration)

	// WatchListener makes the driver call Loop.AcceptAndReceiveConns when connections wait, until UnwatchListener.
	WatchListener(listenerFD int32)
	UnwatchListener(listenerFD int32)

	// WatchForInputOrConnect starts to watch a connection that is about to be opened or, if Connecting is set, dialled.
	WatchForInputOrConnect(c *engine.Conn) syscall.Errno
	// WatchEstablished stops watching for the end of a dial and watches the open connection.
	WatchEstablished(c *engine.Conn) syscall.Errno
	// PerformActions performs the actions that the connection requests until the connection waits or closes.
	PerformActions(c *engine.Conn)
	// DropUnopened calls Loop.CloseUnopened for a connection once none of its operations are in progress.
	DropUnopened(c *engine.Conn)
	// ReadOnce reads once without blocking, unless a receive is in progress. It reports whether it received bytes.
	ReadOnce(c *engine.Conn) bool
	// CanRead reports whether no operation in progress reads from the connection.
	CanRead(c *engine.Conn) bool
	// CancelReceiveIfSilent cancels a receive if the connection has been silent since the last sweep and the
	// cancellation saves resources. A sweep calls it for each connection; see Loop.AdjustFastSweepReasons.
	CancelReceiveIfSilent(c *engine.Conn)
}

// These bits of Conn.DriverFlags belong to the loop. The loop reads them even while a worker has the connection.
//
//	bit            meaning                                set by                   cleared by
//	Connecting     is being dialled                       startDelegateOrFailDial  OpenOrFailDial, failDial
//	DialTimedOut   the dial has timed out                 shutdownTimedOutDial
//	Expiring       counted as about to expire             UpdateExpiryTracking     UpdateExpiryTracking
//	Busy           with a worker, or waiting for one      submitShedOrQueue        reclaimFromWorker
//	ClosePending   Busy, and the worker will call Closed  CloseConn
//	CloseOnReturn  missed data while Busy; to be closed   abortWhenWorkerReturns
//	BulkQueued     waits for the loop to read from it     QueueForLaterRead        readQueuedBulkConns, IsReadQueued
//
// All bits are cleared when the slot is freed.
const (
	Connecting uint16 = 1 << iota
	Expiring
	Busy
	ClosePending
	CloseOnReturn
	BulkQueued
	DialTimedOut
	DriverBits = iota // the first bit for drivers
)
