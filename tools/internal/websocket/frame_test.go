package websocket

import (
	"fmt"
	"strings"
	"testing"

	"github.com/myriad-go/myriad/internal/testkit"
)

func TestFrame(t *testing.T) {
	// The masked "Hello" of RFC 6455, 5.7, whose mask MaskedFrame has, too.
	mask := [4]byte{0x37, 0xfa, 0x21, 0x3d}
	got := AppendMaskedFrame([]byte("x"), OpText, mask, []byte("Hello"))
	if want := "x\x81\x85\x37\xfa\x21\x3d\x7f\x9f\x4d\x51\x58"; string(got) != want {
		t.Errorf("the frame is %x; expected %x", got, want)
	}
	for _, n := range []int{0, 1, 7, 8, 9, 31, 32, 33, 125, 126, 65535, 65536, 65537} {
		payload := strings.Repeat("0123456", n/7+1)[:n]
		if got := AppendMaskedFrame(nil, OpBinary, mask, []byte(payload)); string(got) != testkit.MaskedFrame(0x82, payload) {
			t.Errorf("the frame of %d bytes begins with %x; expected another", n, got[:2])
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
