package engine

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"time"
)

// This file is how a connection moves to another engine, mostly one of another process.
//
// The owner asks it to Leave. From then on it is not read from and sends nothing; Next says
// Detach, and when nothing of it is under way in the kernel the driver tells the loop, which
// makes a Record of it: all that the other side needs, but for the descriptor. From Pack until
// Left or Unpack nothing can be posted to it: Refs answer ErrFull. So what was posted before is
// in the record, and what comes later fails with ErrClosed, unless the connection stays.
//
// While it leaves it can still be mailed, and be closed, which is the end of leaving. Its
// limits of time stand still.

// Reasons for a connection to stay where it is.
var (
	// ErrHandedOver is the reason of a connection that another process goes on with.
	ErrHandedOver = errors.New("myriad: connection was handed over to another process")
	// ErrStays says that a connection can't be handed over, and ErrNotNow that it can't be
	// at the moment.
	ErrStays  = errors.New("connection can't be handed over")
	ErrNotNow = errors.New("connection is busy")
	// ErrSaveLater is what Config.Save says of a connection that goes on, and is asked again.
	ErrSaveLater = errors.New("myriad: connection can't be handed over at the moment")
)

// The stages of leaving.
const (
	leaveAsked uint8 = iota + 1 // until nothing is under way
	leaveReady                  // the owner has been told
	leaveNever                  // it stays
)

// frozen is how much is posted, as it were, to a connection that is in a record.
const frozen = awaited - 1

// mayLeave says whether the connection can be handed over now: nil, ErrNotNow or ErrStays.
func (c *Conn) mayLeave() error {
	x := c.more
	switch {
	case !c.is(open) || c.is(closing|failed|closingWrite|shut|peerEnded|relayed|draining), c.is(ownHandler) && c.host.SaveOwned == nil:
		return ErrStays
	case c.is(greeting | openPending | drainedPending | drainingPending | inCall):
		return ErrNotNow
	case x == nil:
		return nil
	case x.layer != nil || x.detach != nil || x.upgrade != nil || x.duplex:
		return ErrStays
	case x.held > 0 && (x.retained > 0 || !c.is(ownHandler)): // the handler is in the middle of something
		return ErrStays
	case x.retained > 0 || x.queue != nil || x.remote != nil:
		return ErrNotNow
	}
	return nil
}

// ValueUnsaved is the StayReason of a connection with a value that no Config.Save can save.
const ValueUnsaved = "value without Migrator"

// StayReason returns the reason for which the connection has not been handed over, of a fixed set.
func (c *Conn) StayReason() string {
	x := c.more
	switch {
	case c.is(relayed):
		return "relay"
	case c.is(peerEnded | shut | closingWrite):
		return "half-closed"
	case c.is(ownHandler) && c.host.SaveOwned == nil:
		return "handler of its own"
	case x != nil && x.layer != nil:
		return "TLS"
	case !c.is(ownHandler) && c.host.Save == nil && c.host.SaveOwned == nil && c.user != nil:
		return ValueUnsaved
	case x != nil && x.leaving == leaveNever:
		return "not saved"
	}
	return "busy"
}

// Leave begins to hand the connection over. It fails with ErrStays where it can't be, and
// with ErrNotNow while it can't be yet.
func (c *Conn) Leave() error {
	switch {
	case c.leaves():
		return nil
	case c.more != nil && c.more.leaving == leaveNever:
		return ErrStays
	}
	if err := c.mayLeave(); err != nil {
		return err
	}
	c.extra().leaving = leaveAsked
	return nil
}

func (c *Conn) leaves() bool {
	return c.more != nil && (c.more.leaving == leaveAsked || c.more.leaving == leaveReady) && !c.is(closing|failed)
}

// Leaving says whether the connection leaves, for drivers: what is under way is to end.
func (c *Conn) Leaving() bool { return c.leaves() }

// nextLeaving is Next for a connection that leaves.
func (c *Conn) nextLeaving() Action {
	if c.more.leaving == leaveAsked {
		return Detach
	}
	return Wait
}

// AtRest says that nothing of a connection that leaves is under way.
func (c *Conn) AtRest() {
	c.more.leaving = leaveReady
	c.state &^= blocked
}

// Unpack takes Pack back: the connection can be posted to, and may be packed again.
func (c *Conn) Unpack() { c.unpost(frozen - c.posted()) }

// Stay ends leaving: the connection, which is not packed, goes on here. For good, it does
// not leave when it is asked again.
func (c *Conn) Stay(forGood bool) {
	if c.more == nil || c.more.leaving == 0 {
		return
	}
	c.more.leaving = 0
	c.restartPeerTimes()
	if forGood {
		c.more.leaving = leaveNever
	}
	c.shrink()
}

// Left ends the connection here: it is somebody else's.
func (c *Conn) Left() {
	c.host.Counters.Add(HandedOver, 1)
	n := frozen - c.posted()
	c.fail(ErrHandedOver)
	c.unpost(n)
}

// Record is a connection at rest, without its descriptor.
type Record struct {
	Peer     netip.AddrPort
	Listener int // by number, -1 if it was dialled
	Dialled  bool
	Silent   bool // the peer has sent nothing yet
	Paused   bool // the handler does not listen
	Held     bool // Input is to be offered again, without more behind it
	Owned    bool // the connection has a handler of its own, which State tells
	// Quiet is how long the peer has sent nothing, Unanswered how many heartbeats it has left
	// unanswered, and Waited how long the first byte of Input, or of a part of a message that
	// the handler holds, has been there.
	Quiet, Waited time.Duration
	Unanswered    int
	// Timer and Deadline are when those end, from now; 0 is never.
	Timer, Deadline time.Duration
	Missed          int64 // messages that its peer had no room for
	Refused         int   // how many bytes of Input the handler was offered and refused
	Input           []byte
	Output          []byte
	State           []byte // the handler's
}

// MaxState is the most bytes of a handler's state.
const MaxState = 1 << 20

// Pack makes a record of a connection that leaves and is at rest. Its bytes are valid until
// Unpack or Left, one of which must follow where it succeeds. It fails with ErrNotNow while
// mail is on its way, with ErrStays, or with what Config.Save says: after ErrSaveLater the
// connection is to Stay, but not for good.
func (c *Conn) Pack() (r Record, err error) {
	switch err = c.mayLeave(); {
	case err != nil:
		return r, err
	case c.more == nil || c.more.leaving != leaveReady:
		return r, ErrNotNow
	}
	for c.mayTakeValues() {
		c.takeValues()
	}
	if !c.mark.freeze(c.posted()) {
		return r, ErrNotNow
	}
	if r, err = c.pack(); err != nil {
		c.Unpack()
	}
	return r, err
}

func (c *Conn) pack() (r Record, err error) {
	if r.State, err = c.saveState(); err != nil {
		return r, err
	}
	now := c.host.Now()
	r = Record{
		Peer: c.Peer(), Listener: c.Listener(), Dialled: c.is(outbound), Silent: c.is(silent), Paused: c.is(readPaused), Held: c.is(inputHeld), Owned: c.is(ownHandler),
		Quiet: c.heard.since(c.host.Clock()), Unanswered: c.unanswered(), Refused: int(c.seen), State: r.State,
	}
	if x := c.more; x != nil {
		r.Timer, r.Deadline, r.Missed = until(x.timer, now), until(x.deadline, now), x.dropped
		if x.heldSince > 0 {
			r.Waited = max(c.host.Clock()-x.heldSince, 0)
		}
	}
	if c.in != nil {
		r.Input, r.Waited = c.in.Bytes(), max(c.host.Clock()-c.in.since, r.Waited)
	}
	if b := c.out; b != nil {
		r.Output = b.Bytes()
		for _, piece := range b.rest {
			r.Output = append(r.Output[:len(r.Output):len(r.Output)], piece.Bytes()...)
		}
	}
	return r, nil
}

// until is how long a time is ahead, at least a moment; 0 is never.
func until(at, now time.Duration) time.Duration {
	if at == 0 {
		return 0
	}
	return max(at-now, 1)
}

// saveState has the handler write down its state. A handler that can't may have none.
func (c *Conn) saveState() (state []byte, err error) {
	save := c.host.Save
	switch {
	case c.is(ownHandler):
		save = c.host.SaveOwned
	case save == nil && c.user != nil:
		return nil, ErrStays
	case save == nil:
		return nil, nil
	}
	err = ErrStays // if it panics
	c.call(func(c *Conn) { state, err = save(c, nil) })
	if err == nil && len(state) > MaxState {
		err = fmt.Errorf("%w: its state has %d bytes; expected at most %d", ErrStays, len(state), MaxState)
	}
	return state, err
}

// freeze has posts fail with ErrFull if no more than n bytes are posted.
func (m *mark) freeze(n int) bool {
	v := m.v.Load()
	return postedIn(v) == n && m.v.CompareAndSwap(v, v+uint64(frozen-n))
}

// Join goes on with a connection that another engine has handed over. It fails with what
// Config.Restore says, and is closed then. Its descriptor and listener are set.
func (c *Conn) Join(r *Record) {
	c.state = open
	for _, f := range []struct {
		on  bool
		bit uint32
	}{{r.Dialled, outbound}, {r.Silent, silent}, {r.Paused, readPaused}, {!r.Dialled, registered}} {
		if f.on {
			c.state |= f.bit
		}
	}
	c.state += uint32(min(max(r.Unanswered, 0), allMissed/missed)) * missed
	c.host.Counters.Add(Open, 1)
	c.host.Counters.Add(TakenOver, 1)
	c.Expect(r.Peer)
	now := c.host.Now()
	c.heard = coarseOf(now - r.Quiet)
	if r.Timer > 0 || r.Deadline > 0 || r.Missed > 0 {
		x := c.extra()
		x.dropped = r.Missed
		if r.Timer > 0 {
			x.timer = now + r.Timer
		}
		if r.Deadline > 0 {
			x.deadline = now + r.Deadline
		}
	}
	c.Append(r.Output)
	if len(r.Input) > 0 {
		c.keep(r.Input)
		c.in.since = max(c.host.Clock()-r.Waited, 1)
		c.seen = uint32(min(max(r.Refused, 0), len(r.Input)))
		if r.Held {
			c.state |= inputHeld
		}
	}
	c.restoreState(r)
	c.endEvent()
}

// restoreState has the handler read its state.
func (c *Conn) restoreState(r *Record) {
	restore := c.host.Restore
	switch {
	case r.Owned && c.host.RestoreOwned == nil:
		c.fail(errNoOwned)
		return
	case r.Owned:
		restore = c.host.RestoreOwned
	case restore == nil:
		return
	}
	var err error
	c.call(func(c *Conn) { err = restore(c, r.State) })
	if err != nil {
		c.fail(err)
		return
	}
	if x := c.more; x != nil && x.heldSince > 0 {
		x.heldSince = max(c.host.Clock()-r.Waited, 1)
	}
}

var errNoOwned = errors.New("myriad: the connection has come from another process with a handler of its own, of which this server's handler knows nothing")

// The form of a record: numbers as varints, bytes behind their length.

const (
	recordDialled = 1 << iota
	recordSilent
	recordPaused
	recordHeld
	recordOwned
)

// Append appends the record in the form that ReadRecord reads.
func (r *Record) Append(to []byte) []byte {
	flags := uint64(0)
	for _, f := range []struct {
		on  bool
		bit uint64
	}{{r.Dialled, recordDialled}, {r.Silent, recordSilent}, {r.Paused, recordPaused}, {r.Held, recordHeld}, {r.Owned, recordOwned}} {
		if f.on {
			flags |= f.bit
		}
	}
	peer, _ := r.Peer.MarshalBinary() // which does not fail
	for _, n := range []uint64{flags, uint64(r.Listener + 1), uint64(r.Quiet), uint64(r.Waited), uint64(r.Unanswered),
		uint64(r.Timer), uint64(r.Deadline), uint64(r.Missed), uint64(r.Refused)} {
		to = binary.AppendUvarint(to, n)
	}
	for _, p := range [][]byte{peer, r.Input, r.Output, r.State} {
		to = append(binary.AppendUvarint(to, uint64(len(p))), p...)
	}
	return to
}

var errRecord = errors.New("engine: a connection's record is cut off or wrong")

// ReadRecord reads one; what is behind it is rest. Its bytes are p's.
func ReadRecord(p []byte) (r Record, rest []byte, err error) {
	var n [9]uint64
	for i := range n {
		v, size := binary.Uvarint(p)
		if size <= 0 {
			return r, nil, errRecord
		}
		n[i], p = v, p[size:]
	}
	var b [4][]byte
	for i := range b {
		v, size := binary.Uvarint(p)
		if size <= 0 || v > uint64(len(p)-size) {
			return r, nil, errRecord
		}
		b[i], p = p[size:size+int(v):size+int(v)], p[size+int(v):]
	}
	if n[1] > MaxListeners {
		return r, nil, errRecord
	}
	r = Record{
		Dialled: n[0]&recordDialled != 0, Silent: n[0]&recordSilent != 0, Paused: n[0]&recordPaused != 0, Held: n[0]&recordHeld != 0, Owned: n[0]&recordOwned != 0,
		Listener: int(n[1]) - 1, Quiet: time.Duration(n[2]), Waited: time.Duration(n[3]), Unanswered: int(n[4]),
		Timer: time.Duration(n[5]), Deadline: time.Duration(n[6]), Missed: int64(n[7]), Refused: int(n[8]),
		Input: b[1], Output: b[2], State: b[3],
	}
	if r.Quiet < 0 || r.Waited < 0 || r.Timer < 0 || r.Deadline < 0 || r.Missed < 0 || r.Refused < 0 || r.Unanswered < 0 {
		return r, nil, errRecord
	}
	if err = r.Peer.UnmarshalBinary(b[0]); err != nil {
		return r, nil, errRecord
	}
	return r, p, nil
}

// Migrator is an Engine whose connections can move to another Migrator.
type Migrator interface {
	// HandOver hands connections over, by channels that are the caller's, until none is left
	// that could be, or ctx ends. Those that stay are served as before. It says how many have
	// gone, and of how many of these it is not known that they have come. It fails with what
	// has broken a channel; those that it has not handed over go on. Nothing is to be accepted
	// meanwhile: see Hold. One is under way at a time.
	HandOver(ctx context.Context, channels []*os.File) (Handover, error)
	// TakeOver goes on with connections that come by channels, which are the engine's from
	// then on, until the other sides end.
	TakeOver(channels []*os.File) error
	// Ends is how many ends of channels it takes for each loop to have one, or each process.
	// HandOver and TakeOver deal channels out in turn.
	Ends() int
	// Sockets is how many sockets each listener has.
	Sockets() []int
	// SendListeners sends the descriptors of all sockets, those of the first listener first:
	// with a word, in as many messages as it takes.
	SendListeners(control *os.File, word string) error
	// ShareListeners says whether the listeners are somebody else's, too: then they are not
	// stopped when the engine ends.
	ShareListeners(on bool)
}

// CountSockets counts the sockets of each of n listeners, when it is known of which one each is.
func CountSockets(numbers []int, n int) []int {
	counts := make([]int, n)
	for _, number := range numbers {
		counts[number]++
	}
	return counts
}

// Handover is what has become of a HandOver.
type Handover struct {
	Gone    int // handed over
	Unknown int // of those, those of which the other side has not said that it has them
}
