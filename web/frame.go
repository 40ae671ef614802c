package web

import (
	"slices"
	"unicode/utf8"

	"github.com/myriad-go/myriad/internal/wsframe"
)

// Kind is what a WebSocket message is.
type Kind byte

const (
	// Text is UTF-8: what arrives is checked.
	Text Kind = 1
	// Binary is bytes.
	Binary Kind = 2
)

const (
	opMore  = wsframe.OpContinuation
	opClose = wsframe.OpClose
	opPing  = wsframe.OpPing
	opPong  = wsframe.OpPong

	bitFin     = wsframe.Fin
	bitDeflate = wsframe.Compressed
	maxControl = wsframe.MaxControl
)

// Frame is a message as it goes over the wire, from a server to any number of clients: for
// Ref.Send, Group.Broadcast and Server.Broadcast, each of which then sends it without
// encoding it again. It is not compressed; see Group for messages that are.
func Frame[T string | []byte](kind Kind, message T) []byte {
	return append(appendFrameHead(make([]byte, 0, len(message)+10), byte(kind), len(message)), message...)
}

// appendFrameHead appends the head of a last frame.
func appendFrameHead(b []byte, op byte, n int) []byte { return wsframe.AppendHead(b, bitFin|op, n) }

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

// readFrameHead reads the head that in begins with; n is 0 if it is not whole.
func readFrameHead(in []byte, compressed bool) (h frameHead, err error) {
	head, err := wsframe.ParseHead(in)
	h.op, h.fin, h.deflate = head.Opcode(), head.First&bitFin != 0, head.First&bitDeflate != 0
	switch {
	case err != nil:
		return h, &CloseError{CloseProtocolError, err.Error()}
	case head.ReservedBits()&^bitDeflate != 0, h.deflate && (!compressed || h.control() || h.op == opMore):
		return h, &CloseError{CloseProtocolError, "a reserved bit is set"}
	case len(in) >= 2 && !head.Masked:
		return h, &CloseError{CloseProtocolError, "a client's frame is not masked"}
	case head.Size >= 1<<31:
		return h, &CloseError{CloseTooLarge, "a frame has 2 GiB or more"}
	}
	h.size, h.n, h.mask = int(head.Size), head.Len, head.Mask
	return h, nil
}

// unmask appends what was masked, of which at bytes went before.
func unmask(b, masked []byte, mask [4]byte, at int) []byte {
	start := len(b)
	b = slices.Grow(b, len(masked))[:start+len(masked)]
	wsframe.ApplyMask(b[start:], masked, mask, at)
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
