package loop

import (
	"errors"
	"slices"
	"syscall"
	"time"

	"github.com/myriad-go/myriad/internal/engine"
	"github.com/myriad-go/myriad/internal/sock"
)

// This file is how connections come to a loop, and how a loop is reached from
// outside.

func (l *Loop) Post(c *engine.Conn, gen uint32, r engine.Request) error {
	if err := l.box.Put(c, gen, r); err != nil {
		return err
	}
	l.wake()
	return nil
}

func (l *Loop) PostMany(to *engine.Many, s *engine.Shared) engine.Tally {
	t := l.box.PutMany(to, s)
	if t.Sent() > 0 {
		l.wake()
	}
	return t
}

// request raises what the loop is told to do.
func (l *Loop) request(what int32) {
	for told := l.wanted.Load(); told < what; told = l.wanted.Load() {
		l.wanted.CompareAndSwap(told, what)
	}
	l.wake()
}

// order leaves a dial.
func (l *Loop) order(d engine.Dial) error {
	if err := l.queue(d); err != nil {
		return err
	}
	l.wake()
	return nil
}

func (l *Loop) queue(d engine.Dial) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	switch {
	case l.ended || l.wanted.Load() >= stopping:
		return engine.ErrClosed
	case len(l.orders) >= maxOrders:
		return engine.ErrFull
	}
	l.orders = append(l.orders, d)
	l.hasOrders.Store(true)
	return nil
}

// addChore leaves a chore for the loop. One that has ended does it no more, and says so.
func (l *Loop) addChore(chore func()) (ok bool) {
	l.mu.Lock()
	if ok = !l.ended; ok {
		l.chores = append(l.chores, chore)
		l.hasOrders.Store(true)
	}
	l.mu.Unlock()
	l.wake()
	return ok
}

// wake ends the loop's wait. The eventfd is signalled under a lock of its own, because
// it is closed when the loop has ended.
func (l *Loop) wake() {
	if !l.asleep.Load() || !l.asleep.CompareAndSwap(true, false) {
		return
	}
	l.wakeMu.Lock()
	defer l.wakeMu.Unlock()
	if !l.wakeOver {
		l.eventfd.Signal()
	}
}

// closeWakeups stops all further wakeups.
func (l *Loop) closeWakeups() {
	l.wakeMu.Lock()
	defer l.wakeMu.Unlock()
	l.wakeOver = true
}

// SettleLater implements engine.Loop. It is called
// within events, so that nothing is settled now.
func (l *Loop) SettleLater(c *engine.Conn) {
	if n := len(l.touched); n == 0 || l.touched[n-1] != c {
		l.touched = append(l.touched, c)
	}
}

// settleTouched settles those, which may touch others.
func (l *Loop) settleTouched() {
	for i := 0; i < len(l.touched); i++ {
		if c := l.touched[i]; c.FD() >= 0 && c.Armed()&(Busy|Connecting) == 0 && c.IsOpen() {
			l.driver.Settle(c)
		}
	}
	clear(l.touched)
	l.touched = l.touched[:0]
}

// Each calls f for every connection and every dial.
func (l *Loop) Each(f func(*engine.Conn)) { l.slab.each(0, l.slab.made, f) }

// Abort closes a connection in this turn, or when it is back if it is with a worker, and gives
// up a dial.
func (l *Loop) Abort(c *engine.Conn, why error) {
	switch {
	case c.Armed()&Connecting != 0:
		l.dialFailed(c, why)
	case c.Armed()&Busy != 0:
		l.Later(c, func() { c.Abort(why) })
	case c.IsOpen():
		c.Abort(why)
		l.SettleLater(c)
	}
}

// takeOrders takes what has been ordered, and does the chores.
func (l *Loop) takeOrders() {
	if l.hasOrders.Load() {
		l.mu.Lock()
		l.dialling.queue = append(l.dialling.queue, l.orders...)
		for _, c := range l.posted {
			l.casts.all = append(l.casts.all, casting{Broadcast: c})
		}
		clear(l.posted)
		l.taken = append(l.taken, l.chores...)
		l.orders, l.posted, l.chores = l.orders[:0], l.posted[:0], nil
		l.hasOrders.Store(false)
		l.mu.Unlock()
	}
	for len(l.taken) > 0 {
		do := l.taken[0]
		l.taken = l.taken[1:]
		do()
	}
	l.taken = nil
}

// dialling starts the connections that were ordered.
type dialling struct {
	loop  *Loop
	queue []engine.Dial // that the loop has taken and not started
}

// run starts up to a batch of them.
func (q *dialling) run(time.Duration) {
	for room := dialBatch; room > 0 && len(q.queue) > 0; room-- {
		if d := q.pop(); !q.loop.dialOne(d) {
			q.queue = slices.Insert(q.queue, 0, d)
			return
		}
	}
}

func (q *dialling) next() (at time.Duration, ok bool) { return 0, len(q.queue) > 0 }

// pop takes one connection out of what has been ordered.
func (q *dialling) pop() engine.Dial {
	d := q.queue[0]
	if d.Count == 1 {
		q.queue = q.queue[1:]
	} else {
		q.queue[0].Count--
	}
	d.Count = 1
	return d
}

// failDials fails what has been ordered.
func (l *Loop) failDials() {
	for len(l.dialling.queue) > 0 {
		l.host.DialFailed(l.dialling.pop().Owned, engine.ErrClosed)
	}
}

// dialOne starts one connection, has another loop do it, or tells that it can't
// be. It is not done when the loop that is to do it has no room for the order.
func (l *Loop) dialOne(d engine.Dial) (done bool) {
	if l.wanted.Load() >= stopping {
		l.host.DialFailed(d.Owned, engine.ErrClosed)
		return true
	}
	if l.full() {
		return l.passDialOn(d)
	}
	if !l.group.admission.AcquireConn() {
		l.host.DialFailed(d.Owned, engine.ErrFull)
		return true
	}
	start := engine.Since()
	fd, err := l.connect(d)
	if err == nil && fd >= engine.MaxFD {
		sock.Close(fd)
		err = syscall.EMFILE
	}
	if err != nil {
		l.group.admission.ReleaseConn()
		if errors.Is(err, syscall.EMFILE) && l.noteTableFull() {
			return l.passDialOn(d)
		}
		l.host.DialFailed(d.Owned, err)
		return true
	}
	c := l.take(fd)
	c.SetArmed(Connecting)
	c.Dialling(d.Target, start)
	if d.Owned != nil {
		c.SetOwned(d.Owned)
	}
	if d.Timeout > 0 {
		c.DialTimeout(start + d.Timeout)
	}
	if errno := l.driver.Watch(c); errno != 0 {
		l.dialFailed(c, errno)
	} else {
		l.TrackExpiry(c)
	}
	return true
}

// dialLate ends an attempt that has taken too long: the kernel reports it as failed.
func (l *Loop) dialLate(c *engine.Conn) {
	c.SetArmed(c.Armed() | DialTimedOut)
	sock.Shutdown(c.FD())
}

// connect begins to connect.
func (l *Loop) connect(d engine.Dial) (int32, error) {
	options := l.group.cfg.SocketOptions(true)
	if d.Path != "" {
		return sock.StartDialUnix(d.Path, options)
	}
	return sock.StartDial(d.Target, d.Source, options)
}

// Connected ends a dial, well or not.
func (l *Loop) Connected(c *engine.Conn) {
	errno := sock.TakeSocketError(c.FD())
	if c.Armed()&DialTimedOut != 0 {
		errno = syscall.ETIMEDOUT
	}
	if errno == 0 {
		c.SetArmed(c.Armed() &^ Connecting)
		errno = l.driver.Established(c)
	}
	if errno != 0 {
		l.dialFailed(c, errno)
		return
	}
	c.Open(c.Peer(), true)
	l.driver.Settle(c)
}

// dialFailed gives up a dial that has a descriptor.
func (l *Loop) dialFailed(c *engine.Conn, err error) {
	if c.Armed()&DialTimedOut != 0 {
		err = engine.ErrDialTimeout
	}
	c.SetArmed(c.Armed() &^ Connecting)
	owned := c.Abandon()
	l.driver.Drop(c)
	l.host.DialFailed(owned, err)
}
