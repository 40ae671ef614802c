package engine

import (
	"errors"
	"math"
	"net/netip"
	"time"

	"github.com/myriad-go/myriad/internal/admission"
	"github.com/myriad-go/myriad/internal/overload"
)

func NewAdmission(cfg *Config) *admission.Controller {
	return admission.NewController(admission.Config{
		MaxConns: cfg.Limits.MaxConns, MaxPerSource: cfg.Admission.MaxPerSource, SourcePrefix: cfg.Admission.SourcePrefix,
		Rate: cfg.Admission.Rate, Allow: cfg.Admission.Allow, Deny: cfg.Admission.Deny,
	})
}

// AdmitOrLogRefusal reserves a listener slot and a source slot for an accepted connection. If the connection is
// refused, it counts and logs the refusal and returns the reason. If peer is a proxy, the client's address is not known
// yet; SetProxiedPeerOrSendRefusal checks it later.
func (rt *Runtime) AdmitOrLogRefusal(listener int, peer netip.AddrPort) error {
	if !rt.Overload.AdmitConn(peer.Addr()) {
		rt.Counters.CountRefused(RefusedOverload) // the manager logs
		return ErrOverloaded
	}
	if !rt.Admission.AcquireConn() {
		return rt.logAndCountRefused(rt.listenerCounters(listener), peer, ErrTooManyConns)
	}
	return rt.admitOrReleaseConnSlot(listener, peer, !rt.isFromProxy(listener, peer), false)
}

// admitOrReleaseConnSlot reserves a slot for a connection at its listener and, if sourceKnown is true, at its source
// address. The caller has reserved a slot of the engine. If the connection is refused, all its slots are released.
func (rt *Runtime) admitOrReleaseConnSlot(listener int, peer netip.AddrPort, sourceKnown, skipAcceptedCount bool) error {
	counters := rt.listenerCounters(listener)
	if !counters.acquireConnSlot(skipAcceptedCount) {
		rt.Admission.ReleaseConn()
		return rt.logAndCountRefused(counters, peer, errListenerFull)
	}
	if !sourceKnown {
		return nil
	}
	if err := rt.acquireSourceSlotIfAllowed(peer); err != nil {
		rt.Admission.ReleaseConn()
		counters.releaseConnSlot()
		return rt.logAndCountRefused(counters, peer, err)
	}
	return nil
}

func (rt *Runtime) logAndCountRefused(counters *ListenerCounters, peer netip.AddrPort, reason error) (publicErr error) {
	rt.logRefusedByLimit(counters, peer, reason)
	if reason == errListenerFull {
		counters.refused.Add(1)
		reason = ErrTooManyConns
	}
	rt.Counters.CountRefused(refusalCauseOf(reason))
	return reason
}

// AdmitImported reserves a listener slot and a source slot for a connection from another engine. The caller has
// reserved a slot of this engine. AdmitImported replaces r.Listener by the listener's number in this engine.
func (rt *Runtime) AdmitImported(r *Record) error {
	switch n := r.Listener; {
	case n >= 0 && n < len(rt.PredecessorListeners):
		if r.Listener = rt.PredecessorListeners[n]; r.Listener < 0 {
			rt.Admission.ReleaseConn()
			rt.Counters.CountRefused(refusalCauseOf(ErrDenied))
			return ErrDenied
		}
	case n >= len(rt.ListenerCounters):
		r.Listener = rt.ListenerNumberForAdopted()
	}
	return rt.admitOrReleaseConnSlot(r.Listener, r.Peer, !r.Dialled, true)
}

// UndoAdmitImported releases the slots that AdmitImported reserved. The engine's slot stays reserved.
func (rt *Runtime) UndoAdmitImported(r *Record) {
	rt.releaseListenerAndSourceSlots(r.Listener, r.Peer, !r.Dialled)
}

// UndoAdmit releases the slots that AdmitOrLogRefusal reserved for an unopened connection, except the engine's slot.
func (rt *Runtime) UndoAdmit(listener int, peer netip.AddrPort) {
	rt.releaseListenerAndSourceSlots(listener, peer, !rt.isFromProxy(listener, peer))
}

func (rt *Runtime) releaseListenerAndSourceSlots(listener int, peer netip.AddrPort, sourceKnown bool) {
	rt.listenerCounters(listener).releaseConnSlot()
	if sourceKnown {
		rt.Admission.ReleaseSourceConn(peer.Addr())
	}
}

func (rt *Runtime) isFromProxy(listener int, peer netip.AddrPort) bool {
	return listener >= 0 && rt.IsProxy != nil && rt.IsProxy(listener, peer.Addr())
}

func (rt *Runtime) acquireSourceSlotIfAllowed(peer netip.AddrPort) error {
	if !rt.Admission.IsAllowed(peer.Addr()) {
		return ErrDenied
	}
	if !rt.Admission.AcquireSourceConn(peer.Addr()) {
		return ErrRefusedSource
	}
	return nil
}

// SetProxiedPeerOrSendRefusal sets the client's address that a proxy has announced. If the client is refused, the
// method sends the refusal and returns the reason.
func (c *Conn) SetProxiedPeerOrSendRefusal(peer netip.AddrPort) error {
	c.SetPeerAddr(peer)
	if err := c.runtime.acquireSourceSlotIfAllowed(peer); err != nil {
		c.AppendToTransport(c.runtime.BuildRefusalReply(peer, err))
		return err
	}
	c.state |= sourceCounted
	return nil
}

func (c *Conn) releaseListenerAndSourceSlots() {
	if n := c.Listener(); n >= 0 && n < len(c.runtime.ListenerCounters) {
		c.runtime.ListenerCounters[n].releaseConnSlot()
	}
	if c.is(sourceCounted) {
		c.runtime.Admission.ReleaseSourceConn(c.Peer().Addr())
	}
}

// ErrOverloaded is the reason if overload causes a connection to be refused, or input to be passed to Shed.
var ErrOverloaded = errors.New("myriad: overloaded")

var noOverload overload.Manager

func (rt *Runtime) setInactiveOverloadIfNil() {
	if rt.Overload == nil {
		rt.Overload = &noOverload
	}
}

func (rt *Runtime) highWater() int { return rt.Overload.HighWater(rt.Limits.HighWater) }

// lowWater returns the number of unsent bytes to which output must fall before a paused connection is read again.
func (rt *Runtime) lowWater() int {
	if high := rt.highWater(); high < rt.Limits.HighWater {
		return min(rt.Limits.LowWater, high/2)
	}
	return rt.Limits.LowWater
}

func (rt *Runtime) idleTimeout() time.Duration {
	if rt.Overload.IsActive(overload.ShortenIdle) {
		return rt.Limits.IdleTimeout / overload.IdleDivisor
	}
	return rt.Limits.IdleTimeout
}

// BufferLimit returns the current limit for the memory of all buffers, in bytes. Without a limit, it returns MaxInt64.
func (rt *Runtime) BufferLimit() int64 {
	if rt.Limits.MaxBuffered == 0 {
		return math.MaxInt64
	}
	return rt.Overload.BufferLimit(int64(rt.Limits.MaxBuffered))
}

// AddOverloadCounts adds the overload manager's active actions and shed requests to sum.
func (rt *Runtime) AddOverloadCounts(sum *Counts) {
	for a := range overload.NumActions {
		if rt.Overload.IsActive(a) {
			sum[OverloadActions+Counter(a)]++
		}
	}
	for why := range overload.NumReasons {
		sum[ShedByQueueDelay+Counter(why)] += rt.Overload.Shed(why)
	}
}

func (c *Conn) Overload() *overload.Manager { return c.runtime.Overload }

// SetCritical sets whether requests of the connection are exempt from shedding.
func (c *Conn) SetCritical(critical bool) {
	if critical && c.is(open) {
		c.ensureRare().critical = true
	} else if c.hasRare() {
		c.extra.critical = false
		c.freeExtraIfZero()
	}
}

func (c *Conn) Priority() overload.Priority {
	if c.extra != nil && c.extra.critical {
		return overload.Critical
	}
	return overload.Normal
}

// AdmitToWorker reports whether the connection's input may go to a worker, and stores the Ticket of this job. If it
// returns false, the caller must pass the input to Shed.
func (c *Conn) AdmitToWorker() (admitted bool) {
	var t overload.Ticket
	if !c.runtime.Overload.Admit(&t, c.Peer().Addr(), c.Priority()) {
		return false
	}
	if t != (overload.Ticket{}) {
		c.ensureRare().ticket = t
	}
	return true
}

func (c *Conn) endTicket() {
	if c.hasRare() {
		c.runtime.Overload.Done(&c.extra.ticket)
		c.freeExtraIfZero()
	}
}

// AbandonTicket ends the Ticket of a job that no worker has run. If a worker has run the job, it has no effect.
func (c *Conn) AbandonTicket() {
	if c.hasRare() {
		c.runtime.Overload.Abandon(&c.extra.ticket)
		c.freeExtraIfZero()
	}
}

// startTicketUnlessTooLate reports whether a worker may run the connection's job. If not, Shed may replace the job.
func (c *Conn) startTicketUnlessTooLate() (run bool) {
	if c.callbacks().Shed == nil {
		return true
	}
	if !c.hasRare() {
		return c.runtime.Overload.Start(&noRareState.ticket)
	}
	return c.runtime.Overload.Start(&c.extra.ticket)
}
