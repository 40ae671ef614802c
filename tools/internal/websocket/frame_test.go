package websocket

import (
	"encoding/binary"
	"fmt"
	"strings"
	"testing"
	"unsafe"

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

func serverFrame(first byte, payload string) string {
	b := []byte{first}
	switch n := len(payload); {
	case n < 126:
		b = append(b, byte(n))
	case n < 65536:
		b = binary.BigEndian.AppendUint16(append(b, 126), uint16(n))
	default:
		b = binary.BigEndian.AppendUint64(append(b, 127), uint64(n))
	}
	return string(b) + payload
}

// readEvents reads a stream in pieces of at most maxPiece bytes, and describes its contents, with
// data joined to messages.
func readEvents(t *testing.T, stream string, maxPiece int) (events []string, err error) {
	t.Helper()
	var r FrameReader
	var message []byte
	in := []byte(stream)
	for from, to := 0, 0; ; {
		part, n, err := r.Next(in[from:to:to])
		switch {
		case err != nil && (n != 0 || part.Payload != nil || part.Kind != 0):
			t.Fatalf("an error with %d bytes and %+v", n, part)
		case err != nil:
			if len(message) > 0 {
				events = append(events, fmt.Sprintf("begun %q", message))
			}
			return events, err
		case n == 0:
			if to-from >= 127 || part.Payload != nil || part.Kind != 0 {
				t.Fatalf("%d bytes are not enough, and give %+v", to-from, part)
			}
			if to == len(stream) {
				return append(events, fmt.Sprintf("begun %q, %d bytes more", message, to-from)), nil
			}
			to = min(to+maxPiece, len(stream))
			continue
		}
		from += n
		if part.Kind != Data {
			events = append(events, fmt.Sprintf("%s %q", []string{"?", "?", "ping", "pong", "close"}[part.Kind], part.Payload))
			continue
		}
		message = append(message, part.Payload...)
		if part.Last {
			events = append(events, fmt.Sprintf("message %q", message))
			message = nil
		}
	}
}

func TestReader(t *testing.T) {
	long, longer := strings.Repeat("0123456789", 100), strings.Repeat("x", 65536)
	stream := serverFrame(0x81, "Hello") + serverFrame(0x82, "") + serverFrame(0x01, "a") + serverFrame(0x89, "are you there?") + serverFrame(0x00, "") +
		serverFrame(0x00, "b") + serverFrame(0x8a, "") + serverFrame(0x80, "c") + serverFrame(0x82, long) + serverFrame(0x81, longer[1:]) + serverFrame(0x81, longer) +
		serverFrame(0x02, "") + serverFrame(0x80, "") + serverFrame(0x89, longer[:125]) + serverFrame(0x88, "\x03\xe8bye")
	want := []string{`message "Hello"`, `message ""`, `ping "are you there?"`, `pong ""`, `message "abc"`,
		fmt.Sprintf("message %q", long), fmt.Sprintf("message %q", longer[1:]), fmt.Sprintf("message %q", longer),
		`message ""`, fmt.Sprintf("ping %q", longer[:125]), `close "\x03\xe8bye"`, `begun "", 0 bytes more`}
	for _, most := range []int{1, 2, 3, 7, 64, 1000, 1 << 20} {
		got, err := readEvents(t, stream, most)
		if err != nil || strings.Join(got, ", ") != strings.Join(want, ", ") {
			t.Errorf("in pieces of %d: %.200q, %v", most, got, err)
		}
	}
}

func TestBadFrames(t *testing.T) {
	for name, c := range map[string]struct{ in, err string }{
		"reserved bit 1":         {"\xc1", "reserved bits (first byte 0xc1)"},
		"reserved bit 3":         {"\x91", "reserved bits"},
		"opcode 3":               {"\x83", "opcode 3"},
		"masked":                 {"\x81\x80", "masked"},
		"continuation of none":   {"\x80", "outside a message"},
		"continuation after end": {serverFrame(0x81, "a") + "\x00", "outside a message"},
		"message in another":     {serverFrame(0x01, "a") + "\x81", "inside another"},
		"fragmented ping":        {"\x09", "opcode 9) is fragmented"},
		"long ping":              {"\x89\x7e", "more than 125 bytes"},
		"16 bits for 125":        {"\x81\x7e\x00\x7d", "not minimally encoded"},
		"64 bits for 65535":      {"\x81\x7f\x00\x00\x00\x00\x00\x00\xff\xff", "not minimally encoded"},
		"top bit":                {"\x81\x7f\x80\x00\x00\x00\x00\x00\x00\x00", "its top bit set"},
		"close of 1 byte":        {serverFrame(0x88, "\x03"), "close frame of 1 byte"},
		"behind a close":         {serverFrame(0x88, "") + "\x8a", "after its close frame"},
	} {
		for _, most := range []int{1, len(c.in)} {
			_, err := readEvents(t, c.in, most)
			if err == nil || !strings.Contains(err.Error(), c.err) {
				t.Errorf("%s: %v; expected an error with %q", name, err, c.err)
			}
			if _, err := readEvents(t, c.in[:len(c.in)-1], most); err != nil {
				t.Errorf("%s: %v before its last byte", name, err)
			}
		}
	}
}

func TestCloseCodes(t *testing.T) {
	good := map[int]bool{3000: true, 4000: true, 4999: true}
	for code := 1000; code <= 1014; code++ {
		good[code] = code < 1004 || code > 1006
	}
	for code := range 1 << 16 {
		payload := string(binary.BigEndian.AppendUint16(nil, uint16(code)))
		var r FrameReader
		part, _, err := r.Next([]byte(serverFrame(0x88, payload)))
		want := good[code] || code > 3000 && code < 5000
		if (err == nil) != want || err == nil && CloseCode(part.Payload) != code || err != nil && !strings.Contains(err.Error(), fmt.Sprint(code)) {
			t.Errorf("code %d: %+v, %v", code, part, err)
		}
	}
	if code := CloseCode(nil); code != 1005 {
		t.Errorf("a Close without code has %d; expected 1005", code)
	}
}

// TestReaderCost checks that nothing is kept or copied: payload is returned as it arrives.
func TestReaderCost(t *testing.T) {
	if size := unsafe.Sizeof(FrameReader{}); size > 16 {
		t.Errorf("a Reader has %d bytes; expected at most 16", size)
	}
	in := []byte(serverFrame(0x01, "a") + serverFrame(0x89, "b") + serverFrame(0x80, "c"))
	if n := testing.AllocsPerRun(100, func() {
		var r FrameReader
		for rest := in; len(rest) > 0; {
			_, n, err := r.Next(rest)
			if n == 0 || err != nil {
				t.Fatal(n, err)
			}
			rest = rest[n:]
		}
	}); n > 0 {
		t.Errorf("%v allocations for three frames; expected none", n)
	}
}

// FuzzReader checks that the meaning of a stream does not depend on its division into pieces.
func FuzzReader(f *testing.F) {
	f.Add([]byte(serverFrame(0x81, "Hello")+serverFrame(0x82, "")), byte(1))
	f.Add([]byte(serverFrame(0x01, "a")+serverFrame(0x89, "ping")+serverFrame(0x80, strings.Repeat("b", 126))+serverFrame(0x88, "\x03\xe8bye")), byte(3))
	f.Add([]byte("\x81\x7f\x00\x00\x00\x00\x00\x01\x00\x00more"), byte(9))
	f.Add([]byte("\x81\x7f\x80\x00\x00\x00\x00\x00\x00\x00"), byte(2))
	f.Add([]byte(serverFrame(0x88, "\x00\x01")+"x"), byte(2))
	f.Add([]byte("\x30\xff\xff\xff\x7fc0000"), byte(1)) // reserved bits and an invalid length
	f.Fuzz(func(t *testing.T, stream []byte, most byte) {
		want, wantErr := readEvents(t, string(stream), max(len(stream), 1))
		for _, m := range []int{1, max(int(most), 1)} {
			got, err := readEvents(t, string(stream), m)
			if strings.Join(got, ", ") != strings.Join(want, ", ") || fmt.Sprint(err) != fmt.Sprint(wantErr) {
				t.Fatalf("%x in pieces of %d: %q, %v; as a whole %q, %v", stream, m, got, err, want, wantErr)
			}
		}
	})
}
