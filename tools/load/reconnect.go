package load

import (
	"errors"
	"net/netip"
	"sync"
	"time"

	"github.com/myriad-go/myriad/internal/engine"
	"github.com/myriad-go/myriad/tools/internal/match"
)

// This file replaces connections that an HTTP server closes in order. The connection's
// state outlives its socket: reconnecting is set from the last answer until the next
// socket is established, and nothing is sent meanwhile. Messages that are due, or whose
// answers the server will not send any more, wait in the state.

// maxReconnects bounds the attempts in a row to replace one connection, retryEvery apart.
const maxReconnects = 10

var (
	errKeepAlive = errors.New("keep-alive ended by the server")
	errOtherLoop = errors.New("load: the loop has no room")
)

// reconnects reports whether connections that the server closes in order are replaced.
func (c *Config) reconnects() bool { return c.endsInOrder() && !c.NoReconnect }

// endsInOrder reports whether it is known which closes are in order. With Ahead none is: the
// server holds a part of a message.
func (c *Config) endsInOrder() bool {
	return c.Match == matchHTTP && !c.Unprompted && !c.Hold && c.Ahead == 0
}

// end completes an answer that ends with the connection. Its progress is the last one if
// the server closes in order: after a response, with none outstanding.
func (r *ruled) end(l *connState, in []byte) (h progress) {
	state := &r.table.states[l.id]
	answered, begins := l.state&replied != 0, *state == (match.State{}) && len(in) == 0
	if l.inFlight > 0 {
		h.answers = r.rule.End(state, r.seen)
	}
	h.last = h.answers > 0 || answered && begins && l.inFlight == 0
	return h
}

// endInOrder marks a connection that its server closes in order. What is in flight is
// sent again on the next one. The caller holds the shard's lock.
func (t *traffic) endInOrder(s *shard, l *connState) {
	l.state |= reconnecting
	if !t.cfg.reconnects() {
		return
	}
	s.sum.run[nDropped] += int64(l.inFlight)
	s.sum.run[nBytesDropped] += t.table.bytes(l, l.answered, int(l.inFlight), t.script)
	s.sum.run[nDue] += int64(l.inFlight)
	l.due += l.inFlight
	l.resend, l.inFlight = l.inFlight, 0
}

// reconnector dials the connections that replace others. Its methods are safe for
// concurrent use.
type reconnector struct {
	engine interface {
		Dial(engine.DialRequest) error
	}
	targets []target
	sources []source
	timeout time.Duration
	layer   func(*engine.Conn) engine.Layer // nil for none

	mu       sync.Mutex
	waiting  []*reconnection // for one of halfOpen places
	failed   []*reconnection // for their next attempt, in order of time
	underWay int
	next     int // of sources, and of unix sockets
}

// reconnection is the handler of a connection that replaces another one, and its value
// is the state of both.
type reconnection struct {
	*traffic
	conn     *connState
	target   target
	attempts int
	at       time.Duration // of the next attempt
}

// Value is the state, nil on the wrong loop.
func (o *reconnection) Value() any {
	if o.conn == nil {
		return nil
	}
	return o.conn
}

func (o *reconnection) SetValue(any)          {}
func (o *reconnection) Draining(*engine.Conn) {}
func (o *reconnection) Timer(*engine.Conn)    {}

func (o *reconnection) NewLayer(c *engine.Conn) engine.Layer {
	if o.reconnector.layer == nil {
		return nil
	}
	return o.reconnector.layer(c)
}

// Opened continues the traffic of the connection that this one replaces.
func (o *reconnection) Opened(c *engine.Conn) {
	if o.looped && c.LoopIndex() != int(o.conn.shard) {
		again := *o
		o.conn = nil
		c.Abort(errOtherLoop)
		again.DialFailed(errOtherLoop)
		return
	}
	o.reconnector.settled()
	o.continueOn(c, o.conn)
}

// DialFailed tries again later. After maxReconnects attempts the connection is lost.
func (o *reconnection) DialFailed(err error) {
	o.reconnector.settled()
	switch o.attempts++; {
	case o.closing.Load() || errors.Is(err, engine.ErrClosed):
		o.leave(o.conn)
	case o.attempts == maxReconnects:
		o.leave(o.conn)
		o.faults.notReconnected(err)
	default:
		o.reconnector.retry(o, o.now()+retryEvery)
	}
}

// reconnect replaces a connection that has closed, which was to peer.
func (t *traffic) reconnect(l *connState, peer netip.AddrPort) {
	r := t.reconnector
	r.mu.Lock()
	defer r.mu.Unlock()
	r.next++
	r.waiting = append(r.waiting, &reconnection{traffic: t, conn: l, target: r.targetOf(peer)})
	r.dial()
}

// targetOf finds the target that has an address; unix sockets, which have none, take turns.
func (r *reconnector) targetOf(peer netip.AddrPort) target {
	var paths []target
	for _, t := range r.targets {
		switch {
		case t.path != "":
			paths = append(paths, t)
		case t.addr.Port() == peer.Port() && t.addr.Addr().Unmap() == peer.Addr().Unmap():
			return t
		}
	}
	if len(paths) == 0 {
		return r.targets[0]
	}
	return paths[r.next%len(paths)]
}

// dial starts attempts while there are places. The caller holds the lock.
func (r *reconnector) dial() {
	for len(r.waiting) > 0 && r.underWay < halfOpen {
		o := r.waiting[0]
		r.next++
		d := engine.DialRequest{
			Target: o.target.addr, Path: o.target.path, Source: o.target.from(r.sources[r.next%len(r.sources)].addr),
			Count: 1, Handler: o, Timeout: r.timeout,
		}
		if o.looped {
			d.Loop = int(o.conn.shard) + 1
		}
		err := r.engine.Dial(d)
		if errors.Is(err, engine.ErrFull) {
			return // until poll, or when another one is settled
		}
		r.waiting = r.waiting[1:]
		if err != nil { // the engine has stopped
			o.leave(o.conn)
			continue
		}
		r.underWay++
	}
}

// settled releases the slot of an attempt.
func (r *reconnector) settled() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.underWay--
	r.dial()
}

func (r *reconnector) retry(o *reconnection, at time.Duration) {
	r.mu.Lock()
	defer r.mu.Unlock()
	o.at = at
	r.failed = append(r.failed, o)
}

// poll starts the attempts whose time has come.
func (r *reconnector) poll(now time.Duration) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for len(r.failed) > 0 && r.failed[0].at <= now {
		r.waiting, r.failed = append(r.waiting, r.failed[0]), r.failed[1:]
	}
	r.dial()
}

// stop gives up the connections that wait for an attempt.
func (r *reconnector) stop() {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, o := range append(r.waiting, r.failed...) {
		o.leave(o.conn)
	}
	r.waiting, r.failed = nil, nil
}

// continueOn gives a connection's state its next socket, and sends what is due.
func (t *traffic) continueOn(c *engine.Conn, l *connState) {
	s, now := t.shards[l.shard], t.now()
	s.mu.Lock()
	l.ref, l.pos = c.Ref(), 0
	l.state &^= reconnecting | replied | called
	t.table.states[l.id], t.table.opened[l.id] = match.State{}, now
	s.sum.run[nReconnected]++
	s.times.connect.record(now+t.epoch-c.DialStartedAt(), 1)
	if t.open() && l.state&entered != 0 {
		t.fill(s, l, now)
	}
	p := t.sending(s, l, now)
	s.mu.Unlock()
	t.send(c, l, p)
}
