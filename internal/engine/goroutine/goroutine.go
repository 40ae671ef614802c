// Package goroutine is the model of one goroutine for each connection, on
// package net. It runs wherever Go does.
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
// after that, so that none is left unseen.
//
// The group's lock guards the table of connections, by slot. A goroutine ends
// when its connection is finished; Stop waits for all of them, for the
// acceptor, and for the dials under way.
package goroutine

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"

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

// drainReads is how often a connection is read when it is told to drain.
const drainReads = 64

// The bounds of dialling: orders that wait, connections dialled at once, and
// the time for each of them.
const (
	maxOrders = 1024
	maxDials  = 512
	dialTime  = 30 * time.Second
)

// What the group's connections are told, growing.
const (
	serving int32 = iota
	stopping
	killing
)

// group is a running engine.
type group struct {
	cfg      engine.Config
	host     engine.Host
	counters engine.Counters
	buffers  engine.SharedBuffers
	ln       net.Listener
	open     atomic.Int64  // connections and dials, against MaxConns
	orders   chan struct{} // holds one for each Dial under way
	dialling chan struct{} // holds one for each connection being dialled
	freed    chan struct{} // a connection has closed; for an acceptor out of descriptors
	stop     context.Context
	halt     context.CancelFunc // ends stop, and with it dials and pauses
	told     atomic.Int32
	running  sync.WaitGroup
	done     chan struct{}
	waiting  sync.Once // for the goroutine that closes done

	mu    sync.Mutex
	conns table
	ended bool // nothing starts any more
}

func start(cfg engine.Config) (engine.Engine, error) {
	g := &group{
		cfg: cfg, ln: cfg.Listener,
		orders: make(chan struct{}, maxOrders), dialling: make(chan struct{}, maxDials),
		freed: make(chan struct{}, 1), done: make(chan struct{}),
	}
	if g.ln != nil {
		if err := sock.Prepare(g.ln); err != nil {
			return nil, err
		}
	}
	if g.ln == nil && cfg.Addr != "" {
		lc := sock.ListenConfig(false)
		ln, err := lc.Listen(context.Background(), cfg.Network, cfg.Addr)
		if err != nil {
			return nil, err
		}
		g.ln = ln
	}
	g.host = engine.Host{
		Handler: cfg.Handler, Limits: cfg.Limits, Log: cfg.Log,
		Buffers: &g.buffers, Poster: g, Counters: &g.counters, Now: engine.Since,
	}
	g.stop, g.halt = context.WithCancel(context.Background())
	if g.ln != nil {
		g.running.Go(g.accept)
	}
	return g, nil
}

func (g *group) Addr() net.Addr {
	if g.ln == nil {
		return nil
	}
	return g.ln.Addr()
}

func (g *group) Loops() int { return 0 }

func (g *group) Counters() (sum engine.Counts) {
	g.counters.AddTo(&sum)
	return sum
}

// accept serves until the listener is closed.
func (g *group) accept() {
	var complained time.Time
	for {
		nc, err := g.ln.Accept()
		switch {
		case err == nil:
			g.welcome(nc)
		case errors.Is(err, net.ErrClosed), g.stop.Err() != nil:
			return
		default:
			g.counters.AcceptErrors.Add(1)
			if time.Since(complained) > time.Second {
				complained = time.Now()
				g.cfg.Log.LogAttrs(context.Background(), slog.LevelWarn,
					"cannot accept; trying again when a connection has closed, and regularly",
					slog.String("error", err.Error()),
					slog.Int64("open", g.open.Load()))
			}
			g.rest()
		}
	}
}

// rest waits until a connection has closed, a while at the most.
func (g *group) rest() {
	timer := time.NewTimer(acceptRetry)
	defer timer.Stop()
	select {
	case <-g.freed:
	case <-timer.C:
	case <-g.stop.Done():
	}
}

func (g *group) welcome(nc net.Conn) {
	if !g.admit() {
		g.counters.Refused.Add(1)
		nc.Close()
		return
	}
	g.serve(nc, false)
}

// serve starts the goroutine of a connection that has been admitted.
func (g *group) serve(nc net.Conn, dialled bool) {
	c, err := newConn(g, nc)
	if err == nil {
		err = g.enter(c)
	}
	if err != nil {
		nc.Close()
		g.leave()
		switch {
		case dialled:
			g.dialFailed(err)
		case !errors.Is(err, engine.ErrClosed):
			g.counters.AcceptErrors.Add(1)
		}
		return
	}
	go c.run(dialled)
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

// admit counts a connection in, unless there are too many.
func (g *group) admit() bool {
	if g.open.Add(1) > int64(g.cfg.Limits.MaxConns) {
		g.open.Add(-1)
		return false
	}
	return true
}

func (g *group) leave() {
	g.open.Add(-1)
	select {
	case g.freed <- struct{}{}:
	default:
	}
}

// Post implements engine.Poster.
func (g *group) Post(ec *engine.Conn, gen uint32, kind engine.MailKind, data []byte) error {
	g.mu.Lock()
	c := g.conns.get(ec.Slot())
	g.mu.Unlock()
	if c == nil || &c.Conn != ec {
		return engine.ErrClosed
	}
	if err := c.mailbox().Put(ec, gen, kind, data); err != nil {
		return err
	}
	c.rouse()
	return nil
}

// Dial starts a goroutine for each connection, which becomes its owner.
func (g *group) Dial(d engine.Dial) error {
	if d.Count < 1 || !d.Target.IsValid() {
		return fmt.Errorf("dial of %d connections to %q: expected at least 1, to a valid address", d.Count, d.Target)
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.ended {
		return engine.ErrClosed
	}
	select {
	case g.orders <- struct{}{}:
	default:
		return engine.ErrFull
	}
	g.running.Go(func() {
		g.dialAll(d)
		<-g.orders
	})
	return nil
}

// dialAll starts the dials of one order, as many at once as may be.
func (g *group) dialAll(d engine.Dial) {
	for range d.Count {
		select {
		case g.dialling <- struct{}{}:
			g.running.Go(func() {
				g.dial(d)
				<-g.dialling
			})
		case <-g.stop.Done():
			g.dialFailed(engine.ErrClosed)
		}
	}
}

func (g *group) dial(d engine.Dial) {
	if !g.admit() {
		g.dialFailed(engine.ErrFull)
		return
	}
	dialer := net.Dialer{Timeout: dialTime}
	if d.Source.IsValid() {
		dialer.LocalAddr = net.TCPAddrFromAddrPort(netip.AddrPortFrom(d.Source, 0))
		dialer.Control = sock.LatePort
	}
	nc, err := dialer.DialContext(g.stop, "tcp", d.Target.String())
	if err != nil {
		g.leave()
		if g.stop.Err() != nil {
			err = engine.ErrClosed
		}
		g.dialFailed(err)
		return
	}
	g.serve(nc, true)
}

func (g *group) dialFailed(err error) {
	if f, ok := g.cfg.Handler.(engine.DialFailer); ok {
		f.DialFailed(engine.Reason(err))
	}
}

// Stop implements engine.Engine.
func (g *group) Stop(ctx context.Context) error {
	g.tell(stopping)
	g.halt()
	if g.ln != nil {
		g.ln.Close()
	}
	g.waiting.Do(func() { go g.wait() })
	select {
	case <-g.done:
		return nil
	case <-ctx.Done():
	}
	cut := g.open.Load()
	g.tell(killing)
	select {
	case <-g.done:
		return engine.CutOff(ctx, cut, 0)
	case <-time.After(engine.KillGrace):
		return engine.CutOff(ctx, cut, g.open.Load())
	}
}

func (g *group) Wait() { <-g.done }

// wait closes done when everything has ended.
func (g *group) wait() {
	g.running.Wait()
	close(g.done)
}

// tell raises what the connections are told, and wakes them all.
func (g *group) tell(what int32) {
	for told := g.told.Load(); told < what; told = g.told.Load() {
		g.told.CompareAndSwap(told, what)
	}
	g.mu.Lock()
	g.ended = true
	conns := g.conns.all()
	g.mu.Unlock()
	for _, c := range conns {
		c.rouse()
	}
}
