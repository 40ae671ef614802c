package engine

import (
	"net/netip"

	"github.com/myriad-go/myriad/internal/admission"
)

// NewAdmission returns the admission controller of an engine.
func NewAdmission(cfg *Config) *admission.Controller {
	return admission.NewController(admission.Config{
		MaxConns: cfg.Limits.MaxConns, MaxPerSource: cfg.Admission.MaxPerSource, SourcePrefix: cfg.Admission.SourcePrefix,
		Rate: cfg.Admission.Rate, Allow: cfg.Admission.Allow, Deny: cfg.Admission.Deny,
	})
}

// Admit reserves a place for an accepted connection, or counts and logs its refusal and returns the
// reason. Behind a proxy, the source is checked later; see Conn.SetAndAdmitProxiedPeer.
func (rt *Runtime) Admit(listener int, peer netip.AddrPort) error {
	if !rt.Admission.AcquireConn() {
		return rt.logAndCountRefused(rt.listenerCounters(listener), peer, ErrTooManyConns)
	}
	return rt.admitAtListener(listener, peer, !rt.isFromProxy(listener, peer), false)
}

// admitAtListener acquires the listener's place, and the source's if that is known, for a
// connection that has its place in the engine. If it fails, it releases that.
func (rt *Runtime) admitAtListener(listener int, peer netip.AddrPort, sourceKnown, imported bool) error {
	counters := rt.listenerCounters(listener)
	if !counters.acquireConnSlot(imported) {
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

func (rt *Runtime) logAndCountRefused(counters *ListenerCounters, peer netip.AddrPort, reason error) error {
	rt.logRefused(counters, peer, reason)
	if reason == errListenerFull {
		counters.refused.Add(1)
		reason = ErrTooManyConns
	}
	rt.Counters.CountRefused(refusalCauseOf(reason))
	return reason
}

// AdmitImported is Admit for a connection from another engine that already has a place here. Its
// source is known unless it was dialled.
func (rt *Runtime) AdmitImported(r *Record) error {
	return rt.admitAtListener(r.Listener, r.Peer, !r.Dialled, true)
}

// UndoAdmitImported undoes AdmitImported, but does not release the place.
func (rt *Runtime) UndoAdmitImported(r *Record) {
	rt.releaseListenerAndSourceSlots(r.Listener, r.Peer, !r.Dialled)
}

// UndoAdmit undoes Admit for a connection that was not opened, except for its place, which the
// caller releases.
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

// SetAndAdmitProxiedPeer sets the client that a proxy has announced. If that client is refused, it
// gets the refusal reply and the reason is returned.
func (c *Conn) SetAndAdmitProxiedPeer(peer netip.AddrPort) error {
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
