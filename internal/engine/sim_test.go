package engine

import (
	"bytes"
	"errors"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"net"
	"net/netip"
	"syscall"
	"testing"
	"time"
)

// The simulation runs connections with no kernel: a driver as the package
// comment describes it, sockets that are byte slices, handlers that follow a
// script, and a clock that is moved by hand. Everything that can happen is
// chosen by dice, and everything that must hold is checked after each step.

var seedFlag = flag.Uint64("seed", 0, "run the simulation with this seed only")

func TestSim(t *testing.T) {
	if *seedFlag != 0 {
		simulate(t, fmt.Sprintf("-seed=%d", *seedFlag), newSeeded(*seedFlag))
		return
	}
	for seed := uint64(1); seed <= 1000; seed++ {
		simulate(t, fmt.Sprintf("-seed=%d", seed), newSeeded(seed))
	}
}

// dice are where a simulation's choices come from.
type dice interface {
	roll(n int) int // one of 0..n-1
	more() bool     // whether there is another step
}

type seeded struct {
	rand  *rand.Rand
	steps int
}

func newSeeded(seed uint64) *seeded {
	return &seeded{rand: rand.New(rand.NewPCG(seed, 0)), steps: 300}
}

func (d *seeded) roll(n int) int { return d.rand.IntN(n) }
func (d *seeded) more() bool     { d.steps--; return d.steps >= 0 }

// The limits of the simulation are small, so that it reaches them.
const (
	simSlots      = 3
	simMaxMessage = 48
	simMaxUnsent  = 96
	simHigh       = simMaxUnsent / 2
	simLow        = simMaxUnsent / 4
	simMaxMail    = 4
	simMaxRead    = 40
	simClose      = 100 * time.Millisecond
	simLinger     = 30 * time.Millisecond
	simHandshake  = 250 * time.Millisecond
	simFirstByte  = 400 * time.Millisecond
	simMessage    = 300 * time.Millisecond
	simIdle       = 600 * time.Millisecond
	simWrite      = 350 * time.Millisecond
	simBeat       = 150 * time.Millisecond
	simMissed     = 2
)

// The reasons that only the simulation gives.
var (
	errPanic  = errors.New("sim: handler panics")
	errKilled = errors.New("sim: killed")
	errOwn    = errors.New("sim: the handler's own reason")
	errShed   = errors.New("sim: shed")
)

// sim is one simulation: the owner of a few connections, and all around them.
type sim struct {
	t    *testing.T
	name string
	dice dice

	now      time.Duration
	host     Host
	counters Counters
	box      Mailbox
	lent     map[*Buffer]bool

	slots  []*Conn
	lives  []*life // the one in each slot, nil if it is free
	past   []*life // all
	posts  []post  // accepted and not taken, in order
	panics int
	closes int // calls of Closed
	beats  int // heartbeats
	drops  int // messages that were dropped
	trace  []string
}

// post is mail that the mailbox has accepted.
type post struct {
	to     *life
	kind   MailKind
	data   []byte
	shared bool
}

// life is one connection from Open to Finish, seen from outside: its peer, the
// kernel between, and what its handler has seen and done.
type life struct {
	conn    *Conn
	ref     Ref
	id      int
	acts    character
	dialled bool

	sent    []byte // by the peer
	raw     []byte // the same as it goes over the wire
	arrived int    // of raw, given to Arrived
	rude    int    // of arrived, given while WantsInput said no
	fin     bool   // the peer has ended
	told    bool   // PeerClosed was called
	reset   bool   // the peer has reset
	room    int    // in the kernel, for output
	wire    []byte // output that the kernel took
	shut    bool   // our direction is shut

	known                 bool // somebody may have its Ref
	opened, ended, closed bool
	used                  int     // of sent, by the handler
	refused               int     // length of the last offer, if none of it was used
	seen                  int     // what Seen must answer
	wrote                 []byte  // output in the order it must appear
	waiting               int     // accepted posts that are not delivered
	nudges                int     // delivered, and Nudged was not called yet
	causes                []error // what may be the reason to close
	panicked              bool
	why                   error

	filed    bool            // has sent a file, of which each piece has a time of its own
	layer    *simLayer       // nil if it has none
	stamps   []time.Duration // when each byte of wrote was
	born     time.Duration
	began    time.Duration // when it was dialled
	deaf     bool          // does not listen
	heard    time.Duration // when input came last
	since    time.Duration // when the unused input began to wait
	unheard  int           // heartbeats since then
	high     bool          // owed more than simHigh, and Writable was not called since
	choked   bool          // reading must not go on before simLow
	awaits   bool          // was told that it is Paused
	relieved time.Duration // when that, or a pause, ended
	streamed int           // how often it went on in Writable
	drained  bool          // Drain was called while it was not closing
	draining int           // calls of Draining
	owed     int           // of raw, sent before Drain
}

func simulate(t *testing.T, name string, d dice) {
	t.Helper()
	s := &sim{t: t, name: name, dice: d, lent: map[*Buffer]bool{}}
	s.box.Max, s.box.MaxBytes = simMaxMail, 16<<20
	s.host = Host{
		Handler: s, Buffers: s, Poster: s,
		Limits: Limits{
			MaxMessage: simMaxMessage, MaxUnsent: simMaxUnsent, MaxMail: simMaxMail,
			HighWater: simHigh, LowWater: simLow,
			CloseTimeout: simClose, Linger: simLinger,
		},
		Log: slog.New(slog.DiscardHandler), Counters: &s.counters,
		Now: func() time.Duration { return s.now }, Admission: admitAll,
	}
	s.host.Direct, s.host.DirectSize, s.host.piece = s.direct, 3, 8<<s.dice.roll(5)
	s.dress()
	s.slots, s.lives = make([]*Conn, simSlots), make([]*life, simSlots)
	for i := range s.slots {
		s.slots[i] = &Conn{}
		s.slots[i].Bind(&s.host, uint32(i), 0)
	}
	for d.more() {
		s.step()
		s.inspect()
	}
	s.settle()
	s.finishAll()
}

// step lets one thing happen.
func (s *sim) step() {
	slot := s.dice.roll(simSlots)
	l := s.lives[slot]
	what := s.dice.roll(32)
	switch {
	case what == 0 && s.dice.roll(3) == 0:
		s.pass(time.Duration(s.dice.roll(int(simWrite))))
	case what == 0:
		s.pass(time.Duration(s.dice.roll(int(simClose * 3 / 4))))
	case what <= 4:
		s.postToAny()
	case what <= 7:
		s.deliverMail()
	case l == nil:
		s.open(slot)
	case what <= 14:
		l.peerSends(s)
	case what <= 21:
		s.readable(l)
	case what <= 27:
		s.roomFor(l, s.dice.roll(2*simMaxUnsent))
	case what == 28:
		l.fin = true
		s.log("%v: the peer ends", l)
	case what == 29 && s.dice.roll(4) == 0:
		l.reset = true
		s.log("%v: the peer resets", l)
	case what == 30 && s.dice.roll(4) == 0:
		s.log("%v: drain", l)
		l.cause(ErrServerClosed)
		if !l.drained {
			l.owed = len(l.raw)
		}
		l.drained = l.drained || !l.conn.is(closing)
		l.conn.Drain()
		s.drive(l)
	case what == 31 && l.deaf:
		s.listen(l)
	case what == 31 && s.dice.roll(8) == 0:
		s.yield()
	case what == 31 && s.dice.roll(12) == 0:
		s.log("%v: kill", l)
		l.cause(errKilled)
		l.conn.Kill(errKilled)
		s.drive(l)
	}
}

// What the driver does.

func (s *sim) open(slot int) {
	l := &life{conn: s.slots[slot], id: len(s.past), acts: character(s.dice.roll(int(characters)))}
	l.room = s.dice.roll(2 * simMaxUnsent)
	l.born, l.heard = s.now, s.now
	s.past, s.lives[slot] = append(s.past, l), l
	s.log("%v: opens, %v, room for %d bytes", l, l.acts, l.room)
	peer := netip.AddrPortFrom(netip.AddrFrom4([4]byte{127, 0, 0, 1}), uint16(l.id))
	dialled := s.dice.roll(4) == 0
	l.dialled = dialled
	if dialled {
		l.began = time.Duration(s.dice.roll(1<<30)) << (s.dice.roll(30)) // any bits
		l.began++
		l.conn.Dialling(peer, l.began)
	}
	l.conn.Open(peer, dialled)
	s.check(l.opened == (l.layer == nil && !s.host.Away), "%v: Opened was called: %v", l, l.opened)
	s.check(l.conn.Outbound() == dialled, "%v: Outbound is %v", l, !dialled)
	s.check(l.conn.Peer() == peer, "%v: Peer is %v, want %v", l, l.conn.Peer(), peer)
	s.drive(l)
}

// listen has the handler listen again, in some call of it.
func (s *sim) listen(l *life) {
	s.log("%v: listens", l)
	if l.deaf = false; !l.conn.is(closing) {
		l.relieved = s.now
	}
	l.conn.Listen(true)
	s.drive(l)
}

// readable gives the driver a reason to read, and a piece of random size.
// Now and then it comes although the connection does not want input: a receive
// that was under way when reading paused.
func (s *sim) readable(l *life) {
	c := l.conn
	rude := !c.WantsInput()
	if rude && (l.told || s.dice.roll(6) > 0) {
		return
	}
	if s.read(l) {
		s.drive(l)
	}
}

// read reads a piece of random size, or what else there is.
func (s *sim) read(l *life) (some bool) {
	c := l.conn
	rude := !c.WantsInput()
	switch n := min(len(l.raw)-l.arrived, 1+s.dice.roll(simMaxRead)); {
	case l.reset:
		s.log("%v: reading fails", l)
		s.breaks(l)
	case n > 0:
		s.log("%v: %d bytes arrive", l, n)
		if rude {
			l.rude += n
		}
		p := bytes.Clone(l.raw[l.arrived : l.arrived+n])
		l.arrived += n
		l.heard, l.unheard = s.now, 0
		if c.in == nil {
			l.since = s.now
		}
		c.Arrived(p)
		scribble(p)
	case l.fin && !l.told:
		s.log("%v: end of file", l)
		l.told = true
		l.cause(io.EOF)
		c.PeerClosed()
	default:
		return false
	}
	return true
}

// readNow reads once, and says so if there is nothing.
func (s *sim) readNow(l *life) {
	c := l.conn
	s.check(c.WantsInput(), "%v: is to be read, and wants no input: state %b", l, c.state)
	if l.reset || l.arrived < len(l.raw) || l.fin && !l.told {
		if s.read(l); l.arrived == len(l.raw) && !l.reset {
			c.Empty()
		}
		return
	}
	s.log("%v: nothing to read", l)
	c.Empty()
	s.check(!c.is(unread), "%v: is still to be read from", l)
}

// deliver has the handler called, or sheds what may be shed now and then.
func (s *sim) deliver(l *life) {
	c := l.conn
	if !c.MayShed() || s.dice.roll(3) > 0 {
		s.log("%v: deliver", l)
		c.Deliver()
		return
	}
	s.log("%v: shed", l)
	s.check(l.opened && !l.ended, "%v: may be shed with more than input due: state %b", l, c.state)
	sheds := s.counters.Get(Shed)
	c.Shed(errShed)
	s.check(s.counters.Get(Shed) == sheds+1, "%v: the shed is not counted", l)
}

// shed is the handler's call for input that is shed: what holds for Received holds
// for it.
func (s *sim) shed(c *Conn, in []byte, why error) int {
	s.check(why == errShed, "shed because of %v", why)
	return s.Received(c, in)
}

// roomFor lets the peer read, so that the kernel has room for n bytes more.
func (s *sim) roomFor(l *life, n int) {
	l.room += n
	if l.room == 0 || !l.conn.WantsRoom() {
		return
	}
	s.log("%v: room for %d bytes", l, l.room)
	l.conn.Room()
	s.drive(l)
}

// drive does what a connection asks for until it asks for nothing.
func (s *sim) drive(l *life) {
	c := l.conn
	for range 10_000 {
		open := !c.is(closing)
		if c.is(choked) { // it may not be any more, in a moment
			l.relieved = s.now
		}
		a := c.Next()
		if open && c.is(closing) && c.more.why == ErrServerClosed && !c.is(deaf|gone) {
			s.check(l.arrived >= l.owed, "%v: drained with %d of the %d bytes read that were sent before", l, l.arrived, l.owed)
		}
		switch a {
		case Wait:
			if l.choked || c.is(choked) || l.deaf {
				l.relieved = s.now
			}
			_, due := c.Due()
			s.water(l)
			s.check(!l.choked || !c.WantsInput(), "%v: wants input while it owes %d bytes", l, c.Pending())
			s.check(c.Deaf() == l.deaf, "%v: Deaf is %v", l, c.Deaf())
			s.check(!l.deaf || !c.WantsInput() || c.is(closing), "%v: wants input, and does not listen", l)
			s.check(!l.told || !c.WantsInput(), "%v: wants input after its end", l)
			s.check(!l.told || due, "%v: its peer has ended, and it has no bound: state %b", l, c.state)
			mail := c.mark.posted() > c.posted()
			s.check(c.WantsInput() || c.WantsRoom() || due || mail || l.deaf,
				"%v: waits for nothing: state %b", l, c.state)
			return
		case Send:
			s.send(l)
		case SendFile:
			s.sendFile(l)
		case Deliver:
			s.deliver(l)
		case Read:
			s.readNow(l)
		case Shut:
			s.check(!l.shut, "%v: shut twice", l)
			s.checkComplete(l)
			s.log("%v: shut", l)
			l.shut = true
			c.ShutDone()
			due, _ := c.Due()
			s.check(due == s.now+simLinger, "%v: lingers until %v, now is %v", l, due, s.now)
		case Close:
			s.finish(l)
			return
		default:
			s.fail("%v: unknown action %d", l, a)
		}
	}
	s.fail("%v: the driver got stuck: state %b", l, c.state)
}

// direct is the kernel's part of a long Write. An error it keeps to itself, and
// tells at the next send.
func (s *sim) direct(c *Conn, pieces [][]byte) int {
	l, p := s.lives[c.Slot()], bytes.Join(pieces, nil)
	s.check(bytes.HasPrefix(p, l.wrote[len(l.wire):]), "%v: sends before what was written earlier", l)
	s.check(!c.is(blocked), "%v: sends directly while the kernel takes nothing", l)
	s.check(l.layer == nil, "%v: sends past its layer", l)
	s.check(!l.shut, "%v: sends directly after the end", l)
	if l.reset {
		return 0
	}
	n := min(l.room, len(p))
	s.log("%v: sent %d of %d bytes directly", l, n, len(p))
	l.wire = append(l.wire, p[:n]...)
	l.room -= n
	return n
}

// send is a system call that takes as much as there is room for.
func (s *sim) send(l *life) {
	c, out := l.conn, l.conn.Output()
	s.check(len(out) > 0, "%v: asked to send nothing", l)
	s.check(!l.shut, "%v: sends after the end", l)
	s.check(bytes.HasPrefix(l.wrote[len(l.wire):], out), "%v: output is %q, want %q", l, out, l.wrote[len(l.wire):])
	s.check(len(out) <= s.host.piece, "%v: a piece of %d bytes of output, at most %d were wanted", l, len(out), s.host.piece)
	if l.reset && s.dice.roll(2) == 0 {
		s.log("%v: sending fails", l)
		s.breaks(l)
		return
	}
	n := min(l.room, len(out))
	s.log("%v: sent %d of %d bytes", l, n, len(out))
	l.wire = append(l.wire, out[:n]...)
	l.room -= n
	c.Sent(n)
	if n < len(out) || c.Pending() <= simLow { // otherwise the next piece is sent now
		s.water(l)
	}
}

// breaks lets the transport fail. It is the reason to close unless all was done.
func (s *sim) breaks(l *life) {
	if !l.conn.is(closing) || l.conn.Pending() > 0 {
		l.cause(syscall.ECONNRESET)
	}
	l.conn.Failed(s.resetError())
}

func (s *sim) finish(l *life) {
	before := s.counters.Get(Open)
	refused := l.conn.Greets()
	if refused && l.layer.failed {
		s.check(!errors.Is(l.conn.more.why, ErrHandshakeTimeout), "%v: refused for %v, but its layer has failed", l, l.conn.more.why)
	}
	l.conn.Finish()
	s.log("%v: closed: %v", l, l.why)
	s.check(l.closed == !refused, "%v: Closed was called: %v, was refused: %v", l, l.closed, refused)
	s.check(l.opened || !l.closed, "%v: Closed without Opened", l)
	s.check(l.layer == nil || l.layer.closed == 1, "%v: its layer was not closed once", l)
	s.check(s.counters.Get(Open) == before-1, "%v: Counters.Open is %d, was %d", l, s.counters.Get(Open), before)
	s.check(!l.conn.IsOpen() && l.conn.Next() == Wait, "%v: not free after Finish: state %b", l, l.conn.state)
	s.check(l.conn.in == nil && l.conn.out == nil && l.conn.more == nil && l.conn.user == nil, "%v: Finish left something behind", l)
	s.lives[l.conn.Slot()] = nil
}

// deliverMail takes the mail and gives it out; connections are driven after
// each piece or after all.
func (s *sim) deliverMail() {
	s.check(s.box.Waiting() == (len(s.posts) > 0), "Waiting is %v with %d messages in the box", s.box.Waiting(), len(s.posts))
	mail, all := s.box.Take()
	defer s.box.Done(mail, all)
	s.check(len(mail) == len(s.posts), "took %d messages, want %d", len(mail), len(s.posts))
	posts, data, each := s.posts, all, s.dice.roll(2) == 0
	s.posts = nil
	for i, m := range mail {
		p := posts[i]
		body := data[:m.Size]
		data = data[m.Size:]
		s.check(m.Conn == p.to.conn && m.Kind == p.kind && (p.shared || bytes.Equal(body, p.data)), "message %d is for slot %d: %q, want %v: %q", i, m.Conn.slot, body, p.to, p.data)
		after := s.receiveMail(p)
		m.Conn.Mailed(m, body)
		after()
		s.check(p.to.nudges == 0, "%v: a nudge did not reach Nudged", p.to)
		if each {
			s.driveSlot(m.Conn)
		}
	}
	for _, m := range mail {
		s.driveSlot(m.Conn)
	}
}

func (s *sim) driveSlot(c *Conn) {
	if l := s.lives[c.Slot()]; l != nil {
		s.drive(l)
	}
}

// receiveMail notes what a piece of mail must do; what it returns does the rest
// of that afterwards.
func (s *sim) receiveMail(p post) (after func()) {
	l := p.to
	l.waiting--
	after = func() {}
	switch {
	case !s.takes(l):
		s.log("%v: mail comes too late", l)
	case p.kind == MailSend:
		s.log("%v: mail of %d bytes", l, len(p.data))
		l.writes(s, p.data)
	case p.kind == MailClose:
		s.log("%v: mail to close", l)
		l.cause(nil)
	case p.kind == MailNudge:
		l.nudges++
	case p.kind == MailCast:
		after = s.receiveCast(l, p.data)
	}
	return after
}

// receiveCast is receiveMail for a message to all.
func (s *sim) receiveCast(l *life, p []byte) (after func()) {
	c := l.conn
	inBox := c.posted()
	tooMuch := c.unsent()-inBox+s.host.direct+len(p) > simMaxUnsent
	s.log("%v: broadcast of %d bytes", l, len(p))
	switch {
	case c.is(greeting | fresh):
	case tooMuch && s.host.DropMessages:
		s.drops++
	case tooMuch:
		l.cause(ErrSlowConsumer)
	default:
		return func() { l.writes(s, p) }
	}
	return func() {}
}

// What the peer does.

func (l *life) peerSends(s *sim) {
	if l.fin || l.reset {
		return
	}
	n := 1 + s.dice.roll(simMaxRead)
	for range n {
		b := byte('a' + (len(l.sent)+l.id)%20)
		if s.dice.roll(24) == 0 {
			b = '\n'
		}
		l.sent = append(l.sent, b)
		l.raw = append(l.raw, l.over([]byte{b})...)
	}
	s.log("%v: the peer sends %d bytes", l, n)
}

// What others do.

// postToAny posts to a connection, open or long gone, and knows what the answer
// has to be.
func (s *sim) postToAny() {
	if len(s.past) == 0 {
		return
	}
	l := s.past[len(s.past)-1-s.dice.roll(min(len(s.past), 2*simSlots))]
	p := post{to: l}
	var err error
	if !l.known {
		return // nobody has its Ref yet
	}
	switch s.dice.roll(10) {
	case 0:
		p.kind = MailClose
		err = l.ref.Close()
	case 1:
		p.kind = MailNudge
		err = l.ref.Nudge()
	default:
		p.data = fmt.Appendf(nil, "<%d:%d>", l.id, s.dice.roll(1000))
		p.data = p.data[:s.dice.roll(len(p.data)+1)]
		if s.dice.roll(8) == 0 {
			p.data = bytes.Repeat([]byte("M"), simMaxUnsent+1-s.dice.roll(3))
		}
		switch shared := (&Shared{Bytes: p.data}); {
		case s.dice.roll(4) == 0:
			i := s.dice.roll(len(p.data) + 1)
			err = l.ref.Sendv([][]byte{p.data[:i], nil, p.data[i:]})
		case s.dice.roll(4) > 0:
			err = l.ref.Send(p.data)
		case s.dice.roll(2) > 0 && s.takes(l) && len(p.data) <= simMaxUnsent:
			p.kind, p.shared = MailCast, true
			err = s.box.PutCast(l.conn, shared)
		default:
			p.shared = true
			err = l.ref.SendShared(shared)
		}
	}
	s.log("%v: post kind %d, %d bytes: %v", l, p.kind, len(p.data), err)
	switch takes := s.takes(l); {
	case err == nil:
		s.check(takes, "%v: takes a post after it has closed", l)
		most := map[MailKind]int{MailSend: simMaxMail, MailCast: simMaxMail, MailClose: 2 * simMaxMail, MailNudge: 2 * simMaxMail}
		s.check(len(s.posts) < most[p.kind], "%v: takes a post of kind %d with %d in the box", l, p.kind, len(s.posts))
		l.waiting++
		s.posts = append(s.posts, p)
	case errors.Is(err, ErrClosed):
		s.check(!takes, "%v: refuses a post as closed while it is open", l)
	case errors.Is(err, ErrTooLarge):
		s.check(takes && len(p.data) > simMaxUnsent, "%v: refuses %d bytes as too large", l, len(p.data))
	case errors.Is(err, ErrFull):
		s.check(len(p.data) <= simMaxUnsent, "%v: says that there may be room for %d bytes later", l, len(p.data))
		owes := l.conn.mark.posted()+len(p.data) > simMaxUnsent
		bytes := p.kind == MailSend || p.kind == MailCast
		full := len(s.posts) >= simMaxMail && (bytes || len(s.posts) >= 2*simMaxMail)
		s.check(takes && (owes && bytes || full), "%v: full with %d messages and %d bytes posted", l, len(s.posts), l.conn.mark.posted())
	default:
		s.fail("%v: post failed: %v", l, err)
	}
}

// Post makes the simulation a Poster.
func (s *sim) Post(c *Conn, gen uint32, r Request) error {
	return s.box.Put(c, gen, r)
}

// Get and Put make the simulation a Buffers that knows what it has lent, and
// spoils what it gets back.
func (s *sim) Get(int) *Buffer {
	b := &Buffer{bytes: make([]byte, 0, 8)}
	s.lent[b] = true
	return b
}

func (s *sim) Put(b *Buffer) {
	s.check(s.lent[b], "a buffer was returned twice")
	delete(s.lent, b)
	scribble(b.bytes[:cap(b.bytes)])
}

func scribble(p []byte) {
	for i := range p {
		p[i] = '!'
	}
}

// takes says whether a connection still takes mail.
func (s *sim) takes(l *life) bool {
	return s.lives[l.conn.Slot()] == l && !l.conn.is(closing)
}

func (l *life) cause(why error) { l.causes = append(l.causes, why) }

func (l *life) String() string { return fmt.Sprintf("#%d/%d", l.id, l.conn.slot) }

// resetError is a reset in one of its forms.
func (s *sim) resetError() error {
	return []error{
		syscall.ECONNRESET,
		syscall.EPIPE,
		&net.OpError{Op: "write", Err: fmt.Errorf("wrapped: %w", syscall.ECONNABORTED)},
	}[s.dice.roll(3)]
}
