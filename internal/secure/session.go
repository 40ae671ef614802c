package secure

import (
	"crypto/tls"
	"errors"
	"io"
	"net"
	"slices"
	"sync/atomic"
)

// Owner sends the ciphertext of a Session and calls the Session's methods.
type Owner interface {
	// Emit appends ciphertext to the output. p is valid only during the call. Only methods of the Session call Emit, on
	// the owner's goroutine. Emit must not call the Session.
	Emit(p []byte)
	// Wake asks the owner to call AdvanceHandshake soon. The handshake's goroutine calls Wake with a lock held. Wake
	// must therefore not block or call the Session. The owner must not call the Session while holding a lock that Wake
	// takes. Wake may have no effect, so the owner should call AdvanceHandshake regularly during a handshake.
	Wake()
}

// ErrAgain is returned by Session.Read if no plaintext is available yet. It is a temporary [net.Error].
var ErrAgain error = againError{}

type againError struct{}

func (againError) Error() string   { return "secure: no plaintext is available yet" }
func (againError) Timeout() bool   { return true }
func (againError) Temporary() bool { return true }

var errHandshaking = errors.New("secure: the handshake is not complete; wait until AdvanceHandshake reports that it is")

// Session is one end of a TLS connection. It does no I/O: its owner receives and sends the ciphertext. The owner passes
// received ciphertext to FeedHandshake during the handshake, and to Read after the handshake. The session calls
// Owner.Emit with the ciphertext that the owner must send. No method blocks.
type Session struct {
	tls   *tls.Conn // nil when closed
	owner Owner
	hs    atomic.Pointer[handshake] // nil after the handshake

	// Used after the handshake.
	input         []byte // unused ciphertext of the current Read; nil between calls
	partial       []byte // input of earlier calls; crypto/tls has read its first partialOffset bytes
	err           error  // if not nil, Read returns it
	partialOffset int32
	recordLeft    int32 // unread bytes of the current record, which come next in partial or input

	largestRecord int32 // bytes of the largest record so far

	secrets            *trafficSecrets // for TakeOver; nil if there are none
	stayInSessionCache bool            // see StaySessionCache
	isClient           bool

	isOpen           bool
	inputEnded       bool // no more ciphertext will come; set during the handshake as well
	mayHavePlaintext bool // crypto/tls may have more plaintext
}

// NewServerSession returns a session that accepts a client. cfg is used as in [tls.Server]. remote is the client's
// address for the callbacks of cfg, and may be nil. If cfg.NextProtos contains http/1.1, the session answers
// unencrypted HTTP with status 400.
func NewServerSession(cfg *tls.Config, g *HandshakeLimiter, owner Owner, remote net.Addr) *Session {
	s := &Session{owner: owner}
	h := &handshake{limiter: g, owner: owner, remote: remote, answersHTTP: slices.Contains(cfg.NextProtos, "http/1.1")}
	s.setHandshakeAndNewTLSConn(h, tls.Server, cfg)
	return s
}

// NewClientSession returns a session that connects to a server. cfg is used as in [tls.Client], except that
// renegotiation is always disabled. remote is the server's address. Session.TakeOver can succeed only if enableTakeover
// is true.
func NewClientSession(cfg *tls.Config, g *HandshakeLimiter, owner Owner, remote net.Addr, enableTakeover bool) *Session {
	s := &Session{owner: owner, isClient: true, stayInSessionCache: enableTakeover && cfg.ClientSessionCache != nil}
	h := &handshake{limiter: g, owner: owner, remote: remote, isClient: true}
	switch {
	case enableTakeover && !s.stayInSessionCache:
		cfg = withSecretsWriter(cfg, h)
	case cfg.Renegotiation != tls.RenegotiateNever:
		cfg = cfg.Clone()
	}
	if cfg.Renegotiation != tls.RenegotiateNever { // cfg is a clone in this case
		cfg.Renegotiation = tls.RenegotiateNever
	}
	s.setHandshakeAndNewTLSConn(h, tls.Client, cfg)
	return s
}

func (s *Session) setHandshakeAndNewTLSConn(h *handshake, newTLSConn func(net.Conn, *tls.Config) *tls.Conn, cfg *tls.Config) {
	s.hs.Store(h)
	s.tls = newTLSConn((*transport)(s), cfg)
	h.tls = s.tls
}

// FeedHandshake passes received ciphertext to the handshake. ciphertext is valid only during the call. Once
// AdvanceHandshake has returned open = true, pass ciphertext to Read instead. After an error, send the bytes that the
// session has passed to Owner.Emit, because they may contain an alert, and then close the connection.
func (s *Session) FeedHandshake(ciphertext []byte) error {
	h := s.hs.Load()
	switch {
	case s.err != nil:
		return s.err
	case h == nil:
		return errors.New("secure: FeedHandshake called after the handshake; pass the ciphertext to Read")
	}
	if err := h.appendInputAndStartOnHello(ciphertext); err != nil {
		var he *helloError
		switch {
		case errors.As(err, &he):
			s.owner.Emit(he.alertRecord())
		case h.answersHTTP && !h.hasRequestedSlot && looksLikeHTTP(h.in):
			s.owner.Emit([]byte(plainHTTPAnswer))
		}
		s.failHandshake(err)
		return err
	}
	return nil
}

// IsInputFull reports whether the owner should stop reading ciphertext during the handshake. When reading can resume,
// the session calls Owner.Wake.
func (s *Session) IsInputFull() bool {
	h := s.hs.Load()
	return h != nil && h.isInputFull()
}

// AdvanceHandshake passes the output of the handshake to Owner.Emit. open reports whether the handshake is complete.
// Call AdvanceHandshake whenever the session has called Owner.Wake.
//
// When open becomes true, call Read with empty ciphertext, because data may already have arrived. After an error, send
// the bytes passed to Owner.Emit, and then close the connection. io.EOF means that the peer closed the connection
// without sending anything.
func (s *Session) AdvanceHandshake() (open bool, err error) {
	h := s.hs.Load()
	if h == nil || s.err != nil {
		if s.isOpen {
			return true, nil
		}
		return false, s.err
	}
	if h.isClient && !h.hasRequestedSlot {
		h.requestHandshakeSlot()
	}
	out, isOver, err := h.takeOutputAndResult()
	if len(out) > 0 {
		s.owner.Emit(out)
	}
	if err != nil {
		s.failHandshake(err)
		return false, err
	}
	if isOver {
		s.openAndTakeLeftoverInput(h)
	}
	return isOver, nil
}

func (s *Session) openAndTakeLeftoverInput(h *handshake) {
	s.isOpen = true
	s.secrets = h.secrets
	if rest := h.in[h.consumed:]; len(rest) > 0 {
		s.partial = rest
	}
	s.hs.Store(nil)
}

func (s *Session) failHandshake(err error) {
	s.Abort()
	s.err = err
}

// Read decrypts ciphertext into dst. ciphertext is valid only during the call. n is the number of plaintext bytes, and
// used is the number of ciphertext bytes that Read has consumed.
//
// If n > 0, the error is nil. If the error is nil, call Read again with the unconsumed ciphertext. If the error is not
// nil, Read has consumed all ciphertext. The errors are:
//
//   - ErrAgain: more ciphertext is needed. The session stores an incomplete record until the rest of the record
//     arrives.
//   - io.EOF: the peer has sent close_notify and will send no more data. Writing is still possible.
//   - io.ErrUnexpectedEOF: the input has ended without close_notify.
//   - any other: the session is broken. Send the bytes passed to Owner.Emit, because they may contain an alert, and
//     then close the connection.
//
// Errors other than ErrAgain are final: every further call returns the same error and discards its ciphertext.
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
		s.releasePartialBuffer()
	}
	used = len(ciphertext) - len(s.input)
	s.input = nil
	if n > 0 {
		err = nil
	}
	return n, used, err
}

func (s *Session) decryptRecords(dst []byte) (n int, err error) {
	for n < len(dst) {
		if !s.mayHavePlaintext && !s.prepareNextWholeRecord() {
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

// Write encrypts plaintext and passes the ciphertext to Owner.Emit. It fails if the session is broken or CloseWrite was
// called.
func (s *Session) Write(plaintext []byte) error {
	if !s.isOpen {
		return s.notOpenError()
	}
	_, err := s.tls.Write(plaintext)
	return err
}

// CloseWrite sends a close_notify alert, like all output, with Owner.Emit. The alert tells the peer that no more data
// follows. Reading is still possible. Further calls have no effect.
func (s *Session) CloseWrite() error {
	switch {
	case !s.isOpen:
		return s.notOpenError()
	case s.err != nil && s.err != io.EOF && s.err != io.ErrUnexpectedEOF:
		return s.err // nothing follows a fatal alert: RFC 8446, section 6.2
	}
	return s.tls.CloseWrite()
}

func (s *Session) notOpenError() error {
	if s.err != nil {
		return s.err
	}
	return errHandshaking
}

// MarkInputEnded records that no more ciphertext will arrive. A handshake that needs more ciphertext then fails, and
// AdvanceHandshake returns the error. After the handshake, Read returns the remaining plaintext and then an error:
// io.EOF if the peer has sent close_notify, and io.ErrUnexpectedEOF otherwise.
func (s *Session) MarkInputEnded() {
	s.inputEnded = true
	if h := s.hs.Load(); h != nil && s.err == nil {
		if err := h.markInputEndedFailUnlessRunning(); err != nil {
			s.failHandshake(err)
		}
	}
}

// IsInputEnded reports whether MarkInputEnded was called.
func (s *Session) IsInputEnded() bool { return s.inputEnded }

// Abort ends the session in any state, for example when its connection is lost. After Abort, the session no longer
// calls Emit and Wake.
func (s *Session) Abort() {
	if h := s.hs.Load(); h != nil {
		h.abort()
	}
	s.isOpen, s.tls, s.err = false, nil, net.ErrClosed
	s.releasePartialBuffer()
}

// BufferMemory returns the estimated memory, in bytes, of the session's buffers. hasPartialInput reports whether the
// session waits for the missing part of a record or of a ClientHello.
func (s *Session) BufferMemory() (memoryBytes int, hasPartialInput bool) {
	if h := s.hs.Load(); h != nil {
		return h.bufferMemory()
	}
	memoryBytes = cap(s.partial)
	if s.largestRecord > smallRecord {
		memoryBytes += int(s.largestRecord) + inputBufferSlack
	}
	return memoryBytes, len(s.partial) > 0
}

// Sizes for estimating the input buffer of crypto/tls.
const (
	inputBufferSlack = 2 << 10
	smallRecord      = 512
)

// State returns the negotiated parameters of the session. If the session is not open, it returns the zero value.
func (s *Session) State() tls.ConnectionState {
	if !s.isOpen {
		return tls.ConnectionState{}
	}
	return s.tls.ConnectionState()
}
