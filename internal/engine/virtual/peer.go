package virtual

import (
	"fmt"
	"net/netip"
	"syscall"

	"github.com/myriad-go/myriad/internal/engine"
)

// MaxInFlight is the most bytes that wait in each direction between a connection and the
// tester: as a kernel does, a Peer takes no more output than that, until the tester has.
const MaxInFlight = 16 << 20

// Peer is the other end of a connection, and the kernels between. Its methods are for
// Engine.Do.
type Peer struct {
	engine  *Engine
	conn    engine.Conn
	mailbox engine.Mailbox
	Addr    netip.AddrPort

	incoming      []byte // sent by the peer, and not received
	inputEnded    bool   // the peer sends no more
	eofReported   bool   // PeerClosed was called
	received      []byte // taken by the peer, and not by the tester
	window        int    // how much more the peer takes, below 0 if it reads all
	shut          bool   // our direction is shut
	done          bool   // closed, or turned away
	closeReason   error
	mailboxClosed bool // guarded by the engine's mu: it gets no mail for all any more
}

// Connect has a peer connect from an address; the zero value stands for a unix socket.
func (e *Engine) Connect(from netip.AddrPort) (*Peer, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	switch {
	case len(e.peers) == maxPeers:
		return nil, fmt.Errorf("there were %d peers; expected no more from one server", maxPeers)
	case e.draining:
		return nil, syscall.ECONNREFUSED
	}
	p := &Peer{engine: e, Addr: from, window: -1}
	p.mailbox.MaxRequests, p.mailbox.MaxBytes, p.mailbox.Counters = e.cfg.Limits.MaxMail, e.cfg.Limits.MaxMailBytes, &e.counters
	p.conn.Bind(&e.host, uint32(len(e.peers)), 0)
	p.conn.SetListener(0)
	e.peers, e.acceptQueue = append(e.peers, p), append(e.acceptQueue, p)
	return p, nil
}

// Send sends to the connection. What it does not take waits, as much as MaxInFlight.
func (p *Peer) Send(b []byte) error {
	switch {
	case p.done || p.inputEnded:
		return syscall.EPIPE
	case len(p.incoming)+len(b) > MaxInFlight:
		return fmt.Errorf("%d bytes wait already for a server that does not read; expected at most %d with %d more", len(p.incoming), MaxInFlight, len(b))
	}
	p.incoming = append(p.incoming, b...)
	return nil
}

// CloseWrite says that the peer sends no more.
func (p *Peer) CloseWrite() { p.inputEnded = true }

// Reset breaks the connection, with what is under way.
func (p *Peer) Reset() {
	if p.conn.IsOpen() {
		p.incoming = nil
		p.conn.OnTransportError(syscall.ECONNRESET)
	} else if !p.done { // nobody has accepted it
		p.reject(syscall.ECONNRESET)
	}
}

// SetWindow has the peer take so many bytes and no more, or all if that is below 0. One that
// has read to the end ends, too, as most programs do.
func (p *Peer) SetWindow(n int) {
	p.window = n
	p.inputEnded = p.inputEnded || p.shut && n < 0
}

// Window says how much more the peer takes, below 0 if it reads all.
func (p *Peer) Window() int { return p.window }

// Received is what the peer has taken, and nobody has asked for.
func (p *Peer) Received() []byte { return p.received }

// DiscardReceived lets go of the first n bytes of that.
func (p *Peer) DiscardReceived(n int) {
	if p.received = p.received[n:]; len(p.received) == 0 {
		p.received = nil
	}
}

// Closed says whether the connection has been closed or turned away, and why.
func (p *Peer) Closed() (why error, ok bool) { return p.closeReason, p.done }

// Paused reports whether the connection reads nothing before the peer takes output, which is
// more than Limits.HighWater, or has been and has not come down to LowWater.
func (p *Peer) Paused() (highWater, lowWater int, ok bool) {
	c, l := &p.conn, p.engine.cfg.Limits
	return l.HighWater, l.LowWater, c.IsOpen() && !c.IsClosing() && c.IsPaused() && !c.IsReadPaused() && c.UnsentBytes() > l.LowWater
}

// PausedByHandler reports whether the handler has paused reading.
func (p *Peer) PausedByHandler() bool { return p.conn.IsOpen() && p.conn.IsReadPaused() }

// UnsentBytes is the number of bytes that the peer has not taken, and Unread that of those which it
// has sent and the handler has not used.
func (p *Peer) UnsentBytes() int { return p.conn.UnsentBytes() }

func (p *Peer) UnreadBytes() int {
	return len(p.incoming) + max(p.conn.BufferedBytes()-p.conn.UnsentBytes(), 0)
}

// admitOrReject lets a peer in, or turns it away.
func (p *Peer) admitOrReject() {
	if p.done {
		return
	}
	host := &p.engine.host
	if err := host.Admit(0, p.Addr); err != nil {
		p.received = append(p.received, host.BuildRefusalReply(p.Addr, err)...)
		p.reject(err)
		return
	}
	p.engine.openPeerList = append(p.engine.openPeerList, p)
	p.conn.OnOpen(p.Addr, false)
	p.driveConn()
}

// reject ends a peer that is turned away.
func (p *Peer) reject(why error) {
	p.done, p.closeReason = true, why
	p.closeMailbox()
}

// closeMailbox has nobody leave mail for all any more, and lets go of what was left.
func (p *Peer) closeMailbox() {
	p.engine.mu.Lock()
	p.mailboxClosed = true
	p.engine.mu.Unlock()
	p.handleRequests()
}

// applyRequests gives the connection what was left for all.
func (p *Peer) applyRequests(req *pendingRequests) {
	if len(req.broadcasts) > 0 {
		p.conn.WriteBroadcasts(req.joinBroadcasts())
	}
	for _, peer := range req.peersToClose {
		if peer == p.Addr || peer == p.conn.Peer() {
			p.conn.Abort(engine.ErrClosedByOperator)
		}
	}
}

// driveConn does what there is to do until there is nothing, and says whether that was
// anything.
func (p *Peer) driveConn() (acted bool) {
	for p.conn.IsOpen() && (p.performNextAction() || p.reportEvent()) {
		acted = true
	}
	return acted
}

// performNextAction does what the connection asks for.
func (p *Peer) performNextAction() bool {
	c := &p.conn
	switch c.NextAction() {
	case engine.Send:
		n := min(p.receiveCapacity(), len(c.Output()))
		p.received = append(p.received, c.Output()[:n]...)
		if p.window > 0 {
			p.window -= n
		}
		c.OnSent(n)
	case engine.SendFile:
		c.LoadFilePiece()
	case engine.FeedHandler:
		c.FeedHandler()
	case engine.Read:
		if !p.readOnce() {
			c.OnReadEmpty()
		}
	case engine.ShutWrite:
		p.shut = true
		p.inputEnded = p.inputEnded || p.window < 0 // it has read the end
		c.OnWriteShut()
	case engine.Close:
		p.done, p.closeReason = true, c.CloseReason()
		c.OnClosed()
		p.closeMailbox()
		p.incoming = nil
		p.engine.host.Admission.Release()
	default:
		return false
	}
	return true
}

// reportEvent tells the connection what has happened.
func (p *Peer) reportEvent() bool {
	switch {
	case p.conn.WantsWritable() && p.receiveCapacity() > 0:
		p.conn.OnWritable()
	case p.conn.WantsInput():
		return p.readOnce()
	default:
		return false
	}
	return true
}

// handleRequests gives the connection its mail, once a turn: handlers that post more and more are
// found out.
func (p *Peer) handleRequests() (acted bool) {
	if !p.mailbox.HasRequests() {
		return false
	}
	mail, data := p.mailbox.TakeAll()
	rest := data
	for _, m := range mail {
		p.conn.OnRequest(m, rest[:m.Size])
		rest = rest[m.Size:]
	}
	p.engine.counters.Add(engine.Buffered, -int64(p.mailbox.Recycle(mail, data)))
	return true
}

// readOnce receives once, if there is anything.
func (p *Peer) readOnce() bool {
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

// receiveCapacity is how much the peer takes now.
func (p *Peer) receiveCapacity() int {
	room := MaxInFlight - len(p.received)
	if p.window >= 0 {
		room = min(room, p.window)
	}
	return room
}
