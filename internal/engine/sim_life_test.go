package engine

import (
	"errors"
	"fmt"
	"time"
)

// These close reasons exist only in the simulation.
var (
	errPanic  = errors.New("sim: handler panics")
	errKilled = errors.New("sim: killed")
	errOwn    = errors.New("sim: the handler's own reason")
	errShed   = errors.New("sim: shed")
)

// life is one connection from OnOpen to OnClosed as seen from outside: its peer, the kernel in
// between, and the handler's calls.
type life struct {
	conn    *Conn
	ref     Ref
	id      int
	acts    handlerCharacter
	dialled bool

	sent    []byte // by the peer
	raw     []byte // the same as on the wire
	arrived int    // bytes of raw passed to OnRead
	rude    int    // of those, passed while WantsInput was false
	fin     bool   // the peer has ended
	told    bool   // OnEOF was called
	reset   bool   // the peer has reset
	room    int    // space in the kernel for output
	wire    []byte // output that the kernel took
	shut    bool   // our direction is shut

	known                 bool // somebody may have its Ref
	opened, ended, closed bool
	used                  int             // bytes of sent used by the handler or a relay
	refused               int             // length of the last offer, if none of it was used
	seen                  int             // expected RefusedBytes
	wrote                 []byte          // output in the order it must appear
	stamps                []time.Duration // when each byte of wrote was written
	filed                 bool            // has sent a file, whose pieces have their own times
	waiting               int             // accepted posts that are not delivered
	causes                []error         // possible close reasons
	panicked              bool
	cheated               bool // returned an impossible count
	tooLong               bool // refused a message that is too long
	why                   error

	finishing bool // CloseWrite was called
	retained  int
	parting   bool // Detach was called,
	taken     bool // and so was its function
	joining   bool // Relay was called
	related   []*life
	mate      *life // with which it is joined in a relay

	layer     *simLayer // nil if it has none
	clear     int       // bytes of sent before the layer
	upgrading bool      // RequestLayerInsertion was called, and Secured was not
	kept      []*post   // requests deferred for that
	flushing  bool      // their effects are being recorded
	dead      bool      // a call of the handler has closed it meanwhile

	subs  map[*topic]*sub
	takes []*sub // subscriptions with an announced value
	fewer int64  // messages and values that it has missed

	began    time.Duration // when it was dialled
	timer    time.Duration // when its timer runs out; 0 for never
	deadline time.Duration
	heard    time.Duration // when input came last
	since    time.Duration // when the unused input began to wait
	unheard  int           // heartbeats since then
	deaf     bool          // reading is off
	high     bool          // HighWater was exceeded, and Drained was not called since
	choked   bool          // reading must not go on before simLow
	awaits   bool          // IsPaused has returned true
	relieved time.Duration // when that, or a pause, ended
	streamed int           // how often it went on in Writable
	drained  bool          // BeginShutdownDrain was called before closing
	draining int           // calls of Draining
	owed     int           // of raw, sent before Drain
}

func (l *life) allowReasons(whys ...error) { l.causes = append(l.causes, whys...) }

func (l *life) String() string { return fmt.Sprintf("#%d/%d", l.id, l.conn.slot) }

func (l *life) peerSends(s *sim) {
	if l.fin || l.reset {
		return
	}
	n := 1 + s.dice.intN(simMaxRead)
	for range n {
		b := byte('a' + (len(l.sent)+l.id)%20)
		if s.dice.intN(24) == 0 {
			b = '\n'
		}
		l.sent = append(l.sent, b)
		l.raw = append(l.raw, l.encodeForWire([]byte{b})...)
	}
	s.log("%v: the peer sends %d bytes", l, n)
}

// layerInput is how much input the layer passed to the handler at once.
func (l *life) layerInput() int {
	if l.layer == nil {
		return 0
	}
	return l.layer.more
}

// plaintextReceived is how much plaintext the handler may have seen.
func (l *life) plaintextReceived() int {
	if l.layer == nil {
		return l.arrived
	}
	return min(l.arrived, l.clear) + max(l.arrived-l.clear-l.layer.head, 0)
}

// encodeForWire returns the handler's bytes as they are sent.
func (l *life) encodeForWire(p []byte) []byte {
	if l.layer == nil {
		return p
	}
	return obfuscate(p)
}

// expectWritten records what the handler, a request or a relay has written.
func (l *life) expectWritten(s *sim, p []byte) {
	s.pullRelayed(l, 0)
	l.expectRaw(s, l.encodeForWire(p))
}

func (l *life) expectRaw(s *sim, raw []byte) {
	l.wrote = append(l.wrote, raw...)
	for range raw {
		l.stamps = append(l.stamps, s.now)
	}
}

// silentSince returns since when the peer's silence counts.
func (l *life) silentSince(since time.Duration) time.Duration { return max(since, l.relieved) }

// isSettled reports whether nothing under way will decide who gets the input.
func (l *life) isSettled() bool {
	return !l.conn.is(relayed) && !l.joining && !l.parting && !l.upgrading
}

// isReadingOff reports whether reading is off and may be turned on again.
func (l *life) isReadingOff() bool { return l.deaf && l.isSettled() }

// hasStoppedWriting reports whether our direction has ended or is about to.
func (l *life) hasStoppedWriting() bool {
	return l.closed || l.finishing || l.conn.is(closing) || l.mate != nil && l.mate.told && l.conn.is(closingWrite)
}

// checkCall checks the result of a call that fails after our direction has ended, or if it is wrong now.
func (s *sim) checkCall(l *life, call string, err error, stopped, wrong bool) (ok bool) {
	var want error
	switch {
	case stopped:
		want = ErrClosed
	case wrong:
		want = ErrBadUse
	}
	s.log("%v: %s: %v", l, call, err)
	s.check(errors.Is(err, want), "%v: %s gives %v, want %v", l, call, err, want)
	return want == nil
}

// hasStoppedSending reports whether posted data is dropped.
func (l *life) hasStoppedSending() bool { return l.shut || l.layer != nil && l.layer.bye }
