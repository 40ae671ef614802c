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

// This file moves a connection to another engine, usually in another process.
//
// RequestExport stops reading and sending. AdvanceToNextAction then returns DetachOrExport. When no kernel operation is
// in progress, the driver calls OnKernelIdleForExport. BlockPostsAndSnapshot then returns a Record with the whole state
// except the descriptor, including all requests posted earlier. After that, posting fails with ErrFull. After
// AbortAsHandedOver, posting fails with ErrClosed; after CancelSnapshot, it works again.
//
// During an export the connection still receives requests. It may be closed, which ends the export. Its timeouts are
// suspended.

var (
	// ErrHandedOver is the close reason of an exported connection.
	ErrHandedOver = errors.New("myriad: connection was handed over to another process")
	// ErrNotExportable means that a connection cannot be exported; ErrExportBusy means that a later attempt may
	// succeed.
	ErrNotExportable = errors.New("connection can't be handed over")
	ErrExportBusy    = errors.New("connection is busy")
	// ErrSaveLater is returned by Config.Save for a connection that it can save only later.
	ErrSaveLater = errors.New("myriad: connection can't be handed over at the moment")
)

const (
	exportRequested uint8 = iota + 1 // waiting for the kernel
	exportQuiesced                   // OnKernelIdleForExport was called
	exportRefused                    // the connection must not be exported
)

// postsBlocked is a special number of posted bytes, which prevents further posts to a connection. It is the largest
// possible number, so every post would exceed the limit and fails with ErrFull.
const postsBlocked = senderWaiting - 1

// checkExportable returns nil if the connection can be exported now, and otherwise ErrExportBusy or ErrNotExportable.
func (c *Conn) checkExportable() error {
	x := c.extra
	switch {
	case !c.is(open) || c.is(closing|failed|closingWrite|shut|peerEOF|relayed|draining), c.is(ownHandler) && c.callbacks().SaveConnHandler == nil:
		return ErrNotExportable
	case c.is(handshaking | openPending | drainedPending | drainingPending | inCall):
		return ErrExportBusy
	case x == nil:
		return nil
	case c.hasUnmovableLayer() || x.onDetached != nil || x.pendingLayer != nil || x.independentDirections:
		return ErrNotExportable
	case x.handlerMemory > 0 && (x.retainCount > 0 || !c.is(ownHandler)): // the handler is in the middle of something
		return ErrNotExportable
	case x.retainCount > 0 || x.fileQueue != nil || x.remotePartner != nil:
		return ErrExportBusy
	}
	return nil
}

// ValueUnsaved is the result of ExportObstacle if the connection has a value and the handler has no function to save
// it.
const ValueUnsaved = "value without Migrator"

// ExportObstacle returns the reason why the connection cannot move to another process, for example "relay". If the
// reason is only temporary, the result is "busy".
func (c *Conn) ExportObstacle() string {
	x := c.extra
	switch {
	case c.is(relayed):
		return "relay"
	case c.is(peerEOF | shut | closingWrite):
		return "half-closed"
	case c.is(ownHandler) && c.callbacks().SaveConnHandler == nil:
		return "handler of its own"
	case c.hasUnmovableLayer():
		return "TLS"
	case !c.is(ownHandler) && c.callbacks().Save == nil && c.callbacks().SaveConnHandler == nil && c.userData != nil:
		return ValueUnsaved
	case x != nil && x.exportStage == exportRefused:
		return "not saved"
	}
	return "busy"
}

func (c *Conn) RequestExport() error {
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

// IsExporting reports whether an export is in progress. The driver must then complete all kernel operations of c.
func (c *Conn) IsExporting() bool { return c.isExporting() }

func (c *Conn) nextExportAction() Action {
	if c.extra.exportStage == exportRequested {
		return DetachOrExport
	}
	return Wait
}

// OnKernelIdleForExport records that no kernel operation of the connection is in progress any more. Drivers call it
// during an export.
func (c *Conn) OnKernelIdleForExport() {
	c.extra.exportStage = exportQuiesced
	c.state &^= blocked
}

// CancelSnapshot undoes BlockPostsAndSnapshot. Other goroutines can then post requests to the connection again.
func (c *Conn) CancelSnapshot() {
	c.releasePostedAndWakeIfLow(postsBlocked - c.postedBytesInOutput())
}

// AbortExport ends an export without moving the connection. The connection continues in this engine. If
// BlockPostsAndSnapshot has succeeded, CancelSnapshot must be called before AbortExport. If neverRetry is true, later
// calls of RequestExport fail.
func (c *Conn) AbortExport(neverRetry bool) {
	if c.extra == nil || c.extra.exportStage == 0 {
		return
	}
	c.extra.exportStage = 0
	c.restartPeerTimeouts()
	if neverRetry {
		c.extra.exportStage = exportRefused
	}
	c.freeExtraIfZero()
}

// AbortAsHandedOver closes the connection in this engine after another engine has received it.
func (c *Conn) AbortAsHandedOver() {
	c.runtime.Counters.Add(ConnsExported, 1)
	n := postsBlocked - c.postedBytesInOutput()
	c.abortWith(ErrHandedOver)
	c.releasePostedAndWakeIfLow(n)
}

// Record is the state of an exported connection, without the descriptor.
type Record struct {
	Peer           netip.AddrPort
	Listener       int // number of the listener, or -1 if the connection was dialled
	Dialled        bool
	Silent         bool // the peer has sent nothing yet
	Paused         bool // reading is off
	InputHeld      bool // Input must be passed to the handler even if no more data arrives
	HasConnHandler bool // State was saved by SaveConnHandler
	// SilentFor is the time since the peer last sent data. InputAge is the age of the first byte of Input or of the
	// handler's partial message. Unanswered is the number of unanswered heartbeats.
	SilentFor, InputAge time.Duration
	Unanswered          int
	// Timer and Deadline are relative to the export; 0 means none.
	Timer, Deadline time.Duration
	Missed          int64 // messages lost because the peer is slow
	RefusedBytes    int   // bytes of Input that the handler has refused
	Input           []byte
	Output          []byte
	State           []byte // saved by the handler
	Layer           []byte // saved by a MovableLayer; contains secrets
}

// MaxState is the maximum size of a handler's state for one connection, in bytes.
const MaxState = 1 << 20

// BlockPostsAndSnapshot blocks posts from other goroutines to a connection that is being exported, and returns the
// connection's record. The driver must have called OnKernelIdleForExport. After success, the caller must call
// CancelSnapshot or AbortAsHandedOver. The record's bytes are valid until that call.
//
// BlockPostsAndSnapshot fails with ErrExportBusy while the connection has undelivered requests. It may also fail with
// ErrNotExportable or an error of Config.Save. After ErrSaveLater, the caller must call AbortExport(false).
func (c *Conn) BlockPostsAndSnapshot() (r Record, err error) {
	switch err = c.checkExportable(); {
	case err != nil:
		return r, err
	case c.extra == nil || c.extra.exportStage != exportQuiesced:
		return r, ErrExportBusy
	}
	for c.canWriteLatest() {
		c.writeSomeLatestValues()
	}
	if !c.refState.blockPostsIfPostedEquals(c.postedBytesInOutput()) {
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
		r.Timer, r.Deadline, r.Missed = positiveDurationUntil(x.timer, now), positiveDurationUntil(x.deadline, now), x.droppedMessages
		if x.handlerPartialSince > 0 {
			r.InputAge = max(c.runtime.Clock()-x.handlerPartialSince, 0)
		}
	}
	if l, ok := c.layer().(MovableLayer); ok {
		r.Layer = l.AppendState(nil)
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

// positiveDurationUntil returns the time from now until at, but at least 1 ns. If at is 0, which means never, the
// result is 0.
func positiveDurationUntil(at, now time.Duration) time.Duration {
	if at == 0 {
		return 0
	}
	return max(at-now, 1)
}

func (c *Conn) saveHandlerState() (state []byte, err error) {
	save := c.callbacks().Save
	switch {
	case c.is(ownHandler):
		save = c.callbacks().SaveConnHandler
	case save == nil && c.userData != nil:
		return nil, ErrNotExportable
	case save == nil:
		return nil, nil
	}
	err = ErrNotExportable // in case save panics
	c.callHandler(func(c *Conn) { state, err = save(c, nil) })
	if err == nil && len(state) > MaxState {
		err = fmt.Errorf("%w: the saved state has %d bytes; expected at most %d", ErrNotExportable, len(state), MaxState)
	}
	return state, err
}

func (m *generationAndPosted) blockPostsIfPostedEquals(expectedBytes int) (didBlock bool) {
	v := m.v.Load()
	return postedBytesIn(v) == expectedBytes && m.v.CompareAndSwap(v, v+uint64(postsBlocked-expectedBytes))
}

// ImportOrAbort initializes c from the record of a connection that another engine has exported. The descriptor and the
// listener of c must have been set. If the layer or the handler's state cannot be restored, ImportOrAbort aborts the
// connection.
func (c *Conn) ImportOrAbort(r *Record) {
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
		c.ensureRare().droppedMessages, c.ensureRare().reportedMissed = r.Missed, r.Missed
		if r.Timer > 0 {
			x.timer = now + r.Timer
		}
		if r.Deadline > 0 {
			x.deadline = now + r.Deadline
		}
	}
	if len(r.Layer) > 0 {
		if err := c.restoreLayer(r.Layer); err != nil {
			c.abortWith(err)
			return
		}
	}
	c.AppendToTransport(r.Output)
	if len(r.Input) > 0 {
		c.bufferUnusedInput(r.Input)
		c.in.waitingSince = max(c.runtime.Clock()-r.InputAge, 1)
		c.refusedBytes = uint32(min(max(r.RefusedBytes, 0), len(r.Input)))
		if r.InputHeld {
			c.state |= inputHeld
		}
	}
	c.restoreHandlerStateOrAbort(r)
	c.startPendingLayerAndUpdatePause()
}

var errNoRestoreLayer = errors.New("myriad: imported connection uses TLS, which this engine does not support")

func (c *Conn) restoreLayer(state []byte) error {
	if c.runtime.RestoreLayer == nil {
		return errNoRestoreLayer
	}
	l, err := c.runtime.RestoreLayer(state)
	if err != nil {
		return err
	}
	c.ensureExtra().layer = l
	c.updateLayerMemoryAndPartialTime()
	return nil
}

func (c *Conn) restoreHandlerStateOrAbort(r *Record) {
	restore := c.callbacks().Restore
	switch {
	case r.HasConnHandler && c.callbacks().RestoreConnHandler == nil:
		c.abortWith(errNoConnHandler)
		return
	case r.HasConnHandler:
		restore = c.callbacks().RestoreConnHandler
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

var errNoConnHandler = errors.New("myriad: imported connection has its own handler, which this server's handler can't restore; implement HandlerMigrator")

// A record is encoded as varints, followed by byte strings with their lengths.

const (
	recordDialled = 1 << iota
	recordSilent
	recordPaused
	recordInputHeld
	recordConnHandler
)

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
	peer, _ := r.Peer.MarshalBinary() // never fails
	for _, n := range []uint64{flags, uint64(r.Listener + 1), uint64(r.SilentFor), uint64(r.InputAge), uint64(r.Unanswered),
		uint64(r.Timer), uint64(r.Deadline), uint64(r.Missed), uint64(r.RefusedBytes)} {
		dst = binary.AppendUvarint(dst, n)
	}
	for _, p := range [][]byte{peer, r.Input, r.Output, r.State, r.Layer} {
		dst = append(binary.AppendUvarint(dst, uint64(len(p))), p...)
	}
	return dst
}

var errBadRecord = errors.New("engine: connection record is truncated or invalid")

// ParseRecord decodes the record at the start of p. rest is the part of p that follows the record. The slices in r
// share p's memory.
func ParseRecord(p []byte) (r Record, rest []byte, err error) {
	var n [9]uint64
	for i := range n {
		v, size := binary.Uvarint(p)
		if size <= 0 {
			return r, nil, errBadRecord
		}
		n[i], p = v, p[size:]
	}
	var b [5][]byte
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
		Input: b[1], Output: b[2], State: b[3], Layer: b[4],
	}
	if r.SilentFor < 0 || r.InputAge < 0 || r.Timer < 0 || r.Deadline < 0 || r.Missed < 0 || r.RefusedBytes < 0 || r.Unanswered < 0 {
		return r, nil, errBadRecord
	}
	if err = r.Peer.UnmarshalBinary(b[0]); err != nil {
		return r, nil, errBadRecord
	}
	return r, p, nil
}

// Migrator is an Engine that can exchange connections with another Migrator.
type Migrator interface {
	// ExportConns exports connections over channels until all exportable connections are exported or ctx ends. The
	// channels remain the caller's. Other connections continue to be served. If a channel breaks, ExportConns fails,
	// and connections that were not exported continue. Accepting must be paused. Only one call may be active at a time.
	ExportConns(ctx context.Context, channels []*os.File) (ExportResult, error)
	// StartImportingConns imports connections from channels until their other ends are closed. The engine takes
	// ownership of the channels.
	StartImportingConns(channels []*os.File) error
	// ChannelsNeeded returns the number of channels needed to give each loop or process its own channel.
	ChannelsNeeded() int
	SocketsPerListener() []int
	// SendListenerSockets sends a message with the descriptors of all listening sockets, in the order of the listeners.
	SendListenerSockets(control *os.File, message string) error
	// SetListenersShared records whether another process also uses the listeners. Shared listeners are not shut down
	// when the engine ends.
	SetListenersShared(on bool)
}

// CountPerListener returns how often each number from 0 to numListeners-1 occurs in listenerNumbers.
func CountPerListener(listenerNumbers []int, numListeners int) []int {
	counts := make([]int, numListeners)
	for _, number := range listenerNumbers {
		counts[number]++
	}
	return counts
}

type ExportResult struct {
	Exported    int // number of connections exported
	Unconfirmed int // exported connections that the other side has not confirmed
}
