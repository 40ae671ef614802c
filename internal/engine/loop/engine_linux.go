// Package loop contains the common part of the event-driven models: loops that own their connections. Each model adds
// a [Driver], which watches descriptors and moves bytes.
//
// # Ownership
//
// A loop is a goroutine locked to its thread. Only the loop may access its listeners, driver, connections and free
// buffers. Loops share only atomic connection counts, and nothing that is accessed for each byte. With
// Config.MaxConnsPerShard each loop is a shard: its thread has a separate descriptor table. See listeners_linux.go for
// the consequences for listeners.
//
// Other goroutines communicate with a loop in three ways, all safe for concurrent use:
//
//   - its mailbox contains requests to connections;
//   - its remote requests are dials, broadcasts, function calls and stop requests;
//   - its eventfd ends a wait.
//
// A loop sets asleep before it waits, and then checks the mailbox and the requests once more. A sender checks asleep
// after queueing, and signals the eventfd if asleep is set. So no request is missed, and a busy loop is never woken.
//
// A loop ends when it has been told to stop and its last connection has closed. Stop waits for all loops.
package loop

import (
	"context"
	"net"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/myriad-go/myriad/internal/admission"
	"github.com/myriad-go/myriad/internal/engine"
	"github.com/myriad-go/myriad/internal/engine/handover"
	"github.com/myriad-go/myriad/internal/sock"
)

// acceptRetryInterval is the maximum pause in accepting after a failure.
const acceptRetryInterval = 50 * time.Millisecond

type loopEngine struct {
	cfg              engine.Config
	loops            []*Loop
	listenerFDs      []int32           // for each engine.Listener, at least one for each loop; see listeners_linux.go
	listenerIndexes  []int             // index of the engine.Listener of each descriptor
	listenerConfigs  []engine.Listener // empty if the engine only dials
	listenerStats    []*engine.ListenerCounters
	admission        *admission.Controller // counts connections and dials of all loops
	acceptPaused     atomic.Bool           // by the operator
	activePeerCloses atomic.Int64
	broadcastTracker engine.BroadcastTracker
	sharedCounters   engine.Counters // for events that belong to no single loop
	nextLoop         atomic.Uint64
	stopping         atomic.Bool
	stuckLoops       atomic.Int64              // loops that the watchdog has found stuck
	adoptions        sync.WaitGroup            // goroutines of Adopt
	listenersShared  atomic.Bool               // another process uses the listeners, too
	freedMemory      handover.FreedByteCounter // memory of connections that were handed over
	receiver         handover.CreditDistributor
	done             chan struct{} // closed when all loops have ended

	runningLoops   sync.WaitGroup // goroutines that run a loop, or a job that has lost its loop
	checkingJobs   atomic.Bool
	startJobChecks chan struct{} // signals the first job after checkingJobs was false; has capacity for one signal

	poolClosedLogged sync.Once

	mu             sync.Mutex
	acceptingLoops []int // the loop that accepts from each listener descriptor; guarded by mu
}

// Start starts an engine with cfg.Loops loops. It calls newDriver once for each loop.
func Start(cfg engine.Config, newDriver func(*Loop) Driver) (engine.Engine, error) {
	e := &loopEngine{cfg: cfg, admission: engine.NewAdmission(&cfg), done: make(chan struct{}), startJobChecks: make(chan struct{}, 1)}
	e.broadcastTracker.Counters = &e.sharedCounters
	e.acceptPaused.Store(cfg.StartPaused)
	e.listenersShared.Store(cfg.StartPaused)
	if err := e.openListeners(); err != nil {
		return nil, err
	}
	if err := e.createLoops(newDriver); err != nil {
		e.closeListenerFDs()
		return nil, err
	}
	if err := e.startLoopsWithoutCleanup(); err != nil {
		// Loops that have started may have accepted connections.
		ctx, cancel := context.WithCancel(context.Background())
		cancel()
		_ = e.Stop(ctx) // reports only that ctx is done
		return nil, err
	}
	return e, nil
}

// createLoops creates all loops and their eventfds. It must run before any loop starts.
func (e *loopEngine) createLoops(newDriver func(*Loop) Driver) error {
	for i := range e.cfg.Loops {
		eventfd, err := sock.NewEventfd() // before any loop starts, so that all descriptor tables contain every eventfd
		if err != nil {
			e.closeEventfds()
			return err
		}
		l := newLoop(e, i, eventfd)
		l.driver = newDriver(l)
		e.loops = append(e.loops, l)
	}
	for i := range e.listenerFDs {
		e.acceptingLoops = append(e.acceptingLoops, e.homeLoopOfListener(i))
	}
	return nil
}

func (e *loopEngine) startLoopsWithoutCleanup() (err error) {
	started := make(chan error, len(e.loops))
	for _, l := range e.loops {
		e.runningLoops.Go(func() { l.runOnThread(started) })
	}
	for range e.loops {
		if e := <-started; e != nil {
			err = e
		}
	}
	if e.cfg.MaxConnsPerShard > 0 {
		e.closeListenerFDs() // the loops have their own descriptors
	}
	ended := make(chan struct{})
	var watchdogs sync.WaitGroup
	watchdogs.Go(func() { e.watchForStuckTurns(ended) })
	watchdogs.Go(func() { e.watchForSlowJobs(ended) })
	go func() {
		e.runningLoops.Wait()
		e.adoptions.Wait()
		close(ended)
		watchdogs.Wait()
		e.closeEventfds()
		close(e.done)
	}()
	return err
}

func (e *loopEngine) closeListenerFDs() {
	for _, fd := range e.listenerFDs {
		sock.Close(fd)
	}
}

func (e *loopEngine) closeEventfds() {
	for _, l := range e.loops {
		l.eventfd.Close()
	}
}

func (e *loopEngine) openListeners() error {
	e.listenerConfigs = e.cfg.EffectiveListeners()
	for _, l := range e.listenerConfigs {
		if err := e.openListener(l); err != nil {
			e.closeListenerFDs()
			return err
		}
	}
	return nil
}

func (e *loopEngine) openListener(listener engine.Listener) error {
	sockets, err := listener.OpenSockets(e.cfg.Loops, e.cfg.SocketOptions(false))
	if err != nil {
		return err
	}
	defer engine.CloseListeners(sockets)
	fds, err := duplicateListenerFDs(sockets)
	for _, fd := range fds {
		sock.SetDeadPeerTimeoutFD(fd, e.cfg.Limits.WriteTimeout, e.cfg.DetectsDeadPeersWithin(sock.KeepaliveTimeout))
	}
	e.listenerFDs = append(e.listenerFDs, fds...)
	e.listenerIndexes = append(e.listenerIndexes, slices.Repeat([]int{len(e.listenerStats)}, len(fds))...)
	e.listenerStats = append(e.listenerStats, engine.NewListenerCounters(listener, sockets[0].Addr()))
	return err
}

// duplicateListenerFDs duplicates the descriptor of each listener. The caller must close the duplicates.
func duplicateListenerFDs(listeners []net.Listener) (fds []int32, err error) {
	for _, l := range listeners {
		fd, err := sock.DupConnDescriptor(l)
		if err != nil {
			sock.Close(fds...)
			return nil, err
		}
		fds = append(fds, fd)
	}
	return fds, nil
}

func (e *loopEngine) Addr() net.Addr {
	if all := e.ListenerStats(); len(all) > 0 {
		return all[0].Addr
	}
	return nil
}

func (e *loopEngine) ListenerStats() []engine.ListenerStats { return e.loops[0].host.ListenerStats() }

func (e *loopEngine) Loops() int { return len(e.loops) }

func (e *loopEngine) Counters() (sum engine.Counts) {
	for _, l := range e.loops {
		l.counters.AddToWithMaxAge(&sum)
	}
	e.sharedCounters.AddToWithMaxAge(&sum)
	e.broadcastTracker.SetBroadcastGauges(&sum)
	e.loops[0].host.AddOverloadCounts(&sum)
	return sum
}

// Dial passes the request to the loop with index request.Loop-1. If this index is invalid, for example because
// request.Loop is 0, the loops take turns.
func (e *loopEngine) Dial(request engine.DialRequest) error {
	if err := request.Validate(); err != nil {
		return err
	}
	if request.Loop > 0 && request.Loop <= len(e.loops) {
		return e.loops[request.Loop-1].enqueueDialAndWake(request)
	}
	return e.loops[e.nextLoop.Add(1)%uint64(len(e.loops))].enqueueDialAndWake(request)
}

func (e *loopEngine) Stop(ctx context.Context) error {
	e.mu.Lock()
	e.stopping.Store(true) // no more adoptions
	e.mu.Unlock()
	e.broadcastTracker.RejectNewBroadcasts()
	for _, l := range e.loops {
		l.requestStopStage(stageStopping)
	}
	return engine.AwaitStop(ctx, e.done, e.admission.OpenConns, func() {
		for _, l := range e.loops {
			l.requestStopStage(stageKilling)
		}
	})
}

func (e *loopEngine) Wait() { <-e.done }
