// Package virtual is an engine without a kernel, for deterministic tests. Its peers are in the same process, and its
// clock advances only by calls. Package tcptest is its public interface.
//
// # Ownership
//
// The holder of Engine.ownerLock owns the connections. Calls by the test and Stop take this lock. Such a call does
// everything that can be done at this moment, connection by connection, so that handlers run on the calling goroutine.
// Other goroutines post requests to a connection's mailbox or to the engine. Both have their own lock, which is held
// briefly and never while ownerLock is acquired. A request wakes a waiting test and is handled in the next call. The
// engine starts no goroutine.
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
	// maxSettleRounds limits the rounds of one call, because handlers may cause work for each other endlessly.
	maxSettleRounds = 1 << 17
	// clockCoarseness is the largest rounding error of timeouts. They are checked this early, so that none fires late.
	clockCoarseness   = 34 * time.Millisecond
	maxQueuedRequests = 16
	maxPeers          = 1 << 16
	// MaxTime is the maximum virtual time. It is shorter than the period in which the clock for timeouts wraps around.
	MaxTime = 365 * 24 * time.Hour
	// startTime is the initial virtual time. It is not 0, because a time of 0 means never.
	startTime = time.Hour
)

type Engine struct {
	cfg        engine.Config
	host       engine.Runtime
	counters   engine.Counters
	broadcasts engine.BroadcastTracker
	wake       chan struct{} // receives a value after a request
	done       chan struct{} // closed when everything has ended

	ownerLock     sync.Mutex // its holder owns the following fields
	now           time.Duration
	openPeerList  []*Peer              // accepted peers; closed ones are removed by pruneAndListOpenPeers
	acceptQueue   []*Peer              // peers waiting to be accepted
	dials         []engine.DialRequest // dials that were neither accepted nor refused
	nextAdmission time.Duration        // when the rate limit admits the next connection; 0 if none waits for it
	draining      bool                 // Stop has begun
	stopDeadline  time.Duration        // when Stop aborts open connections; 0 means never

	mu       sync.Mutex // guards the following fields
	peers    []*Peer    // all peers so far, by slot
	requests pendingRequests
}

// pendingRequests contains the requests of other goroutines to an engine.
type pendingRequests struct {
	dials          []engine.DialRequest
	broadcasts     []*engine.Broadcast
	peersToClose   []netip.AddrPort
	acceptPaused   bool
	stop, closeNow bool
	stopWithin     time.Duration // from ContextForStopWithin; 0 means no limit
	ended          bool
}

func (w *pendingRequests) concatBroadcasts() (joined []byte, messages []*engine.Shared) {
	for _, b := range w.broadcasts {
		joined, messages = append(joined, b.Bytes...), append(messages, &b.Shared)
	}
	return joined, messages
}

// Listener is the listener of a virtual engine. The method Start creates the engine. Accept is not supported.
type Listener struct {
	// Engine is the engine that Start has created, or nil before Start.
	Engine *Engine
}

func (*Listener) Accept() (net.Conn, error) { return nil, errors.ErrUnsupported }
func (*Listener) Close() error              { return nil }

// Addr returns 192.0.2.1:9000, an address that RFC 5737 reserves for documentation.
func (*Listener) Addr() net.Addr {
	return &net.TCPAddr{IP: net.IPv4(192, 0, 2, 1), Port: 9000}
}

func (l *Listener) Start(cfg engine.Config) (engine.Engine, error) {
	e := &Engine{cfg: cfg, wake: make(chan struct{}, 1), done: make(chan struct{}), now: startTime}
	e.host.Configure(&cfg, engine.NewAdmission(&cfg))
	e.host.Buffers, e.host.Poster, e.host.Counters = &engine.FreeList{}, e, &e.counters
	e.host.Shared, e.broadcasts.Counters = &e.counters, &e.counters
	e.host.Now, e.host.LookAhead = func() time.Duration { return e.now }, clockCoarseness
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
	e.counters.AddToWithMaxAge(&sum)
	e.broadcasts.SetBroadcastGauges(&sum)
	e.host.AddOverloadCounts(&sum)
	return sum
}

// Adopt fails, because the virtual engine supports no real connections.
func (e *Engine) Adopt(net.Conn, int, []byte) error {
	return fmt.Errorf("adopting a connection is not available without a network: %w", errors.ErrUnsupported)
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

// updateRequestsAndWake calls the function update with e.mu held. If update succeeds, updateRequestsAndWake wakes the
// test.
func (e *Engine) updateRequestsAndWake(update func(*pendingRequests) error) error {
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

func (e *Engine) BroadcastToAllConns(p []byte) error {
	b, err := e.broadcasts.RegisterBroadcast(p, 1, &e.cfg.Limits)
	if err != nil {
		return err
	}
	err = e.updateRequestsAndWake(func(w *pendingRequests) error {
		w.broadcasts = append(w.broadcasts, b)
		return nil
	})
	if err != nil {
		b.MarkOneOwnerDone()
	}
	return err
}

func (e *Engine) PauseAccept(paused bool) error {
	return e.updateRequestsAndWake(func(w *pendingRequests) error {
		w.acceptPaused = paused
		return nil
	})
}

func (e *Engine) QueueCloseOfPeerConns(peer netip.AddrPort) error {
	return e.updateRequestsAndWake(func(w *pendingRequests) error {
		if len(w.peersToClose) == maxQueuedRequests {
			return engine.ErrFull
		}
		w.peersToClose = append(w.peersToClose, peer)
		return nil
	})
}

func (e *Engine) PostToEveryConn(s *engine.Shared, beforePost func(), onDone func(full int)) error {
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
	onDone(full)
	return nil
}

type stopWithinKey struct{}

// ContextForStopWithin returns a context for Stop. With this context, Stop returns immediately. Connections that are
// still open after d of virtual time are then closed. If d is 0, there is no limit of the time for which connections
// may stay open.
func ContextForStopWithin(d time.Duration) context.Context {
	return context.WithValue(context.Background(), stopWithinKey{}, d)
}

// Stop implements engine.Engine. If ctx is from ContextForStopWithin, Stop returns immediately. With any other context,
// Stop blocks until the engine has ended. While Stop is blocked, the test must run the engine on another goroutine.
func (e *Engine) Stop(ctx context.Context) error {
	within, begin := ctx.Value(stopWithinKey{}).(time.Duration)
	_ = e.updateRequestsAndWake(func(w *pendingRequests) error { // fails only if the engine has ended
		if begin && !w.stop {
			w.stopWithin = within
		}
		w.stop = true
		return nil
	})
	e.broadcasts.RejectNewBroadcasts()
	if e.runUntilIdleIfUnowned(); begin {
		return nil
	}
	return engine.AwaitStop(ctx, e.done, e.host.Admission.OpenConns, func() {
		_ = e.updateRequestsAndWake(func(w *pendingRequests) error {
			w.closeNow = true
			return nil
		})
		e.runUntilIdleIfUnowned()
	})
}

func (e *Engine) Wait() { <-e.done }

func (e *Engine) runUntilIdleIfUnowned() {
	if e.ownerLock.TryLock() {
		defer e.ownerLock.Unlock()
		e.runUntilIdle()
	}
}

// runUntilIdle repeats runRound until nothing is left to do. It panics if handlers cause new work endlessly.
func (e *Engine) runUntilIdle() {
	for range maxSettleRounds {
		if !e.runRound() {
			return
		}
	}
	panic(fmt.Sprintf("myriad: handlers still cause work after %d rounds; expected them to become idle", maxSettleRounds))
}

func (e *Engine) runRound() (acted bool) {
	e.host.SetClock(e.now)
	e.mu.Lock()
	req := e.requests
	e.requests.broadcasts, e.requests.peersToClose, e.requests.dials = nil, nil, nil
	e.mu.Unlock()
	acted = e.admitOrRejectQueuedPeers(req.acceptPaused || req.stop)
	acted = e.queueAdmittedOrFailDials(req.dials) || acted
	for _, p := range e.pruneAndListOpenPeers() {
		p.applyBroadcastsAndCloses(&req)
		acted = p.handleMailbox() || acted
		acted = p.driveConnUntilIdle() || acted
	}
	for _, b := range req.broadcasts {
		b.MarkOneOwnerDone()
	}
	e.counters.Add(engine.Broadcasts, int64(len(req.broadcasts)))
	acted = e.closeLargestUntilWithinBudget() || acted
	if req.stop {
		acted = e.drainAndEndIfNoneOpen(req) || acted
	}
	return acted
}

func (e *Engine) pruneAndListOpenPeers() []*Peer {
	e.openPeerList = slices.DeleteFunc(e.openPeerList, func(p *Peer) bool { return !p.conn.IsOpen() })
	return e.openPeerList
}

func (e *Engine) admitOrRejectQueuedPeers(paused bool) (acted bool) {
	e.counters.SetGaugeBool(engine.AcceptPausedCount, paused)
	e.nextAdmission = 0
	for !paused && len(e.acceptQueue) > 0 {
		if wait := e.host.Admission.TakeRateToken(e.now); wait > 0 {
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

func (e *Engine) closeLargestUntilWithinBudget() (acted bool) {
	most := int64(e.cfg.Limits.MaxBuffered)
	for most > 0 && e.counters.Get(engine.Buffered) > most {
		var largest *Peer
		for _, p := range e.pruneAndListOpenPeers() {
			if largest == nil || p.conn.BufferMemory() > largest.conn.BufferMemory() {
				largest = p
			}
		}
		if largest == nil || largest.conn.BufferMemory() == 0 {
			break
		}
		largest.conn.Abort(engine.ErrOverBudget)
		largest.driveConnUntilIdle()
		acted = true
	}
	return acted
}

func (e *Engine) drainAndEndIfNoneOpen(req pendingRequests) (acted bool) {
	if !e.draining {
		e.draining = true
		if req.stopWithin > 0 {
			e.stopDeadline = e.now + min(req.stopWithin, 2*MaxTime)
		}
		for _, p := range e.acceptQueue {
			p.markRejected(engine.ErrServerClosed)
		}
		e.acceptQueue = nil
	}
	for e.RefuseDial(engine.ErrServerClosed) {
	}
	for _, p := range e.pruneAndListOpenPeers() {
		if p.conn.BeginShutdownDrain(); req.closeNow || e.stopDeadline > 0 && e.now >= e.stopDeadline {
			p.conn.Abort(engine.ErrServerClosed)
		}
		acted = p.driveConnUntilIdle() || acted
	}
	if len(e.pruneAndListOpenPeers()) > 0 {
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

// DoAndRunUntilIdle calls f with exclusive access to the connections. It runs the engine until idle before and after f.
func (e *Engine) DoAndRunUntilIdle(f func()) {
	e.ownerLock.Lock()
	defer e.ownerLock.Unlock()
	e.runUntilIdle()
	f()
	e.runUntilIdle()
}

// Wakeups returns a channel that receives a value when DoAndRunUntilIdle may have something to do.
func (e *Engine) Wakeups() <-chan struct{} { return e.wake }

// AdvanceClockAndRunDue advances the clock by d and runs timers and timeouts in order of time. It must be called within
// DoAndRunUntilIdle. maxAdvance is the maximum for d. If d is negative or exceeds maxAdvance, AdvanceClockAndRunDue
// does nothing and returns false.
func (e *Engine) AdvanceClockAndRunDue(d time.Duration) (inRange bool, maxAdvance time.Duration) {
	end := e.now + d
	if maxAdvance = startTime + MaxTime - e.now; d < 0 || d > maxAdvance {
		return false, maxAdvance
	}
	for {
		e.now = min(e.nextDueTime(), end)
		e.checkTimeoutsAndRunUntilIdle()
		if e.now == end {
			return true, maxAdvance
		}
	}
}

func (e *Engine) nextDueTime() (at time.Duration) {
	at = startTime + 2*MaxTime
	if e.stopDeadline > e.now {
		at = e.stopDeadline
	}
	if e.nextAdmission > e.now {
		at = min(at, e.nextAdmission)
	}
	for _, p := range e.pruneAndListOpenPeers() {
		if due, ok := p.mailbox.EnsureDelayEnd(&e.host); ok {
			at = min(at, due)
		}
		if due, ok := p.conn.NextTimeout(); ok {
			at = min(at, max(due, e.now+clockCoarseness/2))
		}
		if due, ok := p.conn.NextTimerOrDeadline(); ok {
			at = min(at, max(due, e.now+time.Millisecond))
		}
	}
	return at
}

func (e *Engine) checkTimeoutsAndRunUntilIdle() {
	e.host.SetClock(e.now)
	for _, p := range e.pruneAndListOpenPeers() {
		p.conn.CheckTimeouts(e.now)
		p.driveConnUntilIdle()
	}
	e.runUntilIdle()
}
