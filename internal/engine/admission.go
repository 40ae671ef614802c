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

// AdmitAndAcquireSlots decides whether to serve an accepted connection. If it admits the connection, it reserves a
// connection slot of the engine, of the listener and of the source address. Otherwise, it logs and counts the refusal,
// and returns the reason. If peer is a proxy, AdmitProxiedPeerOrAppendRefusal later reserves the slot of the client's
// address.
func (rt *Runtime) AdmitAndAcquireSlots(listener int, peer netip.AddrPort) error {
	isProxy := rt.isFromProxy(listener, peer)
	if isProxy && !rt.Overload.AdmitProxy() || !isProxy && !rt.Overload.AdmitConn(peer.Addr()) {
		rt.Counters.CountRefused(RefusedOverload) // the manager logs
		return ErrOverloaded
	}
	if !rt.Admission.AcquireConn() {
		return rt.logAndCountRefused(rt.listenerCounters(listener), peer, ErrTooManyConns)
	}
	return rt.acquireRemainingSlotsOrReleaseAll(listener, peer, !isProxy, false)
}

// acquireRemainingSlotsOrReleaseAll reserves a slot of the listener. If sourceKnown is set, it also reserves a slot of
// the source address. The caller must have reserved a slot of the engine. If the connection is refused, the method
// releases all these slots. If skipAcceptedCount is set, the listener does not count the connection as accepted.
func (rt *Runtime) acquireRemainingSlotsOrReleaseAll(listener int, peer netip.AddrPort, sourceKnown, skipAcceptedCount bool) error {
	counters := rt.listenerCounters(listener)
	if !counters.acquireConnSlot(skipAcceptedCount) {
		rt.Admission.ReleaseConn()
		return rt.logAndCountRefused(counters, peer, errListenerFull)
	}
	if !sourceKnown {
		return nil
	}
	if err := rt.acquireSourceSlotUnlessDenied(peer); err != nil {
		rt.Admission.ReleaseConn()
		counters.releaseConnSlot()
		return rt.logAndCountRefused(counters, peer, err)
	}
	return nil
}

func (rt *Runtime) logAndCountRefused(counters *ListenerCounters, peer netip.AddrPort, reason error) (publicErr error) {
	rt.logLimitRefusal(counters, peer, reason)
	if reason == errListenerFull {
		counters.refused.Add(1)
		reason = ErrTooManyConns
	}
	rt.Counters.CountRefused(refusalCauseOf(reason))
	return reason
}

// MapListenerAndAdmitOrRelease reserves slots of the listener and source address for a connection from another engine.
// It sets r.Listener to the number that the listener has in this engine. The caller has already reserved a slot of the
// engine. If the connection is refused, all reserved slots are released.
func (rt *Runtime) MapListenerAndAdmitOrRelease(r *Record) error {
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
	return rt.acquireRemainingSlotsOrReleaseAll(r.Listener, r.Peer, !r.Dialled, true)
}

// UndoAdmitImported releases the slots of the listener and of the source address that MapListenerAndAdmitOrRelease has
// reserved for r. It does not release the slot of the engine.
func (rt *Runtime) UndoAdmitImported(r *Record) {
	rt.releaseListenerAndSourceSlots(r.Listener, r.Peer, !r.Dialled)
}

// UndoAdmit releases the slots of the listener and of the source address if an admitted connection could not be opened.
// It does not release the slot of the engine.
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

func (rt *Runtime) acquireSourceSlotUnlessDenied(peer netip.AddrPort) error {
	if !rt.Admission.IsAllowed(peer.Addr()) {
		return ErrDenied
	}
	if !rt.Admission.AcquireSourceConn(peer.Addr()) {
		return ErrRefusedSource
	}
	return nil
}

// AdmitProxiedPeerOrAppendRefusal sets the connection's peer address to peer, the client address that a proxy has
// announced. It also reserves a slot of this address. If the client is refused, the method appends the refusal reply to
// the output and returns the reason.
func (c *Conn) AdmitProxiedPeerOrAppendRefusal(peer netip.AddrPort) error {
	c.SetPeerAddr(peer)
	err := ErrOverloaded
	if c.runtime.Overload.AdmitConn(peer.Addr()) {
		err = c.runtime.acquireSourceSlotUnlessDenied(peer)
	}
	if err != nil {
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

// ErrOverloaded is the reason for which an overloaded server refuses a connection or sheds a request.
var ErrOverloaded = errors.New("myriad: overloaded")

var noOverload overload.Manager

func (rt *Runtime) setInactiveOverloadIfNil() {
	if rt.Overload == nil {
		rt.Overload = &noOverload
	}
}

func (rt *Runtime) currentHighWater() int { return rt.Overload.UnsentHighWater(rt.Limits.HighWater) }

func (rt *Runtime) currentUnsentLowWater() int {
	if high := rt.currentHighWater(); high < rt.Limits.HighWater {
		return min(rt.Limits.LowWater, high/2)
	}
	return rt.Limits.LowWater
}

func (rt *Runtime) currentIdleTimeout() time.Duration {
	if rt.Overload.IsActive(overload.ShortenIdle) {
		return rt.Limits.IdleTimeout / overload.IdleDivisor
	}
	return rt.Limits.IdleTimeout
}

// TotalBufferLimit returns the current memory limit for all buffers in bytes, or MaxInt64 if there is no limit.
func (rt *Runtime) TotalBufferLimit() int64 {
	if rt.Limits.MaxBuffered == 0 {
		return math.MaxInt64
	}
	return rt.Overload.TotalBufferLimit(int64(rt.Limits.MaxBuffered))
}

// AddOverloadCounts adds the number of shed requests to sum, separately for each reason. For each active overload
// action, it adds 1 to the gauge of the action.
func (rt *Runtime) AddOverloadCounts(sum *Counts) {
	for a := range overload.NumActions {
		if rt.Overload.IsActive(a) {
			sum[OverloadActions+Counter(a)]++
		}
	}
	for reason := range overload.NumReasons {
		sum[ShedByQueueDelay+Counter(reason)] += rt.Overload.Shed(reason)
	}
}

func (c *Conn) Overload() *overload.Manager { return c.runtime.Overload }

// SetCritical sets whether the connection's requests are exempt from load shedding.
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

// TryAdmitToWorker asks the overload manager whether a worker may handle the connection's input. If admitted is false,
// the caller must pass the input to the handler's Shed.
func (c *Conn) TryAdmitToWorker() (admitted bool) {
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

// AbandonTicket tells the overload manager that no worker will run the admitted job. If the job has already run,
// AbandonTicket has no effect.
func (c *Conn) AbandonTicket() {
	if c.hasRare() {
		c.runtime.Overload.Abandon(&c.extra.ticket)
		c.freeExtraIfZero()
	}
}

// tryStartTicket tells the overload manager that a worker starts the connection's job. If the job has waited too long,
// run is false, and the caller must drop the job. If the handler has no Shed function, run is always true.
func (c *Conn) tryStartTicket() (run bool) {
	if c.callbacks().Shed == nil {
		return true
	}
	if !c.hasRare() {
		return c.runtime.Overload.Start(&noRareState.ticket)
	}
	return c.runtime.Overload.Start(&c.extra.ticket)
}
