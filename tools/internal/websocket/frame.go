package websocket

import (
	"encoding/binary"
	"fmt"
	"slices"
)

// Opcode says what a frame is.
type Opcode byte

// The opcodes that a client sends (RFC 6455, 11.8).
const (
	OpText   Opcode = 1
	OpBinary Opcode = 2
	OpClose  Opcode = 8
	OpPing   Opcode = 9
	OpPong   Opcode = 10

	// opMore is the opcode of a message's second frame and of all behind
	// it.
	opMore Opcode = 0
)

// control says whether a frame belongs to the connection, not to a message.
func (op Opcode) control() bool { return op&8 != 0 }

// MaxControl is the most bytes of payload that a Ping, Pong or Close has.
const MaxControl = 125

// The bits of a frame's first two bytes (RFC 6455, 5.2).
const (
	bitFin    = 0x80
	bitsRSV   = 0x70
	bitsOp    = 0x0f
	bitMasked = 0x80
	bitsSize  = 0x7f
	// size16 and size64 say that the size follows in 2 or 8 bytes.
	size16 = 126
	size64 = 127
)

// AppendFrame appends a whole message, or a Ping, Pong or Close, as one frame of a
// client: the last one of its message, and masked. RFC 6455 wants an
// unpredictable mask, another one for each frame, to keep what pages in browsers
// send from being taken for something else by proxies; a generator of load may
// draw it from a seed. The payload must not overlap the room behind dst. It
// panics if a Ping, Pong or Close has more than MaxControl bytes. It allocates
// if dst has no room.
func AppendFrame(dst []byte, op Opcode, mask [4]byte, payload []byte) []byte {
	if op.control() && len(payload) > MaxControl {
		panic(fmt.Sprintf("websocket: AppendFrame: a control frame with %d bytes; expected at most %d", len(payload), MaxControl))
	}
	dst = slices.Grow(dst, len(payload)+14)
	dst = append(dst, bitFin|byte(op))
	switch n := len(payload); {
	case n < size16:
		dst = append(dst, bitMasked|byte(n))
	case n < 1<<16:
		dst = append(dst, bitMasked|size16)
		dst = binary.BigEndian.AppendUint16(dst, uint16(n))
	default:
		dst = append(dst, bitMasked|size64)
		dst = binary.BigEndian.AppendUint64(dst, uint64(n))
	}
	dst = append(dst, mask[:]...)
	at := len(dst)
	dst = dst[:at+len(payload)]
	xor(dst[at:], payload, mask)
	return dst
}

// xor writes src to dst with each byte combined with the one of the mask whose
// turn it is. Both have the same length. It takes 8 bytes at a time, as the Go
// compiler makes one load and one store of them.
func xor(dst, src []byte, mask [4]byte) {
	m := binary.LittleEndian.Uint32(mask[:])
	wide := uint64(m)<<32 | uint64(m)
	for len(src) >= 32 && len(dst) >= 32 {
		binary.LittleEndian.PutUint64(dst, binary.LittleEndian.Uint64(src)^wide)
		binary.LittleEndian.PutUint64(dst[8:], binary.LittleEndian.Uint64(src[8:])^wide)
		binary.LittleEndian.PutUint64(dst[16:], binary.LittleEndian.Uint64(src[16:])^wide)
		binary.LittleEndian.PutUint64(dst[24:], binary.LittleEndian.Uint64(src[24:])^wide)
		dst, src = dst[32:], src[32:]
	}
	for len(src) >= 8 && len(dst) >= 8 {
		binary.LittleEndian.PutUint64(dst, binary.LittleEndian.Uint64(src)^wide)
		dst, src = dst[8:], src[8:]
	}
	for i, c := range src {
		dst[i] = c ^ mask[i&3]
	}
}
