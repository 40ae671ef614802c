// Package goroutine is the model of one goroutine for each connection, on
// package net. It runs on all systems.
//
// # Who owns what
//
// A connection is owned by its goroutine, which reads, calls the handler and
// writes, and may block in each of the three; that harms nobody else. While it
// waits for input it holds no buffer: it takes one when there is something to
// read.
//
// From outside a connection is reached through its mailbox, which is made when
// the first mail comes. The owner says in parked that it is about to wait and
// looks at its mailbox once more after that; who leaves mail looks at parked
// afterwards and, if it was set, ends the wait by a deadline in the past. An
// owner that was woken takes the deadline back first and looks at its mail
// after that, so that none is left unseen. What the sweeper and Stop ask of a
// connection, as bits in requests, reaches it in the same way.
//
// The sweeper is one goroutine for all: before an owner waits it publishes when it wants
// to be woken (wakeAt) and what its buffers hold (buffered), and the sweeper looks at a
// slice of the connections at a time. So no connection has a timer.
//
// One that sends much would go on for as long as the scheduler lets it. Such
// connections take turns: see turns.
//
// The caster is one goroutine too: it walks over all connections with the broadcasts
// that wait and leaves references to them in their mailboxes; see cast.go.
//
// The pacer is the goroutine that calls Config.Pace, if that is set, and leaves
// mail for those that it touches. It outlives all connections.
//
// The group's lock guards the table of connections, by slot. A goroutine ends
// when its connection is finished; Stop waits for all of them, for the
// acceptor, the sweeper, the caster, for the dials under way, and for the pacer.
package goroutine

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/myriad-go/myriad/internal/admission"
	"github.com/myriad-go/myriad/internal/engine"
	"github.com/myriad-go/myriad/internal/sock"
)

// Model is a goroutine for each connection.
var Model = engine.Model{
	Name:      "goroutine",
	Available: func() error { return nil },
	Start:     startEngine,
}

// acceptRetryInterval is how long the acceptor waits when descriptors have run out,
// unless a connection closes earlier.
const acceptRetryInterval = 50 * time.Millisecond

// clockGrain is how far the clock that all connections share may run ahead: so
// often they write it at the most.
const clockGrain = time.Millisecond

// What is asked of a connection, as bits.
const (
	requestDrain uint32 = 1 << iota
	requestKill
	requestOverBudget   // Limits.MaxBuffered
	requestSlowConsumer // no room for a broadcast
	requestExpel        // by Expel
	requestExport       // to be handed over to another engine
	requestWritable     // the kernel takes output again; it is taken back when it has been seen
)

// goroutineEngine is a running engine.
type goroutineEngine struct {
	cfg              engine.Config
	host             engine.Runtime
	counters         engine.Counters
	buffers          engine.SharedBuffers
	listeners        []net.Listener
	listenerIndexes  []int                   // of which engine.Listener each of them is
	admission        *admission.Controller   // with connections and dials
	broadcastTracker engine.BroadcastTracker // under way
	broadcastQueue   chan *engine.Broadcast  // for the caster
	dialRequests     chan struct{}           // holds one for each Dial under way
	dialSlots        chan struct{}           // holds one for each connection being dialled
	acceptPause      acceptPause
	connFreed        chan struct{} // a connection has closed; for an acceptor out of descriptors
	stopCtx          context.Context
	cancel           context.CancelFunc // ends stop, and with it dials and pauses
	nextSweepChunk   int                // the sweeper's: the chunk that comes next
	readLimiter      readLimiter        // of connections that send much
	pipePool         pipePool           // for relays
	largeReadBytes   atomic.Int64       // bytes of large read buffers in use
	closeLargestMu   sync.Mutex         // held by who looks for connections that are to give way
	blockedSenders   senderQueue        // that wait until buffers hold less
	clock            pausableClock
	expiringConns    atomic.Int64      // connections that are about to end
	freedMemory      engine.FreedBytes // memory of connections that have been handed over
	handoff          handoffState
	connAdded        chan struct{} // a connection has come; for the sweeper
	lastConnClosed   chan struct{} // the last one has gone; for the sweeper
	killed           chan struct{} // closed when connections are to end at once
	killOnce         sync.Once     // for closing it
	running          sync.WaitGroup
	pacerDone        sync.WaitGroup // the pacer
	workDone         chan struct{}  // closed when all that runs has ended
	done             chan struct{}  // closed when everything has ended

	mu     sync.Mutex
	conns  connTable
	closed bool // nothing starts any more
}

func startEngine(cfg engine.Config) (engine.Engine, error) {
	e := &goroutineEngine{
		cfg:          cfg,
		dialRequests: make(chan struct{}, maxDialRequests), dialSlots: make(chan struct{}, maxDials),
		connFreed: make(chan struct{}, 1), workDone: make(chan struct{}), done: make(chan struct{}),
		connAdded: make(chan struct{}, 1), lastConnClosed: make(chan struct{}, 1), killed: make(chan struct{}), admission: engine.NewAdmission(&cfg),
	}
	if err := e.openListeners(); err != nil {
		engine.CloseListeners(e.listeners)
		return nil, err
	}
	e.host.ClockSlack = clockGrain
	e.host.Configure(&cfg, e.admission)
	e.host.LocalAddr, e.host.Loops = e.localAddr, 1
	e.host.Buffers, e.host.Poster, e.host.Counters, e.host.TimeAllCalls, e.host.Now = &e.buffers, e, &e.counters, true, e.readClock
	e.host.Shared, e.broadcastTracker.Counters = &e.counters, &e.counters
	e.host.SendDirect = sendDirect
	e.pipePool.enable(e)
	e.stopCtx, e.cancel = context.WithCancel(context.Background())
	e.acceptPause.paused, e.acceptPause.changed = cfg.StartPaused, make(chan struct{})
	e.broadcastQueue = make(chan *engine.Broadcast, engine.MaxBroadcasts)
	e.running.Go(e.runSweeper)
	e.running.Go(e.runBroadcaster)
	if cfg.Scheduler != nil {
		e.pacerDone.Go(e.runPacer)
	}
	for i := range e.listeners {
		e.running.Go(func() { engine.SurviveGoexit(func() { e.acceptConns(i) }) })
	}
	return e, nil
}

// openListeners makes the listeners, and what else has to be opened.
func (e *goroutineEngine) openListeners() error {
	for _, l := range e.cfg.EffectiveListeners() {
		sockets, err := l.OpenSockets(1, e.cfg.SocketOptions(false))
		if err != nil {
			return err
		}
		for _, socket := range sockets {
			sock.SetDeadPeerTimeout(socket, e.cfg.Limits.WriteTimeout, e.cfg.DetectsDeadPeersWithin(sock.KeepaliveTimeout))
			e.listeners = append(e.listeners, socket)
			e.listenerIndexes = append(e.listenerIndexes, len(e.host.ListenerCounters))
		}
		e.host.ListenerCounters = append(e.host.ListenerCounters, engine.NewListenerCounters(l, sockets[0].Addr()))
	}
	return e.readLimiter.init()
}

func (e *goroutineEngine) Addr() net.Addr {
	if len(e.listeners) == 0 {
		return nil
	}
	return e.listeners[0].Addr()
}

func (e *goroutineEngine) ListenerStats() []engine.ListenerStats { return e.host.ListenerStats() }

func (e *goroutineEngine) Loops() int { return 0 }

// readClock is the clock of all limits.
func (e *goroutineEngine) readClock() time.Duration { return e.clock.readAt(engine.MonotonicNow()) }

func (e *goroutineEngine) Counters() (sum engine.Counts) {
	e.counters.AddTo(&sum)
	e.broadcastTracker.FillCounts(&sum)
	return sum
}

// acceptConns serves a socket of a listener until it is closed.
func (e *goroutineEngine) acceptConns(listenerFDIndex int) {
	var lastLogged time.Time
	for hasRateToken := false; ; {
		hasRateToken = hasRateToken || e.waitForAcceptToken()
		if !e.acceptPause.waitUntilResumed(e) {
			return
		}
		netConn, err := e.listeners[listenerFDIndex].Accept()
		switch {
		case errors.Is(err, os.ErrDeadlineExceeded): // it is held, or was a moment ago
		case err == nil:
			hasRateToken = false
			e.admitConn(netConn, e.listenerIndexes[listenerFDIndex], nil)
		case errors.Is(err, net.ErrClosed), e.stopCtx.Err() != nil:
			return
		default:
			e.counters.Add(engine.AcceptErrors, 1)
			if time.Since(lastLogged) > time.Second {
				lastLogged = time.Now()
				e.cfg.Log.LogAttrs(context.Background(), slog.LevelWarn,
					"cannot accept; trying again when a connection has closed, and regularly",
					slog.String("error", err.Error()),
					slog.Int64("open", e.admission.OpenConns()))
			}
			e.waitFor(acceptRetryInterval, e.connFreed)
		}
	}
}

// waitForAcceptToken waits until the rate of accepting allows for one more, or until it is
// time to stop.
func (e *goroutineEngine) waitForAcceptToken() bool {
	for {
		wait := e.admission.TakeToken(engine.MonotonicNow())
		if wait == 0 {
			return true
		}
		e.counters.Add(engine.AcceptPauses, 1)
		if !e.waitFor(wait, nil) {
			return false
		}
	}
}

// waitFor waits a while, less if something comes, and says whether to go on.
func (e *goroutineEngine) waitFor(limit time.Duration, wake <-chan struct{}) bool {
	timer := time.NewTimer(limit)
	defer timer.Stop()
	select {
	case <-wake:
	case <-timer.C:
	case <-e.stopCtx.Done():
		return false
	}
	return true
}

func (e *goroutineEngine) admitConn(netConn net.Conn, listener int, received []byte) {
	peer := toAddrPort(netConn.RemoteAddr())
	if err := e.host.Admit(listener, peer); err != nil {
		defer netConn.Close() // whatever Refuse does
		rejectConn(netConn, e.host.BuildRefusalReply(peer, err))
		return
	}
	if !e.startConn(netConn, listener, nil, func(c *conn) { c.openConn(0, received) }) {
		e.host.UndoAdmit(listener, peer)
		e.releaseAdmission()
	}
}

func (e *goroutineEngine) Adopt(netConn net.Conn, listener int, received []byte) error {
	if e.stopCtx.Err() != nil {
		return engine.ErrClosed
	}
	if err := netConn.SetDeadline(time.Time{}); err != nil {
		return err
	}
	if listener < 0 {
		listener = e.host.AdoptedListener()
	}
	e.admitConn(netConn, listener, slices.Clone(received))
	return nil
}

// rejectConn closes a connection, with an answer if there is one.
func rejectConn(netConn net.Conn, answer []byte) {
	if len(answer) > 0 {
		sendRejection(netConn, answer)
	}
	netConn.Close()
}

// startConn starts the goroutine of a connection that has been admitted at a listener, or
// with -1 was dialled, if it can. It opens the connection.
func (e *goroutineEngine) startConn(netConn net.Conn, listener int, owned engine.ConnHandler, open func(c *conn)) bool {
	c, err := newConn(e, netConn)
	c.SetListener(listener)
	if err == nil {
		err = e.registerConn(c)
	}
	if err != nil {
		netConn.Close()
		switch {
		case listener < 0:
			e.host.NotifyDialFailed(owned, err)
		case !errors.Is(err, engine.ErrClosed):
			e.counters.Add(engine.AcceptErrors, 1)
		}
		return false
	}
	if owned != nil {
		c.SetConnHandler(owned)
	}
	notify(e.connAdded)
	go c.runUntilClosed(open)
	return true
}

// registerConn gives a connection its slot, unless the group has ended.
func (e *goroutineEngine) registerConn(c *conn) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.closed {
		return engine.ErrClosed
	}
	e.conns.addConn(c, &e.host)
	e.running.Add(1)
	return nil
}

// unregisterConn takes a finished connection out.
func (e *goroutineEngine) unregisterConn(c *conn) {
	e.mu.Lock()
	e.conns.removeConn(c.Slot())
	e.mu.Unlock()
	e.releaseAdmission()
	e.running.Done()
}

func (e *goroutineEngine) releaseAdmission() {
	e.admission.Release()
	e.wakeBlockedSenders()
	notify(e.connFreed)
	if e.admission.OpenConns() == 0 {
		notify(e.lastConnClosed)
	}
}

// notify wakes who waits for a channel with room for one signal.
func notify(ch chan<- struct{}) {
	select {
	case ch <- struct{}{}:
	default:
	}
}

func (e *goroutineEngine) Post(to *engine.Conn, gen uint32, request engine.Request) error {
	e.mu.Lock()
	c := e.conns.conn(to.Slot())
	e.mu.Unlock()
	if c == nil || &c.Conn != to {
		return engine.ErrClosed
	}
	box := c.mailbox() // first: to allocate may take long
	if request.Kind == engine.RequestSend && e.refusesMail(&request) {
		return engine.ErrFull
	}
	if err := box.Put(to, gen, request); err != nil {
		return err
	}
	c.wake()
	return nil
}
