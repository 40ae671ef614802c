package websocket

import (
	"fmt"

	"github.com/myriad-go/myriad/internal/wsframe"
)

// Opcode is the type of a frame.
type Opcode byte

// Opcodes that a client sends (RFC 6455, section 11.8).
const (
	OpText   Opcode = wsframe.OpText
	OpBinary Opcode = wsframe.OpBinary
	OpClose  Opcode = wsframe.OpClose
	OpPing   Opcode = wsframe.OpPing
	OpPong   Opcode = wsframe.OpPong
)

// MaxControl is the maximum payload of a Ping, Pong or Close in bytes.
const MaxControl = wsframe.MaxControl

// AppendMaskedFrame appends one masked frame of a client. The payload must not overlap the free capacity of dst.
// AppendMaskedFrame panics if a Ping, Pong or Close has more than MaxControl bytes.
func AppendMaskedFrame(dst []byte, op Opcode, mask [4]byte, payload []byte) []byte {
	if op >= OpClose && len(payload) > MaxControl {
		panic(fmt.Sprintf("websocket: AppendMaskedFrame: a control frame with %d bytes; expected at most %d", len(payload), MaxControl))
	}
	return wsframe.AppendMaskedFrame(dst, wsframe.Fin|byte(op), mask, payload)
}
