package engine

import (
	"net/netip"

	"github.com/myriad-go/myriad/internal/admission"
)

// This file is who is let in.

// NewAdmission makes the admission controller of an engine.
func NewAdmission(cfg *Config) *admission.Controller {
	return admission.NewController(admission.Config{
		MaxConns: cfg.Limits.MaxConns, MaxPerSource: cfg.Admission.MaxPerSource, SourcePrefix: cfg.Admission.SourcePrefix,
		Rate: cfg.Admission.Rate, Allow: cfg.Admission.Allow, Deny: cfg.Admission.Deny,
	})
}

// Admit counts a connection in that has been accepted, unless it is to be turned
// away: then it says why, and has counted that. The source of one that comes by a
// proxy is looked at when it is known.
func (h *Host) Admit(listener int, peer netip.AddrPort) error {
	if !h.Admission.AcquireConn() {
		return h.refuse(h.entrance(listener), peer, ErrTooManyConns)
	}
	return h.admit(listener, peer, !h.proxied(listener, peer), false)
}

// admit counts in at its listener a connection that has its place, and its source if that
// is known. One that has moved was accepted before.
func (h *Host) admit(listener int, peer netip.AddrPort, known, moved bool) error {
	at := h.entrance(listener)
	if !at.enter(moved) {
		h.Admission.ReleaseConn()
		return h.refuse(at, peer, errListenerFull)
	}
	if !known {
		return nil
	}
	if err := h.register(peer); err != nil {
		h.Admission.ReleaseConn()
		at.leave()
		return h.refuse(at, peer, err)
	}
	return nil
}

// refuse counts a connection that is not admitted, and says why.
func (h *Host) refuse(at *Entrance, peer netip.AddrPort, why error) error {
	h.logRefused(at, peer, why)
	if why == errListenerFull {
		at.refused.Add(1)
		why = ErrTooManyConns
	}
	h.Counters.Refuse(refuseCause(why))
	return why
}

// AdmitMoved is Admit for a connection that another engine has handed over and that has its
// place: that one knows the source, unless the connection was dialled.
func (h *Host) AdmitMoved(r *Record) error { return h.admit(r.Listener, r.Peer, !r.Dialled, true) }

// DisownMoved is Disown for what AdmitMoved has counted.
func (h *Host) DisownMoved(r *Record) { h.disown(r.Listener, r.Peer, !r.Dialled) }

// Disown takes back what Admit has counted of a listener and a source, for a connection
// that was not opened. Whoever frees its place has it Leave.
func (h *Host) Disown(listener int, peer netip.AddrPort) {
	h.disown(listener, peer, !h.proxied(listener, peer))
}

func (h *Host) disown(listener int, peer netip.AddrPort, known bool) {
	h.entrance(listener).leave()
	if known {
		h.Admission.ReleaseSource(peer.Addr())
	}
}

func (h *Host) proxied(listener int, peer netip.AddrPort) bool {
	return listener >= 0 && h.Proxied != nil && h.Proxied(listener, peer.Addr())
}

// register counts a source, unless it is not let in.
func (h *Host) register(peer netip.AddrPort) error {
	if !h.Admission.IsAllowed(peer.Addr()) {
		return ErrDenied
	}
	if !h.Admission.AcquireSource(peer.Addr()) {
		return ErrRefusedSource
	}
	return nil
}

// SetPeer is for a layer that has learnt who the peer is in truth. It fails when
// that one is not let in, who then gets the answer for it.
func (c *Conn) SetPeer(peer netip.AddrPort) error {
	c.Expect(peer)
	if err := c.host.register(peer); err != nil {
		c.Append(c.host.Answer(peer, err))
		return err
	}
	c.state |= registered
	return nil
}

// leave counts a connection out of those of its source, and of its listener.
func (c *Conn) leave() {
	if n := c.Listener(); n >= 0 && n < len(c.host.Entrances) {
		c.host.Entrances[n].leave()
	}
	if c.is(registered) {
		c.host.Admission.ReleaseSource(c.Peer().Addr())
	}
}
