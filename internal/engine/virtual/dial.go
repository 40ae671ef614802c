package virtual

import (
	"bytes"
	"slices"

	"github.com/myriad-go/myriad/internal/engine"
)

// This file contains connections that do not come from Connect: dialled ones and those from another engine.

const maxPendingDials = 1024

// Dial starts d.Count simulated dials and does not wait. The test answers each dial with AcceptDial or RefuseDial.
func (e *Engine) Dial(d engine.DialRequest) error {
	if err := d.Validate(); err != nil {
		return err
	}
	return e.updateRequestsAndWake(func(w *pendingRequests) error {
		if len(w.dials)+d.Count > maxPendingDials {
			return engine.ErrFull
		}
		w.dials = append(w.dials, slices.Repeat([]engine.DialRequest{d}, d.Count)...)
		return nil
	})
}

func (e *Engine) queueAdmittedOrFailDials(dials []engine.DialRequest) (acted bool) {
	for _, d := range dials {
		if e.host.Admission.AcquireConn() {
			e.dials = append(e.dials, d)
		} else {
			e.host.NotifyDialFailed(d.Handler, engine.ErrFull)
		}
	}
	return len(dials) > 0
}

// AcceptDial accepts the oldest pending dial and returns its peer, or nil if no dial is pending.
func (e *Engine) AcceptDial() *Peer {
	if len(e.dials) == 0 {
		return nil
	}
	d := e.dials[0]
	e.dials = e.dials[1:]
	p := &Peer{Addr: d.Target, window: -1}
	e.mu.Lock()
	e.bindAndAppendPeerLocked(p, -1)
	e.mu.Unlock()
	e.openPeerList = append(e.openPeerList, p)
	p.conn.OnDialling(d.Target, e.now)
	if d.Handler != nil {
		p.conn.SetConnHandler(d.Handler)
	}
	p.conn.OnOpen(d.Target, true)
	p.driveConnUntilIdle()
	return p
}

// RefuseDial makes the oldest pending dial fail with err. If no dial is pending, it returns false.
func (e *Engine) RefuseDial(err error) (refused bool) {
	if len(e.dials) == 0 {
		return false
	}
	d := e.dials[0]
	e.dials = e.dials[1:]
	e.host.Admission.ReleaseConn()
	e.host.NotifyDialFailed(d.Handler, err)
	return true
}

// CopyHandlerStateTo copies the handler's state to another engine. It calls SaveState of this engine's configuration
// and RestoreState of the other's. If either function is nil, CopyHandlerStateTo does nothing.
func (e *Engine) CopyHandlerStateTo(to *Engine) error {
	if e.cfg.SaveState == nil || to.cfg.RestoreState == nil {
		return nil
	}
	var state bytes.Buffer
	if err := e.cfg.SaveState(&state); err != nil {
		return err
	}
	return to.cfg.RestoreState(&state)
}

// MoveTo moves an open connection to another engine, as an upgrade does. It must be called within DoAndRunUntilIdle of
// both engines. If MoveTo fails, the connection continues in the old engine.
func (p *Peer) MoveTo(to *Engine) (moved *Peer, err error) {
	c := &p.conn
	defer func() {
		if err != nil {
			c.AbortExport(false)
			p.driveConnUntilIdle()
		}
	}()
	if err = c.RequestExport(); err != nil {
		return nil, err
	}
	p.driveConnUntilIdle()
	r, err := c.BlockPostsAndSnapshot()
	if err != nil {
		return nil, err
	}
	r, _, _ = engine.ParseRecord(r.AppendTo(nil)) // makes a copy, as another process would get it
	moved = &Peer{Addr: p.Addr, incoming: p.incoming, inputEnded: p.inputEnded, received: p.received, window: p.window}
	if err = engine.ErrTooManyConns; to.host.Admission.AcquireConn() {
		err = to.host.MapListenerAndAdmitOrRelease(&r)
	}
	if err != nil {
		c.CancelSnapshot()
		return nil, err
	}
	to.mu.Lock()
	to.bindAndAppendPeerLocked(moved, r.Listener)
	to.mu.Unlock()
	to.openPeerList = append(to.openPeerList, moved)
	moved.conn.ImportOrAbort(&r)
	moved.driveConnUntilIdle()
	c.AbortAsHandedOver()
	p.driveConnUntilIdle()
	return moved, nil
}
