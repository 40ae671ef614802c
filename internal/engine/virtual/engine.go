// Package virtual is an engine without a kernel: its peers are in this process, its clock
// is moved by hand, and nothing in it happens by itself. Package tcptest has its users'
// view.
//
// # Who owns what
//
// The connections are owned by whoever holds Engine.own, one goroutine at a time: a call
// of the tester, or of Stop. Each such call does what can be done at this moment, in the
// order of the connections, before it lets go; so handlers run on the goroutine that
// calls. From outside a connection is reached by its mailbox, and the engine by wishes,
// both with a lock of their own, which is held for moments and never taken before own.
// Who leaves something there wakes a tester that waits; it is dealt with in the next
// call. No goroutine is started.
package virtual

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"sync"
	"time"

	"github.com/myriad-go/myriad/internal/engine"
)

const (
	// maxTurns is how often handlers may cause one another more to do, in one call.
	maxTurns = 1 << 17
	// grain is the coarseness of the core's clock of silence, by which it would find
	// a time over too late: the engine asks it that much ahead.
	grain = 34 * time.Millisecond
	// maxOrders and maxPeers bound what is kept.
	maxOrders = 16
	maxPeers  = 1 << 16
	// MaxTime is the most virtual time: the core's clock wraps far beyond.
	MaxTime = 365 * 24 * time.Hour
	// began is the time at the start; 0 has a meaning of its own.
	began = time.Hour
)

// Engine is a running engine.
type Engine struct {
	cfg        engine.Config
	host       engine.Host
	counters   engine.Counters
	broadcasts engine.BroadcastTracker
	wake       chan struct{} // somebody has left something
	done       chan struct{} // closed when everything has ended

	own    sync.Mutex // by which the rest is owned
	now    time.Duration
	ahead  time.Duration // how far the core is to look
	live   []*Peer       // let in, and not found to be closed since
	queue  []*Peer       // those that wait to be accepted
	admits time.Duration // when the next of them may be; 0 if that is not for time to say
	drains bool          // all have been told
	stopBy time.Duration // when those that are left are closed; 0 for never

	mu       sync.Mutex // guards what follows
	peers    []*Peer    // all that ever were, by slot
	requests requests
}

// requests are what others want of the engine.
type requests struct {
	casts      []*engine.Broadcast
	expel      []netip.AddrPort
	hold       bool
	stop, kill bool
	within     time.Duration // of a stop that does not wait; 0 for no bound
	ended      bool
}

// all are the broadcasts in one piece, and each.
func (w *requests) all() (all []byte, each []*engine.Shared) {
	for _, b := range w.casts {
		all, each = append(all, b.Bytes...), append(each, &b.Shared)
	}
	return all, each
}

// Listener stands for the listener of an engine, which it starts. It accepts nothing by
// itself.
type Listener struct {
	// Engine is set by Start.
	Engine *Engine
}

func (*Listener) Accept() (net.Conn, error) { return nil, errors.ErrUnsupported }
func (*Listener) Close() error              { return nil }

// Addr is an address that is nobody's (RFC 5737).
func (*Listener) Addr() net.Addr {
	return &net.TCPAddr{IP: net.IPv4(192, 0, 2, 1), Port: 9000}
}

// Start starts the engine.
func (l *Listener) Start(cfg engine.Config) (engine.Engine, error) {
	e := &Engine{cfg: cfg, wake: make(chan struct{}, 1), done: make(chan struct{}), now: began}
	e.host.SetUp(&cfg, engine.NewAdmission(&cfg))
	e.host.Buffers, e.host.Poster, e.host.Counters = &engine.FreeList{}, e, &e.counters
	e.host.Shared, e.broadcasts.Counters = &e.counters, &e.counters
	e.host.Now = func() time.Duration { return e.now + e.ahead }
	e.host.SetClock(e.now)
	e.host.NoDetach, e.host.Loops = true, 1
	e.host.Entrances = []*engine.Entrance{engine.NewEntrance(cfg.Listeners[0], l.Addr())}
	l.Engine = e
	return e, nil
}

func (e *Engine) Addr() net.Addr { return e.cfg.Listeners[0].Socket.Addr() }

func (e *Engine) Listening() []engine.Listening { return e.host.Listening() }

func (e *Engine) Loops() int { return 0 }

func (e *Engine) Counters() (sum engine.Counts) {
	e.counters.AddTo(&sum)
	e.broadcasts.Count(&sum)
	return sum
}

// Dial implements engine.Engine: there is nobody to connect to.
func (e *Engine) Dial(engine.Dial) error {
	return fmt.Errorf("dialling without a network: %w", errors.ErrUnsupported)
}

// Adopt implements engine.Engine: there is nobody who could have accepted one.
func (e *Engine) Adopt(net.Conn, int, []byte) error {
	return fmt.Errorf("a connection of a network: %w", errors.ErrUnsupported)
}

func (e *Engine) Post(c *engine.Conn, gen uint32, r engine.Request) error {
	e.mu.Lock()
	p := e.peers[c.Slot()]
	e.mu.Unlock()
	if err := p.box.Put(c, gen, r); err != nil {
		return err
	}
	e.signal()
	return nil
}

func (e *Engine) signal() {
	select {
	case e.wake <- struct{}{}:
	default:
	}
}

// request leaves a wish, unless everything has ended or it can't be had.
func (e *Engine) request(leave func(*requests) error) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.requests.ended {
		return engine.ErrClosed
	}
	if err := leave(&e.requests); err != nil {
		return err
	}
	e.signal()
	return nil
}

func (e *Engine) Broadcast(p []byte) error {
	b, err := e.broadcasts.Begin(p, 1, &e.cfg.Limits)
	if err != nil {
		return err
	}
	err = e.request(func(w *requests) error {
		w.casts = append(w.casts, b)
		return nil
	})
	if err != nil {
		b.Done()
	}
	return err
}

func (e *Engine) Hold(on bool) error {
	return e.request(func(w *requests) error {
		w.hold = on
		return nil
	})
}

func (e *Engine) Expel(peer netip.AddrPort) error {
	return e.request(func(w *requests) error {
		if len(w.expel) == maxOrders {
			return engine.ErrFull
		}
		w.expel = append(w.expel, peer)
		return nil
	})
}

func (e *Engine) Visit(s *engine.Shared, put func(), done func(full int)) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	full := 0
	for _, p := range e.peers {
		if p.gone {
			continue
		}
		put()
		if err := p.box.PutShared(&p.conn, engine.MailDo, s); err != nil {
			s.Lost()
			full++
		}
	}
	e.signal()
	done(full)
	return nil
}

// withinKey marks a context by Within.
type withinKey struct{}

// Within is a context for a Stop that does not wait: it only begins, and so much
// virtual time later what is left is closed.
func Within(d time.Duration) context.Context {
	return context.WithValue(context.Background(), withinKey{}, d)
}

// Stop implements engine.Engine. It does itself what it can, so that it may be called on
// the tester's goroutine; what is left after that is for the tester's calls on another.
func (e *Engine) Stop(ctx context.Context) error {
	within, begin := ctx.Value(withinKey{}).(time.Duration)
	_ = e.request(func(w *requests) error { // an error says that it has ended
		if begin && !w.stop {
			w.within = within
		}
		w.stop = true
		return nil
	})
	e.broadcasts.End()
	if e.try(); begin {
		return nil
	}
	return engine.AwaitStop(ctx, e.done, e.host.Admission.OpenConns, func() {
		_ = e.request(func(w *requests) error {
			w.kill = true
			return nil
		})
		e.try()
	})
}

func (e *Engine) Wait() { <-e.done }

// try does what can be done, unless somebody is at it.
func (e *Engine) try() {
	if e.own.TryLock() {
		defer e.own.Unlock()
		e.settle()
	}
}

// settle does all that can be done at this moment.
func (e *Engine) settle() {
	for range maxTurns {
		if !e.turn() {
			return
		}
	}
	panic(fmt.Sprintf("myriad: handlers have not come to rest after %d turns", maxTurns))
}

// turn does what there is for each connection, and says whether that was anything.
func (e *Engine) turn() (acted bool) {
	e.host.SetClock(e.now)
	e.mu.Lock()
	w := e.requests
	e.requests.casts, e.requests.expel = nil, nil
	e.mu.Unlock()
	acted = e.accept(w.hold || w.stop)
	for _, p := range e.open() {
		p.apply(&w)
		acted = p.mail() || acted
		acted = p.drive() || acted
	}
	for _, b := range w.casts {
		b.Done()
	}
	e.counters.Add(engine.Broadcasts, int64(len(w.casts)))
	acted = e.shedBuffers() || acted
	if w.stop {
		acted = e.stopping(w) || acted
	}
	return acted
}

// open are the connections that are open, until it is called again.
func (e *Engine) open() []*Peer {
	e.live = slices.DeleteFunc(e.live, func(p *Peer) bool { return !p.conn.IsOpen() })
	return e.live
}

// accept lets those in that wait, as far as they may.
func (e *Engine) accept(held bool) (acted bool) {
	e.counters.SetFlag(engine.Holding, held)
	e.admits = 0
	for !held && len(e.queue) > 0 {
		if wait := e.host.Admission.TakeRateToken(e.now); wait > 0 {
			e.admits = e.now + wait
			break
		}
		p := e.queue[0]
		e.queue = e.queue[1:]
		p.welcome()
		acted = true
	}
	return acted
}

// shedBuffers closes connections with the largest buffers while all together hold too much.
func (e *Engine) shedBuffers() (acted bool) {
	most := int64(e.cfg.Limits.MaxBuffered)
	for most > 0 && e.counters.Get(engine.Buffered) > most {
		var largest *Peer
		for _, p := range e.open() {
			if largest == nil || p.conn.Holds() > largest.conn.Holds() {
				largest = p
			}
		}
		if largest == nil || largest.conn.Holds() == 0 {
			break
		}
		largest.conn.Abort(engine.ErrOverBudget)
		largest.drive()
		acted = true
	}
	return acted
}

// stopping begins the end, and ends when nobody is left.
func (e *Engine) stopping(w requests) (acted bool) {
	if !e.drains {
		e.drains = true
		if w.within > 0 {
			e.stopBy = e.now + min(w.within, 2*MaxTime)
		}
		for _, p := range e.queue {
			p.cutOff(engine.ErrServerClosed)
		}
		e.queue = nil
	}
	for _, p := range e.open() {
		if p.conn.Drain(); w.kill || e.stopBy > 0 && e.now >= e.stopBy {
			p.conn.Abort(engine.ErrServerClosed)
		}
		acted = p.drive() || acted
	}
	if len(e.open()) > 0 {
		return acted
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	if !e.requests.ended {
		e.requests.ended = true
		close(e.done)
	}
	return acted
}

// Do runs what a tester does, with everything settled before and after.
func (e *Engine) Do(what func()) {
	e.own.Lock()
	defer e.own.Unlock()
	e.settle()
	what()
	e.settle()
}

// Woken has word when somebody may have left something for the next call.
func (e *Engine) Woken() <-chan struct{} { return e.wake }

// Advance moves the clock, and does what is due meanwhile, in the order of time. It is for
// Do. It says how much there is at most if that is less.
func (e *Engine) Advance(d time.Duration) (ok bool, most time.Duration) {
	end := e.now + d
	if most = began + MaxTime - e.now; d < 0 || d > most {
		return false, most
	}
	for {
		e.now = min(e.wakes(), end)
		e.expire()
		if e.now == end {
			return true, most
		}
	}
}

// wakes is when something is due next, after now.
func (e *Engine) wakes() (at time.Duration) {
	at = began + 2*MaxTime
	if e.stopBy > e.now {
		at = e.stopBy
	}
	if e.admits > e.now {
		at = min(at, e.admits)
	}
	for _, p := range e.open() {
		if due, ok := p.conn.Wakes(); ok {
			at = min(at, max(due, e.now+grain/2))
		}
	}
	return at
}

// expire does what is due.
func (e *Engine) expire() {
	e.host.SetClock(e.now)
	e.ahead = grain
	for _, p := range e.open() {
		p.conn.Expire(e.host.Now())
		p.drive()
	}
	e.ahead = 0
	e.settle()
}
