package loop

import (
	"log/slog"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"github.com/myriad-go/myriad/internal/engine"
	"github.com/myriad-go/myriad/internal/sock"
)

// The bounds of one turn of a loop, so that none of its tasks starves another.
const (
	acceptBatch = 128
	dialBatch   = 128
	mailBatch   = 64
	maxOrders   = 1024
	drainBatch  = 1024 // polls for events that are there when the loop is stopped
	drainReads  = 64   // reads of each connection then
)

// What a loop is told, growing.
const (
	serving int32 = iota
	stopping
	killing
)

// Loop is one thread of an event-driven model. See the package comment for who
// may touch what.
type Loop struct {
	group    *group
	host     engine.Host
	counters engine.Counters
	buffers  engine.FreeList
	shared   engine.SharedBuffers // instead, where workers use them too
	driver   Driver
	acceptor sock.Acceptor
	watched  []int32 // the listeners that it accepts from
	passedOn bool    // the loop was full, and others accept from its listener
	slab     slab

	mailed []*engine.Conn // connections that got mail and are to be settled

	stage      int32         // what the loop has done of told
	paused     bool          // descriptors ran out: not accepting until resume
	resume     time.Duration // when to try again
	complained time.Duration // when that was last logged
	swept      int           // for how many connections the slab is swept
	sweepAt    time.Duration // when to look at the next slice of it
	sweepChunk int
	dials      []engine.Dial // dials that have been taken and not started

	auto    auto
	busy    int                       // connections with workers, or waiting for one
	waiting []*engine.Conn            // for room in the pool
	later   map[*engine.Conn][]func() // what is to be done when a worker gives it back
	hands   []*engine.Conn            // what is being taken back

	// For everyone:
	bell     sock.Bell
	used     atomic.Int64 // slots of the slab
	room     atomic.Int64 // of a shard: how many its table has room for
	box      engine.Mailbox
	told     atomic.Int32
	asleep   atomic.Bool
	some     atomic.Bool    // orders or chores are not empty
	back     atomic.Bool    // returned is not empty
	mu       sync.Mutex     // guards what follows
	returned []*engine.Conn // from workers
	orders   []engine.Dial  // dials that the loop has not taken yet
	chores   []func()       // what other loops ask of it; few, see listeners_linux.go
	ended    bool           // nobody may leave anything any more
	ringing  sync.Mutex     // guards what follows
	silent   bool           // nobody may ring any more
}

func newLoop(g *group, index int, bell sock.Bell) *Loop {
	l := &Loop{group: g, bell: bell}
	l.box.Max, l.box.MaxBytes = g.cfg.Limits.MaxMail, g.cfg.Limits.MaxMailBytes
	l.host = engine.Host{
		Handler: g.cfg.Handler, Limits: g.cfg.Limits, Log: g.cfg.Log,
		Buffers: &l.buffers, Poster: l, Counters: &l.counters,
		Now: engine.Since, Index: index, Direct: direct, DirectSize: directSize, Returned: l.giveBack,
	}
	if g.cfg.Auto {
		l.host.Times = &l.auto.times
	} else if g.cfg.Pool != nil {
		l.forWorkers()
	}
	l.slab.host = &l.host
	l.room.Store(int64(g.cfg.Shard))
	return l
}

// Log is where a driver writes what an operator has to know.
func (l *Loop) Log() *slog.Logger { return l.host.Log }

// directSize is where sending at once begins to cost less than copying.
const directSize = 16 << 10

// direct is Host.Direct. What is wrong with the connection the next send tells.
func direct(c *engine.Conn, p []byte) int {
	n, errno := sock.Send(c.FD(), p)
	if errno != 0 {
		return 0
	}
	return n
}

// Bell is what ends a wait when it is rung. Drivers watch it, and hush it.
func (l *Loop) Bell() sock.Bell { return l.bell }

// Conn finds a connection by its slot, which must be one in use.
func (l *Loop) Conn(slot uint32) *engine.Conn { return l.slab.at(slot) }

// AcceptBlocking makes accepted and dialled descriptors blocking ones.
func (l *Loop) AcceptBlocking() { l.acceptor.Blocking = true }

// run runs the loop on a thread of its own.
func (l *Loop) run(started chan<- error) {
	if l.group.cfg.Shard > 0 {
		sock.OwnThread(func() { l.runShard(started) })
		return
	}
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	if err := l.serve(started); err != nil && len(l.group.listeners) > 0 {
		sock.Close(l.group.listeners[l.host.Index])
	}
}

// runShard gives the thread a descriptor table first.
func (l *Loop) runShard(started chan<- error) {
	keep := make(map[int32]bool)
	for _, fd := range l.group.listeners {
		keep[fd] = true
	}
	release, err := sock.PrivateTable(keep)
	if err != nil {
		l.abandon()
		started <- err
		return
	}
	defer release()
	_ = l.serve(started) // the thread's end closes the listeners
}

// serve turns until the loop is told to stop and the last connection is
// finished. It first says how opening the driver went.
func (l *Loop) serve(started chan<- error) error {
	if err := l.driver.Open(); err != nil {
		l.abandon()
		started <- err
		return err
	}
	if len(l.group.listeners) > 0 {
		l.watch(l.group.listeners[l.host.Index])
	}
	started <- nil
	for !l.finished() {
		l.turn()
	}
	l.end()
	return nil
}

// abandon ends a loop that could not begin.
func (l *Loop) abandon() {
	l.mu.Lock()
	l.ended = true
	l.mu.Unlock()
	l.silence()
}

func (l *Loop) finished() bool {
	return l.stage >= stopping && l.slab.used == 0 && !l.some.Load() && len(l.dials) == 0
}

// turn handles the events that are there, waits if there are none, and does
// everything else once. A busy loop never waits.
func (l *Loop) turn() {
	if !l.poll() && len(l.dials) == 0 && !l.spin() {
		l.wait()
		l.poll()
	}
	if l.back.Load() {
		l.takeBack()
	}
	if l.box.Waiting() {
		l.takeMail()
	}
	if l.told.Load() > l.stage {
		l.obey()
	}
	if l.some.Load() {
		l.takeOrders()
	}
	if len(l.dials) > 0 {
		l.dial()
	}
	if l.swept > 0 || l.paused {
		l.tick(engine.Since())
	}
	if len(l.waiting) > 0 {
		l.handOverWaiting()
	}
	if l.group.cfg.Auto {
		if l.host.Away {
			l.comeBack(engine.Since())
		} else {
			l.ownBuffers()
		}
	}
	l.slab.recycle()
}

// poll handles the events that are there, and sees how long that takes where
// it matters.
func (l *Loop) poll() bool {
	if l.group.cfg.Auto && !l.host.Away {
		return l.pollTimed()
	}
	return l.driver.Poll()
}

// spin looks for events for a while, if that is wanted, and says whether there
// was something to do.
func (l *Loop) spin() bool {
	spin := l.group.cfg.Spin
	if spin == 0 {
		return false
	}
	for end := engine.Since() + spin; engine.Since() < end; {
		if l.poll() || l.called() {
			return true
		}
		if l.swept > 0 || l.paused {
			l.tick(engine.Since())
		}
	}
	return false
}

// called says whether something has come from outside.
func (l *Loop) called() bool {
	return l.box.Waiting() || l.some.Load() || l.back.Load() || l.told.Load() > l.stage
}

// wait waits for events, unless there is something else to do.
func (l *Loop) wait() {
	l.asleep.Store(true)
	defer l.asleep.Store(false)
	if l.called() {
		return
	}
	most := time.Duration(-1)
	switch {
	case len(l.waiting) > 0:
		most = poolRetry
	case l.swept > 0 || l.paused:
		most = sweepEvery
	}
	l.driver.Wait(most)
}

// SweepFor counts one more or, with -1, one less reason to sweep the slab.
func (l *Loop) SweepFor(n int) { l.swept += n }

// Time sees to it that a connection that has a Due is expired. Drivers call it
// when the connection waits.
func (l *Loop) Time(c *engine.Conn) {
	if _, ok := c.Due(); ok && c.Armed()&Timed == 0 {
		c.SetArmed(c.Armed() | Timed)
		l.SweepFor(1)
	}
}

// Resets says whether the connection is to be closed with a reset.
func (l *Loop) Resets(c *engine.Conn) bool { return c.Outbound() && l.group.cfg.Reset }

// Shut shuts the sending direction. A connection that is to be reset is closed
// at once: its end, if it came first, would leave it in TIME_WAIT.
func (l *Loop) Shut(c *engine.Conn) {
	if l.Resets(c) {
		c.PeerClosed()
	} else {
		// An error means that the peer has gone; reading will tell.
		_ = sock.ShutWrite(c.FD())
	}
	c.ShutDone()
}

// Finish closes the descriptor of an open connection, finishes it, and frees
// its slot, with workers when one of them has called Closed. Nothing of it may
// be under way.
func (l *Loop) Finish(c *engine.Conn) {
	if l.Resets(c) {
		_ = sock.ResetOnClose(c.FD())
	}
	if c.Armed()&Timed != 0 {
		c.SetArmed(c.Armed() &^ Timed)
		l.SweepFor(-1)
	}
	sock.Close(c.FD())
	if l.host.Away {
		c.Part()
		l.handOver(c)
		return
	}
	c.Finish()
	l.free(c)
}

// Forget closes the descriptor of a connection that was never opened, and frees
// its slot.
func (l *Loop) Forget(c *engine.Conn) {
	sock.Close(c.FD())
	l.free(c)
}

func (l *Loop) free(c *engine.Conn) {
	c.SetFD(-1)
	c.SetArmed(0)
	l.slab.put(c)
	l.used.Add(-1)
	l.group.leave()
	l.resume = 0
	if l.passedOn {
		l.takeListenerBack()
	}
}

// tick accepts again when it is time, and expires closing connections: one
// slice of the slab at a time, all of it in eight ticks.
func (l *Loop) tick(now time.Duration) {
	if l.paused && now >= l.resume {
		l.paused = false
		l.Relisten()
	}
	if l.swept == 0 || now < l.sweepAt {
		return
	}
	l.sweepAt = now + sweepEvery
	to := l.sweepChunk + (len(l.slab.chunks)+7)/8
	l.slab.each(l.sweepChunk, to, func(c *engine.Conn) {
		if c.Armed()&Timed != 0 {
			c.Expire(now)
			l.driver.Settle(c)
		}
		if c.FD() >= 0 {
			l.driver.Sweep(c)
		}
	})
	l.sweepChunk = to
	if to >= len(l.slab.chunks) {
		l.sweepChunk = 0
	}
}

// end closes what the loop still holds. Mail that came too late is taken, so
// that its reservations are released.
func (l *Loop) end() {
	l.box.Close()
	l.takeMail()
	l.mu.Lock()
	l.ended = true
	orders := l.orders
	l.mu.Unlock()
	l.silence()
	l.driver.Close()
	for _, d := range orders { // that came between the last look and now
		for range d.Count {
			l.tellDialFailed(engine.ErrClosed)
		}
	}
}
