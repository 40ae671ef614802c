package virtual

import (
	"fmt"
	"net/netip"
	"syscall"

	"github.com/myriad-go/myriad/internal/engine"
)

// MaxHeld is the most bytes that wait in each direction between a connection and the
// tester: as a kernel does, a Peer takes no more output than that, until the tester has.
const MaxHeld = 16 << 20

// Peer is the other end of a connection, and the kernels between. Its methods are for
// Engine.Do.
type Peer struct {
	e    *Engine
	conn engine.Conn
	box  engine.Mailbox
	Addr netip.AddrPort

	in     []byte // sent by the peer, and not received
	fin    bool   // the peer sends no more
	told   bool   // PeerClosed was called
	out    []byte // taken by the peer, and not by the tester
	window int    // how much more the peer takes, below 0 if it reads all
	shut   bool   // our direction is shut
	done   bool   // closed, or turned away
	why    error
	gone   bool // guarded by the engine's mu: it gets no mail for all any more
}

// Connect has a peer connect from an address; the zero value stands for a unix socket.
func (e *Engine) Connect(from netip.AddrPort) (*Peer, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	switch {
	case len(e.peers) == maxPeers:
		return nil, fmt.Errorf("there were %d peers; expected no more from one server", maxPeers)
	case e.drains:
		return nil, syscall.ECONNREFUSED
	}
	p := &Peer{e: e, Addr: from, window: -1}
	p.box.Max, p.box.MaxBytes, p.box.Counters = e.cfg.Limits.MaxMail, e.cfg.Limits.MaxMailBytes, &e.counters
	p.conn.Bind(&e.host, uint32(len(e.peers)), 0)
	p.conn.SetListener(0)
	e.peers, e.queue = append(e.peers, p), append(e.queue, p)
	return p, nil
}

// Send sends to the connection. What it does not take waits, as much as MaxHeld.
func (p *Peer) Send(b []byte) error {
	switch {
	case p.done || p.fin:
		return syscall.EPIPE
	case len(p.in)+len(b) > MaxHeld:
		return fmt.Errorf("%d bytes wait already for a server that does not read; expected at most %d with %d more", len(p.in), MaxHeld, len(b))
	}
	p.in = append(p.in, b...)
	return nil
}

// End says that the peer sends no more.
func (p *Peer) End() { p.fin = true }

// Reset breaks the connection, with what is under way.
func (p *Peer) Reset() {
	if p.conn.IsOpen() {
		p.in = nil
		p.conn.Failed(syscall.ECONNRESET)
	} else if !p.done { // nobody has accepted it
		p.cutOff(syscall.ECONNRESET)
	}
}

// Window has the peer take so many bytes and no more, or all if that is below 0. One that
// has read to the end ends, too, as most programs do.
func (p *Peer) Window(n int) {
	p.window = n
	p.fin = p.fin || p.shut && n < 0
}

// Open says how much more the peer takes, below 0 if it reads all.
func (p *Peer) Open() int { return p.window }

// Held is what the peer has taken, and nobody has asked for.
func (p *Peer) Held() []byte { return p.out }

// Forget lets go of the first n bytes of that.
func (p *Peer) Forget(n int) {
	if p.out = p.out[n:]; len(p.out) == 0 {
		p.out = nil
	}
}

// Closed says whether the connection has been closed or turned away, and why.
func (p *Peer) Closed() (why error, ok bool) { return p.why, p.done }

// Paused reports whether the connection reads nothing before the peer takes output, which is
// more than Limits.HighWater, or has been and has not come down to LowWater.
func (p *Peer) Paused() (highWater, lowWater int, ok bool) {
	c, l := &p.conn, p.e.cfg.Limits
	return l.HighWater, l.LowWater, c.IsOpen() && !c.Closing() && c.Paused() && !c.ReadPaused() && c.Pending() > l.LowWater
}

// PausedByHandler reports whether the handler has paused reading.
func (p *Peer) PausedByHandler() bool { return p.conn.IsOpen() && p.conn.ReadPaused() }

// Unsent is the number of bytes that the peer has not taken, and Unread that of those which it
// has sent and the handler has not used.
func (p *Peer) Unsent() int { return p.conn.Pending() }

func (p *Peer) Unread() int { return len(p.in) + max(p.conn.Waiting()-p.conn.Pending(), 0) }

// welcome lets a peer in, or turns it away.
func (p *Peer) welcome() {
	if p.done {
		return
	}
	host := &p.e.host
	if err := host.Admit(0, p.Addr); err != nil {
		p.out = append(p.out, host.Answer(p.Addr, err)...)
		p.cutOff(err)
		return
	}
	p.e.live = append(p.e.live, p)
	p.conn.Open(p.Addr, false)
	p.drive()
}

// cutOff ends a peer that is turned away.
func (p *Peer) cutOff(why error) {
	p.done, p.why = true, why
	p.leave()
}

// leave has nobody leave mail for all any more, and lets go of what was left.
func (p *Peer) leave() {
	p.e.mu.Lock()
	p.gone = true
	p.e.mu.Unlock()
	p.mail()
}

// apply gives the connection what was left for all.
func (p *Peer) apply(w *requests) {
	if len(w.casts) > 0 {
		p.conn.Cast(w.all())
	}
	for _, peer := range w.expel {
		if peer == p.Addr || peer == p.conn.Peer() {
			p.conn.Abort(engine.ErrExpelled)
		}
	}
}

// drive does what there is to do until there is nothing, and says whether that was
// anything.
func (p *Peer) drive() (acted bool) {
	for p.conn.IsOpen() && (p.act() || p.tell()) {
		acted = true
	}
	return acted
}

// act does what the connection asks for.
func (p *Peer) act() bool {
	c := &p.conn
	switch c.Next() {
	case engine.Send:
		n := min(p.room(), len(c.Output()))
		p.out = append(p.out, c.Output()[:n]...)
		if p.window > 0 {
			p.window -= n
		}
		c.Sent(n)
	case engine.SendFile:
		c.Load()
	case engine.Deliver:
		c.Deliver()
	case engine.Read:
		if !p.read() {
			c.Empty()
		}
	case engine.Shut:
		p.shut = true
		p.fin = p.fin || p.window < 0 // it has read the end
		c.ShutDone()
	case engine.Close:
		p.done, p.why = true, c.Why()
		c.Finish()
		p.leave()
		p.in = nil
		p.e.host.Admission.ReleaseConn()
	default:
		return false
	}
	return true
}

// tell tells the connection what has happened.
func (p *Peer) tell() bool {
	switch {
	case p.conn.WantsRoom() && p.room() > 0:
		p.conn.Room()
	case p.conn.WantsInput():
		return p.read()
	default:
		return false
	}
	return true
}

// mail gives the connection its mail, once a turn: handlers that post more and more are
// found out.
func (p *Peer) mail() (acted bool) {
	if !p.box.Waiting() {
		return false
	}
	mail, data := p.box.Take()
	rest := data
	for _, m := range mail {
		p.conn.Mailed(m, rest[:m.Size])
		rest = rest[m.Size:]
	}
	p.e.counters.Add(engine.Buffered, -int64(p.box.Done(mail, data)))
	return true
}

// read receives once, if there is anything.
func (p *Peer) read() bool {
	switch n := min(len(p.in), engine.ReadSize); {
	case n > 0:
		part := p.in[:n]
		p.in = p.in[n:]
		p.conn.Arrived(part)
	case p.fin && !p.told:
		p.told = true
		p.conn.PeerClosed()
	default:
		return false
	}
	return true
}

// room is how much the peer takes now.
func (p *Peer) room() int {
	room := MaxHeld - len(p.out)
	if p.window >= 0 {
		room = min(room, p.window)
	}
	return room
}
