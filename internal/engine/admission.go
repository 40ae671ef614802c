package engine

import (
	"net/netip"

	"github.com/myriad-go/myriad/internal/admission"
)

func NewAdmission(cfg *Config) *admission.Controller {
	return admission.NewController(admission.Config{
		MaxConns: cfg.Limits.MaxConns, MaxPerSource: cfg.Admission.MaxPerSource, SourcePrefix: cfg.Admission.SourcePrefix,
		Rate: cfg.Admission.Rate, Allow: cfg.Admission.Allow, Deny: cfg.Admission.Deny,
	})
}

// AdmitOrLogRefusal reserves a place for an accepted connection. If the connection is refused, AdmitOrLogRefusal counts
// and logs the refusal and returns the reason. If peer is a proxy, the client's address is not known yet, and
// SetProxiedPeerOrSendRefusal checks it later.
func (rt *Runtime) AdmitOrLogRefusal(listener int, peer netip.AddrPort) error {
	if !rt.Admission.AcquireConn() {
		return rt.logAndCountRefused(rt.listenerCounters(listener), peer, ErrTooManyConns)
	}
	return rt.admitOrReleaseConnSlot(listener, peer, !rt.isFromProxy(listener, peer), false)
}

// admitOrReleaseConnSlot reserves a place for a connection at its listener. If sourceKnown is true, it also reserves a
// place for the source address. The caller has reserved a place in the engine. If the connection is refused, all its
// places are released.
func (rt *Runtime) admitOrReleaseConnSlot(listener int, peer netip.AddrPort, sourceKnown, skipAcceptedCount bool) error {
	counters := rt.listenerCounters(listener)
	if !counters.acquireConnSlot(skipAcceptedCount) {
		rt.Admission.ReleaseConn()
		return rt.logAndCountRefused(counters, peer, errListenerFull)
	}
	if !sourceKnown {
		return nil
	}
	if err := rt.checkAndAcquireSourceSlot(peer); err != nil {
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

// AdmitImported reserves places for a connection from another engine. Its place in this engine is already reserved.
func (rt *Runtime) AdmitImported(r *Record) error {
	return rt.admitOrReleaseConnSlot(r.Listener, r.Peer, !r.Dialled, true)
}

// UndoAdmitImported undoes AdmitImported. The place in the engine stays reserved.
func (rt *Runtime) UndoAdmitImported(r *Record) {
	rt.releaseListenerAndSourceSlots(r.Listener, r.Peer, !r.Dialled)
}

// UndoAdmit undoes AdmitOrLogRefusal for an unopened connection. The caller must release the place in the engine.
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

func (rt *Runtime) checkAndAcquireSourceSlot(peer netip.AddrPort) error {
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
	if err := c.runtime.checkAndAcquireSourceSlot(peer); err != nil {
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
