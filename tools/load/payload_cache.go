package load

import (
	"bytes"
	"math/rand/v2"

	"github.com/myriad-go/myriad/internal/engine"
)

// payloadCache has messages of one size, to send or to expect, contiguous in memory.
type payloadCache struct {
	block       messageBlock
	partialNext int // bytes of the next message that are sent with each
}

func newPayloadCache(cfg *Config) *payloadCache {
	if fixed, ok := cfg.fixedMessage(); ok {
		return &payloadCache{newRepeatedBlock(fixed), cfg.Ahead}
	}
	return &payloadCache{newRandomBlock(cfg.Size, cfg.Seed), cfg.Ahead}
}

func (r *payloadCache) maxMessageLen() int { return r.block.size }

func (r *payloadCache) firstOffset(connNumber uint32) int { return r.block.firstOffset(connNumber) }

func (r *payloadCache) messageOffset(connNumber uint32, msgNumber uint64) int {
	messages := uint64(len(r.block.bytes) / r.block.size)
	return r.block.advanceOffset(r.firstOffset(connNumber), int(msgNumber%messages)*r.block.size)
}

func (r *payloadCache) appendMessage(dst []byte, connNumber uint32, msgNumber uint64) []byte {
	m := r.block.bytesAt(r.messageOffset(connNumber, msgNumber), r.block.size)
	if dst == nil {
		return m
	}
	return append(dst, m...)
}

// checkAnswers compares answers with the messages in place, in long runs of bytes.
func (r *payloadCache) checkAnswers(_ *engine.Conn, cs *connState, in []byte, answeredInCall int) (res checkResult) {
	pos, size := int(cs.answerPos), r.block.size
	owed := in[:min(len(in), (int(cs.inFlight)-answeredInCall)*size-pos)]
	at := r.block.advanceOffset(r.messageOffset(cs.number, cs.answered+uint64(answeredInCall)), pos)
	for res.used < len(owed) {
		want := r.block.bytesAt(at, len(owed)-res.used)
		same := firstDifference(owed[res.used:res.used+len(want)], want)
		res.used += same
		if same < len(want) {
			break
		}
		at = r.block.advanceOffset(at, same)
	}
	if res.used < len(in) {
		res.err = errWrongAnswer
	}
	res.answerBytes, res.answers, cs.answerPos = res.used, (pos+res.used)/size, uint32((pos+res.used)%size)
	return res
}

func (r *payloadCache) expectedBytes(cs *connState) []byte { return expectedRest(r, cs) }

// writeMessages writes n messages to a connection, from msgNumber on, without copying them first. It
// returns their size.
func (r *payloadCache) writeMessages(c *engine.Conn, connNumber uint32, msgNumber uint64, n int) int {
	at, left := r.messageOffset(connNumber, msgNumber), n*r.block.size
	if msgNumber == 0 {
		left += r.partialNext
	} else {
		at = r.block.advanceOffset(at, r.partialNext)
	}
	for left > 0 {
		p := r.block.bytesAt(at, left)
		if _, err := c.Write(p); err != nil {
			break // Closed gets the error
		}
		left -= len(p)
		at = 0
	}
	return n * r.block.size
}

// messageBlock is an immutable circular sequence of messages of equal size.
//
//	┌───────────┬───────────┬─────┬───────────┐
//	│ message 0 │ message 1 │ ... │ message n │ ─▶ message 0
//	└───────────┴───────────┴─────┴───────────┘
//
// Each connection starts at another message and continues from there. Because successive messages
// are adjacent, any number of them is sent, and any piece of their answers compared, as one run of
// bytes. An answer that belongs to another connection, was skipped or came twice differs from the
// expected one, except for the few connections that are at the same message by chance.
type messageBlock struct {
	bytes []byte
	size  int // of a message
}

// A messageBlock has blockBytes bytes or blockMessages messages, whichever is more. blockBytes fits
// a second-level cache beside everything else.
const (
	blockBytes    = 64 << 10
	blockMessages = 16
)

// newRandomBlock generates messages of random printable characters that end in "\n".
func newRandomBlock(size int, seed uint64) messageBlock {
	b := messageBlock{size: size, bytes: make([]byte, size*max(blockBytes/size, blockMessages))}
	random := rand.New(rand.NewPCG(seed, uint64(size)))
	for i := range b.bytes {
		b.bytes[i] = byte('!' + random.UintN('~'-'!'+1))
	}
	for end := size; end <= len(b.bytes); end += size {
		b.bytes[end-1] = '\n'
	}
	return b
}

func newRepeatedBlock(message []byte) messageBlock {
	return messageBlock{size: len(message), bytes: bytes.Repeat(message, max(blockBytes/len(message), 1))}
}

// firstOffset returns the offset of a connection's first message. Connections with close numbers
// start at different messages.
func (b *messageBlock) firstOffset(connNumber uint32) int {
	const spread = 2654435761 // prime, so that neighbours are far apart
	return int(uint64(connNumber)*spread%uint64(len(b.bytes)/b.size)) * b.size
}

// advanceOffset returns the offset n bytes later, wrapping around.
func (b *messageBlock) advanceOffset(offset, n int) int {
	offset += n
	if offset >= len(b.bytes) {
		offset %= len(b.bytes)
	}
	return offset
}

// bytesAt returns at most maxBytes bytes from offset on, up to the end of the block.
func (b *messageBlock) bytesAt(offset, maxBytes int) []byte {
	return b.bytes[offset:min(offset+maxBytes, len(b.bytes))]
}

// firstDifference returns the index of the first difference, or the length of the shorter text if
// there is none.
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
