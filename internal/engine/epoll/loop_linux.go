package epoll

import (
	"cmp"
	"context"
	"log/slog"
	"runtime"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/myriad-go/myriad/internal/engine"
	"github.com/myriad-go/myriad/internal/sock"
)

// The bounds of one turn of a loop, so that none of its tasks starves another.
const (
	eventBatch  = 512
	acceptBatch = 128
	dialBatch   = 128
	mailBatch   = 64
	maxOrders   = 1024
)

// Tokens of descriptors that are no connections; those carry their slot.
const (
	bellToken   = -1
	acceptToken = -2
)

// What a connection is armed for, in Conn.Armed.
const (
	armIn      uint8 = 1 << iota // watched for input
	armOut                       // watched for room
	connecting                   // dialled, not established
	timed                        // counted in loop.timed
)

// What a loop is told, growing.
const (
	serving int32 = iota
	stopping
	killing
)

// loop is one thread of the model. See the package comment for who may touch
// what.
type loop struct {
	group    *group
	host     engine.Host
	counters engine.Counters
	buffers  engine.FreeList
	poll     *sock.Poll
	acceptor sock.Acceptor // FD is -1 when the loop does not accept
	slab     slab
	input    []byte // what Recv fills; valid for one event

	mail []engine.Mail // the batch of mail being delivered
	data []byte
	owed []*engine.Conn // connections that got mail and are to be settled

	stage      int32         // what the loop has done of told
	paused     bool          // descriptors ran out: not accepting until resume
	resume     time.Duration // when to try again
	complained time.Duration // when that was last logged
	timed      int           // connections that will expire
	sweepAt    time.Duration // when to look at the next slice of the slab
	sweepChunk int
	dials      []engine.Dial // dials that have been taken and not started

	// For everyone:
	box    engine.Mailbox
	told   atomic.Int32
	asleep atomic.Bool
	some   atomic.Bool   // orders is not empty
	mu     sync.Mutex    // guards what follows
	orders []engine.Dial // dials that the loop has not taken yet
	ended  bool          // the bell is closed
	bell   sock.Bell
}

func newLoop(g *group, index int) (*loop, error) {
	poll, err := sock.NewPoll(eventBatch)
	if err != nil {
		return nil, err
	}
	bell, err := sock.NewBell()
	if err != nil {
		poll.Close()
		return nil, err
	}
	l := &loop{group: g, poll: poll, bell: bell, input: make([]byte, engine.ReadSize)}
	l.acceptor.FD = -1
	l.box.Max = g.cfg.Limits.MaxMail
	l.host = engine.Host{
		Handler: g.cfg.Handler, Limits: g.cfg.Limits, Log: g.cfg.Log,
		Buffers: &l.buffers, Poster: l, Counters: &l.counters,
		Now: engine.Since, Index: index,
	}
	l.slab.host = &l.host
	return l, nil
}

// release closes what newLoop opened.
func (l *loop) release() {
	l.poll.Close()
	sock.Close(l.bell.FD)
}

// run turns until the loop is told to stop and the last connection is
// finished.
func (l *loop) run() {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	l.poll.Add(l.bell.FD, bellToken, sock.In)
	if l.acceptor.FD >= 0 {
		l.poll.Add(l.acceptor.FD, acceptToken, sock.In)
	}
	for !l.finished() {
		l.turn(l.wait())
	}
	l.end()
}

func (l *loop) finished() bool {
	return l.stage >= stopping && l.slab.used == 0 && !l.some.Load() && len(l.dials) == 0
}

// turn handles n events, and everything else once.
func (l *loop) turn(n int) {
	for i := range n {
		token, events := l.poll.Event(i)
		switch {
		case token >= 0:
			l.ready(l.slab.at(uint32(token)), events)
		case token == acceptToken:
			l.accept()
		default:
			l.bell.Hush()
		}
	}
	if l.box.Waiting() {
		l.takeMail()
	}
	if l.told.Load() > l.stage {
		l.obey()
	}
	if l.some.Load() || len(l.dials) > 0 {
		l.dial()
	}
	if l.timed > 0 || l.paused {
		l.tick(engine.Since())
	}
	l.slab.recycle()
}

// wait returns the number of events, after a while at the most. It first looks
// without telling the scheduler; a busy loop never gets further.
func (l *loop) wait() int {
	if n := l.poll.Look(); n > 0 || len(l.dials) > 0 {
		return n
	}
	l.asleep.Store(true)
	defer l.asleep.Store(false)
	if l.box.Waiting() || l.some.Load() || l.told.Load() > l.stage {
		return 0
	}
	most := time.Duration(-1)
	if l.timed > 0 || l.paused {
		most = sweepEvery
	}
	return l.poll.Wait(most)
}

// ready handles the events of one connection.
func (l *loop) ready(c *engine.Conn, events uint32) {
	switch {
	case c.FD() < 0:
		return // closed earlier in this turn
	case c.Armed()&connecting != 0:
		l.connected(c)
		return
	}
	if events&sock.Out != 0 {
		c.Room()
	}
	if events&(sock.In|sock.Hup|sock.Error) != 0 {
		if c.WantsInput() {
			l.receive(c)
		} else if events&(sock.Hup|sock.Error) != 0 {
			// Both directions have ended while output is owed.
			c.Failed(cmp.Or(sock.SocketError(c.FD()), syscall.ECONNRESET))
		}
	}
	l.settle(c)
}

// receive reads once; what is left is reported again.
func (l *loop) receive(c *engine.Conn) {
	n, errno := sock.Recv(c.FD(), l.input)
	switch {
	case errno == 0 && n > 0:
		c.Arrived(l.input[:n])
	case errno == 0:
		c.PeerClosed()
	case errno == syscall.EAGAIN:
	default:
		c.Failed(errno)
	}
}

// settle does what a connection asks for until it waits or is closed.
func (l *loop) settle(c *engine.Conn) {
	for {
		switch c.Next() {
		case engine.Send:
			l.send(c)
		case engine.Deliver:
			c.Deliver()
		case engine.Shut:
			l.shut(c)
		case engine.Close:
			l.close(c)
			return
		case engine.Wait:
			l.arm(c)
			return
		}
	}
}

func (l *loop) send(c *engine.Conn) {
	n, errno := sock.Send(c.FD(), c.Output())
	switch errno {
	case 0:
		c.Sent(n)
	case syscall.EAGAIN, syscall.ENOBUFS, syscall.ENOMEM:
		c.Sent(0)
	default:
		c.Failed(errno)
	}
}

// arm watches the connection for what it waits for.
func (l *loop) arm(c *engine.Conn) {
	if _, ok := c.Due(); ok && c.Armed()&timed == 0 {
		c.SetArmed(c.Armed() | timed)
		l.timed++
	}
	var want uint8
	var events uint32
	if c.WantsInput() {
		want, events = armIn, sock.In
	}
	if c.WantsRoom() {
		want, events = want|armOut, events|sock.Out
	}
	if c.Armed()&(armIn|armOut) == want {
		return
	}
	if errno := l.poll.Modify(c.FD(), int32(c.Slot()), events); errno != 0 {
		c.Failed(errno)
		l.close(c)
		return
	}
	c.SetArmed(c.Armed()&^(armIn|armOut) | want)
}

// shut shuts the sending direction. A connection that is to be reset is closed
// at once: its end, if it came first, would leave it in TIME_WAIT.
func (l *loop) shut(c *engine.Conn) {
	if l.resets(c) {
		c.PeerClosed()
	} else {
		// An error means that the peer has gone; reading will tell.
		_ = sock.ShutWrite(c.FD())
	}
	c.ShutDone()
}

// resets says whether the connection is to be closed with a reset.
func (l *loop) resets(c *engine.Conn) bool { return c.Outbound() && l.group.cfg.Reset }

// close closes the descriptor and finishes the connection.
func (l *loop) close(c *engine.Conn) {
	if l.resets(c) {
		_ = sock.ResetOnClose(c.FD())
	}
	if c.Armed()&timed != 0 {
		l.timed--
	}
	sock.Close(c.FD())
	c.Finish()
	l.forget(c)
}

// forget frees the slot of a connection whose descriptor is closed.
func (l *loop) forget(c *engine.Conn) {
	c.SetFD(-1)
	c.SetArmed(0)
	l.slab.put(c)
	l.group.leave()
	l.resume = 0
}

// accept takes what waits, up to a batch; what is left is reported again.
func (l *loop) accept() {
	for range acceptBatch {
		if l.acceptor.FD < 0 || l.paused {
			return
		}
		fd, peer, errno := l.acceptor.Accept()
		switch errno {
		case 0:
			l.welcome(fd, peer)
		case syscall.EAGAIN:
			return
		case syscall.EINTR, syscall.ECONNABORTED:
		default:
			l.pause(errno)
		}
	}
}

// tick accepts again when it is time, and expires closing connections: one
// slice of the slab at a time, all of it in eight ticks.
func (l *loop) tick(now time.Duration) {
	if l.paused && now >= l.resume {
		l.paused = false
		if l.acceptor.FD >= 0 {
			l.poll.Add(l.acceptor.FD, acceptToken, sock.In)
		}
	}
	if l.timed == 0 || now < l.sweepAt {
		return
	}
	l.sweepAt = now + sweepEvery
	to := l.sweepChunk + (len(l.slab.chunks)+7)/8
	l.slab.each(l.sweepChunk, to, func(c *engine.Conn) {
		if c.Armed()&timed != 0 {
			c.Expire(now)
			l.settle(c)
		}
	})
	l.sweepChunk = to
	if to >= len(l.slab.chunks) {
		l.sweepChunk = 0
	}
}

// pause stops accepting for want of descriptors or memory, so that the loop
// does not spin on what it cannot take.
func (l *loop) pause(errno syscall.Errno) {
	l.counters.AcceptErrors.Add(1)
	l.poll.Remove(l.acceptor.FD)
	now := engine.Since()
	l.paused, l.resume = true, now+sweepEvery
	if l.complained == 0 || now-l.complained > time.Second {
		l.complained = now
		l.host.Log.LogAttrs(context.Background(), slog.LevelWarn,
			"cannot accept; trying again when a connection has closed, and regularly",
			slog.String("error", errno.Error()),
			slog.Int64("open", l.group.open.Load()))
	}
}

// end closes what the loop still holds. Mail that came too late is taken, so
// that its reservations are released.
func (l *loop) end() {
	l.box.Close()
	l.takeMail()
	l.mu.Lock()
	defer l.mu.Unlock()
	l.ended = true
	l.release()
}
