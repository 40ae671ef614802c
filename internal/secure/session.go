package secure

import (
	"crypto/tls"
	"errors"
	"io"
	"net"
	"sync/atomic"
)

// Owner is what a Session needs of whoever drives it.
type Owner interface {
	// Emit appends ciphertext to the output. p is valid during the call. It
	// is called within calls of the Session's methods only, so on the owner.
	// It must not call the Session.
	Emit(p []byte)
	// Wake asks the owner to call Step soon. It is called from a goroutine
	// of the handshake, with a lock held, and must not wait or call the
	// Session; nor may the owner call the Session with a lock held that Wake
	// takes. If it can't reach the owner it may do nothing; so an owner with
	// a session in a handshake should also call Step now and then.
	Wake()
}

// ErrAgain is what Read says when there is no plaintext now. It is temporary, in
// the sense of a [net.Error].
var ErrAgain error = againError{}

type againError struct{}

func (againError) Error() string   { return "secure: nothing to read now" }
func (againError) Timeout() bool   { return true }
func (againError) Temporary() bool { return true }

var errHandshaking = errors.New("secure: the handshake is not over; call this after Step has said that it is")

// A Session is one side of one TLS connection. The owner moves the bytes: what
// has arrived goes in with Feed during the handshake and with Read afterwards,
// and what is to be sent comes out with Emit. No method waits. All are for the
// owner alone.
type Session struct {
	tls   *tls.Conn // nil when closed
	owner Owner
	hs    atomic.Pointer[handshake] // nil once it is over

	// What follows is for the time after the handshake.
	input         []byte // what Read was given and has not used; nil between calls
	partial       []byte // input that was kept, of which off bytes are used
	err           error  // what Read says from now on
	partialOffset int32
	recordLeft    int32 // bytes of the current record, at the start of rest or in

	largestRecord int32 // bytes of the largest record so far

	isOpen           bool
	inputEnded       bool // no more ciphertext will come; set in the handshake too
	mayHavePlaintext bool // crypto/tls may hold plaintext
}

// NewServerSession is a session that accepts a client. cfg is used as [tls.Server] does.
// The client's address is for the callbacks of cfg, and may be nil.
func NewServerSession(cfg *tls.Config, g *HandshakeLimiter, owner Owner, remote net.Addr) *Session {
	return newSession(tls.Server, cfg, g, owner, remote)
}

// NewClientSession is a session that calls a server. cfg is used as [tls.Client] does, but
// for renegotiation, which is always refused. The handshake asks for its place with
// the first call of Step.
func NewClientSession(cfg *tls.Config, g *HandshakeLimiter, owner Owner, remote net.Addr) *Session {
	if cfg.Renegotiation != tls.RenegotiateNever {
		cfg = cfg.Clone()
		cfg.Renegotiation = tls.RenegotiateNever
	}
	s := newSession(tls.Client, cfg, g, owner, remote)
	s.hs.Load().isClient = true
	return s
}

func newSession(newTLSConn func(net.Conn, *tls.Config) *tls.Conn, cfg *tls.Config, g *HandshakeLimiter, owner Owner, remote net.Addr) *Session {
	s := &Session{owner: owner}
	s.tls = newTLSConn((*transport)(s), cfg)
	s.hs.Store(&handshake{limiter: g, tls: s.tls, owner: owner, remote: remote})
	return s
}

// FeedHandshake gives ciphertext that has arrived to the handshake; p is valid during the
// call. It may be called until Step says that the session is open; from then on
// Read takes the ciphertext. At most MaxHandshakeInput bytes are kept, see Full. After an
// error close: there is nobody to send an alert to.
func (s *Session) FeedHandshake(ciphertext []byte) error {
	h := s.hs.Load()
	switch {
	case s.err != nil:
		return s.err
	case h == nil:
		return errors.New("secure: Feed after the handshake; give the ciphertext to Read")
	}
	if err := h.feedInput(ciphertext); err != nil {
		s.failHandshake(err)
		return err
	}
	return nil
}

// IsInputFull says that InputPauseSize bytes or more wait for the handshake, which happens
// when a client sends much before the server's turn has come: the owner should
// stop reading. When there is room again, or the handshake is over, it is woken.
func (s *Session) IsInputFull() bool {
	h := s.hs.Load()
	return h != nil && h.isInputFull()
}

// AdvanceHandshake emits what the handshake has to send, and says whether the handshake is
// over and the session open. The owner calls it when it was woken. When the
// session has opened, call Read, with no input, for what has arrived meanwhile.
// After an error, send what was emitted and close; it is [io.EOF] if the peer
// ended before it sent anything.
func (s *Session) AdvanceHandshake() (open bool, err error) {
	h := s.hs.Load()
	if h == nil || s.err != nil {
		if s.isOpen {
			return true, nil
		}
		return false, s.err
	}
	if h.isClient && !h.hasRequestedSlot {
		h.requestSlot()
	}
	out, isOver, err := h.takeOutput()
	if len(out) > 0 {
		s.owner.Emit(out)
	}
	if err != nil {
		s.failHandshake(err)
		return false, err
	}
	if isOver {
		s.completeHandshake(h)
	}
	return isOver, nil
}

// completeHandshake is the transition after the handshake. Its goroutine has left the session.
func (s *Session) completeHandshake(h *handshake) {
	s.isOpen = true
	if rest := h.in[h.consumed:]; len(rest) > 0 {
		s.partial = rest
	}
	s.hs.Store(nil)
}

// failHandshake ends a session in its handshake.
func (s *Session) failHandshake(err error) {
	s.Abort()
	s.err = err
}

// Read takes ciphertext from in, used bytes of it, and gives n bytes of plaintext.
// in is valid during the call. Call it until it gives an error, each time with
// what is left of in: in is then used up, and what there is of an incomplete
// record is kept. With n > 0 the error is nil. The errors:
//
//   - ErrAgain: no more plaintext before more ciphertext.
//   - io.EOF: the peer has closed its direction with close_notify. Writing is
//     still possible.
//   - io.ErrUnexpectedEOF: the transport ended without that.
//   - any other: the session is broken; an alert may have been emitted. Send what
//     was emitted and close.
//
// The last three are final, and later input is used up unseen.
func (s *Session) Read(dst, ciphertext []byte) (n, used int, err error) {
	switch {
	case s.err != nil:
		return 0, len(ciphertext), s.err
	case !s.isOpen:
		return 0, 0, errHandshaking
	case len(dst) == 0:
		return 0, 0, io.ErrShortBuffer
	}
	s.input = ciphertext
	n, err = s.decryptRecords(dst)
	if err != nil && err != ErrAgain {
		s.err = err
		s.input = nil
		s.dropPartial()
	}
	used = len(ciphertext) - len(s.input)
	s.input = nil
	if n > 0 {
		err = nil
	}
	return n, used, err
}

// decryptRecords fills dst with the plaintext of the records at hand.
func (s *Session) decryptRecords(dst []byte) (n int, err error) {
	for n < len(dst) {
		if !s.mayHavePlaintext && !s.findRecord() {
			if s.inputEnded {
				return n, io.ErrUnexpectedEOF
			}
			return n, ErrAgain
		}
		m, err := s.tls.Read(dst[n:])
		n += m
		s.mayHavePlaintext = n == len(dst)
		if err != nil && err != ErrAgain {
			return n, err
		}
	}
	return n, nil
}

// Write seals p and emits the ciphertext. An error means that the session is
// broken, or that CloseWrite was called before.
func (s *Session) Write(plaintext []byte) error {
	if !s.isOpen {
		return s.notOpenError()
	}
	_, err := s.tls.Write(plaintext)
	return err
}

// CloseWrite emits close_notify: no more will be written. Reading is still
// possible. The second call does nothing.
func (s *Session) CloseWrite() error {
	if !s.isOpen {
		return s.notOpenError()
	}
	return s.tls.CloseWrite()
}

func (s *Session) notOpenError() error {
	if s.err != nil {
		return s.err
	}
	return errHandshaking
}

// EndInput says that the transport has ended: no more ciphertext will come. A
// handshake then fails, with what Step says next. After it, Read gives what there
// is and then io.EOF, if close_notify has arrived, or io.ErrUnexpectedEOF.
func (s *Session) EndInput() {
	s.inputEnded = true
	if h := s.hs.Load(); h != nil && s.err == nil {
		if err := h.endInput(); err != nil {
			s.failHandshake(err)
		}
	}
}

// Abort ends the session at once, whatever its state: the connection is gone. A
// goroutine of the handshake ends soon. No Emit and no Wake comes after it.
func (s *Session) Abort() {
	if h := s.hs.Load(); h != nil {
		h.abort()
	}
	s.isOpen, s.tls, s.err = false, nil, net.ErrClosed
	s.dropPartial()
}

// InputMemory is how many bytes of memory the session has taken because of what its peer
// sent, beyond what it takes in any case, and whether it waits for the rest of a
// record or, before the handshake, of a ClientHello. What crypto/tls keeps after
// large records is in it, by an estimate: see the package comment.
func (s *Session) InputMemory() (memory int, partial bool) {
	if h := s.hs.Load(); h != nil {
		return h.inputMemory()
	}
	memory = cap(s.partial)
	if s.largestRecord > smallRecord {
		memory += int(s.largestRecord) + inputBufferSlack
	}
	return memory, len(s.partial) > 0
}

// What crypto/tls keeps of its input buffer beside the record, and up to which size
// of records that is no more than at the start.
const (
	inputBufferSlack = 2 << 10
	smallRecord      = 512
)

// State is what the handshake has agreed on. It is the zero value until Step has
// said that the session is open.
func (s *Session) State() tls.ConnectionState {
	if !s.isOpen {
		return tls.ConnectionState{}
	}
	return s.tls.ConnectionState()
}
