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
		return h.read(p)
	}
	s := (*Session)(t)
	if s.left == 0 && !s.ready() {
		return 0, ErrAgain
	}
	var n int
	if s.rest != nil {
		n = copy(p, s.rest[s.off:][:s.left])
		s.off += int32(n)
		if int(s.off) == len(s.rest) {
			s.dropRest()
		}
	} else {
		n = copy(p, s.in[:s.left])
		s.in = s.in[n:]
	}
	s.left -= int32(n)
	return n, nil
}

// Write gives bytes to the owner's output.
func (t *transport) Write(p []byte) (int, error) {
	if h := t.hs.Load(); h != nil {
		return h.write(p)
	}
	t.owner.Emit(p)
	return len(p), nil
}

// Close is called when the context of a handshake ends; its reads and writes
// fail by themselves.
func (t *transport) Close() error { return nil }

// LocalAddr is not known.
func (t *transport) LocalAddr() net.Addr { return unknown{} }

// RemoteAddr is for the callbacks of a tls.Config.
func (t *transport) RemoteAddr() net.Addr {
	if h := t.hs.Load(); h != nil && h.remote != nil {
		return h.remote
	}
	return unknown{}
}

// The owner has the clock.
func (t *transport) SetDeadline(time.Time) error      { return nil }
func (t *transport) SetReadDeadline(time.Time) error  { return nil }
func (t *transport) SetWriteDeadline(time.Time) error { return nil }

// unknown is the address of a connection that did not say, or that is past its
// handshake.
type unknown struct{}

func (unknown) Network() string { return "unknown" }
func (unknown) String() string  { return "unknown" }

// ready finds the next record, whole, at the start of rest or in, and says
// whether there is one. If there is none, all of in is kept.
func (s *Session) ready() bool {
	if s.left > 0 {
		return true
	}
	if s.rest == nil {
		if isWhole(s.in) {
			s.begin(s.in)
			return true
		}
		if len(s.in) > 0 {
			s.keep(s.in)
			s.in = s.in[len(s.in):]
		}
		return false
	}
	for !isWhole(s.rest[s.off:]) {
		have := s.rest[s.off:]
		n := min(recordLen(have)-len(have), len(s.in))
		if n == 0 {
			return false
		}
		s.keep(s.in[:n])
		s.in = s.in[n:]
	}
	s.begin(s.rest[s.off:])
	return true
}

// begin begins with the record at the start of p.
func (s *Session) begin(p []byte) {
	s.left = int32(recordLen(p))
	s.largest = max(s.largest, s.left)
}

// smallRest is the most that is kept in a slice that grows with its content.
// For more there is a buffer that holds any record, so that a long stream, which
// leaves a part of a record at the end of each read, makes no garbage.
const smallRest = 2 << 10

var rests = sync.Pool{New: func() any { return new([maxRecord]byte) }}

// keep adds to the input that is kept.
func (s *Session) keep(p []byte) {
	if n := len(s.rest) - int(s.off) + len(p); n > smallRest && n <= maxRecord && cap(s.rest) < maxRecord {
		all := rests.Get().(*[maxRecord]byte)
		n := copy(all[:], s.rest[s.off:])
		s.rest, s.off = all[:n], 0
	}
	s.rest = append(s.rest, p...)
}

// dropRest forgets the input that was kept.
func (s *Session) dropRest() {
	if cap(s.rest) == maxRecord {
		rests.Put((*[maxRecord]byte)(s.rest[:maxRecord]))
	}
	s.rest, s.off = nil, 0
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

// isWhole says whether b begins with a whole record.
func isWhole(b []byte) bool { return len(b) >= recordLen(b) }
