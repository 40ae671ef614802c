// Package wsframe parses and formats frames of the WebSocket protocol (RFC 6455, section 5.2), for servers and clients.
// It does no I/O; its functions are safe for concurrent use.
package wsframe

import (
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
)

// Opcodes of WebSocket frames (RFC 6455, section 11.8).
const (
	OpContinuation = 0
	OpText         = 1
	OpBinary       = 2
	OpClose        = 8
	OpPing         = 9
	OpPong         = 10
)

// Bits and bit masks of the first byte of a WebSocket frame (RFC 6455, section 5.2, and RFC 7692, section 6).
const (
	Fin        = 0x80
	Compressed = 0x40
	reserved   = 0x70
	opcode     = 0x0f
)

// masked is the bit in the second byte of a WebSocket frame that is set if the payload is masked.
const masked = 0x80

// MaxControl is the maximum payload of a ping, pong or close frame, in bytes.
const MaxControl = 125

// MaxHead is the maximum size of a frame's head, in bytes.
const MaxHead = 14

type Head struct {
	First  byte // flags and opcode
	Masked bool
	Mask   [4]byte
	Size   uint64 // of the payload in bytes
	Len    int    // of the head in bytes; 0 if it is incomplete
}

func (h *Head) Opcode() byte { return h.First & opcode }

// IsControl reports whether the frame is a ping, pong or close.
func (h *Head) IsControl() bool { return h.First&8 != 0 }

// ReservedBits returns the reserved bits that are set, including Compressed.
func (h *Head) ReservedBits() byte { return h.First & reserved }

// AppendHead appends the head of an unmasked frame to b. first contains the opcode and the flags Fin and Compressed.
// size is the size of the payload in bytes.
func AppendHead(b []byte, first byte, size int) []byte { return appendHead(b, first, 0, size) }

// AppendMaskedFrame appends a complete frame of a client, with a masked copy of payload, to b. It allocates memory only
// if the capacity of b is too small. payload must not overlap the unused capacity of b.
func AppendMaskedFrame(b []byte, firstByte byte, mask [4]byte, payload []byte) []byte {
	b = append(appendHead(slices.Grow(b, MaxHead+len(payload)), firstByte, masked, len(payload)), mask[:]...)
	n := len(b)
	b = b[:n+len(payload)]
	ApplyMask(b[n:], payload, mask, 0)
	return b
}

func appendHead(b []byte, firstByte, maskBit byte, size int) []byte {
	switch b = append(b, firstByte); {
	case size <= 125:
		return append(b, maskBit|byte(size))
	case size <= 0xffff:
		return binary.BigEndian.AppendUint16(append(b, maskBit|126), uint16(size))
	}
	return binary.BigEndian.AppendUint64(append(b, maskBit|127), uint64(size))
}

var (
	// ErrLength is returned by ParseHeadIfComplete. Its other errors depend only on the first two bytes.
	ErrLength = errors.New("frame length is not minimally encoded or has its top bit set")
	errLong   = fmt.Errorf("control frame has more than %d bytes", MaxControl)
)

// ParseHeadIfComplete parses the frame head at the start of the input. If the head is incomplete, h.Len is 0.
// ParseHeadIfComplete does not check the reserved bits, whether the frame must be masked, and whether the frame may
// follow the previous frame. The caller must check these.
func ParseHeadIfComplete(in []byte) (h Head, err error) {
	if len(in) == 0 {
		return h, nil
	}
	h.First = in[0]
	switch op := h.Opcode(); {
	case op > OpBinary && op < OpClose || op > OpPong:
		return h, fmt.Errorf("frame has unknown opcode %d", op)
	case h.IsControl() && h.First&Fin == 0:
		return h, fmt.Errorf("control frame (opcode %d) is fragmented", op)
	case len(in) < 2:
		return h, nil
	}
	h.Masked, h.Size = in[1]&masked != 0, uint64(in[1]&^masked)
	n, minSize := 2, uint64(0)
	switch {
	case h.Size <= 125:
	case h.IsControl():
		return h, errLong
	case h.Size == 126:
		if n = 4; len(in) < n {
			return h, nil
		}
		h.Size, minSize = uint64(binary.BigEndian.Uint16(in[2:])), 126
	default:
		if n = 10; len(in) < n {
			return h, nil
		}
		h.Size, minSize = binary.BigEndian.Uint64(in[2:]), 1<<16
	}
	switch {
	case h.Size < minSize || h.Size >= 1<<63:
		return h, ErrLength
	case !h.Masked:
		h.Len = n
	case len(in) >= n+4:
		h.Len = n + copy(h.Mask[:], in[n:])
	}
	return h, nil
}

// ApplyMask masks the bytes of src and stores the result in dst. Masking twice restores the original bytes. dst must be
// at least as long as src, and may be src itself. If src is not the beginning of a payload, maskOffset is the number of
// payload bytes before src.
func ApplyMask(dst, src []byte, mask [4]byte, maskOffset int) {
	m := uint32(0)
	for i := range mask {
		m |= uint32(mask[(maskOffset+i)&3]) << (8 * i)
	}
	wide := uint64(m)<<32 | uint64(m)
	for len(src) >= 32 && len(dst) >= 32 { // compiles to one load and one store of 8 bytes each
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
		dst[i] = c ^ byte(wide>>(8*(i&7)))
	}
}

// ValidCloseCode reports whether a close frame may contain code. RFC 6455, section 7.4, defines the valid codes. The
// codes 1012 to 1014, which were registered later, are also valid.
func ValidCloseCode(code int) bool {
	return code >= 1000 && code <= 1003 || code >= 1007 && code <= 1014 || code >= 3000 && code <= 4999
}
