// Package loop is what the event-driven models have in common: loops that own
// their connections. A model adds a [Driver], which watches descriptors and
// moves bytes.
//
// # Who owns what
//
// A loop is one goroutine locked to its thread. It owns its listener, its
// driver, its slab of connections and its free buffers; nobody else touches
// them. Loops share only counts of connections, which are atomic, and nothing on
// the way of a byte. With Config.Shard each is a shard: its thread
// has a descriptor table of its own; see listeners_linux.go for what that means
// for listeners.
//
// From outside a loop is reached in three ways, all safe for concurrent use:
// its mailbox (mail for connections), its orders (dials, and being told to
// stop), and its eventfd, which ends the wait. A loop says in asleep that it is
// about to wait, and looks at mailbox and orders once more after that; who
// leaves something looks at asleep afterwards and signals if it was set. So
// nothing is left unseen, and a busy loop is never woken.
//
// A loop ends when it has been told to stop and its last connection is
// finished. Stop waits for all of them.
package loop

import (
	"context"
	"math"
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

// acceptRetry is how long a loop that ran out of descriptors waits before it
// accepts again, if none of its connections closes before.
const acceptRetry = 50 * time.Millisecond

// group is a running engine: its loops.
type group struct {
	cfg             engine.Config
	loops           []*Loop
	listeners       []int32           // of each engine.Listener, at least one for each loop; see listeners_linux.go
	numbers         []int             // of which engine.Listener each of them is
	where           []engine.Listener // none if the engine only dials
	entrances       []*engine.ListenerCounters
	admission       *admission.Controller   // with connections and dials of all loops
	evenShare       int64                   // of MaxBuffered
	acceptPaused    atomic.Bool             // loops are to accept nothing
	expelling       atomic.Int64            // calls of Expel under way
	broadcasts      engine.BroadcastTracker // under way
	shared          engine.Counters         // of messages to several connections
	next            atomic.Uint64
	stopping        atomic.Bool
	stuck           atomic.Int64      // loops that a handler holds, as far as watch has seen
	adopting        sync.WaitGroup    // goroutines of Adopt
	sharedListeners atomic.Bool       // they are another process's, too
	given           engine.FreedBytes // memory of connections that have been handed over
	receiver        handover.Receiver
	done            chan struct{} // closed when all loops have ended

	poolClosedLogged sync.Once // that the pool is closed has been logged

	mu      sync.Mutex
	keepers []int // which loop accepts from each listener
}

// Start starts cfg.Loops loops, each with a driver of its own.
func Start(cfg engine.Config, newDriver func(*Loop) Driver) (engine.Engine, error) {
	g := &group{cfg: cfg, admission: engine.NewAdmission(&cfg), evenShare: math.MaxInt64, done: make(chan struct{})}
	g.broadcasts.Counters = &g.shared
	g.acceptPaused.Store(cfg.StartPaused)
	g.sharedListeners.Store(cfg.StartPaused)
	if most := cfg.Limits.MaxBuffered; most > 0 {
		g.evenShare = int64(most / cfg.Loops)
	}
	if err := g.listen(); err != nil {
		return nil, err
	}
	if err := g.makeLoops(newDriver); err != nil {
		g.closeListeners()
		return nil, err
	}
	if err := g.run(); err != nil {
		// Those loops that run may have accepted already.
		ctx, cancel := context.WithCancel(context.Background())
		cancel()
		_ = g.Stop(ctx) // what it says of ctx is what was asked for
		return nil, err
	}
	return g, nil
}

// makeLoops makes the loops and their eventfds, which come before any loop has a
// descriptor table of its own, so that all have them.
func (g *group) makeLoops(newDriver func(*Loop) Driver) error {
	for i := range g.cfg.Loops {
		eventfd, err := sock.NewEventfd()
		if err != nil {
			g.closeEventfds()
			return err
		}
		l := newLoop(g, i, eventfd)
		l.driver = newDriver(l)
		g.loops = append(g.loops, l)
	}
	for i := range g.listeners {
		g.keepers = append(g.keepers, g.ownerOf(i))
	}
	return nil
}

// run starts the loops and waits until they serve.
func (g *group) run() (err error) {
	var running sync.WaitGroup
	started := make(chan error, len(g.loops))
	for _, l := range g.loops {
		running.Go(func() { l.run(started) })
	}
	for range g.loops {
		if e := <-started; e != nil {
			err = e
		}
	}
	if g.cfg.MaxConnsPerShard > 0 {
		g.closeListeners() // the loops have their own descriptors of them
	}
	ended, watched := make(chan struct{}), make(chan struct{})
	go func() {
		g.watch(ended)
		close(watched)
	}()
	go func() {
		running.Wait()
		g.adopting.Wait()
		close(ended)
		<-watched
		g.closeEventfds()
		close(g.done)
	}()
	return err
}

func (g *group) closeListeners() {
	for _, fd := range g.listeners {
		sock.Close(fd)
	}
}

func (g *group) closeEventfds() {
	for _, l := range g.loops {
		l.eventfd.Close()
	}
}

// listen makes the listeners, of each at least one for each loop.
func (g *group) listen() error {
	g.where = g.cfg.EffectiveListeners()
	for _, l := range g.where {
		if err := g.bind(l); err != nil {
			g.closeListeners()
			return err
		}
	}
	return nil
}

// bind makes those of one.
func (g *group) bind(l engine.Listener) error {
	all, err := l.OpenSockets(g.cfg.Loops, g.cfg.SocketOptions(false))
	if err != nil {
		return err
	}
	defer engine.CloseListeners(all)
	fds, err := detach(all)
	for _, fd := range fds {
		sock.SetUserTimeout(fd, g.cfg.Limits.WriteTimeout, g.cfg.DetectsDeadPeersWithin(sock.KeepaliveTimeout))
	}
	g.listeners = append(g.listeners, fds...)
	g.numbers = append(g.numbers, slices.Repeat([]int{len(g.entrances)}, len(fds))...)
	g.entrances = append(g.entrances, engine.NewListenerCounters(l, all[0].Addr()))
	return err
}

// detach takes a descriptor from each listener, which the caller closes.
func detach(listeners []net.Listener) (fds []int32, err error) {
	for _, l := range listeners {
		fd, err := sock.Detach(l)
		if err != nil {
			sock.Close(fds...)
			return nil, err
		}
		fds = append(fds, fd)
	}
	return fds, nil
}

func (g *group) Addr() net.Addr {
	if all := g.ListenerStats(); len(all) > 0 {
		return all[0].Addr
	}
	return nil
}

func (g *group) ListenerStats() []engine.ListenerStats { return g.loops[0].host.ListenerStats() }

func (g *group) Loops() int { return len(g.loops) }

func (g *group) Counters() (sum engine.Counts) {
	for _, l := range g.loops {
		l.counters.AddTo(&sum)
	}
	g.shared.AddTo(&sum)
	g.broadcasts.FillCounts(&sum)
	return sum
}

// Dial hands the order to the loops in turn.
func (g *group) Dial(d engine.DialRequest) error {
	if err := d.Validate(); err != nil {
		return err
	}
	if d.Loop > 0 && d.Loop <= len(g.loops) {
		return g.loops[d.Loop-1].order(d)
	}
	return g.loops[g.next.Add(1)%uint64(len(g.loops))].order(d)
}

func (g *group) Stop(ctx context.Context) error {
	g.mu.Lock()
	g.stopping.Store(true) // nothing is adopted any more
	g.mu.Unlock()
	g.broadcasts.Close()
	for _, l := range g.loops {
		l.request(stopping)
	}
	return engine.AwaitStop(ctx, g.done, g.admission.Open, func() {
		for _, l := range g.loops {
			l.request(killing)
		}
	})
}

func (g *group) Wait() { <-g.done }
