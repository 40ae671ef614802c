package loop

import (
	"log/slog"
	"os"
	"runtime"
	"sync"
	"sync/atomic"
	"syscall"
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
	driver   Driver
	acceptor sock.Acceptor
	slab     slab
	buffers  engine.FreeList
	shared   engine.SharedBuffers // instead, where workers use them too

	stage int32         // how far the loop has come with wanted
	began time.Duration // the turn
	alert int           // turns that are to be looked at closely

	inTurn  bool   // a turn is under way, or a handler's Goexit has cut one short
	behind  bool   // the driver has events left that it has not handled
	alone   bool   // there is one processor
	yielded uint64 // the host's Retained when the loop has last yielded

	inOrder   []duty // those below, in the order of a turn
	accept    accept
	dialling  dialling
	post      post     // mail that has been taken and not given out
	taken     []func() // chores that have been taken and not done
	casts     casts
	pacer     pacer
	drain     drain
	departure departure
	arrivals  arrivals
	sweep     sweep
	trim      trim
	budget    budget
	auto      auto
	bulk      deque[engine.Ref] // connections that wait to be read from
	pipe      sock.SplicePipe   // for relays
	spill     []byte            // what was in it and was not taken
	waiting   waiting           // connections, for room in the pool

	// touched are connections to which the events of others, or Pace, have done
	// something, and that are to be settled.
	touched []*engine.Conn

	// Of connections that are with workers:
	busy       int                       // how many are, or wait for one
	later      map[*engine.Conn][]later  // what is to be done when a worker gives it back
	runs       map[*engine.Conn]*mailRun // the mail that is last among it
	missed     map[*engine.Conn]int64    // broadcasts that those had no room for
	takingBack []back                    // what is being taken back,
	tookBack   int                       // of which so many have been
	shed       []*engine.Conn            // of that, what the pool has shed and must wait

	// For everyone:
	eventfd     sock.Eventfd
	used        atomic.Int64 // slots of the slab
	room        atomic.Int64 // of a shard: how many its table has room for
	box         engine.Mailbox
	wanted      atomic.Int32
	doing       atomic.Int32 // for the watch
	adopts      atomic.Int64 // connections that are to be adopted
	asleep      atomic.Bool
	hasOrders   atomic.Bool         // orders or chores are not empty
	hasReturned atomic.Bool         // returned is not empty
	mu          sync.Mutex          // guards what follows
	returned    []back              // from the pool
	orders      []engine.Dial       // dials that the loop has not taken yet
	posted      []*engine.Broadcast // that the loop has not taken yet
	chores      []func()            // what other loops ask of it; few, see listeners_linux.go
	ended       bool                // nobody may leave anything any more
	wakeMu      sync.Mutex          // guards what follows
	wakeOver    bool                // nobody may wake the loop any more
}

func newLoop(g *group, index int, eventfd sock.Eventfd) *Loop {
	l := &Loop{group: g, eventfd: eventfd}
	l.accept.loop, l.casts.loop, l.drain.loop, l.sweep.loop, l.budget.loop, l.auto.loop = l, l, l, l, l, l
	l.departure.loop, l.arrivals.loop, l.dialling.loop, l.waiting.loop = l, l, l, l
	l.inOrder = l.duties()
	l.box.Max, l.box.MaxBytes = g.cfg.Limits.Mailbox(g.cfg.Loops)
	l.box.Counters = &l.counters
	l.buffers.SetMax(&g.cfg.Limits, g.cfg.Loops)
	l.host.SetUp(&g.cfg, g.admission)
	l.host.Buffers, l.host.Poster, l.host.Counters, l.host.Shared = &l.buffers, l, &l.counters, &g.shared
	l.host.Entrances = g.entrances
	l.host.Index, l.host.Loop = index, l
	l.host.LocalAddr, l.host.Direct = local, direct
	l.alone = runtime.GOMAXPROCS(0) == 1
	l.host.NoDetach, l.host.NoFiles = g.cfg.Shard > 0, g.cfg.Shard > 0
	l.sweep.period = l.host.SweepPeriod()
	if g.cfg.Auto {
		l.host.Times = &l.auto.times
	}
	if g.cfg.Pool != nil {
		l.auto.forWorkers()
	}
	l.trim.buffers = &l.buffers
	if l.pacer = (pacer{loop: l, at: never}); g.cfg.Pace != nil {
		l.pacer.at, l.pacer.touch = 0, l.touchOne
	}
	l.slab.host = &l.host
	l.room.Store(int64(g.cfg.Shard))
	return l
}

// Log is where a driver writes what an operator has to know.
func (l *Loop) Log() *slog.Logger { return l.host.Log }

// direct is Host.Direct. What is wrong with the connection the next send tells.
func direct(c *engine.Conn, p []byte, behind [][]byte) int {
	return sock.SendBuffers(c.FD(), p, behind)
}

// Eventfd ends a wait when it is signalled. Drivers watch it, and clear it.
func (l *Loop) Eventfd() sock.Eventfd { return l.eventfd }

// Conn implements engine.Loop.
func (l *Loop) Conn(slot uint32) *engine.Conn { return l.slab.at(slot) }

// HasConn implements engine.Loop.
func (l *Loop) HasConn(c *engine.Conn) bool { return c.Armed()&Busy == 0 }

// AcceptBlocking makes accepted and dialled descriptors blocking ones.
func (l *Loop) AcceptBlocking() { l.acceptor.Blocking = true }

// run runs the loop on a thread of its own.
func (l *Loop) run(started chan<- error) {
	if l.group.cfg.Shard > 0 {
		sock.RunOnNewThread(func() { l.runShard(started) })
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
	release, err := sock.UnshareDescriptorTable(keep)
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
	if l.pacer.touch != nil {
		defer sock.SetPreciseTimers()()
	}
	defer func() { engine.Outlive(l.failDials) }()
	engine.Outlive(func() {
		for !l.finished() {
			l.turn()
		}
		l.end()
	})
	return nil
}

// abandon ends a loop that could not begin.
func (l *Loop) abandon() {
	l.mu.Lock()
	l.ended = true
	l.mu.Unlock()
	l.closeWakeups()
}

func (l *Loop) finished() bool {
	return l.stage >= stopping && !l.inTurn && l.slab.used == 0 && l.departure.done == nil && !l.hasOrders.Load() && len(l.dialling.queue) == 0
}

// turn handles the events that are there, waits if there are none, and runs each duty
// once, in order. A busy loop never waits.
//
// A handler's runtime.Goexit cuts a turn short. The next one goes on with what is left: no work
// that others wait for is in variables alone while a handler is called.
func (l *Loop) turn() {
	cutShort := l.inTurn
	l.inTurn = true
	l.beginTurn()
	if !l.poll() && !cutShort && l.idle() && !l.spin() {
		if !l.yield() {
			l.wait()
		}
		l.poll()
	}
	l.takeBack()
	l.takeMail()
	l.doing.Store(upkeep)
	l.applyStop()
	l.takeOrders()
	l.runDuties()
	if cutShort {
		l.arrivals.receive() // which confirms what has come
	}
	l.slab.recycle()
	l.departure.giveBack()
	l.inTurn = false
}

// idle reports whether nothing is left over from the last turn.
func (l *Loop) idle() bool {
	return !l.post.left() && l.nextDuty() > l.host.Clock()
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
		l.extendTimes(now, took, (*engine.Conn).ExtendTimes)
	}
	switch slow := l.host.Limits.HandlerTime; {
	case slow > 0 && took >= slow:
		l.alert, l.host.Timing = alertTurns, true
	case l.alert > 0:
		l.alert--
		l.host.Timing = l.alert > 0
	}
}

// extendTimes moves the peers' limits of time on by a time in which nobody has read.
func (l *Loop) extendTimes(now, took time.Duration, extend func(*engine.Conn, time.Duration)) {
	l.host.SetClock(now)
	l.Each(func(c *engine.Conn) {
		if c.Armed()&Busy == 0 {
			extend(c, took)
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
	if l.group.cfg.Auto && !l.host.OnWorkers {
		return l.auto.poll()
	}
	return l.events()
}

// events handles the events that are there, and reads from bulk connections unless
// buffers hold too much already.
func (l *Loop) events() bool {
	some, more := l.driver.Poll()
	l.behind = more
	l.settleTouched()
	if l.bulk.n == 0 || l.budget.over {
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
		if l.poll() || l.hasRequests() {
			return true
		}
		l.host.SetClock(engine.Since())
		if l.nextDuty() <= l.host.Clock() {
			return true
		}
	}
	return false
}

// hasRequests reports whether other goroutines have left work for the loop.
func (l *Loop) hasRequests() bool {
	return l.box.Waiting() || l.hasOrders.Load() || l.hasReturned.Load() || l.wanted.Load() > l.stage
}

// wait waits for events, unless there is something else to do.
func (l *Loop) wait() {
	l.asleep.Store(true)
	defer l.asleep.Store(false)
	if l.hasRequests() {
		return
	}
	now := engine.Since()
	l.endTurn(now)
	most := time.Duration(-1) // without a limit
	if next := l.nextDuty(); next != never {
		most = max(next-now, 0)
	}
	l.driver.Wait(most)
	l.waited(now, most)
}

// waited begins a turn after a wait.
func (l *Loop) waited(since, most time.Duration) {
	l.began = engine.Since()
	l.host.SetClock(l.began)
	if late := l.began - since - most; most >= 0 && late >= engine.MinSlice {
		l.extendTimes(l.began, late, (*engine.Conn).ProcessStopped) // or had no CPU
	}
}

// yield waits instead, where there is one processor, until those goroutines have had it that
// this turn has given something to do, and says whether there were any. While the thread
// sleeps in the kernel they would get it only when Go's monitor finds that out, 20 µs to 10 ms
// later, and then each answer would have to end that sleep.
func (l *Loop) yield() bool {
	retained := l.host.Retained.Load()
	if !l.alone || l.yielded == retained {
		return false
	}
	l.yielded = retained
	now := engine.Since()
	l.endTurn(now)
	runtime.Gosched()
	l.waited(now, 0)
	return true
}

// AddUrgent counts one more or, with -1, one less reason to sweep the slab.
func (l *Loop) AddUrgent(n int) {
	if l.sweep.urgent += n; n > 0 && l.sweep.urgent == n {
		l.sweep.at = min(l.sweep.at, l.host.Clock()+engine.MinSlice) // sooner than it was
	}
}

// TrackExpiry sees to it that a connection that has a Due is expired. Drivers call it
// when the connection waits.
func (l *Loop) TrackExpiry(c *engine.Conn) {
	switch _, due := c.Due(); {
	case due && c.Armed()&Expiring == 0:
		c.SetArmed(c.Armed() | Expiring)
		l.AddUrgent(1)
	case !due:
		l.untrackExpiry(c)
	}
}

// untrackExpiry undoes TrackExpiry.
func (l *Loop) untrackExpiry(c *engine.Conn) {
	if c.Armed()&Expiring != 0 {
		c.SetArmed(c.Armed() &^ Expiring)
		l.AddUrgent(-1)
	}
}

// Receive receives once from a connection, without waiting, and says how many bytes have
// come.
func (l *Loop) Receive(c *engine.Conn, room []byte) (n int) {
	n, errno := sock.Recv(c.FD(), room)
	switch {
	case errno == 0 && n > 0:
		c.Arrived(room[:n])
		l.NoteRead(c, n)
		if n < len(room) {
			c.Empty()
		}
		return n
	case errno == 0:
		c.PeerClosed()
	case errno == syscall.EAGAIN:
		c.Empty()
	default:
		c.Failed(errno)
	}
	return 0
}

// SendFile has the kernel send a file by a call, as far as it can. At its end, and whatever
// is wrong, it is read instead: that tells, or the next send does.
func (l *Loop) SendFile(c *engine.Conn, send func(fd int32, f *os.File, offset int64, n int) (int, syscall.Errno)) {
	f, offset, n := c.File()
	if f == nil {
		c.Load()
		return
	}
	switch n, errno := send(c.FD(), f, offset, n); {
	case errno == 0 && n > 0:
		c.Sent(n)
	case errno == syscall.EAGAIN:
		c.Sent(0)
	default:
		c.Load()
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
		_ = sock.ShutdownWrite(c.FD())
	}
	c.ShutDone()
}

// Finish closes the descriptor of an open connection, finishes it, and frees
// its slot, with workers when one of them has called Closed. Nothing of it may
// be under way.
func (l *Loop) Finish(c *engine.Conn) {
	l.untrackExpiry(c)
	sock.Close(c.FD())
	if l.host.OnWorkers && !c.Greets() {
		c.DeferClosed()
		c.SetArmed(c.Armed() | ClosePending)
		l.handOver(c)
		return
	}
	l.finish(c)
}

// finish calls Closed, and frees the slot whatever that does.
func (l *Loop) finish(c *engine.Conn) {
	defer l.free(c)
	c.Finish()
}

// Forget closes the descriptor of a dial that has failed, and frees its slot.
func (l *Loop) Forget(c *engine.Conn) {
	l.untrackExpiry(c)
	sock.Close(c.FD())
	l.free(c)
}

// Detach makes a connection one of package net, which has a descriptor of its own for it.
// Nothing of it may be under way, or watched.
func (l *Loop) Detach(c *engine.Conn) {
	if c.Leaving() {
		l.departure.atRest(c)
	} else {
		c.Detached(sock.NewNetConn(c.FD()))
	}
}

func (l *Loop) free(c *engine.Conn) {
	c.SetArmed(0)
	l.slab.put(c)
	l.used.Add(-1)
	l.group.admission.ReleaseConn()
	if l.accept.outOfDescriptors {
		l.accept.resume = 0
	}
	if l.accept.passedOn {
		l.reclaimListeners()
	}
}

// end closes what the loop still holds. Mail that came too late is taken, so
// that its reservations are released.
func (l *Loop) end() {
	l.box.Close()
	for l.hasMail() {
		l.takeMail()
	}
	l.mu.Lock()
	l.ended = true
	l.dialling.queue = l.orders // that came between the last look and now
	for _, c := range l.casts.all {
		c.Done()
	}
	for _, c := range l.posted {
		c.Done()
	}
	chores := l.chores
	l.mu.Unlock()
	l.closeWakeups()
	for _, do := range chores { // that came between the last look and now
		do()
	}
	l.driver.Close()
	l.pipe.Close()
}
