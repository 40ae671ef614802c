package loop

import (
	"log/slog"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/myriad-go/myriad/internal/engine"
	"github.com/myriad-go/myriad/internal/sock"
)

// The bounds of one turn of a loop, so that none of its tasks starves another.
const (
	acceptBatch = 128
	dialBatch   = 128
	touchBatch  = 64
	maxOrders   = 1024
	// slice is how long a turn does what may take long: reading from bulk
	// connections, and draining.
	slice = time.Millisecond
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
	trimAt   time.Duration        // when those that nobody takes are dropped next
	shared   engine.SharedBuffers // instead, where workers use them too
	driver   Driver
	acceptor sock.Acceptor
	watched  []int32 // the listeners that it accepts from
	passedOn bool    // the loop was full, and others accept from its listener
	slab     slab

	post post // mail that has been taken and not given out
	// touched are connections to which the events of others, or Pace, have done
	// something, and that are to be settled.
	touched []*engine.Conn

	stage      int32         // what the loop has done of told
	drained    drained       // how far the connections have been told to drain
	token      bool          // of the accept rate, for one connection
	paused     bool          // not accepting until resume
	starved    bool          // because descriptors have run out
	held       bool          // not accepting because of Engine.Hold
	resume     time.Duration // when to try again
	complained time.Duration // when that was last logged
	sweep      sweep
	dials      []engine.Dial // dials that have been taken and not started
	casts      []casting     // what is being broadcast, in order
	walk       walk          // of those that are under way
	began      time.Duration // the turn
	alert      int           // turns that are to be looked at closely

	paced time.Duration         // when Pace wants to be called; negative for never
	touch func(engine.Ref) bool // for Pace, made once

	bulk    line[engine.Ref] // connections that wait to be read from
	pipe    sock.Pipe        // for relays
	spilled []byte           // what was in it and was not taken
	auto    auto
	busy    int                       // connections with workers, or waiting for one
	waiting waiting                   // for room in the pool
	later   map[*engine.Conn][]func() // what is to be done when a worker gives it back
	runs    map[*engine.Conn]*mailRun // the mail that is last among it
	missed  map[*engine.Conn]int64    // broadcasts that those had no room for
	yielded time.Duration             // when too few could give way; 0 if enough did
	pressed bool                      // buffers held too much when it last looked
	hands   []back                    // what is being taken back
	shed    []*engine.Conn            // of that, what the pool has shed and must wait

	// For everyone:
	bell     sock.Bell
	used     atomic.Int64 // slots of the slab
	room     atomic.Int64 // of a shard: how many its table has room for
	box      engine.Mailbox
	told     atomic.Int32
	doing    atomic.Int32 // for the watch
	adopts   atomic.Int64 // connections that are to be adopted
	asleep   atomic.Bool
	some     atomic.Bool   // orders or chores are not empty
	back     atomic.Bool   // returned is not empty
	mu       sync.Mutex    // guards what follows
	returned []back        // from the pool
	orders   []engine.Dial // dials that the loop has not taken yet
	posted   []*cast       // broadcasts that the loop has not taken yet
	oldest   *cast         // the first that it has taken and that is under way
	chores   []func()      // what other loops ask of it; few, see listeners_linux.go
	ended    bool          // nobody may leave anything any more
	ringing  sync.Mutex    // guards what follows
	silent   bool          // nobody may ring any more
}

func newLoop(g *group, index int, bell sock.Bell) *Loop {
	l := &Loop{group: g, bell: bell}
	l.box.Max, l.box.MaxBytes = g.cfg.Limits.MaxMail, g.cfg.Limits.MaxMailBytes
	l.host.SetUp(&g.cfg, g.admission)
	l.host.Buffers, l.host.Poster, l.host.Counters = &l.buffers, l, &l.counters
	l.host.Entrances = g.entrances
	l.host.Index, l.host.Returned, l.host.Shard = index, l.giveBack, g.cfg.Shard > 0
	l.host.Loops, l.host.OnLoop, l.host.LocalAddr = g.cfg.Loops, onLoop, local
	if g.cfg.Shard > 0 {
		l.host.AskLocalAddr = l.askLocalAddr
	}
	l.host.Direct, l.host.NoFiles = direct, g.cfg.Shard > 0
	l.host.At, l.host.Touch = l.Conn, l.touchLater
	l.host.Mine = func(c *engine.Conn) bool { return c.Armed()&Busy == 0 }
	l.sweep.period = l.host.SweepPeriod()
	if g.cfg.Auto {
		l.host.Times = &l.auto.times
	}
	if g.cfg.Pool != nil {
		l.forWorkers()
	}
	if l.paced = -1; g.cfg.Pace != nil {
		l.paced, l.touch = 0, l.touchOne
	}
	l.slab.host = &l.host
	l.room.Store(int64(g.cfg.Shard))
	return l
}

// Log is where a driver writes what an operator has to know.
func (l *Loop) Log() *slog.Logger { return l.host.Log }

// direct is Host.Direct. What is wrong with the connection the next send tells.
func direct(c *engine.Conn, pieces [][]byte) int {
	n, errno := sock.SendAll(c.FD(), pieces)
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
	if err := l.serve(started); err != nil {
		for i, fd := range l.group.listeners {
			if l.group.ownerOf(i) == l.host.Index {
				sock.Close(fd)
			}
		}
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
	thread := unix.Gettid()
	threads.Store(thread, l)
	defer threads.Delete(thread)
	if err := l.driver.Open(); err != nil {
		l.abandon()
		started <- err
		return err
	}
	for i, fd := range l.group.listeners {
		if l.group.ownerOf(i) == l.host.Index {
			l.watch(fd)
		}
	}
	started <- nil
	if l.touch != nil {
		defer sock.SharpTimers()()
	}
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
	l.beginTurn()
	if !l.poll() && len(l.dials) == 0 && len(l.casts) == 0 && !l.post.left() && !l.behind() && !l.spin() {
		l.wait()
		l.poll()
	}
	if l.back.Load() {
		l.takeBack()
	}
	if l.post.left() || l.box.Waiting() {
		l.doing.Store(mail)
		l.takeMail()
	}
	l.doing.Store(upkeep)
	if l.told.Load() > l.stage {
		l.obey()
	}
	if l.some.Load() {
		l.takeOrders()
	}
	if l.group.held.Load() != l.held {
		l.hold(!l.held)
	}
	if len(l.dials) > 0 {
		l.dial()
	}
	if len(l.casts) > 0 {
		l.doing.Store(broadcasts)
		l.castSome()
		l.doing.Store(upkeep)
	}
	if l.touch != nil {
		l.doing.Store(planned)
		l.pace()
		l.doing.Store(upkeep)
	}
	if l.drained.going {
		l.drainSome(l.host.Clock())
	}
	if l.ticks() {
		l.tick(l.host.Clock())
	}
	l.settleTouched()
	if l.pressed || l.counters.Get(engine.Buffered) > l.group.evenShare {
		l.yield(l.host.Clock())
	}
	if l.waiting.n > 0 {
		l.askAgain(l.host.Clock())
	}
	if l.group.cfg.Auto {
		if l.host.Away {
			l.comeBack(l.host.Clock())
		} else {
			l.ownBuffers()
		}
	}
	l.slab.recycle()
}

// beginTurn sets the clock, and sees how long the last turn took.
func (l *Loop) beginTurn() {
	now := engine.Since()
	l.endTurn(now)
	l.began = now
	l.host.SetClock(now)
	l.doing.Store(events)
}

func (l *Loop) endTurn(now time.Duration) {
	if l.began == 0 {
		return
	}
	took := now - l.began
	l.counters.Turn(took)
	if took >= engine.MinSlice {
		l.forgive(now, took, (*engine.Conn).Forgive)
	}
	switch slow := l.host.Limits.HandlerTime; {
	case slow > 0 && took >= slow:
		l.alert, l.host.Timing = alertTurns, true
	case l.alert > 0:
		l.alert--
		l.host.Timing = l.alert > 0
	}
}

// forgive says that nobody has been listened to for a while.
func (l *Loop) forgive(now, took time.Duration, forgive func(*engine.Conn, time.Duration)) {
	l.host.SetClock(now)
	l.Each(func(c *engine.Conn) {
		if c.Armed()&Busy == 0 {
			forgive(c, took)
		}
	})
}

// alertTurns is for how many turns each call of a handler is timed when a turn
// has taken as long as none of them should: a handler that does it again is then
// found by name.
const alertTurns = 10_000

// poll handles the events that are there, and sees how long that takes where
// it matters.
func (l *Loop) poll() bool {
	if l.group.cfg.Auto && !l.host.Away {
		return l.pollTimed()
	}
	return l.events()
}

// events handles the events that are there, and reads from bulk connections unless
// buffers hold too much already.
func (l *Loop) events() bool {
	some := l.driver.Poll()
	l.settleTouched()
	if l.bulk.n == 0 || l.pressed {
		return some
	}
	l.readBulk()
	return true
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
		l.host.SetClock(engine.Since())
		if l.ticks() {
			l.tick(l.host.Clock())
		}
	}
	return false
}

// called says whether something has come from outside, or may have: room in the
// pool, or a time that was planned.
func (l *Loop) called() bool {
	return l.box.Waiting() || l.some.Load() || l.group.held.Load() != l.held || l.back.Load() || l.told.Load() > l.stage || l.waiting.due(l.host.Clock()) || l.behind()
}

// wait waits for events, unless there is something else to do.
func (l *Loop) wait() {
	l.asleep.Store(true)
	defer l.asleep.Store(false)
	if l.called() {
		return
	}
	now := engine.Since()
	l.endTurn(now)
	most := l.patience(now)
	l.driver.Wait(most)
	l.began = engine.Since()
	l.host.SetClock(l.began)
	if late := l.began - now - most; most >= 0 && late >= engine.MinSlice {
		l.forgive(l.began, late, (*engine.Conn).StoodStill) // or had no CPU
	}
}

// patience is how long the loop may wait for events, negative for ever.
func (l *Loop) patience(now time.Duration) time.Duration {
	most := time.Duration(-1)
	least := func(d time.Duration) {
		if d = max(d, 0); most < 0 || d < most {
			most = d
		}
	}
	if l.waiting.n > 0 {
		least(l.waiting.again - now)
	}
	if l.paced >= 0 {
		least(l.paced - now)
	}
	if l.drained.going {
		least(l.drained.again - now)
	}
	if l.paused {
		least(l.resume - now)
	}
	if l.sweeping() {
		least(l.sweep.at - now)
	}
	if l.pressed {
		least(l.yielded + yieldEvery - now)
	}
	if l.buffers.Spare() {
		least(l.trimAt - now)
	}
	return most
}

// SweepFor counts one more or, with -1, one less reason to sweep the slab.
func (l *Loop) SweepFor(n int) {
	if l.sweep.often += n; n > 0 && l.sweep.often == n {
		l.sweep.at = min(l.sweep.at, l.host.Clock()+engine.MinSlice) // sooner than it was
	}
}

// Time sees to it that a connection that has a Due is expired. Drivers call it
// when the connection waits.
func (l *Loop) Time(c *engine.Conn) {
	switch _, due := c.Due(); {
	case due && c.Armed()&Timed == 0:
		c.SetArmed(c.Armed() | Timed)
		l.SweepFor(1)
	case !due:
		l.untime(c)
	}
}

// untime takes Time back.
func (l *Loop) untime(c *engine.Conn) {
	if c.Armed()&Timed != 0 {
		c.SetArmed(c.Armed() &^ Timed)
		l.SweepFor(-1)
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
	l.untime(c)
	sock.Close(c.FD())
	if l.host.Away && !c.Greets() {
		c.Part()
		c.SetArmed(c.Armed() | Parting)
		l.handOver(c)
		return
	}
	c.Finish()
	l.free(c)
}

// Forget closes the descriptor of a dial that has failed, and frees its slot.
func (l *Loop) Forget(c *engine.Conn) {
	l.untime(c)
	sock.Close(c.FD())
	l.free(c)
}

// Detach makes a connection one of package net, which has a descriptor of its own for it.
// Nothing of it may be under way, or watched.
func (l *Loop) Detach(c *engine.Conn) { c.Detached(sock.NetConn(c.FD())) }

func (l *Loop) free(c *engine.Conn) {
	c.SetArmed(0)
	l.slab.put(c)
	l.used.Add(-1)
	l.group.admission.Release()
	if l.starved {
		l.resume = 0
	}
	if l.passedOn {
		l.takeListenerBack()
	}
}

// end closes what the loop still holds. Mail that came too late is taken, so
// that its reservations are released.
func (l *Loop) end() {
	l.box.Close()
	for l.post.left() || l.box.Waiting() {
		l.takeMail()
	}
	l.mu.Lock()
	l.ended = true
	orders := l.orders
	for _, c := range l.casts {
		c.done()
	}
	for _, c := range l.posted {
		c.done()
	}
	chores := l.chores
	l.mu.Unlock()
	l.silence()
	for _, do := range chores { // that came between the last look and now
		do()
	}
	l.driver.Close()
	l.pipe.Close()
	for _, d := range orders { // that came between the last look and now
		for range d.Count {
			l.tellDialFailed(d.Owned, engine.ErrClosed)
		}
	}
}
