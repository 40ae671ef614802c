package load

import (
	"errors"
	"net/netip"
	"sync"
	"time"

	"github.com/myriad-go/myriad/internal/engine"
	"github.com/myriad-go/myriad/tools/internal/match"
)

// This file replaces connections that an HTTP server closes cleanly. A connState outlives its socket. The flag
// connReconnecting is set from the last answer until the next socket is established. Until then, nothing is sent, and
// the connState keeps messages that are due or unanswered.

// maxReconnects is the number of attempts to replace a connection. If all of them fail, the connection is lost.
const maxReconnects = 10

var (
	errKeepAlive = errors.New("keep-alive ended by the server")
	errWrongLoop = errors.New("load: no room for the connection on its event loop")
)

// reconnects reports whether the run replaces connections that the server closes cleanly.
func (c *Config) reconnects() bool { return c.detectsOrderlyClose() && !c.NoReconnect }

func (c *Config) detectsOrderlyClose() bool {
	// With Config.Ahead, a part of the next message has always been sent, so no close is clean.
	return c.Match == matchHTTP && !c.Unprompted && !c.Hold && c.Ahead == 0
}

// endAnswersAndDetectCleanClose is called when the server has closed its side of the connection. The end of the data
// can complete an answer, which is then counted in res.answers. res.serverCloses is set if this is a clean close; see
// Config.NoReconnect.
func (r *matchRuleChecker) endAnswersAndDetectCleanClose(cs *connState, in []byte) (res checkResult) {
	state := &r.table.matchStates[cs.index]
	answered, begins := cs.flags&connReplied != 0, *state == (match.StreamState{}) && len(in) == 0
	if cs.inFlight > 0 {
		res.answers = r.rule.EndStream(state, r.onStatus)
	}
	res.serverCloses = res.answers > 0 || answered && begins && cs.inFlight == 0
	return res
}

// markReconnectingAndRequeueLocked marks a connection that the server has closed cleanly. If the run replaces such
// connections, the messages without an answer are queued, to be sent again on the new connection. The caller holds the
// shard's lock.
func (g *generator) markReconnectingAndRequeueLocked(s *shard, cs *connState) {
	cs.flags |= connReconnecting
	if !g.cfg.reconnects() {
		return
	}
	s.totals.run[nDropped] += int64(cs.inFlight)
	s.totals.run[nBytesDropped] += g.table.totalMessageBytes(cs, cs.answered, int(cs.inFlight), g.script)
	s.totals.run[nDue] += int64(cs.inFlight)
	cs.due += cs.inFlight
	cs.resend, cs.inFlight = cs.inFlight, 0
}

// reconnector dials replacements for closed connections. It is safe for concurrent use.
type reconnector struct {
	engine interface {
		Dial(engine.DialRequest) error
	}
	targets  []resolvedTarget
	sources  []source
	timeout  time.Duration
	newLayer func(*engine.Conn) engine.Layer // nil without TLS

	mu         sync.Mutex
	queued     []*replacementDial // wait until fewer than maxHalfOpen attempts are in progress
	retrying   []*replacementDial // wait for their next attempt, ordered by its time
	dialing    int
	nextSource int // next source address, or next unix socket
}

type replacementDial struct {
	*generator
	conn     *connState
	target   resolvedTarget
	attempts int
	retryAt  time.Duration
}

// Value returns the connState of the connection that is replaced. It returns nil if the new socket was assigned to the
// wrong event loop and is therefore not used.
func (o *replacementDial) Value() (connStateOrNil any) {
	if o.conn == nil {
		return nil
	}
	return o.conn
}

func (o *replacementDial) SetValue(any)               {}
func (o *replacementDial) Draining(*engine.Conn)      {}
func (o *replacementDial) Missed(*engine.Conn, int64) {}
func (o *replacementDial) Timer(*engine.Conn)         {}

func (o *replacementDial) NewLayer(c *engine.Conn) engine.Layer {
	if o.reconnector.newLayer == nil {
		return nil
	}
	return o.reconnector.newLayer(c)
}

func (o *replacementDial) Opened(c *engine.Conn) {
	if o.shardPerLoop && c.LoopIndex() != int(o.conn.shard) {
		again := *o
		o.conn = nil
		c.Abort(errWrongLoop)
		again.DialFailed(errWrongLoop)
		return
	}
	o.reconnector.releaseSlotAndDialQueued()
	o.resumeConnAndSendOnNewSocket(c, o.conn)
}

// DialFailed schedules another attempt. After maxReconnects attempts, it counts the connection as lost instead. If the
// run has ended, it counts the connection as closed.
func (o *replacementDial) DialFailed(err error) {
	o.reconnector.releaseSlotAndDialQueued()
	switch o.attempts++; {
	case o.closing.Load() || errors.Is(err, engine.ErrClosed):
		o.markConnClosedAndCountDropped(o.conn)
	case o.attempts == maxReconnects:
		o.markConnClosedAndCountDropped(o.conn)
		o.faults.recordLostAfterReconnectFailure(err)
	default:
		o.reconnector.queueRetry(o, o.now()+dialRetryInterval)
	}
}

func (g *generator) queueOrStartReplacementDial(cs *connState, peer netip.AddrPort) {
	r := g.reconnector
	r.mu.Lock()
	defer r.mu.Unlock()
	r.nextSource++
	r.queued = append(r.queued, &replacementDial{generator: g, conn: cs, target: r.targetOfPeerElseNextUnix(peer)})
	r.dialQueuedWhileSlotsFreeLocked()
}

// targetOfPeerElseNextUnix returns the target with the address of the peer, to which the old connection was open. If no
// target has this address, the old connection was to a unix socket, and the result is one of the unix sockets among the
// targets, in rotation. If the targets contain no unix socket, the result is the first target.
func (r *reconnector) targetOfPeerElseNextUnix(peer netip.AddrPort) resolvedTarget {
	var paths []resolvedTarget
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
	return paths[r.nextSource%len(paths)]
}

// dialQueuedWhileSlotsFreeLocked starts queued attempts until maxHalfOpen attempts are in progress or the queue is
// empty. The caller holds r.mu.
func (r *reconnector) dialQueuedWhileSlotsFreeLocked() {
	for len(r.queued) > 0 && r.dialing < maxHalfOpen {
		o := r.queued[0]
		r.nextSource++
		d := engine.DialRequest{
			Target: o.target.addr, Path: o.target.path, Source: o.target.sourceIfSameFamily(r.sources[r.nextSource%len(r.sources)].addr),
			Count: 1, Handler: o, Timeout: r.timeout,
		}
		if o.shardPerLoop {
			d.Loop = int(o.conn.shard) + 1
		}
		err := r.engine.Dial(d)
		if errors.Is(err, engine.ErrFull) {
			return // queueDueRetriesAndDialFreeSlots or releaseSlotAndDialQueued will try again
		}
		r.queued = r.queued[1:]
		if err != nil { // the engine has stopped
			o.markConnClosedAndCountDropped(o.conn)
			continue
		}
		r.dialing++
	}
}

func (r *reconnector) releaseSlotAndDialQueued() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.dialing--
	r.dialQueuedWhileSlotsFreeLocked()
}

func (r *reconnector) queueRetry(o *replacementDial, at time.Duration) {
	r.mu.Lock()
	defer r.mu.Unlock()
	o.retryAt = at
	r.retrying = append(r.retrying, o)
}

func (r *reconnector) queueDueRetriesAndDialFreeSlots(now time.Duration) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for len(r.retrying) > 0 && r.retrying[0].retryAt <= now {
		r.queued, r.retrying = append(r.queued, r.retrying[0]), r.retrying[1:]
	}
	r.dialQueuedWhileSlotsFreeLocked()
}

func (r *reconnector) abandonPendingAsClosed() {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, o := range append(r.queued, r.retrying...) {
		o.markConnClosedAndCountDropped(o.conn)
	}
	r.queued, r.retrying = nil, nil
}

func (g *generator) resumeConnAndSendOnNewSocket(c *engine.Conn, cs *connState) {
	s, now := g.shards[cs.shard], g.now()
	s.mu.Lock()
	cs.ref, cs.answerPos = c.Ref(), 0
	cs.flags &^= connReconnecting | connReplied | connNudged
	g.table.matchStates[cs.index], g.table.openedAt[cs.index] = match.StreamState{}, now
	s.totals.run[nReconnected]++
	s.times.connect.record(now+g.epoch-c.DialStartedAt(), 1)
	if g.isOpenLoop() && cs.flags&connPastFirst != 0 {
		g.markDueAndQueueNextLocked(s, cs, now)
	}
	p := g.takeDueBatchLocked(s, cs, now)
	s.mu.Unlock()
	g.sendOrPublishBatch(c, cs, p)
}
