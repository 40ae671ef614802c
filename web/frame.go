package web

import (
	"encoding/binary"
	"math/rand/v2"
	"slices"
	"unicode/utf8"

	"github.com/myriad-go/myriad/internal/wsframe"
)

// Kind is the type of a WebSocket message.
type Kind byte

const (
	// Text is UTF-8. Incoming text is validated.
	Text Kind = 1
	// Binary is any bytes.
	Binary Kind = 2
)

const (
	opContinuation = wsframe.OpContinuation
	opClose        = wsframe.OpClose
	opPing         = wsframe.OpPing
	opPong         = wsframe.OpPong

	bitFin     = wsframe.Fin
	bitDeflate = wsframe.Compressed
	maxControl = wsframe.MaxControl
)

// Frame encodes a message that a server sends, without compression. The result can be sent to any number of clients,
// for example with tcp.Ref.Send or tcp.Group.Broadcast. For compression, use a [Group]. A client must send masked
// frames; see [MaskFrame].
func Frame[T string | []byte](kind Kind, message T) []byte {
	return append(appendFrameHead(make([]byte, 0, len(message)+10), byte(kind), len(message)), message...)
}

// MaskFrame returns a masked copy of frame, as a client must send it. It panics if frame is not a result of Frame or
// CloseFrame. Each call uses a new random mask. Use MaskFrame to send to a dialed socket outside of handler calls, for
// example ref.Send(web.MaskFrame(web.Frame(web.Text, "hello"))).
func MaskFrame(frame []byte) []byte {
	h, err := wsframe.ParseHeadIfComplete(frame)
	if err != nil || h.Len == 0 || h.Masked || h.Size != uint64(len(frame)-h.Len) {
		panic("web: MaskFrame: the frame is invalid; expected the result of Frame or CloseFrame")
	}
	return appendMaskedFrame(nil, h.First, frame[h.Len:])
}

// appendMaskedFrame appends a client's frame with an unpredictable mask, as RFC 6455, section 5.3, requires.
func appendMaskedFrame(b []byte, first byte, payload []byte) []byte {
	var mask [4]byte
	binary.NativeEndian.PutUint32(mask[:], rand.Uint32())
	return wsframe.AppendMaskedFrame(b, first, mask, payload)
}

func appendFrameHead(b []byte, op byte, n int) []byte { return wsframe.AppendHead(b, bitFin|op, n) }

func appendFrame(b []byte, op byte, payload []byte) []byte {
	return append(appendFrameHead(b, op, len(payload)), payload...)
}

type frameHead struct {
	op      byte
	fin     bool
	deflate bool
	mask    [4]byte
	size    int // of the payload, in bytes
	n       int // of the head itself, in bytes
}

func (h *frameHead) isControl() bool { return h.op&8 != 0 }

func parseFrameHeadIfComplete(in []byte, o socketOptions) (h frameHead, err error) {
	head, err := wsframe.ParseHeadIfComplete(in)
	h.op, h.fin, h.deflate = head.Opcode(), head.First&bitFin != 0, head.First&bitDeflate != 0
	switch { // in the order of the bytes, so that the error does not depend on how they arrived
	case head.ReservedBits()&^bitDeflate != 0, h.deflate && (!o.deflate || h.isControl() || h.op == opContinuation):
		return h, &CloseError{CloseProtocolError, "a reserved bit is set"}
	case err != nil && err != wsframe.ErrLength:
		return h, &CloseError{CloseProtocolError, err.Error()}
	case len(in) >= 2 && head.Masked == o.client:
		if o.client {
			return h, &CloseError{CloseProtocolError, "a frame from the server is masked; expected it unmasked"}
		}
		return h, &CloseError{CloseProtocolError, "a frame from the client is not masked; expected it masked"}
	case err != nil:
		return h, &CloseError{CloseProtocolError, err.Error()}
	case head.Size >= 1<<31:
		return h, &CloseError{CloseTooLarge, "the frame is 2 GiB or larger"}
	}
	h.size, h.n, h.mask = int(head.Size), head.Len, head.Mask
	return h, nil
}

// appendUnmasked removes the mask from payload bytes and appends the result to b. maskOffset is the position of
// masked[0] in the payload.
func appendUnmasked(b, masked []byte, mask [4]byte, maskOffset int) []byte {
	start := len(b)
	b = slices.Grow(b, len(masked))[:start+len(masked)]
	wsframe.ApplyMask(b[start:], masked, mask, maskOffset)
	return b
}

type utf8Checker struct {
	checked int // bytes that consist of valid, complete characters
}

// validateIncrementally reports whether messageSoFar is valid UTF-8. It skips the bytes that an earlier call has
// checked. If final is false, messageSoFar may end within a character.
func (t *utf8Checker) validateIncrementally(messageSoFar []byte, final bool) bool {
	for t.checked < len(messageSoFar) {
		if rest := messageSoFar[t.checked:]; !utf8.FullRune(rest) {
			return !final
		}
		end := len(messageSoFar)
		for back := 1; back < utf8.UTFMax && back <= end-t.checked; back++ {
			if utf8.RuneStart(messageSoFar[end-back]) {
				if !utf8.FullRune(messageSoFar[end-back:]) {
					end -= back
				}
				break
			}
		}
		if !utf8.Valid(messageSoFar[t.checked:end]) {
			return false
		}
		t.checked = end
	}
	return true
}
