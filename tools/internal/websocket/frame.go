package websocket

import (
	"fmt"
	"slices"

	"github.com/myriad-go/myriad/internal/wsframe"
)

// Opcode says what a frame is.
type Opcode byte

// The opcodes that a client sends (RFC 6455, section 11.8).
const (
	OpText   Opcode = wsframe.OpText
	OpBinary Opcode = wsframe.OpBinary
	OpClose  Opcode = wsframe.OpClose
	OpPing   Opcode = wsframe.OpPing
	OpPong   Opcode = wsframe.OpPong
)

// MaxControl is the most bytes of payload that a Ping, Pong or Close has.
const MaxControl = wsframe.MaxControl

// AppendFrame appends a whole message, or a Ping, Pong or Close, as one frame of a
// client: the last one of its message, and masked. RFC 6455 wants an
// unpredictable mask, another one for each frame, to keep what pages in browsers
// send from being taken for something else by proxies; a generator of load may
// draw it from a seed. The payload must not overlap the room behind dst. It
// panics if a Ping, Pong or Close has more than MaxControl bytes. It allocates
// if dst has no room.
func AppendFrame(dst []byte, op Opcode, mask [4]byte, payload []byte) []byte {
	if op >= OpClose && len(payload) > MaxControl {
		panic(fmt.Sprintf("websocket: AppendFrame: a control frame with %d bytes; expected at most %d", len(payload), MaxControl))
	}
	dst = slices.Grow(dst, len(payload)+wsframe.MaxHead)
	dst = wsframe.AppendMaskedHead(dst, wsframe.Fin|byte(op), mask, len(payload))
	at := len(dst)
	dst = dst[:at+len(payload)]
	wsframe.ApplyMask(dst[at:], payload, mask, 0)
	return dst
}
