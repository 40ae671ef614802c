package loop

import (
	"syscall"
	"time"

	"github.com/myriad-go/myriad/internal/engine"
)

// Driver is the part of a loop that a model adds: it watches descriptors and moves bytes between them and the
// connections. The loop calls its methods on the loop's goroutine. There the driver calls back the loop's
// exported methods.
//
// A driver passes the size of each read to Loop.QueueIfBulk, and does not watch a connection for input while
// Loop.IsReadQueued reports true.
//
// A driver keeps its own state of a connection in Conn.DriverFlags, above the loop's bits. It touches nothing else
// of a connection that is Busy, and defers events of it with Loop.DeferUntilWorkerReturns.
type Driver interface {
	// Open allocates the driver's resources, on the thread that will use them, and starts to watch the loop's
	// eventfd.
	Open() error
	// Close releases them. All connections have been closed before.
	Close()

	// HandleEvents handles pending events, up to a limit, without blocking. It reports whether there were
	// any, and whether some are left.
	HandleEvents() (handled, left bool)
	// WaitForEvents blocks until there are events, the eventfd is signalled, or limit has passed; a negative
	// limit is none. The next HandleEvents handles the events.
	WaitForEvents(limit time.Duration)

	// WatchListener calls Loop.AcceptAndReceiveConns when connections wait at the listener, until UnwatchListener.
	WatchListener(listenerFD int32)
	UnwatchListener(listenerFD int32)

	// WatchConn starts to watch a connection that is about to be opened or, if Connecting is set, dialled.
	WatchConn(c *engine.Conn) syscall.Errno
	// WatchEstablished stops watching for the end of a dial and watches the open connection.
	WatchEstablished(c *engine.Conn) syscall.Errno
	// PerformActions performs what Conn.Next asks for until the connection waits or closes.
	PerformActions(c *engine.Conn)
	// DropUnopened drops a connection that was not opened. It calls Loop.CloseUnopened as soon as no
	// operation of the connection is in progress.
	DropUnopened(c *engine.Conn)
	// ReadOnce reads once from an open connection, without blocking, and reports whether bytes were received.
	// It does nothing while a receive is in progress.
	ReadOnce(c *engine.Conn) bool
	// CanRead reports whether no operation in progress reads from the connection.
	CanRead(c *engine.Conn) bool
	// CancelReceiveIfSilent cancels the receive of a connection that was silent since the last sweep, if that
	// saves resources. It is called for each connection in each sweep; see Loop.AdjustFastSweepReasons.
	CancelReceiveIfSilent(c *engine.Conn)
}

// The loop's bits of Conn.DriverFlags. The loop reads them also while a worker has the connection.
//
//	bit            meaning                                   set by              cleared by
//	Connecting     is being dialled                          startOrDelegateDial           OpenOrFailDial, failDial
//	DialTimedOut   and the dial has timed out                shutdownTimedOutDial
//	Expiring       counted as about to expire                UpdateExpiryTracking         UpdateExpiryTracking
//	Busy           with a worker, or waiting for one         submitToPool        reclaimFromWorker
//	ClosePending   and the worker will call Closed           CloseConn
//	CloseOnReturn  missed data while Busy; to be closed      abortWhenWorkerReturns
//	BulkQueued     waits for the loop to read from it        QueueForLaterRead        readQueuedBulkConns, IsReadQueued
//
// All are cleared when the slot is freed.
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
