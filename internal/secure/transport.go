package secure

import (
	"encoding/binary"
	"net"
	"sync"
	"time"
)

// transport is what crypto/tls takes for its connection: the session itself. In
// the handshake it is the handshake's goroutine that calls, afterwards the
// owner.
type transport Session

// Read gives bytes of one record, and only of a whole one. After the handshake
// it is temporarily out of bytes when there is none.
func (t *transport) Read(p []byte) (int, error) {
	if h := t.hs.Load(); h != nil {
		return h.readBlocking(p)
	}
	s := (*Session)(t)
	if s.recordLeft == 0 && !s.findRecord() {
		return 0, ErrAgain
	}
	var n int
	if s.partial != nil {
		n = copy(p, s.partial[s.partialOffset:][:s.recordLeft])
		s.partialOffset += int32(n)
		if int(s.partialOffset) == len(s.partial) {
			s.dropPartial()
		}
	} else {
		n = copy(p, s.input[:s.recordLeft])
		s.input = s.input[n:]
	}
	s.recordLeft -= int32(n)
	return n, nil
}

// Write gives bytes to the owner's output.
func (t *transport) Write(p []byte) (int, error) {
	if h := t.hs.Load(); h != nil {
		return h.appendOutput(p)
	}
	t.owner.Emit(p)
	return len(p), nil
}

// Close is called when the context of a handshake ends; its reads and writes
// fail by themselves.
func (t *transport) Close() error { return nil }

// LocalAddr is not known.
func (t *transport) LocalAddr() net.Addr { return unknownAddr{} }

// RemoteAddr is for the callbacks of a tls.Config.
func (t *transport) RemoteAddr() net.Addr {
	if h := t.hs.Load(); h != nil && h.remote != nil {
		return h.remote
	}
	return unknownAddr{}
}

// The owner has the clock.
func (t *transport) SetDeadline(time.Time) error      { return nil }
func (t *transport) SetReadDeadline(time.Time) error  { return nil }
func (t *transport) SetWriteDeadline(time.Time) error { return nil }

// unknownAddr is the address of a connection that did not say, or that is past its
// handshake.
type unknownAddr struct{}

func (unknownAddr) Network() string { return "unknown" }
func (unknownAddr) String() string  { return "unknown" }

// findRecord finds the next record, whole, at the start of rest or in, and says
// whether there is one. If there is none, all of in is kept.
func (s *Session) findRecord() bool {
	if s.recordLeft > 0 {
		return true
	}
	if s.partial == nil {
		if hasWholeRecord(s.input) {
			s.beginRecord(s.input)
			return true
		}
		if len(s.input) > 0 {
			s.keepPartial(s.input)
			s.input = s.input[len(s.input):]
		}
		return false
	}
	for !hasWholeRecord(s.partial[s.partialOffset:]) {
		have := s.partial[s.partialOffset:]
		n := min(recordLen(have)-len(have), len(s.input))
		if n == 0 {
			return false
		}
		s.keepPartial(s.input[:n])
		s.input = s.input[n:]
	}
	s.beginRecord(s.partial[s.partialOffset:])
	return true
}

// beginRecord begins with the record at the start of p.
func (s *Session) beginRecord(p []byte) {
	s.recordLeft = int32(recordLen(p))
	s.largestRecord = max(s.largestRecord, s.recordLeft)
}

// maxSmallPartial is the most that is kept in a slice that grows with its content.
// For more there is a buffer that holds any record, so that a long stream, which
// leaves a part of a record at the end of each read, makes no garbage.
const maxSmallPartial = 2 << 10

var partialBuffers = sync.Pool{New: func() any { return new([maxRecord]byte) }}

// keepPartial adds to the input that is kept.
func (s *Session) keepPartial(p []byte) {
	if n := len(s.partial) - int(s.partialOffset) + len(p); n > maxSmallPartial && n <= maxRecord && cap(s.partial) < maxRecord {
		all := partialBuffers.Get().(*[maxRecord]byte)
		n := copy(all[:], s.partial[s.partialOffset:])
		s.partial, s.partialOffset = all[:n], 0
	}
	s.partial = append(s.partial, p...)
}

// dropPartial forgets the input that was kept.
func (s *Session) dropPartial() {
	if cap(s.partial) == maxRecord {
		partialBuffers.Put((*[maxRecord]byte)(s.partial[:maxRecord]))
	}
	s.partial, s.partialOffset = nil, 0
}

// Of TLS records, see RFC 8446, section 5.
const (
	headerLen     = 5
	maxPlain      = 16 << 10
	maxCiphertext = maxPlain + 2048 // of TLS 1.2, which allows the most
	maxRecord     = headerLen + maxCiphertext

	typeHandshake   = 22
	typeClientHello = 1
)

// recordLen is how many bytes of b make its first record, or as much of it as is
// needed to know more. A length that cannot be makes the header alone a record:
// crypto/tls says what is wrong with it.
func recordLen(b []byte) int {
	if len(b) < headerLen {
		return headerLen
	}
	n := int(binary.BigEndian.Uint16(b[3:]))
	if n > maxCiphertext {
		return headerLen
	}
	return headerLen + n
}

// hasWholeRecord says whether b begins with a whole record.
func hasWholeRecord(b []byte) bool { return len(b) >= recordLen(b) }
