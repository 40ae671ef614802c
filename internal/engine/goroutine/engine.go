// Package goroutine is the model with one goroutine per connection, based on package net. It runs on all systems.
//
// # Ownership
//
// A connection belongs to its goroutine, which reads, calls the handler and writes. Each of these steps may block
// without affecting other connections. A goroutine that waits for input holds no read buffer.
//
// Other goroutines post requests to the connection's mailbox, which is created for the first request. The owner sets
// parked before it waits, and then checks the mailbox once more. A sender checks parked after queueing. If parked is
// set, the sender ends the wait by setting a deadline in the past. A woken owner resets the deadline before it reads
// the mailbox. So no request is missed. The sweeper and Stop send requests in the same way, as bits in conn.requests.
//
// One sweeper serves all connections, so that no connection needs a timer. Before an owner waits, it publishes its next
// wake-up time (wakeAt) and the size of its buffers (bufferedBytes). The sweeper examines a few connections at a time.
//
// A connection with much input could otherwise run for as long as the scheduler permits. Reads of such connections are
// limited; see readLimiter.
//
// One broadcaster iterates over all connections and puts references to broadcasts into their mailboxes; see
// broadcast.go. Another goroutine calls Config.Scheduler, if set; it outlives all connections.
//
// goroutineEngine.mu guards the table of connections. A goroutine ends when its connection has closed. Stop waits for
// all goroutines.
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
	"github.com/myriad-go/myriad/internal/engine/handover"
	"github.com/myriad-go/myriad/internal/overload"
	"github.com/myriad-go/myriad/internal/sock"
)

var Model = engine.Model{
	Name:      "goroutine",
	Available: func() error { return nil },
	Start:     startEngine,
}

// acceptRetryInterval is the maximum pause after a failed accept.
const acceptRetryInterval = 50 * time.Millisecond

// clockGrain is the interval between updates of the clock that all connections share.
const clockGrain = time.Millisecond

// Requests to a connection, as bits of conn.requests.
const (
	requestDrain uint32 = 1 << iota
	requestKill
	requestOverBudget   // close because all buffers together exceed Limits.MaxBuffered
	requestSlowConsumer // close because the mailbox had no space for a broadcast
	requestExpel        // close on behalf of an operator
	requestExport       // export to another engine
	requestWritable     // the kernel accepts output again; cleared when handled
	requestHeartbeat
)

// goroutineEngine implements engine.Engine with one goroutine per connection.
type goroutineEngine struct {
	cfg              engine.Config
	host             engine.Runtime
	counters         engine.Counters
	buffers          engine.SharedBuffers
	listeners        []net.Listener
	listenerIndexes  []int                 // index of the engine.Listener of each socket
	admission        *admission.Controller // counts connections and dials
	broadcastTracker engine.BroadcastTracker
	broadcastQueue   chan *engine.Broadcast // for the broadcaster
	flushBroadcasts  chan chan struct{}     // the broadcaster closes a received channel once the queue is empty
	dialRequests     chan struct{}          // holds one element for each Dial in progress
	dialSlots        chan struct{}          // holds one element for each connection being dialled
	acceptPause      acceptPauseState
	connFreed        chan struct{} // signals a closed connection to acceptors that have no descriptors left
	stopCtx          context.Context
	cancel           context.CancelFunc // cancels stopCtx, and with it dials and pauses
	nextSweepChunk   int                // used by the sweeper only
	heartbeats       engine.HeartbeatSweep
	heartbeatConns   []*conn      // connections of one chunk; used by the sweeper only
	readLimiter      readLimiter  // for connections that send much
	pipePool         pipePool     // for relays
	largeReadBytes   atomic.Int64 // size of large read buffers in use
	closeLargestMu   sync.Mutex   // held while looking for connections to close
	blockedSenders   senderQueue  // senders that wait until all buffers together are within their limit
	clock            pausableClock
	expiringConns    atomic.Int64              // connections with a timer, deadline or expiry, which need fast sweeps
	freedMemory      handover.FreedByteCounter // memory of connections that were handed over
	handoff          handoffState
	connAdded        chan struct{} // signals a new connection to the sweeper
	lastConnClosed   chan struct{} // signals to the sweeper that there are no connections
	killed           chan struct{} // closed when connections must end at once
	killOnce         sync.Once
	running          sync.WaitGroup
	schedulerDone    sync.WaitGroup // waits for runConfigSchedulerLoop
	workDone         chan struct{}  // closed when everything but runConfigSchedulerLoop has ended
	done             chan struct{}  // closed when everything has ended

	mu     sync.Mutex
	conns  connTable
	closed bool // nothing may start
}

func startEngine(cfg engine.Config) (engine.Engine, error) {
	e := &goroutineEngine{
		cfg:          cfg,
		dialRequests: make(chan struct{}, maxDialRequests), dialSlots: make(chan struct{}, maxDials),
		connFreed: make(chan struct{}, 1), workDone: make(chan struct{}), done: make(chan struct{}),
		connAdded: make(chan struct{}, 1), lastConnClosed: make(chan struct{}, 1), killed: make(chan struct{}), admission: engine.NewAdmission(&cfg),
	}
	if err := e.openListenersAndInitReadLimiter(); err != nil {
		engine.CloseListeners(e.listeners)
		return nil, err
	}
	e.host.ClockSlack = clockGrain
	e.host.Configure(&cfg, e.admission)
	e.host.LocalAddr, e.host.Loops = e.localAddr, 1
	e.host.Buffers, e.host.Poster, e.host.Counters, e.host.TimeAllCalls, e.host.Now = &e.buffers, e, &e.counters, true, e.readClock
	e.host.Shared, e.broadcastTracker.Counters = &e.counters, &e.counters
	if e.host.SendDirect = sendDirect; e.host.SendDirect != nil {
		e.heartbeats.EnableFor(&e.host)
	}
	e.pipePool.initAndSetSendToPartner(e)
	e.stopCtx, e.cancel = context.WithCancel(context.Background())
	e.acceptPause.paused, e.acceptPause.changed = cfg.StartPaused, make(chan struct{})
	e.broadcastQueue, e.flushBroadcasts = make(chan *engine.Broadcast, engine.MaxBroadcasts), make(chan chan struct{})
	e.running.Go(e.runPeriodicChecks)
	e.running.Go(e.runBroadcaster)
	if cfg.Scheduler != nil {
		e.schedulerDone.Go(e.runConfigSchedulerLoop)
	}
	for i := range e.listeners {
		e.running.Go(func() { engine.RerunAfterGoexitThenExit(func() { e.acceptConns(i) }) })
	}
	return e, nil
}

func (e *goroutineEngine) openListenersAndInitReadLimiter() error {
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

func (e *goroutineEngine) readClock() time.Duration { return e.clock.readAt(engine.MonotonicNow()) }

func (e *goroutineEngine) Counters() (sum engine.Counts) {
	e.counters.AddToWithMaxAge(&sum)
	e.broadcastTracker.SetBroadcastGauges(&sum)
	e.host.AddOverloadCounts(&sum)
	return sum
}

func (e *goroutineEngine) acceptConns(socketIndex int) {
	var lastLogged time.Time
	for hasRateToken := false; ; {
		hasRateToken = hasRateToken || e.waitForAcceptToken()
		if !e.acceptPause.waitUntilResumed(e) {
			return
		}
		if e.host.Overload.PausesAccepts() {
			if !e.waitUntilWokenOrTimeout(overload.AcceptCheckInterval, nil) {
				return
			}
			continue
		}
		netConn, err := e.listeners[socketIndex].Accept()
		switch {
		case errors.Is(err, os.ErrDeadlineExceeded): // accepting is paused, or was a moment ago
		case err == nil:
			hasRateToken = false
			e.admitOrRejectConn(netConn, e.listenerIndexes[socketIndex], nil)
		case errors.Is(err, net.ErrClosed), e.stopCtx.Err() != nil:
			return
		default:
			e.counters.Add(engine.AcceptErrors, 1)
			if time.Since(lastLogged) > time.Second {
				lastLogged = time.Now()
				e.cfg.Log.LogAttrs(context.Background(), slog.LevelWarn,
					"cannot accept connections; retrying at intervals and whenever a connection closes",
					slog.String("error", err.Error()),
					slog.Int64("open", e.admission.OpenConns()))
			}
			e.waitUntilWokenOrTimeout(acceptRetryInterval, e.connFreed)
		}
	}
}

// waitForAcceptToken waits until the accept rate permits a connection. It returns false if the engine stops first.
func (e *goroutineEngine) waitForAcceptToken() (acquired bool) {
	for {
		wait := e.admission.TakeRateToken(engine.MonotonicNow())
		if wait == 0 {
			return true
		}
		e.counters.Add(engine.AcceptPauses, 1)
		if !e.waitUntilWokenOrTimeout(wait, nil) {
			return false
		}
	}
}

// waitUntilWokenOrTimeout waits for a value on the channel wake, or until the duration limit has passed. If the engine
// stops first, it returns false.
func (e *goroutineEngine) waitUntilWokenOrTimeout(limit time.Duration, wake <-chan struct{}) (stillRunning bool) {
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

func (e *goroutineEngine) admitOrRejectConn(netConn net.Conn, listener int, alreadyRead []byte) {
	peer := toAddrPort(netConn.RemoteAddr())
	if err := e.host.AdmitAndAcquireSlots(listener, peer); err != nil {
		defer netConn.Close() // even if RefusalReply calls runtime.Goexit
		sendRejectionAndCloseConn(netConn, e.host.BuildRefusalReply(peer, err))
		return
	}
	if !e.startConnOrReportFailure(netConn, listener, nil, func(c *conn) { c.openConn(0, alreadyRead) }) {
		e.host.UndoAdmit(listener, peer)
		e.releaseAdmissionAndWakeWaiters()
	}
}

func (e *goroutineEngine) Adopt(netConn net.Conn, listener int, alreadyRead []byte) (stoppedOrSocketErr error) {
	if e.stopCtx.Err() != nil {
		return engine.ErrClosed
	}
	if err := netConn.SetDeadline(time.Time{}); err != nil {
		return err
	}
	if listener < 0 {
		listener = e.host.ListenerNumberForAdopted()
	}
	e.admitOrRejectConn(netConn, listener, slices.Clone(alreadyRead))
	return nil
}

func sendRejectionAndCloseConn(netConn net.Conn, answer []byte) {
	if len(answer) > 0 {
		sendAnswerAndShutWrite(netConn, answer)
	}
	netConn.Close()
}

// startConnOrReportFailure starts a goroutine for an admitted connection. The goroutine calls the function open and
// then serves the connection. For a dialled connection, listener must be -1. If no goroutine can be started,
// startConnOrReportFailure closes netConn and returns false.
func (e *goroutineEngine) startConnOrReportFailure(netConn net.Conn, listener int, connHandler engine.ConnHandler, open func(c *conn)) (started bool) {
	c, err := newConn(e, netConn)
	c.SetListener(listener)
	if err == nil {
		err = e.registerConnUnlessStopped(c)
	}
	if err != nil {
		netConn.Close()
		switch {
		case listener < 0:
			e.host.NotifyDialFailed(connHandler, err)
		case !errors.Is(err, engine.ErrClosed):
			e.counters.Add(engine.AcceptErrors, 1)
		}
		return false
	}
	if connHandler != nil {
		c.SetConnHandler(connHandler)
	}
	signalUnlessPending(e.connAdded)
	go c.runUntilClosed(open)
	return true
}

func (e *goroutineEngine) registerConnUnlessStopped(c *conn) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.closed {
		return engine.ErrClosed
	}
	e.conns.addConn(c, &e.host)
	e.running.Add(1)
	return nil
}

func (e *goroutineEngine) unregisterAndReleaseAdmission(c *conn) {
	e.mu.Lock()
	e.conns.removeConn(c.Slot())
	e.mu.Unlock()
	e.releaseAdmissionAndWakeWaiters()
	e.running.Done()
}

func (e *goroutineEngine) releaseAdmissionAndWakeWaiters() {
	e.admission.ReleaseConn()
	e.wakeBlockedSendersIfWithinBudget()
	signalUnlessPending(e.connFreed)
	if e.admission.OpenConns() == 0 {
		signalUnlessPending(e.lastConnClosed)
	}
}

// signalUnlessPending sends a signal on ch without blocking. ch must have a buffer of one.
func signalUnlessPending(ch chan<- struct{}) {
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
	box := c.getOrCreateMailbox() // before counting, because the allocation may take long
	if request.Kind == engine.RequestSend && e.refuseOrDelayMail(&request) {
		return engine.ErrFull
	}
	if err := box.Put(to, gen, request); err != nil {
		return err
	}
	c.wake()
	return nil
}
