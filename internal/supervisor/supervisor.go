package supervisor

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"github.com/myriad-go/myriad/internal/engine"
	"github.com/myriad-go/myriad/internal/sock"
)

// Config is what a supervisor is started with.
type Config struct {
	// Addrs are where to listen, at least one.
	Addrs []Address
	// Control, if set, is called with each socket before it is bound.
	Control sock.Control
	// Sockets are those at the addresses that another process hands over, of each at least one,
	// none to listen there. They are the supervisor's, when it has started.
	Sockets [][]net.Listener
	// Succeeds says that it takes another process's place: workers accept nothing until Hold
	// says so, and it gives up when each has ended once before it has served.
	Succeeds bool
	// Processes is the number of workers, at least 1.
	Processes int
	// Serving, if set, is called with each address when all workers serve for the
	// first time. Wait waits for its return.
	Serving func(net.Addr)
	Log     *slog.Logger
}

// Address is where to listen, as for net.Listen.
type Address struct{ Network, Addr string }

// process is one run of a worker. Its channels are closed in this order, and only
// the last one surely.
type process interface {
	pid() int
	serving() <-chan struct{} // it accepts connections
	stopped() <-chan struct{} // it has stopped serving
	ended() <-chan struct{}   // it has ended and has been waited for
	err() error               // how it ended, nil for exit code 0
	drain()
	kill()
	send(frame []byte) error // a message, if it serves; for the relay alone
}

// spawner starts worker processes. Its methods are safe for concurrent use.
type spawner interface {
	// spawn starts a worker. It fails after closeListeners. receive gets the
	// worker's messages until it has ended.
	spawn(index int, receive func(frame []byte)) (process, error)
	// closeListeners closes the supervisor's listeners.
	closeListeners()
	// close frees the shared counters. All workers have ended by then.
	close()
}

// timing is how long the supervisor waits for workers, and when it starts them again.
type timing struct {
	backoff    time.Duration // before the first restart
	maxBackoff time.Duration // doubling up to this
	settled    time.Duration // after a life of this length the back-off begins anew
	attempts   int           // it gives up when all workers have failed so often in a row
	start      time.Duration // from the start of a process until it serves
	exit       time.Duration // from the end of serving until the process ends
}

var standard = timing{
	backoff: 100 * time.Millisecond, maxBackoff: 10 * time.Second, settled: 10 * time.Second,
	attempts: 10, start: 2 * time.Minute, exit: 30 * time.Second,
}

// Supervisor is an [engine.Engine] that consists of processes. Its methods are
// safe for concurrent use.
type Supervisor struct {
	cfg     Config
	timing  timing
	spawner spawner
	addrs   []net.Addr

	allServe chan struct{} // closed when all workers have served
	started  chan struct{} // closed then, or when draining is
	draining chan struct{} // closed when workers are to drain
	killing  chan struct{} // closed when they are to be killed
	done     chan struct{} // closed when everything has ended

	messages chan []byte // frames for the relay

	running  atomic.Int64
	restarts atomic.Int64

	mu       sync.Mutex
	counters sharedCounters // nil when everything has ended
	past     past
	workers  []worker
	err      error // why it gave up
}

// worker is what is known of one across its runs.
type worker struct {
	process  process       // nil for none
	over     chan struct{} // closed when that has ended and is counted
	lost     int64         // connections that were open when one of its processes ended
	served   bool          // once
	failures int           // runs in a row that ended before they served
}

// ErrGaveUp is wrapped by the error of a supervisor whose workers would not
// serve.
var ErrGaveUp = errors.New("worker processes do not stay alive")

// supervise starts the monitors, the relay, and a goroutine that ends when they have.
func supervise(cfg Config, t timing, addrs []net.Addr, counters sharedCounters, sp spawner) *Supervisor {
	s := &Supervisor{
		cfg: cfg, timing: t, spawner: sp, addrs: addrs, counters: counters,
		allServe: make(chan struct{}), started: make(chan struct{}), draining: make(chan struct{}), killing: make(chan struct{}), done: make(chan struct{}),
		messages: make(chan []byte, maxWaiting), workers: make([]worker, cfg.Processes),
	}
	var monitors, announcing, relay sync.WaitGroup
	for i := range cfg.Processes {
		monitors.Go(func() { s.monitor(i) })
	}
	announcing.Go(s.announce)
	ended := make(chan struct{}) // closed when all workers have
	relay.Go(func() { s.relay(ended) })
	go func() {
		monitors.Wait()
		s.drain()
		announcing.Wait()
		close(ended)
		relay.Wait()
		s.mu.Lock()
		s.counters = nil
		s.mu.Unlock()
		sp.close()
		close(s.done)
	}()
	return s
}

// announce calls Serving when all workers have served.
func (s *Supervisor) announce() {
	select {
	case <-s.allServe:
		close(s.started)
	case <-s.draining:
		close(s.started)
		return
	}
	for _, addr := range s.addrs {
		if s.cfg.Serving != nil {
			s.cfg.Serving(addr)
		}
	}
}

// Started is closed when all workers have served, or it drains before.
func (s *Supervisor) Started() <-chan struct{} { return s.started }

// Serving fails where not all workers have served.
func (s *Supervisor) Serving() error {
	if closed(s.allServe) {
		return nil
	}
	return cmp.Or(s.Err(), error(engine.ErrClosed))
}

// drain has all monitors drain their workers.
func (s *Supervisor) drain() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !closed(s.draining) {
		close(s.draining)
		s.spawner.closeListeners()
	}
}

// kill has all monitors kill their workers, after drain.
func (s *Supervisor) kill() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !closed(s.killing) {
		close(s.killing)
	}
}

func closed(c <-chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}

// Addr is where the workers listen first.
func (s *Supervisor) Addr() net.Addr { return s.addrs[0] }

// ListenerStats is where they listen, and what has come there, by the rules of Counters.
func (s *Supervisor) ListenerStats() (all []engine.ListenerStats) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for i, addr := range s.addrs {
		sum := engine.ListenerStats{Addr: addr}
		s.past.listeners[i].addTo(&sum)
		for w := range s.counters.workers() {
			s.counters.block(w).listeners[i].addTo(&sum)
		}
		all = append(all, sum)
	}
	return all
}

// Processes is how many workers run now.
func (s *Supervisor) Processes() int { return int(s.running.Load()) }

// Restarts counts the starts of a worker after its first one.
func (s *Supervisor) Restarts() int64 { return s.restarts.Load() }

// Loops is the number of loops of all workers that serve.
func (s *Supervisor) Loops() (sum int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for i := range s.counters.workers() {
		sum += int(s.counters.block(i).loops.Load())
	}
	return sum
}

// Counters is the sum over all workers, those included that have ended, but
// for their open connections. The counters of a worker are up to publishEvery
// old, and one that was killed has taken what it counted since then with it.
func (s *Supervisor) Counters() (sum engine.Counts) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.past.counts.AddTo(&sum)
	for i := range s.counters.workers() {
		s.counters.block(i).counts.AddTo(&sum)
	}
	return sum
}

// Adopt fails: workers only accept.
func (s *Supervisor) Adopt(net.Conn, int, []byte) error { return engine.ErrClosed }

// Dial fails: workers only accept.
func (s *Supervisor) Dial(engine.DialRequest) error {
	return errors.New("a supervisor does not dial; its worker processes accept")
}

// Stop implements [engine.Engine]: it lets the workers drain, and kills those
// that have not ended with ctx.
func (s *Supervisor) Stop(ctx context.Context) error {
	s.drain()
	select {
	case <-s.done:
		return nil
	case <-ctx.Done():
	}
	conns, workers := s.Counters()[engine.Open], s.Processes()
	s.kill()
	<-s.done
	if workers == 0 {
		return nil // they have ended by themselves in this moment
	}
	return fmt.Errorf("%d connections were closed before they had finished, with %d worker processes that were killed: %w",
		conns, workers, context.Cause(ctx))
}

// Wait returns when everything has ended: after Stop, or because the supervisor
// gave up.
func (s *Supervisor) Wait() { <-s.done }

// Err is why the supervisor gave up, nil if it did not.
func (s *Supervisor) Err() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.err
}
