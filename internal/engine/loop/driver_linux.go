package loop

import (
	"syscall"
	"time"

	"github.com/myriad-go/myriad/internal/engine"
)

// Driver is what a model adds to a loop: it watches descriptors, and moves
// bytes between them and the connections. Its methods are called by the loop
// on the loop's goroutine. It calls back the loop's exported methods there.
//
// A driver tells the loop with Loop.QueueIfBulk what each read has brought, and does not
// look for input of a connection while Loop.IsReadQueued says that the loop reads from it.
//
// A driver keeps what it needs to know of a connection in Conn.Armed, above
// the bits that are the loop's. Of a connection that is Busy it touches nothing
// else: what is reported of it meanwhile is left for Loop.Later.
type Driver interface {
	// Open makes what the driver needs, on the thread that will use it, and
	// begins to watch the loop's eventfd.
	Open() error
	// Close frees it. The last connection has been finished by then.
	Close()

	// HandleEvents handles the events that are there now, up to a bound, and says
	// whether there were some, and whether more are left. It does not block.
	HandleEvents() (some, more bool)
	// WaitForEvents waits until there are events, the eventfd is signalled, or the time is
	// over (a negative one never is). The next Poll handles them.
	WaitForEvents(most time.Duration)

	// WatchListener watches one more listener, and calls Loop.Accept when
	// connections wait at any; Unlisten ends that.
	WatchListener(fd int32)
	UnwatchListener(fd int32)

	// WatchConn begins to watch the descriptor of a connection that is about to
	// be opened, or with Connecting set that is being dialled.
	WatchConn(c *engine.Conn) syscall.Errno
	// WatchEstablished turns from watching for the end of a dial to watching an
	// open connection.
	WatchEstablished(c *engine.Conn) syscall.Errno
	// PerformActions does what the connection asks for until it waits or closes.
	PerformActions(c *engine.Conn)
	// DropUnopened lets go of a connection that was not opened, and calls
	// Loop.Forget, now or when nothing of it is under way any more.
	DropUnopened(c *engine.Conn)
	// ReadOnce reads an open connection once, without waiting, and says whether it
	// got bytes. One whose receive is under way it leaves to that.
	ReadOnce(c *engine.Conn) bool
	// CanRead says whether nothing is under way that reads from the connection.
	CanRead(c *engine.Conn) bool
	// SweepConn is called every now and then for each connection while the
	// loop sweeps; see Loop.TrackFastSweep.
	SweepConn(c *engine.Conn)
}

// The bits of Conn.Armed that are the loop's; it looks at them also while a worker has
// the connection.
//
//	bit           meaning                                      set by          cleared by
//	Connecting    dialled, not established                     startDial         Connected, Abort
//	DialTimedOut  and its dial has taken too long              the sweep
//	Expiring      counted as one that will expire              TrackExpiry     TrackExpiry
//	Busy          with a worker, or waiting for one            submitToPool        resumeReturned
//	ClosePending  and the worker is to call Closed             Finish
//	CloseOnReturn        had no room for what came while Busy, and    closeWhenReturned
//	              is to be closed for that
//	Bulk          waits for the loop to read from it           QueueRead       readBulkConns, IsReadQueued
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
	DriverBits = iota // drivers use the bits from here
)
