package load

import (
	"bytes"
	"math/rand/v2"

	"github.com/myriad-go/myriad/internal/engine"
)

// ring speaks messages of one size that lie in memory one behind the other.
type ring struct{ text block }

func newRing(cfg *Config) *ring {
	if cfg.Message != nil {
		return &ring{repeated(cfg.Message)}
	}
	return &ring{newBlock(cfg.Size, cfg.Seed)}
}

func (r *ring) longest() int { return r.text.size }

// start is the place of the first message of a connection.
func (r *ring) start(number uint32) int { return r.text.start(number) }

// place is the place of message number k.
func (r *ring) place(number uint32, k uint64) int {
	messages := uint64(len(r.text.bytes) / r.text.size)
	return r.text.after(r.start(number), int(k%messages)*r.text.size)
}

func (r *ring) append(dst []byte, number uint32, k uint64) []byte {
	return append(dst, r.text.run(r.place(number, k), r.text.size)...)
}

// send hands n messages to a connection, without copying them first.
func (r *ring) send(c *engine.Conn, number uint32, k uint64, n int) int {
	at := r.place(number, k)
	for left := n * r.text.size; left > 0; {
		p := r.text.run(at, left)
		if _, err := c.Write(p); err != nil {
			break // Closed tells why
		}
		left -= len(p)
		at = 0
	}
	return n * r.text.size
}

// ringAnswers expects answers that lie in memory one behind the other.
type ringAnswers struct {
	text  block
	start func(number uint32) int
}

// newRingAnswers expects the one answer of a configuration.
func newRingAnswers(cfg *Config) *ringAnswers {
	r := &ringAnswers{text: repeated(cfg.Answer)}
	r.text.free, r.text.freeEnd = cfg.free, cfg.freeEnd
	r.start = r.text.start
	return r
}

func (r *ringAnswers) begin(l *connState) { l.at = uint32(r.start(l.number)) }

func (r *ringAnswers) check(_ *engine.Conn, l *connState, in []byte, ahead int) (h progress) {
	owed := (int(l.flying)-ahead)*r.text.size - int(l.pos)
	good := r.text.match(int(l.at), in[:min(len(in), owed)])
	l.at = uint32(r.text.after(int(l.at), good))
	pos := int(l.pos) + good
	for ; pos >= r.text.size; pos -= r.text.size {
		h.answers++
	}
	l.pos = uint32(pos)
	h.used, h.bytes = good, good
	if good < len(in) {
		h.wrong = errWrong
	}
	return h
}

func (r *ringAnswers) expects(l *connState) []byte {
	if l.flying == 0 {
		return nil
	}
	return r.text.run(int(l.at), r.text.size-int(l.pos))
}

// block is what connections send and expect back: a ring of messages of equal
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
type block struct {
	bytes         []byte
	size          int // of a message
	free, freeEnd int
}

// A block has blockBytes bytes or blockMessages messages, whichever is more.
// The former is what a second-level cache holds beside everything else.
const (
	blockBytes    = 64 << 10
	blockMessages = 16
)

// newBlock makes messages of random printable characters that end in "\n".
func newBlock(size int, seed uint64) block {
	b := block{size: size, bytes: make([]byte, size*max(blockBytes/size, blockMessages))}
	random := rand.New(rand.NewPCG(seed, uint64(size)))
	for i := range b.bytes {
		b.bytes[i] = byte('!' + random.UintN('~'-'!'+1))
	}
	for end := size; end <= len(b.bytes); end += size {
		b.bytes[end-1] = '\n'
	}
	return b
}

// repeated makes every message the given one.
func repeated(message []byte) block {
	return block{size: len(message), bytes: bytes.Repeat(message, max(blockBytes/len(message), 1))}
}

// start is where in the block the messages of a connection start. Connections
// whose numbers are close start at different messages.
func (b *block) start(number uint32) int {
	const spread = 2654435761 // prime, so that neighbours are far apart
	return int(uint64(number)*spread%uint64(len(b.bytes)/b.size)) * b.size
}

// after is the place n bytes behind at.
func (b *block) after(at, n int) int {
	at += n
	if at >= len(b.bytes) {
		at %= len(b.bytes)
	}
	return at
}

// run is the bytes from at on, at most n and at most to the end of the block.
func (b *block) run(at, n int) []byte {
	return b.bytes[at:min(at+n, len(b.bytes))]
}

// match returns how many bytes at the start of in are as those at place at.
func (b *block) match(at int, in []byte) int {
	if b.free == b.freeEnd {
		return b.same(at, in)
	}
	// Every message is the same here, so that one will do for all.
	message := b.bytes[:b.size]
	pos, same := at%b.size, 0
	for same < len(in) {
		end, free := b.size, false
		switch {
		case pos < b.free:
			end = b.free
		case pos < b.freeEnd:
			end, free = b.freeEnd, true
		}
		want := message[pos:min(end, pos+len(in)-same)]
		got := in[same : same+len(want)]
		if !free && !bytes.Equal(got, want) {
			return same + firstDifference(got, want)
		}
		same += len(want)
		if pos = end; pos == b.size {
			pos = 0
		}
	}
	return same
}

// same is match where every byte counts.
func (b *block) same(at int, in []byte) int {
	same := 0
	for same < len(in) {
		want := b.run(at, len(in)-same)
		got := in[same : same+len(want)]
		if !bytes.Equal(got, want) {
			return same + firstDifference(got, want)
		}
		same += len(want)
		at = b.after(at, len(want))
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
