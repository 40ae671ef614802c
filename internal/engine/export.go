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
	// ErrNotExportable says that a connection can't be handed over, and ErrExportBusy that it can't be
	// at the moment.
	ErrNotExportable = errors.New("connection can't be handed over")
	ErrExportBusy    = errors.New("connection is busy")
	// ErrSaveLater is what Config.Save says of a connection that goes on, and is asked again.
	ErrSaveLater = errors.New("myriad: connection can't be handed over at the moment")
)

// The stages of leaving.
const (
	exportRequested uint8 = iota + 1 // until nothing is under way
	exportQuiesced                   // the owner has been told
	exportRefused                    // it stays
)

// postsBlocked is how much is posted, as it were, to a connection that is in a record.
const postsBlocked = senderWaiting - 1

// checkExportable says whether the connection can be handed over now: nil, ErrExportBusy or ErrNotExportable.
func (c *Conn) checkExportable() error {
	x := c.extra
	switch {
	case !c.is(open) || c.is(closing|failed|closingWrite|shut|peerEOF|relayed|draining), c.is(ownHandler) && c.runtime.SaveConnHandler == nil:
		return ErrNotExportable
	case c.is(handshaking | openPending | drainedPending | drainingPending | inCall):
		return ErrExportBusy
	case x == nil:
		return nil
	case x.layer != nil || x.onDetached != nil || x.pendingLayer != nil || x.independentDirections:
		return ErrNotExportable
	case x.handlerMemory > 0 && (x.retainCount > 0 || !c.is(ownHandler)): // the handler is in the middle of something
		return ErrNotExportable
	case x.retainCount > 0 || x.fileQueue != nil || x.remotePartner != nil:
		return ErrExportBusy
	}
	return nil
}

// ValueUnsaved is the ExportObstacle of a connection with a value that no Config.Save can save.
const ValueUnsaved = "value without Migrator"

// ExportObstacle returns the reason for which the connection has not been handed over, of a fixed set.
func (c *Conn) ExportObstacle() string {
	x := c.extra
	switch {
	case c.is(relayed):
		return "relay"
	case c.is(peerEOF | shut | closingWrite):
		return "half-closed"
	case c.is(ownHandler) && c.runtime.SaveConnHandler == nil:
		return "handler of its own"
	case x != nil && x.layer != nil:
		return "TLS"
	case !c.is(ownHandler) && c.runtime.Save == nil && c.runtime.SaveConnHandler == nil && c.userData != nil:
		return ValueUnsaved
	case x != nil && x.exportStage == exportRefused:
		return "not saved"
	}
	return "busy"
}

// StartExport begins to hand the connection over. It fails with ErrNotExportable where it can't be, and
// with ErrExportBusy while it can't be yet.
func (c *Conn) StartExport() error {
	switch {
	case c.isExporting():
		return nil
	case c.extra != nil && c.extra.exportStage == exportRefused:
		return ErrNotExportable
	}
	if err := c.checkExportable(); err != nil {
		return err
	}
	c.ensureExtra().exportStage = exportRequested
	return nil
}

func (c *Conn) isExporting() bool {
	return c.extra != nil && (c.extra.exportStage == exportRequested || c.extra.exportStage == exportQuiesced) && !c.is(closing|failed)
}

// IsExporting says whether the connection leaves, for drivers: what is under way is to end.
func (c *Conn) IsExporting() bool { return c.isExporting() }

// nextExportAction is Next for a connection that leaves.
func (c *Conn) nextExportAction() Action {
	if c.extra.exportStage == exportRequested {
		return DetachOrExport
	}
	return Wait
}

// OnQuiesced says that nothing of a connection that leaves is under way.
func (c *Conn) OnQuiesced() {
	c.extra.exportStage = exportQuiesced
	c.state &^= blocked
}

// CancelSnapshot takes Pack back: the connection can be posted to, and may be packed again.
func (c *Conn) CancelSnapshot() { c.releasePosted(postsBlocked - c.postedOutput()) }

// AbortExport ends leaving: the connection, which is not packed, goes on here. For good, it does
// not leave when it is asked again.
func (c *Conn) AbortExport(permanently bool) {
	if c.extra == nil || c.extra.exportStage == 0 {
		return
	}
	c.extra.exportStage = 0
	c.restartPeerTimeouts()
	if permanently {
		c.extra.exportStage = exportRefused
	}
	c.freeExtraIfZero()
}

// FinishExport ends the connection here: it is somebody else's.
func (c *Conn) FinishExport() {
	c.runtime.Counters.Add(ConnsExported, 1)
	n := postsBlocked - c.postedOutput()
	c.abortWith(ErrHandedOver)
	c.releasePosted(n)
}

// Record is a connection at rest, without its descriptor.
type Record struct {
	Peer           netip.AddrPort
	Listener       int // by number, -1 if it was dialled
	Dialled        bool
	Silent         bool // the peer has sent nothing yet
	Paused         bool // the handler does not listen
	InputHeld      bool // Input is to be offered again, without more behind it
	HasConnHandler bool // the connection has a handler of its own, which State tells
	// SilentFor is how long the peer has sent nothing, Unanswered how many heartbeats it has left
	// unanswered, and Waited how long the first byte of Input, or of a part of a message that
	// the handler holds, has been there.
	SilentFor, InputAge time.Duration
	Unanswered          int
	// Timer and Deadline are when those end, from now; 0 is never.
	Timer, Deadline time.Duration
	Missed          int64 // messages that its peer had no room for
	RefusedBytes    int   // how many bytes of Input the handler was offered and refused
	Input           []byte
	Output          []byte
	State           []byte // the handler's
}

// MaxState is the most bytes of a handler's state.
const MaxState = 1 << 20

// Snapshot makes a record of a connection that leaves and is at rest. Its bytes are valid until
// Unpack or Left, one of which must follow where it succeeds. It fails with ErrExportBusy while
// mail is on its way, with ErrNotExportable, or with what Config.Save says: after ErrSaveLater the
// connection is to Stay, but not for good.
func (c *Conn) Snapshot() (r Record, err error) {
	switch err = c.checkExportable(); {
	case err != nil:
		return r, err
	case c.extra == nil || c.extra.exportStage != exportQuiesced:
		return r, ErrExportBusy
	}
	for c.canWriteLatest() {
		c.writeLatestValues()
	}
	if !c.refState.blockPosts(c.postedOutput()) {
		return r, ErrExportBusy
	}
	if r, err = c.buildRecord(); err != nil {
		c.CancelSnapshot()
	}
	return r, err
}

func (c *Conn) buildRecord() (r Record, err error) {
	if r.State, err = c.saveHandlerState(); err != nil {
		return r, err
	}
	now := c.runtime.Now()
	r = Record{
		Peer: c.Peer(), Listener: c.Listener(), Dialled: c.is(dialled), Silent: c.is(neverHeard), Paused: c.is(readPaused), InputHeld: c.is(inputHeld), HasConnHandler: c.is(ownHandler),
		SilentFor: c.lastHeard.elapsed(c.runtime.Clock()), Unanswered: c.unansweredHeartbeats(), RefusedBytes: int(c.refusedBytes), State: r.State,
	}
	if x := c.extra; x != nil {
		r.Timer, r.Deadline, r.Missed = durationUntil(x.timer, now), durationUntil(x.deadline, now), x.droppedMessages
		if x.handlerPartialSince > 0 {
			r.InputAge = max(c.runtime.Clock()-x.handlerPartialSince, 0)
		}
	}
	if c.in != nil {
		r.Input, r.InputAge = c.in.Bytes(), max(c.runtime.Clock()-c.in.waitingSince, r.InputAge)
	}
	if b := c.out; b != nil {
		r.Output = b.Bytes()
		for _, piece := range b.rest {
			r.Output = append(r.Output[:len(r.Output):len(r.Output)], piece.Bytes()...)
		}
	}
	return r, nil
}

// durationUntil is how long a time is ahead, at least a moment; 0 is never.
func durationUntil(at, now time.Duration) time.Duration {
	if at == 0 {
		return 0
	}
	return max(at-now, 1)
}

// saveHandlerState has the handler write down its state. A handler that can't may have none.
func (c *Conn) saveHandlerState() (state []byte, err error) {
	save := c.runtime.Save
	switch {
	case c.is(ownHandler):
		save = c.runtime.SaveConnHandler
	case save == nil && c.userData != nil:
		return nil, ErrNotExportable
	case save == nil:
		return nil, nil
	}
	err = ErrNotExportable // if it panics
	c.callHandler(func(c *Conn) { state, err = save(c, nil) })
	if err == nil && len(state) > MaxState {
		err = fmt.Errorf("%w: its state has %d bytes; expected at most %d", ErrNotExportable, len(state), MaxState)
	}
	return state, err
}

// blockPosts has posts fail with ErrFull if no more than n bytes are posted.
func (m *refState) blockPosts(n int) bool {
	v := m.v.Load()
	return postedBytesIn(v) == n && m.v.CompareAndSwap(v, v+uint64(postsBlocked-n))
}

// Import goes on with a connection that another engine has handed over. It fails with what
// Config.Restore says, and is closed then. Its descriptor and listener are set.
func (c *Conn) Import(r *Record) {
	c.state = open
	for _, f := range []struct {
		on  bool
		bit uint32
	}{{r.Dialled, dialled}, {r.Silent, neverHeard}, {r.Paused, readPaused}, {!r.Dialled, sourceCounted}} {
		if f.on {
			c.state |= f.bit
		}
	}
	c.state += uint32(min(max(r.Unanswered, 0), unansweredMask/oneUnanswered)) * oneUnanswered
	c.runtime.Counters.Add(Open, 1)
	c.runtime.Counters.Add(ConnsImported, 1)
	c.SetPeerAddr(r.Peer)
	now := c.runtime.Now()
	c.lastHeard = toCoarseTime(now - r.SilentFor)
	if r.Timer > 0 || r.Deadline > 0 || r.Missed > 0 {
		x := c.ensureExtra()
		x.droppedMessages = r.Missed
		if r.Timer > 0 {
			x.timer = now + r.Timer
		}
		if r.Deadline > 0 {
			x.deadline = now + r.Deadline
		}
	}
	c.AppendToTransport(r.Output)
	if len(r.Input) > 0 {
		c.keepInput(r.Input)
		c.in.waitingSince = max(c.runtime.Clock()-r.InputAge, 1)
		c.refusedBytes = uint32(min(max(r.RefusedBytes, 0), len(r.Input)))
		if r.InputHeld {
			c.state |= inputHeld
		}
	}
	c.restoreHandlerState(r)
	c.endEvent()
}

// restoreHandlerState has the handler read its state.
func (c *Conn) restoreHandlerState(r *Record) {
	restore := c.runtime.Restore
	switch {
	case r.HasConnHandler && c.runtime.RestoreConnHandler == nil:
		c.abortWith(errNoConnHandler)
		return
	case r.HasConnHandler:
		restore = c.runtime.RestoreConnHandler
	case restore == nil:
		return
	}
	var err error
	c.callHandler(func(c *Conn) { err = restore(c, r.State) })
	if err != nil {
		c.abortWith(err)
		return
	}
	if x := c.extra; x != nil && x.handlerPartialSince > 0 {
		x.handlerPartialSince = max(c.runtime.Clock()-r.InputAge, 1)
	}
}

var errNoConnHandler = errors.New("myriad: the connection has come from another process with a handler of its own, of which this server's handler knows nothing")

// The form of a record: numbers as varints, bytes behind their length.

const (
	recordDialled = 1 << iota
	recordSilent
	recordPaused
	recordInputHeld
	recordConnHandler
)

// AppendTo appends the record in the form that ParseRecord reads.
func (r *Record) AppendTo(dst []byte) []byte {
	flags := uint64(0)
	for _, f := range []struct {
		on  bool
		bit uint64
	}{{r.Dialled, recordDialled}, {r.Silent, recordSilent}, {r.Paused, recordPaused}, {r.InputHeld, recordInputHeld}, {r.HasConnHandler, recordConnHandler}} {
		if f.on {
			flags |= f.bit
		}
	}
	peer, _ := r.Peer.MarshalBinary() // which does not fail
	for _, n := range []uint64{flags, uint64(r.Listener + 1), uint64(r.SilentFor), uint64(r.InputAge), uint64(r.Unanswered),
		uint64(r.Timer), uint64(r.Deadline), uint64(r.Missed), uint64(r.RefusedBytes)} {
		dst = binary.AppendUvarint(dst, n)
	}
	for _, p := range [][]byte{peer, r.Input, r.Output, r.State} {
		dst = append(binary.AppendUvarint(dst, uint64(len(p))), p...)
	}
	return dst
}

var errBadRecord = errors.New("engine: a connection's record is cut off or wrong")

// ParseRecord reads one; what is behind it is rest. Its bytes are p's.
func ParseRecord(p []byte) (r Record, rest []byte, err error) {
	var n [9]uint64
	for i := range n {
		v, size := binary.Uvarint(p)
		if size <= 0 {
			return r, nil, errBadRecord
		}
		n[i], p = v, p[size:]
	}
	var b [4][]byte
	for i := range b {
		v, size := binary.Uvarint(p)
		if size <= 0 || v > uint64(len(p)-size) {
			return r, nil, errBadRecord
		}
		b[i], p = p[size:size+int(v):size+int(v)], p[size+int(v):]
	}
	if n[1] > MaxListeners {
		return r, nil, errBadRecord
	}
	r = Record{
		Dialled: n[0]&recordDialled != 0, Silent: n[0]&recordSilent != 0, Paused: n[0]&recordPaused != 0, InputHeld: n[0]&recordInputHeld != 0, HasConnHandler: n[0]&recordConnHandler != 0,
		Listener: int(n[1]) - 1, SilentFor: time.Duration(n[2]), InputAge: time.Duration(n[3]), Unanswered: int(n[4]),
		Timer: time.Duration(n[5]), Deadline: time.Duration(n[6]), Missed: int64(n[7]), RefusedBytes: int(n[8]),
		Input: b[1], Output: b[2], State: b[3],
	}
	if r.SilentFor < 0 || r.InputAge < 0 || r.Timer < 0 || r.Deadline < 0 || r.Missed < 0 || r.RefusedBytes < 0 || r.Unanswered < 0 {
		return r, nil, errBadRecord
	}
	if err = r.Peer.UnmarshalBinary(b[0]); err != nil {
		return r, nil, errBadRecord
	}
	return r, p, nil
}

// Migrator is an Engine whose connections can move to another Migrator.
type Migrator interface {
	// ExportConns hands connections over, by channels that are the caller's, until none is left
	// that could be, or ctx ends. Those that stay are served as before. It says how many have
	// gone, and of how many of these it is not known that they have come. It fails with what
	// has broken a channel; those that it has not handed over go on. Nothing is to be accepted
	// meanwhile: see Hold. One is under way at a time.
	ExportConns(ctx context.Context, channels []*os.File) (ExportResult, error)
	// ImportConns goes on with connections that come by channels, which are the engine's from
	// then on, until the other sides end.
	ImportConns(channels []*os.File) error
	// ChannelsNeeded is how many ends of channels it takes for each loop to have one, or each process.
	// ExportConns and ImportConns deal channels out in turn.
	ChannelsNeeded() int
	// SocketsPerListener is how many sockets each listener has.
	SocketsPerListener() []int
	// SendListenerSockets sends the descriptors of all sockets, those of the first listener first:
	// with a word, in as many messages as it takes.
	SendListenerSockets(control *os.File, word string) error
	// SetListenersShared says whether the listeners are somebody else's, too: then they are not
	// stopped when the engine ends.
	SetListenersShared(on bool)
}

// CountPerListener counts the sockets of each of n listeners, when it is known of which one each is.
func CountPerListener(numbers []int, n int) []int {
	counts := make([]int, n)
	for _, number := range numbers {
		counts[number]++
	}
	return counts
}

// ExportResult is what has become of a ExportConns.
type ExportResult struct {
	Exported    int // handed over
	Unconfirmed int // of those, those of which the other side has not said that it has them
}
