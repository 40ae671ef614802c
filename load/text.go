package load

import (
	"bytes"
	"math/rand/v2"
)

// text is what connections send and expect back: a ring of messages of equal
// size, in one block of memory that nobody changes.
//
//	┌───────────┬───────────┬─────┬───────────┐
//	│ message 0 │ message 1 │ ... │ message n │ ─▶ message 0
//	└───────────┴───────────┴─────┴───────────┘
//
// A connection starts at a message of its own and goes round from there. So
// messages that follow each other lie behind each other: any number of them is
// sent, and any piece of their answers compared, as one run of bytes. An
// answer of another connection, or one that was left out or came twice,
// differs from the one expected, but for the few connections that are at the
// same message by chance.
//
// Where a server answers with something else, the same type holds what it
// answers. In each answer the bytes from free to before freeEnd can be
// anything.
type text struct {
	block         []byte
	size          int // of a message
	free, freeEnd int
}

// A block has textBytes bytes or textMessages messages, whichever is more.
// The former is what a second-level cache holds beside everything else.
const (
	textBytes    = 64 << 10
	textMessages = 16
)

// newText makes messages of random printable characters that end in "\n".
func newText(size int, seed uint64) text {
	t := text{size: size, block: make([]byte, size*max(textBytes/size, textMessages))}
	random := rand.New(rand.NewPCG(seed, uint64(size)))
	for i := range t.block {
		t.block[i] = byte('!' + random.UintN('~'-'!'+1))
	}
	for end := size; end <= len(t.block); end += size {
		t.block[end-1] = '\n'
	}
	return t
}

// repeated makes every message the given one.
func repeated(message []byte) text {
	return text{size: len(message), block: bytes.Repeat(message, max(textBytes/len(message), 1))}
}

// start is where in the block the messages of a connection start. Connections
// whose numbers are close start at different messages.
func (t *text) start(number uint32) int {
	const spread = 2654435761 // prime, so that neighbours are far apart
	return int(uint64(number)*spread%uint64(len(t.block)/t.size)) * t.size
}

// after is the place n bytes behind at.
func (t *text) after(at, n int) int {
	at += n
	if at >= len(t.block) {
		at %= len(t.block)
	}
	return at
}

// run is the bytes from at on, at most n and at most to the end of the block.
func (t *text) run(at, n int) []byte {
	return t.block[at:min(at+n, len(t.block))]
}

// match returns how many bytes at the start of in are as those at place at.
func (t *text) match(at int, in []byte) int {
	if t.free == t.freeEnd {
		return t.same(at, in)
	}
	// Every message is the same here, so that one will do for all.
	message := t.block[:t.size]
	pos, same := at%t.size, 0
	for same < len(in) {
		end, free := t.size, false
		switch {
		case pos < t.free:
			end = t.free
		case pos < t.freeEnd:
			end, free = t.freeEnd, true
		}
		want := message[pos:min(end, pos+len(in)-same)]
		got := in[same : same+len(want)]
		if !free && !bytes.Equal(got, want) {
			return same + firstDifference(got, want)
		}
		same += len(want)
		if pos = end; pos == t.size {
			pos = 0
		}
	}
	return same
}

// same is match where every byte counts.
func (t *text) same(at int, in []byte) int {
	same := 0
	for same < len(in) {
		want := t.run(at, len(in)-same)
		got := in[same : same+len(want)]
		if !bytes.Equal(got, want) {
			return same + firstDifference(got, want)
		}
		same += len(want)
		at = t.after(at, len(want))
	}
	return same
}

// firstDifference is where two texts differ, the length of the shorter one if they
// do not.
func firstDifference(a, b []byte) int {
	n := min(len(a), len(b))
	if bytes.Equal(a[:n], b[:n]) {
		return n
	}
	for i := range n {
		if a[i] != b[i] {
			return i
		}
	}
	return n
}
