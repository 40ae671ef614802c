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
var ErrAgain error = again{}

type again struct{}

func (again) Error() string   { return "secure: nothing to read now" }
func (again) Timeout() bool   { return true }
func (again) Temporary() bool { return true }

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
	in   []byte // what Read was given and has not used; nil between calls
	rest []byte // input that was kept, of which off bytes are used
	err  error  // what Read says from now on
	off  int32
	left int32 // bytes of the current record, at the start of rest or in

	largest int32 // bytes of the largest record so far

	isOpen  bool
	isEnded bool // no more ciphertext will come; set in the handshake too
	hasMore bool // crypto/tls may hold plaintext
}

// Server is a session that accepts a client. cfg is used as [tls.Server] does.
// The client's address is for the callbacks of cfg, and may be nil.
func Server(cfg *tls.Config, g *Gate, owner Owner, remote net.Addr) *Session {
	return newSession(tls.Server, cfg, g, owner, remote)
}

// Client is a session that calls a server. cfg is used as [tls.Client] does, but
// for renegotiation, which is always refused. The handshake asks for its place with
// the first call of Step.
func Client(cfg *tls.Config, g *Gate, owner Owner, remote net.Addr) *Session {
	if cfg.Renegotiation != tls.RenegotiateNever {
		cfg = cfg.Clone()
		cfg.Renegotiation = tls.RenegotiateNever
	}
	s := newSession(tls.Client, cfg, g, owner, remote)
	s.hs.Load().isClient = true
	return s
}

func newSession(side func(net.Conn, *tls.Config) *tls.Conn, cfg *tls.Config, g *Gate, owner Owner, remote net.Addr) *Session {
	s := &Session{owner: owner}
	s.tls = side((*transport)(s), cfg)
	s.hs.Store(&handshake{gate: g, tls: s.tls, owner: owner, remote: remote})
	return s
}

// Feed gives ciphertext that has arrived to the handshake; p is valid during the
// call. It may be called until Step says that the session is open; from then on
// Read takes the ciphertext. At most MaxInput bytes are kept, see Full. After an
// error close: there is nobody to send an alert to.
func (s *Session) Feed(p []byte) error {
	h := s.hs.Load()
	switch {
	case s.err != nil:
		return s.err
	case h == nil:
		return errors.New("secure: Feed after the handshake; give the ciphertext to Read")
	}
	if err := h.feed(p); err != nil {
		s.fail(err)
		return err
	}
	return nil
}

// Full says that FullInput bytes or more wait for the handshake, which happens
// when a client sends much before the server's turn has come: the owner should
// stop reading. When there is room again, or the handshake is over, it is woken.
func (s *Session) Full() bool {
	h := s.hs.Load()
	return h != nil && h.full()
}

// Step emits what the handshake has to send, and says whether the handshake is
// over and the session open. The owner calls it when it was woken. When the
// session has opened, call Read, with no input, for what has arrived meanwhile.
// After an error, send what was emitted and close; it is [io.EOF] if the peer
// ended before it sent anything.
func (s *Session) Step() (open bool, err error) {
	h := s.hs.Load()
	if h == nil || s.err != nil {
		if s.isOpen {
			return true, nil
		}
		return false, s.err
	}
	if h.isClient && !h.isEntered {
		h.enter()
	}
	out, isOver, err := h.step()
	if len(out) > 0 {
		s.owner.Emit(out)
	}
	if err != nil {
		s.fail(err)
		return false, err
	}
	if isOver {
		s.open(h)
	}
	return isOver, nil
}

// open is the transition after the handshake. Its goroutine has left the session.
func (s *Session) open(h *handshake) {
	s.isOpen = true
	if rest := h.in[h.taken:]; len(rest) > 0 {
		s.rest = rest
	}
	s.hs.Store(nil)
}

// fail ends a session in its handshake.
func (s *Session) fail(err error) {
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
func (s *Session) Read(dst, in []byte) (n, used int, err error) {
	switch {
	case s.err != nil:
		return 0, len(in), s.err
	case !s.isOpen:
		return 0, 0, errHandshaking
	case len(dst) == 0:
		return 0, 0, io.ErrShortBuffer
	}
	s.in = in
	n, err = s.read(dst)
	if err != nil && err != ErrAgain {
		s.err = err
		s.in = nil
		s.dropRest()
	}
	used = len(in) - len(s.in)
	s.in = nil
	if n > 0 {
		err = nil
	}
	return n, used, err
}

// read fills dst with the plaintext of the records at hand.
func (s *Session) read(dst []byte) (n int, err error) {
	for n < len(dst) {
		if !s.hasMore && !s.ready() {
			if s.isEnded {
				return n, io.ErrUnexpectedEOF
			}
			return n, ErrAgain
		}
		m, err := s.tls.Read(dst[n:])
		n += m
		s.hasMore = n == len(dst)
		if err != nil && err != ErrAgain {
			return n, err
		}
	}
	return n, nil
}

// Write seals p and emits the ciphertext. An error means that the session is
// broken, or that CloseWrite was called before.
func (s *Session) Write(p []byte) error {
	if !s.isOpen {
		return s.notOpen()
	}
	_, err := s.tls.Write(p)
	return err
}

// CloseWrite emits close_notify: no more will be written. Reading is still
// possible. The second call does nothing.
func (s *Session) CloseWrite() error {
	if !s.isOpen {
		return s.notOpen()
	}
	return s.tls.CloseWrite()
}

func (s *Session) notOpen() error {
	if s.err != nil {
		return s.err
	}
	return errHandshaking
}

// Ended says that the transport has ended: no more ciphertext will come. A
// handshake then fails, with what Step says next. After it, Read gives what there
// is and then io.EOF, if close_notify has arrived, or io.ErrUnexpectedEOF.
func (s *Session) Ended() {
	s.isEnded = true
	if h := s.hs.Load(); h != nil && s.err == nil {
		if err := h.end(); err != nil {
			s.fail(err)
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
	s.dropRest()
}

// Held is how many bytes of memory the session has taken because of what its peer
// sent, beyond what it takes in any case, and whether it waits for the rest of a
// record or, before the handshake, of a ClientHello. What crypto/tls keeps after
// large records is in it, by an estimate: see the package comment.
func (s *Session) Held() (memory int, partial bool) {
	if h := s.hs.Load(); h != nil {
		return h.held()
	}
	memory = cap(s.rest)
	if s.largest > smallRecord {
		memory += int(s.largest) + kept
	}
	return memory, len(s.rest) > 0
}

// What crypto/tls keeps of its input buffer beside the record, and up to which size
// of records that is no more than at the start.
const (
	kept        = 2 << 10
	smallRecord = 512
)

// State is what the handshake has agreed on. It is the zero value until Step has
// said that the session is open.
func (s *Session) State() tls.ConnectionState {
	if !s.isOpen {
		return tls.ConnectionState{}
	}
	return s.tls.ConnectionState()
}
