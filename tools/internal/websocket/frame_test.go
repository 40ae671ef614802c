package websocket

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"strings"
	"testing"
)

// parseClientFrame parses a frame of a client as a server would.
func parseClientFrame(t *testing.T, b []byte) (op Opcode, payload []byte) {
	t.Helper()
	if b[0]&0xf0 != 0x80 || b[1]&0x80 == 0 {
		t.Fatalf("a frame begins with %x; expected FIN, no reserved bit, and a mask", b[:2])
	}
	size, b0, rest := int(b[1]&0x7f), b[0], b[2:]
	switch size {
	case 126:
		size, rest = int(rest[0])<<8|int(rest[1]), rest[2:]
		if size < 126 {
			t.Fatalf("%d bytes with a length of 2 bytes", size)
		}
	case 127:
		size, rest = int(binary.BigEndian.Uint64(rest)), rest[8:]
		if size < 65536 {
			t.Fatalf("%d bytes with a length of 8 bytes", size)
		}
	}
	mask, rest := rest[:4], rest[4:]
	if len(rest) != size {
		t.Fatalf("%d bytes of payload; the header says %d", len(rest), size)
	}
	for i, c := range rest {
		payload = append(payload, c^mask[i%4])
	}
	return Opcode(b0 & 0x0f), payload
}

func TestFrame(t *testing.T) {
	// The masked "Hello" of RFC 6455, 5.7.
	got := AppendMaskedFrame([]byte("x"), OpText, [4]byte{0x37, 0xfa, 0x21, 0x3d}, []byte("Hello"))
	if want := "x\x81\x85\x37\xfa\x21\x3d\x7f\x9f\x4d\x51\x58"; string(got) != want {
		t.Errorf("the frame is %x; expected %x", got, want)
	}
	for _, n := range []int{0, 1, 7, 8, 9, 31, 32, 33, 125, 126, 65535, 65536, 65537} {
		payload := bytes.Repeat([]byte("0123456"), n/7+1)[:n]
		op, back := parseClientFrame(t, AppendMaskedFrame(nil, OpBinary, [4]byte{1, 2, 3, 4}, payload))
		if op != OpBinary || !bytes.Equal(back, payload) {
			t.Errorf("%d bytes come out as opcode %d with %d bytes, or others", n, op, len(back))
		}
	}
}

func TestLongControlFrame(t *testing.T) {
	AppendMaskedFrame(nil, OpPong, [4]byte{}, make([]byte, MaxControl))
	defer func() {
		if got := fmt.Sprint(recover()); !strings.Contains(got, "126 bytes; expected at most 125") {
			t.Errorf("a Pong of 126 bytes: %s; expected a panic that says so", got)
		}
	}()
	AppendMaskedFrame(nil, OpPong, [4]byte{}, make([]byte, MaxControl+1))
}

func TestFrameAllocatesNothing(t *testing.T) {
	out, payload := make([]byte, 0, 1024), make([]byte, 1000)
	if n := testing.AllocsPerRun(100, func() { out = AppendMaskedFrame(out[:0], OpText, [4]byte{1, 2, 3, 4}, payload) }); n > 0 {
		t.Errorf("%v allocations for a frame; expected none", n)
	}
}
