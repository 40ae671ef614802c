package loop

import (
	"syscall"
	"time"

	"github.com/myriad-go/myriad/internal/engine"
)

// Driver is the part of a Loop that depends on the I/O interface, such as epoll. It watches descriptors and moves bytes
// between sockets and connections. The loop calls all methods on the loop's goroutine. During a call, the driver may
// call the exported methods of Loop.
//
// A driver must pass the size of each read to Loop.QueueIfBulk. It must not watch a connection for input while
// Loop.IsReadQueued returns true.
//
// A driver may store its own flags in Conn.DriverFlags: the bit with the number DriverBits and all higher bits. The
// other bits belong to the loop. While the bit Busy is set, a worker has the connection, or the connection waits for a
// worker. During that time, the driver may access only the connection's flags, slot and descriptor. It must defer the
// connection's events with Loop.DeferUntilWorkerReturns.
type Driver interface {
	// Open allocates the driver's resources, on the thread that will use them, and starts to watch the loop's eventfd.
	Open() error
	// Close releases the driver's resources. All connections have been closed before.
	Close()

	// HandleEvents handles pending events, up to a limit, without blocking. handled reports whether there were events.
	// moreLeft reports whether more are pending.
	HandleEvents() (handled, moreLeft bool)
	// WaitForEvents blocks until events are pending, the eventfd is signalled, or the limit has passed. A negative
	// limit means no limit. The next HandleEvents handles the events.
	WaitForEvents(limit time.Duration)

	// WatchListener makes the driver call Loop.AcceptAndReceiveConns when listenerFD becomes readable, until
	// UnwatchListener. listenerFD is a listener or a hand-over channel.
	WatchListener(listenerFD int32)
	UnwatchListener(listenerFD int32)

	// WatchForInputOrConnect starts to watch a connection for input, just before the connection is opened. If
	// Connecting is set, it watches for the end of the dial instead.
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
	// CancelReceiveIfSilent cancels a receive of a silent connection if this saves resources. Each sweep calls it for
	// every connection. A driver can request fast sweeps with Loop.AdjustFastSweepReasons.
	CancelReceiveIfSilent(c *engine.Conn)
}

// Bits of Conn.DriverFlags that belong to the loop. All bits are cleared when the connection's slot is freed.
//
//	bit            the connection                         set by                   cleared by
//	Connecting     is being dialled                       startDelegateOrFailDial  FinishDial, failDial
//	DialTimedOut   could not be dialled in time           shutdownTimedOutDial
//	Expiring       has a timer, deadline or expiry        UpdateExpiryTracking     UpdateExpiryTracking
//	Busy           is with a worker, or waits for one     submitOrQueueOrShed      reclaimFromWorker
//	ClosePending   is Busy; the worker will call Closed   CloseConn
//	CloseOnReturn  has missed data; will be closed        abortWhenWorkerReturns
//	BulkQueued     is queued for a read by the loop       QueueForLaterRead        readQueuedBulkConns
//
// DriverBits is the number of the first bit that belongs to the driver.
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
