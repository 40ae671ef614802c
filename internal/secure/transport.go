package secure

import (
	"encoding/binary"
	"net"
	"sync"
	"time"
)

// transport is the net.Conn through which crypto/tls reads and writes the ciphertext of a Session. During the
// handshake, only the handshake's goroutine uses it. After the handshake, only the session's owner uses it.
type transport Session

// Read copies bytes of the next complete record to p. If no record is complete, Read blocks during the handshake, and
// returns ErrAgain after the handshake.
func (t *transport) Read(p []byte) (int, error) {
	if h := t.hs.Load(); h != nil {
		return h.readBlocking(p)
	}
	s := (*Session)(t)
	if s.recordLeft == 0 && !s.prepareNextWholeRecord() {
		return 0, ErrAgain
	}
	var n int
	if s.partial != nil {
		n = copy(p, s.partial[s.partialOffset:][:s.recordLeft])
		s.partialOffset += int32(n)
		if int(s.partialOffset) == len(s.partial) {
			s.releasePartialBuffer()
		}
	} else {
		n = copy(p, s.input[:s.recordLeft])
		s.input = s.input[n:]
	}
	s.recordLeft -= int32(n)
	return n, nil
}

func (t *transport) Write(p []byte) (int, error) {
	if h := t.hs.Load(); h != nil {
		return h.appendOutputAndWakeOwner(p)
	}
	t.owner.Emit(p)
	return len(p), nil
}

// Close does nothing. crypto/tls calls it when the context of a handshake has ended.
func (t *transport) Close() error { return nil }

func (t *transport) LocalAddr() net.Addr { return unknownAddr{} }

// RemoteAddr returns the peer's address during the handshake, and the address "unknown" afterwards.
func (t *transport) RemoteAddr() net.Addr {
	if h := t.hs.Load(); h != nil && h.remote != nil {
		return h.remote
	}
	return unknownAddr{}
}

// SetDeadline has no effect, because the session's owner applies timeouts.
func (t *transport) SetDeadline(time.Time) error      { return nil }
func (t *transport) SetReadDeadline(time.Time) error  { return nil }
func (t *transport) SetWriteDeadline(time.Time) error { return nil }

type unknownAddr struct{}

func (unknownAddr) Network() string { return "unknown" }
func (unknownAddr) String() string  { return "unknown" }

// prepareNextWholeRecord prepares the next complete record for transport.Read. If no record is complete, it moves the
// rest of s.input to s.partial and returns false.
func (s *Session) prepareNextWholeRecord() (found bool) {
	if s.recordLeft > 0 {
		return true
	}
	if s.partial == nil {
		if hasWholeRecord(s.input) {
			s.beginRecord(s.input)
			return true
		}
		if len(s.input) > 0 {
			s.appendPartialRecord(s.input)
			s.input = s.input[len(s.input):]
		}
		return false
	}
	for !hasWholeRecord(s.partial[s.partialOffset:]) {
		have := s.partial[s.partialOffset:]
		n := min(recordLenOrHeaderLen(have)-len(have), len(s.input))
		if n == 0 {
			return false
		}
		s.appendPartialRecord(s.input[:n])
		s.input = s.input[n:]
	}
	s.beginRecord(s.partial[s.partialOffset:])
	return true
}

func (s *Session) beginRecord(p []byte) {
	s.recordLeft = int32(recordLenOrHeaderLen(p))
	s.largestRecord = max(s.largestRecord, s.recordLeft)
}

// maxSmallPartial is the maximum size, in bytes, of incomplete input that is stored without a pooled buffer.
const maxSmallPartial = 2 << 10

var partialBuffers = sync.Pool{New: func() any { return new([maxRecord]byte) }}

func (s *Session) appendPartialRecord(p []byte) {
	if n := len(s.partial) - int(s.partialOffset) + len(p); n > maxSmallPartial && n <= maxRecord && cap(s.partial) < maxRecord {
		all := partialBuffers.Get().(*[maxRecord]byte)
		n := copy(all[:], s.partial[s.partialOffset:])
		s.partial, s.partialOffset = all[:n], 0
	}
	s.partial = append(s.partial, p...)
}

func (s *Session) releasePartialBuffer() {
	if cap(s.partial) == maxRecord {
		partialBuffers.Put((*[maxRecord]byte)(s.partial[:maxRecord]))
	}
	s.partial, s.partialOffset = nil, 0
}

// Sizes and types of TLS records: RFC 8446, section 5.
const (
	headerLen     = 5
	maxPlain      = 16 << 10
	maxCiphertext = maxPlain + 2048 // in TLS 1.2, which allows the most
	maxRecord     = headerLen + maxCiphertext

	typeHandshake   = 22
	typeClientHello = 1
)

// recordLenOrHeaderLen returns the length of the first record in b, including its header. If the header is incomplete
// or contains a length that is too large, it returns the length of a header.
func recordLenOrHeaderLen(b []byte) int {
	if len(b) < headerLen {
		return headerLen
	}
	n := int(binary.BigEndian.Uint16(b[3:]))
	if n > maxCiphertext {
		return headerLen
	}
	return headerLen + n
}

func hasWholeRecord(b []byte) bool { return len(b) >= recordLenOrHeaderLen(b) }
