package virtual

import (
	"fmt"
	"net/netip"
	"syscall"

	"github.com/myriad-go/myriad/internal/engine"
	"github.com/myriad-go/myriad/internal/engine/layers"
)

// MaxInFlight is the maximum number of bytes in flight in each direction of a simulated connection. If a Peer has
// received this number of bytes, it accepts no more until the test discards some.
const MaxInFlight = 16 << 20

// Peer simulates the remote end of a connection and the kernels at both ends. Call the methods of a Peer within
// Engine.DoAndRunUntilIdle.
type Peer struct {
	engine  *Engine
	conn    engine.Conn
	mailbox engine.Mailbox
	Addr    netip.AddrPort

	incoming      []byte // bytes that the peer has sent and the connection has not read
	inputEnded    bool   // the peer will send no more
	eofReported   bool   // OnEOF was called
	received      []byte // bytes that the peer has accepted and the test has not discarded
	window        int    // number of further bytes that the peer accepts; negative means no limit
	shut          bool   // the connection's sending direction is shut
	done          bool   // the connection was closed or refused
	closeReason   error
	mailboxClosed bool // the mailbox is closed and no longer visited; guarded by Engine.mu
}

// Connect adds a peer that connects from the address peerAddr. A zero peerAddr means a connection over a unix socket.
// After Stop, Connect returns ECONNREFUSED.
func (e *Engine) Connect(peerAddr netip.AddrPort) (*Peer, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	switch {
	case len(e.peers) == maxPeers:
		return nil, fmt.Errorf("this server has had %d peers, the maximum; use a new server", maxPeers)
	case e.draining:
		return nil, syscall.ECONNREFUSED
	}
	p := &Peer{Addr: peerAddr, window: -1}
	e.bindAndAppendPeerLocked(p, 0)
	e.acceptQueue = append(e.acceptQueue, p)
	return p, nil
}

func (e *Engine) bindAndAppendPeerLocked(p *Peer, listener int) {
	p.engine = e
	p.mailbox.MaxRequests, p.mailbox.MaxBytes, p.mailbox.Counters = e.cfg.Limits.MaxMail, e.cfg.Limits.MaxMailBytes, &e.counters
	p.mailbox.EnableOutputDelay(&e.cfg)
	p.conn.Bind(&e.host, uint32(len(e.peers)), 0)
	p.conn.SetListener(listener)
	e.peers = append(e.peers, p)
}

// Send sends b from the peer to the connection. If the peer's sending direction or the connection has ended, Send
// returns EPIPE. If more than MaxInFlight bytes would be in flight, Send returns an error and sends nothing.
func (p *Peer) Send(b []byte) error {
	switch {
	case p.done || p.inputEnded:
		return syscall.EPIPE
	case len(p.incoming)+len(b) > MaxInFlight:
		return fmt.Errorf("sent %d bytes while %d are still unread; expected at most %d in total: let the server read first", len(b), len(p.incoming), MaxInFlight)
	}
	p.incoming = append(p.incoming, b...)
	return nil
}

func (p *Peer) CloseWrite() { p.inputEnded = true }

func (p *Peer) Reset() {
	if p.conn.IsOpen() {
		p.incoming = nil
		p.conn.OnTransportError(syscall.ECONNRESET)
	} else if !p.done { // the connection was not accepted yet
		p.markRejected(syscall.ECONNRESET)
	}
}

// SetReceiveWindow makes the peer accept maxBytes more bytes. If maxBytes is negative, the peer accepts any number of
// bytes. The peer then also reads an EOF of the connection, and answers by ending its own sending direction.
func (p *Peer) SetReceiveWindow(maxBytes int) {
	p.window = maxBytes
	p.inputEnded = p.inputEnded || p.shut && maxBytes < 0
}

// IsDialled reports whether the server has dialled this peer. Otherwise, the peer has connected to the server.
func (p *Peer) IsDialled() bool { return p.conn.IsDialled() }

// HasTLS reports whether the server's end of the connection has completed a TLS handshake.
func (p *Peer) HasTLS() bool { return layers.TLSStateAfterHandshake(&p.conn) != nil }

// Window returns how many more bytes the peer accepts. A negative number means no limit.
func (p *Peer) Window() int { return p.window }

// Received returns the bytes that the peer has accepted, without those removed by DiscardReceived.
func (p *Peer) Received() []byte { return p.received }

func (p *Peer) DiscardReceived(count int) {
	if p.received = p.received[count:]; len(p.received) == 0 {
		p.received = nil
	}
}

// Closed returns the close reason. ok reports whether the connection was closed or rejected.
func (p *Peer) Closed() (reason error, ok bool) { return p.closeReason, p.done }

// PausedAtHighWater reports whether the server does not read from the connection because too much output is unsent.
// Reading pauses when more than highWater bytes are unsent, and resumes when at most lowWater bytes are unsent.
func (p *Peer) PausedAtHighWater() (highWater, lowWater int, ok bool) {
	c, l := &p.conn, p.engine.cfg.Limits
	return l.HighWater, l.LowWater, c.IsOpen() && !c.IsClosing() && c.IsPaused() && !c.IsReadPaused() && c.UnsentAndDroppedBytes() > l.LowWater
}

func (p *Peer) PausedByHandler() bool { return p.conn.IsOpen() && p.conn.IsReadPaused() }

// UnsentBytes returns the number of output bytes that the peer has not accepted.
func (p *Peer) UnsentBytes() int { return p.conn.UnsentAndDroppedBytes() }

// UnreadBytes returns the number of bytes that the peer has sent and the handler has not used.
func (p *Peer) UnreadBytes() int {
	return len(p.incoming) + max(p.conn.BufferedBytes()-p.conn.UnsentAndDroppedBytes(), 0)
}

func (p *Peer) admitOrReject() {
	if p.done {
		return
	}
	host := &p.engine.host
	if err := host.AdmitAndAcquireSlots(0, p.Addr); err != nil {
		p.received = append(p.received, host.BuildRefusalReply(p.Addr, err)...)
		p.markRejected(err)
		return
	}
	p.engine.openPeerList = append(p.engine.openPeerList, p)
	p.conn.OnOpen(p.Addr, false)
	p.driveConnUntilIdle()
}

func (p *Peer) markRejected(reason error) {
	p.done, p.closeReason = true, reason
	p.closeMailboxAndHandleRest()
}

func (p *Peer) closeMailboxAndHandleRest() {
	p.engine.mu.Lock()
	p.mailboxClosed = true
	p.engine.mu.Unlock()
	p.mailbox.ReleaseDelayed()
	p.handleMailbox()
}

func (p *Peer) applyBroadcastsAndCloses(req *pendingRequests) {
	if len(req.broadcasts) > 0 {
		p.conn.WriteBroadcasts(req.concatBroadcasts())
	}
	for _, peer := range req.peersToClose {
		if peer == p.Addr || peer == p.conn.Peer() {
			p.conn.Abort(engine.ErrClosedByOperator)
		}
	}
}

func (p *Peer) driveConnUntilIdle() (acted bool) {
	for p.conn.IsOpen() && (p.performActionRequestedByConn() || p.reportWritableOrReadOnce()) {
		acted = true
	}
	return acted
}

func (p *Peer) performActionRequestedByConn() (performed bool) {
	c := &p.conn
	switch c.AdvanceToNextAction() {
	case engine.Send:
		n := min(p.receiveCapacity(), len(c.Output()))
		p.received = append(p.received, c.Output()[:n]...)
		if p.window > 0 {
			p.window -= n
		}
		c.OnSent(n)
	case engine.SendFile:
		c.LoadFilePieceIntoOutput()
	case engine.FeedHandler:
		c.MakeDeferredHandlerCalls()
	case engine.Read:
		if !p.deliverInputOrEOF() {
			c.CloseIfTimedOutAfterEmptyRead()
		}
	case engine.DetachOrExport:
		c.OnKernelIdleForExport()
	case engine.ShutWrite:
		p.shut = true
		p.inputEnded = p.inputEnded || p.window < 0 // the peer has read EOF and closes its end
		c.MarkWriteShutAndLingerIfClosing()
	case engine.Close:
		p.done, p.closeReason = true, c.CloseReason()
		c.OnClosed()
		p.closeMailboxAndHandleRest()
		p.incoming = nil
		p.engine.host.Admission.ReleaseConn()
	default:
		return false
	}
	return true
}

func (p *Peer) reportWritableOrReadOnce() (acted bool) {
	switch {
	case p.conn.WantsWritable() && p.receiveCapacity() > 0:
		p.conn.OnWritable()
	case p.conn.WantsInput():
		return p.deliverInputOrEOF()
	default:
		return false
	}
	return true
}

// handleMailbox handles the requests that are in the connection's mailbox at the time of the call. Requests that are
// added during the call stay in the mailbox.
func (p *Peer) handleMailbox() (acted bool) {
	if due, ok := p.mailbox.EnsureDelayEnd(&p.engine.host); ok && (p.engine.draining || due <= p.engine.now) {
		p.mailbox.ReleaseDelayed()
	}
	if !p.mailbox.HasRequests() {
		return false
	}
	mail, data := p.mailbox.TakeQueued()
	rest := data
	for _, m := range mail {
		p.conn.HandleOrDeferForPendingLayer(m, rest[:m.Size])
		rest = rest[m.Size:]
	}
	p.engine.counters.Add(engine.Buffered, -int64(p.mailbox.Recycle(mail, data)))
	return true
}

func (p *Peer) deliverInputOrEOF() (delivered bool) {
	switch n := min(len(p.incoming), engine.ReadSize); {
	case n > 0:
		part := p.incoming[:n]
		p.incoming = p.incoming[n:]
		p.conn.OnRead(part)
	case p.inputEnded && !p.eofReported:
		p.eofReported = true
		p.conn.OnEOF()
	default:
		return false
	}
	return true
}

func (p *Peer) receiveCapacity() int {
	room := MaxInFlight - len(p.received)
	if p.window >= 0 {
		room = min(room, p.window)
	}
	return room
}
