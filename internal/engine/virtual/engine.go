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
	// maxSettleRounds is how often handlers may cause one another more to do, in one call.
	maxSettleRounds = 1 << 17
	// clockCoarseness is the coarseness of the core's clock of silence, by which it would find
	// a time over too late: the engine asks it that much ahead.
	clockCoarseness = 34 * time.Millisecond
	// maxQueuedRequests and maxPeers bound what is kept.
	maxQueuedRequests = 16
	maxPeers          = 1 << 16
	// MaxTime is the most virtual time: the core's clock wraps far beyond.
	MaxTime = 365 * 24 * time.Hour
	// startTime is the time at the start; 0 has a meaning of its own.
	startTime = time.Hour
)

// Engine is a running engine.
type Engine struct {
	cfg        engine.Config
	host       engine.Runtime
	counters   engine.Counters
	broadcasts engine.BroadcastTracker
	wake       chan struct{} // somebody has left something
	done       chan struct{} // closed when everything has ended

	ownerLock     sync.Mutex // by which the rest is owned
	now           time.Duration
	lookAhead     time.Duration // how far the core is to look
	openPeerList  []*Peer       // let in, and not found to be closed since
	acceptQueue   []*Peer       // those that wait to be accepted
	nextAdmission time.Duration // when the next of them may be; 0 if that is not for time to say
	draining      bool          // all have been told
	stopDeadline  time.Duration // when those that are left are closed; 0 for never

	mu       sync.Mutex // guards what follows
	peers    []*Peer    // all that ever were, by slot
	requests pendingRequests
}

// pendingRequests are what others want of the engine.
type pendingRequests struct {
	broadcasts     []*engine.Broadcast
	peersToClose   []netip.AddrPort
	acceptPaused   bool
	stop, closeNow bool
	stopWithin     time.Duration // of a stop that does not wait; 0 for no bound
	ended          bool
}

// joinBroadcasts are the broadcasts in one piece, and each.
func (w *pendingRequests) joinBroadcasts() (joined []byte, messages []*engine.Shared) {
	for _, b := range w.broadcasts {
		joined, messages = append(joined, b.Bytes...), append(messages, &b.Shared)
	}
	return joined, messages
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
	e := &Engine{cfg: cfg, wake: make(chan struct{}, 1), done: make(chan struct{}), now: startTime}
	e.host.Configure(&cfg, engine.NewAdmission(&cfg))
	e.host.Buffers, e.host.Poster, e.host.Counters = &engine.FreeList{}, e, &e.counters
	e.host.Shared, e.broadcasts.Counters = &e.counters, &e.counters
	e.host.Now = func() time.Duration { return e.now + e.lookAhead }
	e.host.SetClock(e.now)
	e.host.NoDetach, e.host.Loops = true, 1
	e.host.ListenerCounters = []*engine.ListenerCounters{engine.NewListenerCounters(cfg.Listeners[0], l.Addr())}
	l.Engine = e
	return e, nil
}

func (e *Engine) Addr() net.Addr { return e.cfg.Listeners[0].Socket.Addr() }

func (e *Engine) ListenerStats() []engine.ListenerStats { return e.host.ListenerStats() }

func (e *Engine) Loops() int { return 0 }

func (e *Engine) Counters() (sum engine.Counts) {
	e.counters.AddTo(&sum)
	e.broadcasts.FillCounts(&sum)
	return sum
}

// Dial implements engine.Engine: there is nobody to connect to.
func (e *Engine) Dial(engine.DialRequest) error {
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
	if err := p.mailbox.Put(c, gen, r); err != nil {
		return err
	}
	e.wakeTester()
	return nil
}

func (e *Engine) wakeTester() {
	select {
	case e.wake <- struct{}{}:
	default:
	}
}

// postRequest leaves a wish, unless everything has ended or it can't be had.
func (e *Engine) postRequest(update func(*pendingRequests) error) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.requests.ended {
		return engine.ErrClosed
	}
	if err := update(&e.requests); err != nil {
		return err
	}
	e.wakeTester()
	return nil
}

func (e *Engine) Broadcast(p []byte) error {
	b, err := e.broadcasts.StartBroadcast(p, 1, &e.cfg.Limits)
	if err != nil {
		return err
	}
	err = e.postRequest(func(w *pendingRequests) error {
		w.broadcasts = append(w.broadcasts, b)
		return nil
	})
	if err != nil {
		b.OwnerDone()
	}
	return err
}

func (e *Engine) PauseAccept(on bool) error {
	return e.postRequest(func(w *pendingRequests) error {
		w.acceptPaused = on
		return nil
	})
}

func (e *Engine) ClosePeerConns(peer netip.AddrPort) error {
	return e.postRequest(func(w *pendingRequests) error {
		if len(w.peersToClose) == maxQueuedRequests {
			return engine.ErrFull
		}
		w.peersToClose = append(w.peersToClose, peer)
		return nil
	})
}

func (e *Engine) VisitConns(s *engine.Shared, beforePost func(), done func(full int)) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	full := 0
	for _, p := range e.peers {
		if p.mailboxClosed {
			continue
		}
		beforePost()
		if err := p.mailbox.PutShared(&p.conn, engine.RequestDo, s); err != nil {
			s.OnLost()
			full++
		}
	}
	e.wakeTester()
	done(full)
	return nil
}

// stopWithinKey marks a context by Within.
type stopWithinKey struct{}

// StopWithin is a context for a Stop that does not wait: it only begins, and so much
// virtual time later what is left is closed.
func StopWithin(d time.Duration) context.Context {
	return context.WithValue(context.Background(), stopWithinKey{}, d)
}

// Stop implements engine.Engine. It does itself what it can, so that it may be called on
// the tester's goroutine; what is left after that is for the tester's calls on another.
func (e *Engine) Stop(ctx context.Context) error {
	within, begin := ctx.Value(stopWithinKey{}).(time.Duration)
	_ = e.postRequest(func(w *pendingRequests) error { // an error says that it has ended
		if begin && !w.stop {
			w.stopWithin = within
		}
		w.stop = true
		return nil
	})
	e.broadcasts.Close()
	if e.settleIfFree(); begin {
		return nil
	}
	return engine.AwaitStop(ctx, e.done, e.host.Admission.Open, func() {
		_ = e.postRequest(func(w *pendingRequests) error {
			w.closeNow = true
			return nil
		})
		e.settleIfFree()
	})
}

func (e *Engine) Wait() { <-e.done }

// settleIfFree does what can be done, unless somebody is at it.
func (e *Engine) settleIfFree() {
	if e.ownerLock.TryLock() {
		defer e.ownerLock.Unlock()
		e.settleAll()
	}
}

// settleAll does all that can be done at this moment.
func (e *Engine) settleAll() {
	for range maxSettleRounds {
		if !e.runRound() {
			return
		}
	}
	panic(fmt.Sprintf("myriad: handlers have not come to rest after %d turns", maxSettleRounds))
}

// runRound does what there is for each connection, and says whether that was anything.
func (e *Engine) runRound() (acted bool) {
	e.host.SetClock(e.now)
	e.mu.Lock()
	req := e.requests
	e.requests.broadcasts, e.requests.peersToClose = nil, nil
	e.mu.Unlock()
	acted = e.acceptQueued(req.acceptPaused || req.stop)
	for _, p := range e.openPeers() {
		p.applyRequests(&req)
		acted = p.handleRequests() || acted
		acted = p.driveConn() || acted
	}
	for _, b := range req.broadcasts {
		b.OwnerDone()
	}
	e.counters.Add(engine.Broadcasts, int64(len(req.broadcasts)))
	acted = e.closeLargestConns() || acted
	if req.stop {
		acted = e.continueStop(req) || acted
	}
	return acted
}

// openPeers are the connections that are open, until it is called again.
func (e *Engine) openPeers() []*Peer {
	e.openPeerList = slices.DeleteFunc(e.openPeerList, func(p *Peer) bool { return !p.conn.IsOpen() })
	return e.openPeerList
}

// acceptQueued lets those in that wait, as far as they may.
func (e *Engine) acceptQueued(paused bool) (acted bool) {
	e.counters.SetBool(engine.AcceptPausedCount, paused)
	e.nextAdmission = 0
	for !paused && len(e.acceptQueue) > 0 {
		if wait := e.host.Admission.TakeToken(e.now); wait > 0 {
			e.nextAdmission = e.now + wait
			break
		}
		p := e.acceptQueue[0]
		e.acceptQueue = e.acceptQueue[1:]
		p.admitOrReject()
		acted = true
	}
	return acted
}

// closeLargestConns closes connections with the largest buffers while all together hold too much.
func (e *Engine) closeLargestConns() (acted bool) {
	most := int64(e.cfg.Limits.MaxBuffered)
	for most > 0 && e.counters.Get(engine.Buffered) > most {
		var largest *Peer
		for _, p := range e.openPeers() {
			if largest == nil || p.conn.BufferMemory() > largest.conn.BufferMemory() {
				largest = p
			}
		}
		if largest == nil || largest.conn.BufferMemory() == 0 {
			break
		}
		largest.conn.Abort(engine.ErrOverBudget)
		largest.driveConn()
		acted = true
	}
	return acted
}

// continueStop begins the end, and ends when nobody is left.
func (e *Engine) continueStop(req pendingRequests) (acted bool) {
	if !e.draining {
		e.draining = true
		if req.stopWithin > 0 {
			e.stopDeadline = e.now + min(req.stopWithin, 2*MaxTime)
		}
		for _, p := range e.acceptQueue {
			p.reject(engine.ErrServerClosed)
		}
		e.acceptQueue = nil
	}
	for _, p := range e.openPeers() {
		if p.conn.StartDrain(); req.closeNow || e.stopDeadline > 0 && e.now >= e.stopDeadline {
			p.conn.Abort(engine.ErrServerClosed)
		}
		acted = p.driveConn() || acted
	}
	if len(e.openPeers()) > 0 {
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

// DoSettled runs what a tester does, with everything settled before and after.
func (e *Engine) DoSettled(f func()) {
	e.ownerLock.Lock()
	defer e.ownerLock.Unlock()
	e.settleAll()
	f()
	e.settleAll()
}

// Wakeups has word when somebody may have left something for the next call.
func (e *Engine) Wakeups() <-chan struct{} { return e.wake }

// Advance moves the clock, and does what is due meanwhile, in the order of time. It is for
// Do. It says how much there is at most if that is less.
func (e *Engine) Advance(d time.Duration) (ok bool, maxAdvance time.Duration) {
	end := e.now + d
	if maxAdvance = startTime + MaxTime - e.now; d < 0 || d > maxAdvance {
		return false, maxAdvance
	}
	for {
		e.now = min(e.nextTimeout(), end)
		e.runTimeouts()
		if e.now == end {
			return true, maxAdvance
		}
	}
}

// nextTimeout is when something is due next, after now.
func (e *Engine) nextTimeout() (at time.Duration) {
	at = startTime + 2*MaxTime
	if e.stopDeadline > e.now {
		at = e.stopDeadline
	}
	if e.nextAdmission > e.now {
		at = min(at, e.nextAdmission)
	}
	for _, p := range e.openPeers() {
		if due, ok := p.conn.NextTimeout(); ok {
			at = min(at, max(due, e.now+clockCoarseness/2))
		}
	}
	return at
}

// runTimeouts does what is due.
func (e *Engine) runTimeouts() {
	e.host.SetClock(e.now)
	e.lookAhead = clockCoarseness
	for _, p := range e.openPeers() {
		p.conn.CheckTimeouts(e.host.Now())
		p.driveConn()
	}
	e.lookAhead = 0
	e.settleAll()
}
