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
	Start:     start,
}

// acceptRetry is how long the acceptor waits when descriptors have run out,
// unless a connection closes earlier.
const acceptRetry = 50 * time.Millisecond

// clockGrain is how far the clock that all connections share may run ahead: so
// often they write it at the most.
const clockGrain = time.Millisecond

// What is asked of a connection, as bits.
const (
	draining uint32 = 1 << iota
	killing
	overBudget   // Limits.MaxBuffered
	slowConsumer // no room for a broadcast
	expelled     // by Expel
	leaving      // to be handed over to another engine
	writable     // the kernel takes output again; it is taken back when it has been seen
)

// group is a running engine.
type group struct {
	cfg        engine.Config
	host       engine.Host
	counters   engine.Counters
	buffers    engine.SharedBuffers
	lns        []net.Listener
	numbers    []int                   // of which engine.Listener each of them is
	admission  *admission.Controller   // with connections and dials
	broadcasts engine.BroadcastTracker // under way
	casts      chan *engine.Broadcast  // for the caster
	dialOrders chan struct{}           // holds one for each Dial under way
	dialling   chan struct{}           // holds one for each connection being dialled
	hold       hold
	freed      chan struct{} // a connection has closed; for an acceptor out of descriptors
	stop       context.Context
	cancel     context.CancelFunc // ends stop, and with it dials and pauses
	swept      int                // the sweeper's: the chunk that comes next
	turns      turns              // of connections that send much
	pipes      pipes              // for relays
	reading    atomic.Int64       // bytes of large read buffers in use
	shedding   sync.Mutex         // held by who looks for connections that are to give way
	senders    senders            // that wait until buffers hold less
	clock      clock
	urgent     atomic.Int64 // connections that are about to end
	given      engine.Given // memory of connections that have been handed over
	migration  migration
	added      chan struct{} // a connection has come; for the sweeper
	emptied    chan struct{} // the last one has gone; for the sweeper
	killed     chan struct{} // closed when connections are to end at once
	kill       sync.Once     // for closing it
	running    sync.WaitGroup
	pacing     sync.WaitGroup // the pacer
	idle       chan struct{}  // closed when all that runs has ended
	done       chan struct{}  // closed when everything has ended

	mu    sync.Mutex
	conns table
	ended bool // nothing starts any more
}

func start(cfg engine.Config) (engine.Engine, error) {
	g := &group{
		cfg:        cfg,
		dialOrders: make(chan struct{}, maxOrders), dialling: make(chan struct{}, maxDials),
		freed: make(chan struct{}, 1), idle: make(chan struct{}), done: make(chan struct{}),
		added: make(chan struct{}, 1), emptied: make(chan struct{}, 1), killed: make(chan struct{}), admission: engine.NewAdmission(&cfg),
	}
	if err := g.listen(); err != nil {
		engine.CloseAll(g.lns)
		return nil, err
	}
	g.host.Grain = clockGrain
	g.host.SetUp(&cfg, g.admission)
	g.host.LocalAddr, g.host.Loops = g.local, 1
	g.host.Buffers, g.host.Poster, g.host.Counters, g.host.Timing, g.host.Now = &g.buffers, g, &g.counters, true, g.now
	g.host.Shared, g.broadcasts.Counters = &g.counters, &g.counters
	g.host.Direct = direct
	g.pipes.open(g)
	g.stop, g.cancel = context.WithCancel(context.Background())
	g.hold.on, g.hold.changed = cfg.Held, make(chan struct{})
	g.casts = make(chan *engine.Broadcast, engine.MaxBroadcasts)
	g.running.Go(g.sweepAll)
	g.running.Go(g.castAll)
	if cfg.Pace != nil {
		g.pacing.Go(g.paceAll)
	}
	for i := range g.lns {
		g.running.Go(func() { engine.Outlive(func() { g.accept(i) }) })
	}
	return g, nil
}

// listen makes the listeners, and what else has to be opened.
func (g *group) listen() error {
	for _, l := range g.cfg.Where() {
		all, err := l.Bind(1, g.cfg.SocketOptions(false))
		if err != nil {
			return err
		}
		for _, socket := range all {
			sock.SetDeadPeerTimeout(socket, g.cfg.Limits.WriteTimeout, g.cfg.Watches(sock.KeepaliveTimeout))
			g.lns = append(g.lns, socket)
			g.numbers = append(g.numbers, len(g.host.Entrances))
		}
		g.host.Entrances = append(g.host.Entrances, engine.NewEntrance(l, all[0].Addr()))
	}
	return g.turns.open()
}

func (g *group) Addr() net.Addr {
	if len(g.lns) == 0 {
		return nil
	}
	return g.lns[0].Addr()
}

func (g *group) Listening() []engine.Listening { return g.host.Listening() }

func (g *group) Loops() int { return 0 }

// now is the clock of all limits.
func (g *group) now() time.Duration { return g.clock.at(engine.Since()) }

func (g *group) Counters() (sum engine.Counts) {
	g.counters.AddTo(&sum)
	g.broadcasts.Count(&sum)
	return sum
}

// accept serves a socket of a listener until it is closed.
func (g *group) accept(socket int) {
	var complained time.Time
	for token := false; ; {
		token = token || g.mayAccept()
		if !g.hold.wait(g) {
			return
		}
		nc, err := g.lns[socket].Accept()
		switch {
		case errors.Is(err, os.ErrDeadlineExceeded): // it is held, or was a moment ago
		case err == nil:
			token = false
			g.welcome(nc, g.numbers[socket], nil)
		case errors.Is(err, net.ErrClosed), g.stop.Err() != nil:
			return
		default:
			g.counters.Add(engine.AcceptErrors, 1)
			if time.Since(complained) > time.Second {
				complained = time.Now()
				g.cfg.Log.LogAttrs(context.Background(), slog.LevelWarn,
					"cannot accept; trying again when a connection has closed, and regularly",
					slog.String("error", err.Error()),
					slog.Int64("open", g.admission.OpenConns()))
			}
			g.pause(acceptRetry, g.freed)
		}
	}
}

// mayAccept waits until the rate of accepting allows for one more, or until it is
// time to stop.
func (g *group) mayAccept() bool {
	for {
		wait := g.admission.TakeRateToken(engine.Since())
		if wait == 0 {
			return true
		}
		g.counters.Add(engine.AcceptPauses, 1)
		if !g.pause(wait, nil) {
			return false
		}
	}
}

// pause waits a while, less if something comes, and says whether to go on.
func (g *group) pause(most time.Duration, less <-chan struct{}) bool {
	timer := time.NewTimer(most)
	defer timer.Stop()
	select {
	case <-less:
	case <-timer.C:
	case <-g.stop.Done():
		return false
	}
	return true
}

func (g *group) welcome(nc net.Conn, listener int, read []byte) {
	peer := addrPort(nc.RemoteAddr())
	if err := g.host.Admit(listener, peer); err != nil {
		defer nc.Close() // whatever Refuse does
		turnAway(nc, g.host.Answer(peer, err))
		return
	}
	if !g.serve(nc, listener, nil, func(c *conn) { c.open(0, read) }) {
		g.host.Disown(listener, peer)
		g.leave()
	}
}

func (g *group) Adopt(nc net.Conn, listener int, read []byte) error {
	if g.stop.Err() != nil {
		return engine.ErrClosed
	}
	if err := nc.SetDeadline(time.Time{}); err != nil {
		return err
	}
	if listener < 0 {
		listener = g.host.Adopted()
	}
	g.welcome(nc, listener, slices.Clone(read))
	return nil
}

// turnAway closes a connection, with an answer if there is one.
func turnAway(nc net.Conn, answer []byte) {
	if len(answer) > 0 {
		sendRefusal(nc, answer)
	}
	nc.Close()
}

// serve starts the goroutine of a connection that has been admitted at a listener, or
// with -1 was dialled, if it can. It opens the connection.
func (g *group) serve(nc net.Conn, listener int, owned engine.Owned, open func(c *conn)) bool {
	c, err := newConn(g, nc)
	c.SetListener(listener)
	if err == nil {
		err = g.enter(c)
	}
	if err != nil {
		nc.Close()
		switch {
		case listener < 0:
			g.host.DialFailed(owned, err)
		case !errors.Is(err, engine.ErrClosed):
			g.counters.Add(engine.AcceptErrors, 1)
		}
		return false
	}
	if owned != nil {
		c.SetOwned(owned)
	}
	signal(g.added)
	go c.run(open)
	return true
}

// enter gives a connection its slot, unless the group has ended.
func (g *group) enter(c *conn) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.ended {
		return engine.ErrClosed
	}
	g.conns.put(c, &g.host)
	g.running.Add(1)
	return nil
}

// exit takes a finished connection out.
func (g *group) exit(c *conn) {
	g.mu.Lock()
	g.conns.drop(c.Slot())
	g.mu.Unlock()
	g.leave()
	g.running.Done()
}

func (g *group) leave() {
	g.admission.ReleaseConn()
	g.wakeSenders()
	signal(g.freed)
	if g.admission.OpenConns() == 0 {
		signal(g.emptied)
	}
}

// signal wakes who waits for a channel with room for one signal.
func signal(ch chan<- struct{}) {
	select {
	case ch <- struct{}{}:
	default:
	}
}

func (g *group) Post(ec *engine.Conn, gen uint32, r engine.Request) error {
	g.mu.Lock()
	c := g.conns.get(ec.Slot())
	g.mu.Unlock()
	if c == nil || &c.Conn != ec {
		return engine.ErrClosed
	}
	box := c.mailbox() // first: to allocate may take long
	if r.Kind == engine.MailSend && g.refuses(&r) {
		return engine.ErrFull
	}
	if err := box.Put(ec, gen, r); err != nil {
		return err
	}
	c.wake()
	return nil
}
