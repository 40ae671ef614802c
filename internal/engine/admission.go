package engine

import (
	"net/netip"

	"github.com/myriad-go/myriad/internal/admission"
)

// This file is who is let in.

// NewAdmission makes the admission controller of an engine.
func NewAdmission(cfg *Config) *admission.Controller {
	return admission.New(admission.Config{
		MaxConns: cfg.Limits.MaxConns, MaxPerSource: cfg.Admission.MaxPerSource, SourcePrefix: cfg.Admission.SourcePrefix,
		Rate: cfg.Admission.Rate, Allow: cfg.Admission.Allow, Deny: cfg.Admission.Deny,
	})
}

// Admit counts a connection in that has been accepted, unless it is to be turned
// away: then it says why, and has counted that. The source of one that comes by a
// proxy is looked at when it is known.
func (rt *Runtime) Admit(listener int, peer netip.AddrPort) error {
	if !rt.Admission.Acquire() {
		return rt.recordRefused(rt.listenerCounters(listener), peer, ErrTooManyConns)
	}
	return rt.admitAtListener(listener, peer, !rt.isFromProxy(listener, peer), false)
}

// admitAtListener counts in at its listener a connection that has its place, and its source if that
// is known. One that has moved was accepted before.
func (rt *Runtime) admitAtListener(listener int, peer netip.AddrPort, sourceKnown, imported bool) error {
	counters := rt.listenerCounters(listener)
	if !counters.acquire(imported) {
		rt.Admission.Release()
		return rt.recordRefused(counters, peer, errListenerFull)
	}
	if !sourceKnown {
		return nil
	}
	if err := rt.acquireSource(peer); err != nil {
		rt.Admission.Release()
		counters.release()
		return rt.recordRefused(counters, peer, err)
	}
	return nil
}

// recordRefused counts a connection that is not admitted, and says why.
func (rt *Runtime) recordRefused(counters *ListenerCounters, peer netip.AddrPort, why error) error {
	rt.logRefused(counters, peer, why)
	if why == errListenerFull {
		counters.refused.Add(1)
		why = ErrTooManyConns
	}
	rt.Counters.CountRefused(refusalCauseOf(why))
	return why
}

// AdmitImported is Admit for a connection that another engine has handed over and that has its
// place: that one knows the source, unless the connection was dialled.
func (rt *Runtime) AdmitImported(r *Record) error {
	return rt.admitAtListener(r.Listener, r.Peer, !r.Dialled, true)
}

// UndoAdmitImported is Disown for what AdmitImported has counted.
func (rt *Runtime) UndoAdmitImported(r *Record) {
	rt.releaseListenerAndSource(r.Listener, r.Peer, !r.Dialled)
}

// UndoAdmit takes back what Admit has counted of a listener and a source, for a connection
// that was not opened. Whoever frees its place has it Leave.
func (rt *Runtime) UndoAdmit(listener int, peer netip.AddrPort) {
	rt.releaseListenerAndSource(listener, peer, !rt.isFromProxy(listener, peer))
}

func (rt *Runtime) releaseListenerAndSource(listener int, peer netip.AddrPort, sourceKnown bool) {
	rt.listenerCounters(listener).release()
	if sourceKnown {
		rt.Admission.ReleaseSource(peer.Addr())
	}
}

func (rt *Runtime) isFromProxy(listener int, peer netip.AddrPort) bool {
	return listener >= 0 && rt.IsProxy != nil && rt.IsProxy(listener, peer.Addr())
}

// acquireSource counts a source, unless it is not let in.
func (rt *Runtime) acquireSource(peer netip.AddrPort) error {
	if !rt.Admission.Allowed(peer.Addr()) {
		return ErrDenied
	}
	if !rt.Admission.AcquireSource(peer.Addr()) {
		return ErrRefusedSource
	}
	return nil
}

// RegisterProxiedPeer is for a layer that has learnt who the peer is in truth. It fails when
// that one is not let in, who then gets the answer for it.
func (c *Conn) RegisterProxiedPeer(peer netip.AddrPort) error {
	c.SetPeerAddr(peer)
	if err := c.runtime.acquireSource(peer); err != nil {
		c.AppendToTransport(c.runtime.BuildRefusalReply(peer, err))
		return err
	}
	c.state |= sourceCounted
	return nil
}

// releaseListenerAndSource counts a connection out of those of its source, and of its listener.
func (c *Conn) releaseListenerAndSource() {
	if n := c.Listener(); n >= 0 && n < len(c.runtime.ListenerCounters) {
		c.runtime.ListenerCounters[n].release()
	}
	if c.is(sourceCounted) {
		c.runtime.Admission.ReleaseSource(c.Peer().Addr())
	}
}
