package load

import (
	"bytes"
	"math/rand/v2"

	"github.com/myriad-go/myriad/internal/engine"
)

// ring are messages of one size, to send or to expect, that lie in memory one behind the
// other.
type ring struct {
	text  block
	ahead int // bytes of the next message that are sent with each
}

func newRing(cfg *Config) *ring {
	if fixed, ok := cfg.fixedMessage(); ok {
		return &ring{repeated(fixed), cfg.Ahead}
	}
	return &ring{newBlock(cfg.Size, cfg.Seed), cfg.Ahead}
}

func (r *ring) longest() int { return r.text.size }

// start is the place of the first message of a connection.
func (r *ring) start(number uint32) int { return r.text.start(number) }

// place is the place of message number k.
func (r *ring) place(number uint32, k uint64) int {
	messages := uint64(len(r.text.bytes) / r.text.size)
	return r.text.after(r.start(number), int(k%messages)*r.text.size)
}

func (r *ring) message(dst []byte, number uint32, k uint64) []byte {
	m := r.text.run(r.place(number, k), r.text.size)
	if dst == nil {
		return m
	}
	return append(dst, m...)
}

// check compares answers that are the messages in one go, as they lie in memory.
func (r *ring) check(_ *engine.Conn, l *connState, in []byte, ahead int) (h progress) {
	pos, size := int(l.pos), r.text.size
	owed := in[:min(len(in), (int(l.inFlight)-ahead)*size-pos)]
	at := r.text.after(r.place(l.number, l.answered+uint64(ahead)), pos)
	for h.used < len(owed) {
		want := r.text.run(at, len(owed)-h.used)
		same := firstDifference(owed[h.used:h.used+len(want)], want)
		h.used += same
		if same < len(want) {
			break
		}
		at = r.text.after(at, same)
	}
	if h.used < len(in) {
		h.wrong = errWrong
	}
	h.bytes, h.answers, l.pos = h.used, (pos+h.used)/size, uint32((pos+h.used)%size)
	return h
}

func (r *ring) expects(l *connState) []byte { return owed(r, l) }

// send hands n messages to a connection, without copying them first.
func (r *ring) send(c *engine.Conn, number uint32, k uint64, n int) int {
	at, left := r.place(number, k), n*r.text.size
	if k == 0 {
		left += r.ahead
	} else {
		at = r.text.after(at, r.ahead)
	}
	for left > 0 {
		p := r.text.run(at, left)
		if _, err := c.Write(p); err != nil {
			break // Closed tells why
		}
		left -= len(p)
		at = 0
	}
	return n * r.text.size
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
type block struct {
	bytes []byte
	size  int // of a message
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
