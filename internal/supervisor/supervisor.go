package supervisor

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/myriad-go/myriad/internal/engine"
	"github.com/myriad-go/myriad/internal/sock"
)

type Config struct {
	// Addrs are the addresses to listen on. At least one address is required.
	Addrs []Address
	// Control, if set, is called with each socket before it is bound.
	Control sock.ControlFunc
	// Sockets contains inherited listening sockets for each address in Addrs. If an address has no sockets, the
	// supervisor opens listeners for it. After the start, the sockets belong to the supervisor.
	Sockets [][]net.Listener
	// IsSuccessor means that the supervisor replaces another process. The workers then accept no connections until
	// PauseAccept(false) is called.
	IsSuccessor bool
	// PredecessorListeners is passed to the workers' engines; see [engine.Config].
	PredecessorListeners []int
	// Processes is the number of workers, at least 1.
	Processes int
	// OnServing, if set, is called once for each address when all workers serve. Supervisor.Wait waits for these calls.
	OnServing func(net.Addr)
	Log       *slog.Logger
	// InitPage, if set, initializes the workers' shared memory page (see PageSize) before the first worker starts.
	InitPage func(page []byte)
}

type Address struct{ Network, Addr string }

// process is one run of a worker process. It passes through the stages serving, stopped and ended. If a run fails, it
// may go directly to ended.
type process interface {
	pid() int
	serving() <-chan struct{} // closed when the process accepts connections
	stopped() <-chan struct{} // closed when it has stopped serving
	ended() <-chan struct{}   // closed when it has exited and was reaped
	err() error               // exit status once ended is closed; nil for exit code 0
	requestDrainAndSIGTERMIfNotServing()
	kill()
	enqueueFrameIfServing(frame []byte) error // called only by the relay
}

// spawner starts worker processes. It is safe for concurrent use.
type spawner interface {
	// spawnWorker starts a worker. Until the worker ends, it calls receive with each frame that the worker sends. After
	// closeListenersAndStopSpawning, spawnWorker fails.
	spawnWorker(index int, receive func(frame []byte)) (process, error)
	closeListenersAndStopSpawning()
	freeSharedMemory()
}

type timing struct {
	backoff      time.Duration // before the first restart
	maxBackoff   time.Duration // limit of the back-off, which doubles with each restart
	resetAfter   time.Duration // a run of at least this length resets the back-off
	maxFailures  int           // the supervisor gives up when all workers have failed this often in a row
	startTimeout time.Duration // from the start of a process until it serves
	exitTimeout  time.Duration // from the end of serving until the process ends
}

var defaultTiming = timing{
	backoff: 100 * time.Millisecond, maxBackoff: 10 * time.Second, resetAfter: 10 * time.Second,
	maxFailures: 10, startTimeout: 2 * time.Minute, exitTimeout: 30 * time.Second,
}

// Supervisor is an [engine.Engine] that consists of worker processes. It is safe for concurrent use.
type Supervisor struct {
	cfg     Config
	timing  timing
	spawner spawner
	addrs   []net.Addr

	allServed chan struct{} // closed when all workers have begun to serve
	started   chan struct{} // closed with allServed or draining
	draining  chan struct{} // closed when workers are to drain
	killing   chan struct{} // closed when workers are to be killed
	done      chan struct{} // closed when everything has ended

	messages chan []byte // frames for the relay

	running  atomic.Int64
	restarts atomic.Int64

	mu       sync.Mutex
	counters sharedCounters // nil when everything has ended
	page     []byte         // nil when everything has ended
	ended    endedCounters
	workers  []workerState
	err      error // why the supervisor gave up
}

type workerState struct {
	process   process       // nil if none runs
	collected chan struct{} // closed when the process has ended and its counters are added
	lostConns int64         // connections that were open when processes of this worker ended
	served    bool          // has served at least once
	failures  int           // consecutive runs that ended before serving
}

// CopySharedPage returns a copy of the memory page that the workers share (see PageSize). After the supervisor has
// ended, it returns nil.
func (s *Supervisor) CopySharedPage() []byte {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.page)
}

// ErrGaveUp means that all workers repeatedly ended before they served. The error of Supervisor.Err wraps it.
var ErrGaveUp = errors.New("worker processes do not stay alive")

func startSupervisor(cfg Config, t timing, addrs []net.Addr, counters sharedCounters, sp spawner) *Supervisor {
	s := &Supervisor{
		cfg: cfg, timing: t, spawner: sp, addrs: addrs, counters: counters,
		allServed: make(chan struct{}), started: make(chan struct{}), draining: make(chan struct{}), killing: make(chan struct{}), done: make(chan struct{}),
		messages: make(chan []byte, maxQueuedMessages), workers: make([]workerState, cfg.Processes),
	}
	var monitors, announcing, relay sync.WaitGroup
	for i := range cfg.Processes {
		monitors.Go(func() { s.keepWorkerRunningOrGiveUp(i) })
	}
	announcing.Go(s.awaitAllServedAndCallOnServing)
	ended := make(chan struct{}) // closed when all workers have ended
	relay.Go(func() { s.relayFramesRememberingPause(ended) })
	go func() {
		monitors.Wait()
		s.startDrainAndCloseListeners()
		announcing.Wait()
		close(ended)
		relay.Wait()
		s.mu.Lock()
		s.counters, s.page = nil, nil
		s.mu.Unlock()
		sp.freeSharedMemory()
		close(s.done)
	}()
	return s
}

func (s *Supervisor) awaitAllServedAndCallOnServing() {
	select {
	case <-s.allServed:
		close(s.started)
	case <-s.draining:
		close(s.started)
		return
	}
	for _, addr := range s.addrs {
		if s.cfg.OnServing != nil {
			s.cfg.OnServing(addr)
		}
	}
}

// Started returns a channel that is closed when all workers have begun to serve, or when the supervisor begins to
// drain.
func (s *Supervisor) Started() <-chan struct{} { return s.started }

// CheckAllServed returns nil if every worker has begun to serve at least once. If the supervisor has given up, it
// returns the reason. In all other cases, it returns engine.ErrClosed.
func (s *Supervisor) CheckAllServed() error {
	if isClosed(s.allServed) {
		return nil
	}
	return cmp.Or(s.Err(), error(engine.ErrClosed))
}

func (s *Supervisor) startDrainAndCloseListeners() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !isClosed(s.draining) {
		close(s.draining)
		s.spawner.closeListenersAndStopSpawning()
	}
}

func (s *Supervisor) requestKillWorkers() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !isClosed(s.killing) {
		close(s.killing)
	}
}

func isClosed(c <-chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}

func (s *Supervisor) Addr() net.Addr { return s.addrs[0] }

func (s *Supervisor) ListenerStats() (all []engine.ListenerStats) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for i, addr := range s.addrs {
		sum := engine.ListenerStats{Addr: addr}
		s.ended.listeners[i].addTo(&sum)
		for w := range s.counters.workerCount() {
			s.counters.workerBlock(w).listeners[i].addTo(&sum)
		}
		all = append(all, sum)
	}
	return all
}

func (s *Supervisor) Processes() int { return int(s.running.Load()) }

func (s *Supervisor) Restarts() int64 { return s.restarts.Load() }

func (s *Supervisor) Loops() (sum int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for i := range s.counters.workerCount() {
		sum += int(s.counters.workerBlock(i).loops.Load())
	}
	return sum
}

// Counters returns the sums of the counters of all workers, including workers that have ended. The number of open
// connections includes only workers that still run. The counters of a running worker may be up to publishEvery old.
func (s *Supervisor) Counters() (sum engine.Counts) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.ended.counts.AddToWithMaxAge(&sum)
	for i := range s.counters.workerCount() {
		s.counters.workerBlock(i).counts.AddToWithMaxAge(&sum)
	}
	return sum
}

// Adopt fails, because a supervisor has no connections of its own.
func (s *Supervisor) Adopt(net.Conn, int, []byte) error { return engine.ErrClosed }

// Dial fails, because a supervisor has no connections of its own.
func (s *Supervisor) Dial(engine.DialRequest) error {
	return errors.New("a supervisor does not dial; call Dial in a worker process")
}

// Stop implements [engine.Engine]. It drains the workers. When ctx ends, Stop kills the workers that still run.
func (s *Supervisor) Stop(ctx context.Context) error {
	s.startDrainAndCloseListeners()
	select {
	case <-s.done:
		return nil
	case <-ctx.Done():
	}
	conns, workers := s.Counters()[engine.Open], s.Processes()
	s.requestKillWorkers()
	<-s.done
	if workers == 0 {
		return nil // they ended by themselves just now
	}
	return fmt.Errorf("%d connections were closed before they had finished; %d worker processes were killed: %w",
		conns, workers, context.Cause(ctx))
}

// Wait waits until the supervisor and all workers have ended.
func (s *Supervisor) Wait() { <-s.done }

// Err returns the reason why the supervisor gave up. If it has not given up, Err returns nil.
func (s *Supervisor) Err() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.err
}
