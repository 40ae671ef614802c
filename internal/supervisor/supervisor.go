package supervisor

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"sync"
	"sync/atomic"

	"github.com/myriad-go/myriad/internal/engine"
)

// Config is what a supervisor is started with.
type Config struct {
	// Network and Addr say where to listen, as for net.Listen, and More where
	// else.
	Network, Addr string
	More          []Address
	// Processes is the number of workers, at least 1.
	Processes int
	// Serving, if set, is called with each address, when all workers serve for
	// the first time. Wait waits for its return.
	Serving func(net.Addr)
	Log     *slog.Logger
}

// Address is where to listen, as for net.Listen.
type Address struct{ Network, Addr string }

// where is all of that.
func (c *Config) where() []Address { return append([]Address{{c.Network, c.Addr}}, c.More...) }

// life is one run of a worker process. Its channels are closed in this order,
// and only the last one surely.
type life interface {
	pid() int
	serving() <-chan struct{} // it accepts connections
	left() <-chan struct{}    // it has stopped serving
	ended() <-chan struct{}   // it has ended and has been waited for
	err() error               // how it ended, nil for exit code 0
	drain()
	kill()
	pass(frame []byte) error // a broadcast, if it serves; for the relay alone
}

// nursery is what workers come from. Its methods are safe for concurrent use.
type nursery interface {
	// spawn starts a worker. It fails after closeListeners. heard is told of
	// the worker's broadcasts, until it has ended.
	spawn(index int, heard func(frame []byte)) (life, error)
	// closeListeners lets go of the supervisor's listeners.
	closeListeners()
	// close frees the board. All workers have ended by then.
	close()
}

// Supervisor is an [engine.Engine] that consists of processes. Its methods are
// safe for concurrent use.
type Supervisor struct {
	cfg     Config
	pace    pace
	nursery nursery
	addrs   []net.Addr

	draining chan struct{} // closed when workers are to drain
	killing  chan struct{} // closed when they are to be killed
	done     chan struct{} // closed when everything has ended

	relayed chan []byte // broadcasts that wait for the relay

	running  atomic.Int64
	restarts atomic.Int64

	mu       sync.Mutex
	board    board // nil when everything has ended
	past     past
	failures []int  // lives in a row that ended before they served, of each worker
	served   []bool // which have served
	awaited  int    // how many have not
	err      error  // why it gave up
	lives    []life // of each worker, nil for none
}

// ErrGaveUp is wrapped by the error of a supervisor whose workers would not
// serve.
var ErrGaveUp = errors.New("worker processes do not stay alive")

// supervise starts the keepers.
func supervise(cfg Config, p pace, addrs []net.Addr, b board, n nursery) *Supervisor {
	s := &Supervisor{
		cfg: cfg, pace: p, nursery: n, addrs: addrs, board: b,
		draining: make(chan struct{}), killing: make(chan struct{}), done: make(chan struct{}),
		failures: make([]int, cfg.Processes), served: make([]bool, cfg.Processes), awaited: cfg.Processes,
		relayed: make(chan []byte, maxWaiting), lives: make([]life, cfg.Processes),
	}
	var relay sync.WaitGroup
	ended := make(chan struct{}) // closed when all workers have
	relay.Go(func() { s.relay(ended) })
	var keepers sync.WaitGroup
	all := make(chan struct{}) // closed when all have served
	for i := range cfg.Processes {
		keepers.Go(func() { s.keep(i, all) })
	}
	var announcing sync.WaitGroup
	announcing.Go(func() {
		select {
		case <-all:
			for _, addr := range addrs {
				if cfg.Serving != nil {
					cfg.Serving(addr)
				}
			}
		case <-s.draining:
		}
	})
	go func() {
		keepers.Wait()
		s.tell(draining)
		announcing.Wait()
		close(ended)
		relay.Wait()
		s.mu.Lock()
		s.board = nil
		s.mu.Unlock()
		n.close()
		close(s.done)
	}()
	return s
}

// What the keepers are told, growing.
const (
	draining = iota
	killing
)

// tell tells all keepers to drain or to kill their workers.
func (s *Supervisor) tell(what int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !closed(s.draining) {
		close(s.draining)
		s.nursery.closeListeners()
	}
	if what == killing && !closed(s.killing) {
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

// serves notes that a worker serves; all is closed when it is the last one to
// do so for the first time.
func (s *Supervisor) serves(index int, all chan<- struct{}) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.failures[index] = 0
	if s.served[index] {
		return
	}
	s.served[index] = true
	if s.awaited--; s.awaited == 0 {
		close(all)
	}
}

// failed notes a life that ended before it served, and gives up when all
// workers fail again and again.
func (s *Supervisor) failed(index int, cause error) (over bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.failures[index]++
	for _, n := range s.failures {
		if n < s.pace.giveUp {
			return false
		}
	}
	s.err = fmt.Errorf("%w: each of %d ended %d times in a row before it served, the last one with %q; "+
		"see what they have printed: main runs again in each of them and has to come to the same ListenAndServe",
		ErrGaveUp, s.cfg.Processes, s.pace.giveUp, cause)
	return true
}

// bury takes the counts of a worker that has ended.
func (s *Supervisor) bury(index int) (lost int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.board.block(index).bury(&s.past)
}

// Addr is where the workers listen first.
func (s *Supervisor) Addr() net.Addr { return s.addrs[0] }

// Listening is where they listen, and what has come there, by the rules of Counters.
func (s *Supervisor) Listening() (all []engine.Listening) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for i, addr := range s.addrs {
		sum := engine.Listening{Addr: addr}
		s.past.listeners[i].addTo(&sum)
		for w := range len(s.board) / int(stride) {
			s.board.block(w).listeners[i].addTo(&sum)
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
	for i := range len(s.board) / int(stride) {
		sum += int(s.board.block(i).loops.Load())
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
	for i := range len(s.board) / int(stride) {
		s.board.block(i).counts.AddTo(&sum)
	}
	return sum
}

// Adopt fails, too.
func (s *Supervisor) Adopt(net.Conn, []byte) error { return engine.ErrClosed }

// Dial fails: workers only accept.
func (s *Supervisor) Dial(engine.Dial) error {
	return errors.New("a supervisor does not dial; its worker processes accept")
}

// Stop implements [engine.Engine]: it lets the workers drain, and kills those
// that have not ended with ctx.
func (s *Supervisor) Stop(ctx context.Context) error {
	s.tell(draining)
	select {
	case <-s.done:
		return nil
	case <-ctx.Done():
	}
	conns, workers := s.Counters()[engine.Open], s.Processes()
	s.tell(killing)
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
