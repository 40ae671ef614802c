package load

import (
	"testing"
)

// TestStart checks that connections with close numbers start at different messages, and that messages differ.
func TestStart(t *testing.T) {
	text := newRandomLinesBlock(64, 0)
	seen := map[string]int{}
	messages := len(text.bytes) / 64
	for id := range messages {
		at := text.firstOffset(uint32(id))
		m := string(text.contiguousBytesAt(at, 64))
		if other, twice := seen[m]; at%64 != 0 || twice {
			t.Fatalf("connection %d starts at %d with the message of %d", id, at, other)
		}
		seen[m] = id
	}
}

// FuzzCheck divides answers into pieces: the verdict must be that of one piece. change is the index
// of a changed byte, cuts are the sizes of pieces.
func FuzzCheck(f *testing.F) {
	f.Add(uint16(64), uint8(1), uint32(0), uint16(70), []byte{1, 2, 3})
	f.Add(uint16(2), uint8(16), uint32(7), uint16(3), []byte{255, 1, 255})
	f.Add(uint16(5000), uint8(3), uint32(1<<31), uint16(9999), []byte{200})
	f.Add(uint16(300), uint8(200), uint32(11), uint16(50_000), []byte{0, 9})
	f.Fuzz(func(t *testing.T, size uint16, messages uint8, id uint32, change uint16, cuts []byte) {
		if size < 2 || messages == 0 {
			return
		}
		text := newRandomLinesBlock(int(size), 0)
		h := &pregeneratedPayload{block: text}
		fresh := func() *connState { return &connState{number: id, inFlight: uint16(messages)} }
		// check counts answers as the generator does.
		check := func(l *connState, in []byte) (good, answers int) {
			heard := h.checkAnswers(nil, l, in, 0)
			l.inFlight -= uint16(heard.answers)
			l.answered += uint64(heard.answers)
			if (heard.err == nil) != (heard.used == len(in)) {
				t.Fatalf("%d of %d bytes used, %v", heard.used, len(in), heard.err)
			}
			return heard.used, heard.answers
		}
		answer := make([]byte, 0, int(size)*int(messages))
		for at := text.firstOffset(id); len(answer) < cap(answer); at = 0 {
			answer = append(answer, text.contiguousBytesAt(at, cap(answer)-len(answer))...)
		}
		wrong := len(answer)
		if int(change) < len(answer) {
			wrong = int(change)
			answer[wrong] ^= 0x80
		}

		whole := fresh()
		good, answers := check(whole, answer)
		if good != wrong || answers != wrong/int(size) || int(whole.answerPos) != wrong%int(size) {
			t.Fatalf("in one piece: %d good, %d answers, at %d of one; wrong is %d, size %d", good, answers, whole.answerPos, wrong, size)
		}
		pieces := fresh()
		total, sum := 0, 0
		for rest := answer; len(rest) > 0; {
			n := len(rest)
			if len(cuts) > 0 {
				n = min(n, 1+int(cuts[0]))
				cuts = cuts[1:]
			}
			good, answers := check(pieces, rest[:n])
			total, sum = total+good, sum+answers
			if good < n {
				break
			}
			rest = rest[n:]
		}
		if total != good || sum != answers || *pieces != *whole {
			t.Fatalf("in pieces: %d good, %d answers, %+v; in one: %d, %d, %+v", total, sum, *pieces, good, answers, *whole)
		}
	})
}
