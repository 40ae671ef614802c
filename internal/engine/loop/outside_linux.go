package loop

import (
	"errors"
	"syscall"

	"github.com/myriad-go/myriad/internal/engine"
	"github.com/myriad-go/myriad/internal/sock"
)

// This file is how connections come to a loop, and how a loop is reached from
// outside.

// Post implements engine.Poster.
func (l *Loop) Post(c *engine.Conn, gen uint32, r engine.Request) error {
	if err := l.box.Put(c, gen, r); err != nil {
		return err
	}
	l.rouse()
	return nil
}

// tell raises what the loop is told to do.
func (l *Loop) tell(what int32) {
	for told := l.told.Load(); told < what; told = l.told.Load() {
		l.told.CompareAndSwap(told, what)
	}
	l.rouse()
}

// order leaves a dial.
func (l *Loop) order(d engine.Dial) error {
	if err := l.queue(d); err != nil {
		return err
	}
	l.rouse()
	return nil
}

func (l *Loop) queue(d engine.Dial) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	switch {
	case l.ended || l.told.Load() >= stopping:
		return engine.ErrClosed
	case len(l.orders) >= maxOrders:
		return engine.ErrFull
	}
	l.orders = append(l.orders, d)
	l.some.Store(true)
	return nil
}

// ask leaves a chore for the loop. One that has ended does it no more, and says so.
func (l *Loop) ask(chore func()) (ok bool) {
	l.mu.Lock()
	if ok = !l.ended; ok {
		l.chores = append(l.chores, chore)
		l.some.Store(true)
	}
	l.mu.Unlock()
	l.rouse()
	return ok
}

// rouse ends the loop's wait. The bell is rung under a lock of its own, because
// it is closed when the loop has ended.
func (l *Loop) rouse() {
	if !l.asleep.Load() || !l.asleep.CompareAndSwap(true, false) {
		return
	}
	l.ringing.Lock()
	defer l.ringing.Unlock()
	if !l.silent {
		l.bell.Ring()
	}
}

// silence has nobody ring any more.
func (l *Loop) silence() {
	l.ringing.Lock()
	defer l.ringing.Unlock()
	l.silent = true
}

// takeMail gives the waiting mail to its connections and settles each after a
// batch, so that many messages to one connection go out in one call and yet
// few connections hold an output buffer at a time.
func (l *Loop) takeMail() {
	mail, data := l.box.Take()
	rest := data
	for _, m := range mail {
		l.settleSoon(m.Conn)
		l.deliver(m, rest[:m.Size])
		rest = rest[m.Size:]
	}
	l.settleMailed()
	l.box.Done(mail, data)
}

// deliver gives a connection its mail, now or when it is back.
func (l *Loop) deliver(m engine.Mail, data []byte) {
	if m.Conn.Armed()&Busy == 0 || m.Late() {
		m.Conn.Mailed(m, data)
		return
	}
	l.mailLater(m, data)
}

// settleSoon notes that a connection, to which something is about to happen, is to
// be settled. When it is one too many for a batch, those before it are.
func (l *Loop) settleSoon(c *engine.Conn) {
	n := len(l.mailed)
	if n > 0 && l.mailed[n-1] == c {
		return
	}
	if n == mailBatch {
		l.settleMailed()
	}
	l.mailed = append(l.mailed, c)
}

func (l *Loop) settleMailed() {
	for _, c := range l.mailed {
		if c.FD() >= 0 && c.Armed()&Busy == 0 && c.IsOpen() {
			l.driver.Settle(c)
		}
	}
	clear(l.mailed)
	l.mailed = l.mailed[:0]
}

// Each calls f for every connection and every dial.
func (l *Loop) Each(f func(*engine.Conn)) { l.slab.each(0, l.slab.made, f) }

// Abort ends a connection or a dial of which nothing is under way any more,
// because its driver has failed.
func (l *Loop) Abort(c *engine.Conn, why error) {
	switch {
	case c.Armed()&Connecting != 0:
		l.dialFailed(c, why)
	case c.Armed()&Busy != 0:
		l.Later(c, func() { c.Failed(why) })
	case !c.IsOpen():
		l.driver.Drop(c)
	default:
		c.Failed(why)
		l.driver.Settle(c)
	}
}

// takeOrders takes what has been ordered, and does the chores.
func (l *Loop) takeOrders() {
	l.mu.Lock()
	l.dials = append(l.dials, l.orders...)
	l.casts = append(l.casts, l.posted...)
	clear(l.posted)
	chores := l.chores
	l.orders, l.posted, l.chores = l.orders[:0], l.posted[:0], nil
	l.some.Store(false)
	l.mu.Unlock()
	for _, do := range chores {
		do()
	}
}

// dial starts the connections that were ordered, up to a batch a turn.
func (l *Loop) dial() {
	for room := dialBatch; room > 0 && len(l.dials) > 0; room-- {
		d := &l.dials[0]
		if !l.dialOne(*d) {
			return
		}
		if d.Count--; d.Count == 0 {
			l.dials = l.dials[1:]
		}
	}
}

// dialOne starts one connection, has another loop do it, or tells that it can't
// be. It is not done when the loop that is to do it has no room for the order.
func (l *Loop) dialOne(d engine.Dial) (done bool) {
	if l.told.Load() >= stopping {
		l.tellDialFailed(engine.ErrClosed)
		return true
	}
	if l.full() {
		return l.passDialOn(d)
	}
	if !l.group.door.Enter() {
		l.tellDialFailed(engine.ErrFull)
		return true
	}
	start := engine.Since()
	fd, err := l.connect(d)
	if err == nil && fd >= engine.MaxFD {
		sock.Close(fd)
		err = syscall.EMFILE
	}
	if err != nil {
		l.group.door.Leave()
		if errors.Is(err, syscall.EMFILE) && l.fullNow() {
			return l.passDialOn(d)
		}
		l.tellDialFailed(err)
		return true
	}
	c := l.take(fd)
	c.SetArmed(Connecting)
	c.Dialling(d.Target, start)
	if errno := l.driver.Watch(c); errno != 0 {
		l.dialFailed(c, errno)
	}
	return true
}

// connect begins to connect.
func (l *Loop) connect(d engine.Dial) (int32, error) {
	options := l.group.options()
	options.Reset = l.group.cfg.Reset
	if d.Path != "" {
		return sock.DialUnix(d.Path, options)
	}
	return sock.Dial(d.Target, d.Source, options)
}

// Connected ends a dial, well or not.
func (l *Loop) Connected(c *engine.Conn) {
	errno := sock.SocketError(c.FD())
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
	l.driver.Drop(c)
	l.tellDialFailed(err)
}

func (l *Loop) tellDialFailed(err error) {
	var errno syscall.Errno
	if errors.As(err, &errno) {
		err = errno
	}
	if f, ok := l.host.Handler.(engine.DialFailer); ok {
		f.DialFailed(err)
	}
}
