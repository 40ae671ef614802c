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
// A driver tells the loop with Loop.NoteRead what each read has brought, and does not
// look for input of a connection while Loop.ReadQueued says that the loop reads from it.
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

	// Poll handles the events that are there now, up to a bound, and says
	// whether there were some, and whether more are left. It does not block.
	Poll() (some, more bool)
	// Wait waits until there are events, the eventfd is signalled, or the time is
	// over (a negative one never is). The next Poll handles them.
	Wait(most time.Duration)

	// Listen watches one more listener, and calls Loop.Accept when
	// connections wait at any; Unlisten ends that.
	Listen(fd int32)
	Unlisten(fd int32)

	// Watch begins to watch the descriptor of a connection that is about to
	// be opened, or with Connecting set that is being dialled.
	Watch(c *engine.Conn) syscall.Errno
	// Established turns from watching for the end of a dial to watching an
	// open connection.
	Established(c *engine.Conn) syscall.Errno
	// Settle does what the connection asks for until it waits or closes.
	Settle(c *engine.Conn)
	// Drop lets go of a connection that was not opened, and calls
	// Loop.Forget, now or when nothing of it is under way any more.
	Drop(c *engine.Conn)
	// Read reads an open connection once, without waiting, and says whether it
	// got bytes. One whose receive is under way it leaves to that.
	Read(c *engine.Conn) bool
	// MayRead says whether nothing is under way that reads from the connection.
	MayRead(c *engine.Conn) bool
	// Sweep is called every now and then for each connection while the
	// loop sweeps; see Loop.AddUrgent.
	Sweep(c *engine.Conn)
}

// The bits of Conn.Armed that are the loop's; it looks at them also while a worker has
// the connection.
//
//	bit           meaning                                      set by          cleared by
//	Connecting    dialled, not established                     dialOne         Connected, Abort
//	DialTimedOut  and its dial has taken too long              the sweep
//	Expiring      counted as one that will expire              TrackExpiry     TrackExpiry
//	Busy          with a worker, or waiting for one            handOver        takeBack
//	ClosePending  and the worker is to call Closed             Finish
//	NoRoom        had no room for what came while Busy, and    closeBusy
//	              is to be closed for that
//	Bulk          waits for the loop to read from it           QueueYielded       readBulk, ReadQueued
//
// All are cleared when the slot is freed.
const (
	Connecting uint16 = 1 << iota
	Expiring
	Busy
	ClosePending
	NoRoom
	Bulk
	DialTimedOut
	DriverBits = iota // drivers use the bits from here
)
