package web

import (
	"encoding/binary"
	"slices"
	"unicode/utf8"
)

// Kind is what a WebSocket message is.
type Kind byte

const (
	// Text is UTF-8: what arrives is checked.
	Text Kind = 1
	// Binary is bytes.
	Binary Kind = 2
)

// The opcodes of RFC 6455, 11.8.
const (
	opMore  = 0
	opClose = 8
	opPing  = 9
	opPong  = 10
)

// The bits of a frame's first two bytes: RFC 6455, 5.2, and 7692, 6.
const (
	bitFin     = 0x80
	bitDeflate = 0x40
	bitsRSV    = 0x70
	bitMasked  = 0x80
)

// maxControl is the most bytes of payload of a ping, pong or close.
const maxControl = 125

// Frame is a message as it goes over the wire, from a server to any number of clients: for
// Ref.Send, Group.Broadcast and Server.Broadcast, each of which then sends it without
// encoding it again. It is not compressed; see Group for messages that are.
func Frame[T string | []byte](kind Kind, message T) []byte {
	return append(appendFrameHead(make([]byte, 0, len(message)+10), byte(kind), len(message)), message...)
}

// appendFrameHead appends the head of a last frame.
func appendFrameHead(b []byte, op byte, n int) []byte {
	b = append(b, bitFin|op)
	switch {
	case n <= 125:
		return append(b, byte(n))
	case n <= 0xffff:
		return binary.BigEndian.AppendUint16(append(b, 126), uint16(n))
	}
	return binary.BigEndian.AppendUint64(append(b, 127), uint64(n))
}

func appendFrame(b []byte, op byte, payload []byte) []byte {
	return append(appendFrameHead(b, op, len(payload)), payload...)
}

// frameHead is the head of a client's frame.
type frameHead struct {
	op      byte
	fin     bool
	deflate bool
	mask    [4]byte
	size    int // of the payload
	n       int // of the head itself
}

func (h *frameHead) control() bool { return h.op&8 != 0 }

// errLengthForm reports a length that is not in its shortest form (RFC 6455, section 5.2).
var errLengthForm = &CloseError{CloseProtocolError, "the length of a frame is not in its shortest form"}

// readFrameHead reads the head that in begins with; n is 0 if it is not whole.
func readFrameHead(in []byte, compressed bool) (h frameHead, err error) {
	if len(in) < 2 {
		return h, nil
	}
	h.op, h.fin, h.deflate = in[0]&0x0f, in[0]&bitFin != 0, in[0]&bitDeflate != 0
	size := uint64(in[1] &^ bitMasked)
	switch {
	case in[0]&bitsRSV&^bitDeflate != 0, h.deflate && (!compressed || h.control() || h.op == opMore):
		return h, &CloseError{CloseProtocolError, "a reserved bit is set"}
	case h.op > 2 && h.op < 8 || h.op > opPong:
		return h, &CloseError{CloseProtocolError, "unknown opcode"}
	case in[1]&bitMasked == 0:
		return h, &CloseError{CloseProtocolError, "a client's frame is not masked"}
	case h.control() && (!h.fin || size > maxControl):
		return h, &CloseError{CloseProtocolError, "a control frame is fragmented or has more than 125 bytes"}
	}
	n := 2
	switch size {
	case 126:
		if n = 4; len(in) < n {
			return h, nil
		}
		if size = uint64(binary.BigEndian.Uint16(in[2:])); size <= 125 {
			return h, errLengthForm
		}
	case 127:
		if n = 10; len(in) < n {
			return h, nil
		}
		if size = binary.BigEndian.Uint64(in[2:]); size <= 0xffff {
			return h, errLengthForm
		}
	}
	if size >= 1<<31 {
		return h, &CloseError{CloseTooLarge, "a frame has 2 GiB or more"}
	}
	if len(in) < n+4 {
		return h, nil
	}
	h.size, h.n = int(size), n+4
	copy(h.mask[:], in[n:])
	return h, nil
}

// unmask appends what was masked, of which at bytes went before.
func unmask(b, masked []byte, mask [4]byte, at int) []byte {
	start := len(b)
	b = slices.Grow(b, len(masked))[:start+len(masked)]
	to := b[start:]
	var key [8]byte
	for i := range key {
		key[i] = mask[(at+i)&3]
	}
	word := binary.LittleEndian.Uint64(key[:])
	i := 0
	for ; i+8 <= len(masked); i += 8 {
		binary.LittleEndian.PutUint64(to[i:], binary.LittleEndian.Uint64(masked[i:])^word)
	}
	for ; i < len(masked); i++ {
		to[i] = masked[i] ^ key[i&7]
	}
	return b
}

// text checks UTF-8 that comes in pieces.
type text struct {
	checked int // bytes that are whole characters
}

// check says whether all of p, whose beginning was checked, may be text that goes on.
func (t *text) check(p []byte, last bool) bool {
	for t.checked < len(p) {
		if rest := p[t.checked:]; !utf8.FullRune(rest) {
			return !last
		}
		// Whole runs are checked at once.
		end := len(p)
		for back := 1; back < utf8.UTFMax && back <= end-t.checked; back++ {
			if utf8.RuneStart(p[end-back]) {
				if !utf8.FullRune(p[end-back:]) {
					end -= back
				}
				break
			}
		}
		if !utf8.Valid(p[t.checked:end]) {
			return false
		}
		t.checked = end
	}
	return true
}
