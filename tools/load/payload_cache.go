package load

import (
	"bytes"
	"math/rand/v2"

	"github.com/myriad-go/myriad/internal/engine"
)

// pregeneratedPayload stores generated messages or answers of equal size. They are adjacent in memory, so that several
// can be sent or compared at once.
type pregeneratedPayload struct {
	block       circularMessageBlock
	partialNext int // number of bytes of the next message that are sent with each message
}

func newConstantOrRandomPayloads(cfg *Config) *pregeneratedPayload {
	if fixed, ok := cfg.constantMessage(); ok {
		return &pregeneratedPayload{newRepeatedMessageBlock(fixed), cfg.Ahead}
	}
	return &pregeneratedPayload{newRandomLinesBlock(cfg.Size, cfg.Seed), cfg.Ahead}
}

func (r *pregeneratedPayload) maxMessageLen() int { return r.block.size }

func (r *pregeneratedPayload) firstOffset(connNumber uint32) int {
	return r.block.firstOffset(connNumber)
}

func (r *pregeneratedPayload) messageOffset(connNumber uint32, msgNumber uint64) int {
	messages := uint64(len(r.block.bytes) / r.block.size)
	return r.block.advanceOffsetWrapping(r.firstOffset(connNumber), int(msgNumber%messages)*r.block.size)
}

func (r *pregeneratedPayload) appendMessageReadOnlyIfNil(dst []byte, connNumber uint32, msgNumber uint64) []byte {
	m := r.block.contiguousBytesAt(r.messageOffset(connNumber, msgNumber), r.block.size)
	if dst == nil {
		return m
	}
	return append(dst, m...)
}

func (r *pregeneratedPayload) checkAnswers(_ *engine.Conn, cs *connState, in []byte, answeredInCall int) (res checkResult) {
	pos, size := int(cs.answerPos), r.block.size
	owed := in[:min(len(in), (int(cs.inFlight)-answeredInCall)*size-pos)]
	at := r.block.advanceOffsetWrapping(r.messageOffset(cs.number, cs.answered+uint64(answeredInCall)), pos)
	for res.used < len(owed) {
		want := r.block.contiguousBytesAt(at, len(owed)-res.used)
		same := commonPrefixLen(owed[res.used:res.used+len(want)], want)
		res.used += same
		if same < len(want) {
			break
		}
		at = r.block.advanceOffsetWrapping(at, same)
	}
	if res.used < len(in) {
		res.err = errWrongAnswer
	}
	res.answerBytes, res.answers, cs.answerPos = res.used, (pos+res.used)/size, uint32((pos+res.used)%size)
	return res
}

func (r *pregeneratedPayload) nextExpectedBytes(cs *connState) []byte {
	return remainderOfExpectedEcho(r, cs)
}

// writeCachedMessages writes n messages of a connection without copying them. firstMsgNumber is the number of the first
// message. sizeInBytes is always the size of n messages. If a write fails, the engine passes the error to Closed.
func (r *pregeneratedPayload) writeCachedMessages(c *engine.Conn, connNumber uint32, firstMsgNumber uint64, n int) (sizeInBytes int) {
	at, left := r.messageOffset(connNumber, firstMsgNumber), n*r.block.size
	if firstMsgNumber == 0 {
		left += r.partialNext
	} else {
		at = r.block.advanceOffsetWrapping(at, r.partialNext)
	}
	for left > 0 {
		p := r.block.contiguousBytesAt(at, left)
		if _, err := c.Write(p); err != nil {
			break // an error reaches Closed
		}
		left -= len(p)
		at = 0
	}
	return n * r.block.size
}

// circularMessageBlock is an immutable circular sequence of messages of equal size.
//
//	┌───────────┬───────────┬─────┬───────────┐
//	│ message 0 │ message 1 │ ... │ message n │ ─▶ message 0
//	└───────────┴───────────┴─────┴───────────┘
//
// The number of a connection determines its first message.
type circularMessageBlock struct {
	bytes []byte
	size  int // size of a message
}

// Size of a block of random lines. A block contains about blockBytes bytes. If the messages are long, a block is
// larger, because it contains at least blockMessages messages.
const (
	blockBytes    = 64 << 10 // leaves space for other data in a second-level cache
	blockMessages = 16
)

// newRandomLinesBlock returns a block of random printable lines. lineSize is in bytes, with the newline.
func newRandomLinesBlock(lineSize int, seed uint64) circularMessageBlock {
	b := circularMessageBlock{size: lineSize, bytes: make([]byte, lineSize*max(blockBytes/lineSize, blockMessages))}
	random := rand.New(rand.NewPCG(seed, uint64(lineSize)))
	for i := range b.bytes {
		b.bytes[i] = byte('!' + random.UintN('~'-'!'+1))
	}
	for end := lineSize; end <= len(b.bytes); end += lineSize {
		b.bytes[end-1] = '\n'
	}
	return b
}

func newRepeatedMessageBlock(message []byte) circularMessageBlock {
	return circularMessageBlock{size: len(message), bytes: bytes.Repeat(message, max(blockBytes/len(message), 1))}
}

func (b *circularMessageBlock) firstOffset(connNumber uint32) int {
	const spread = 2654435761 // prime, to keep adjacent numbers apart
	return int(uint64(connNumber)*spread%uint64(len(b.bytes)/b.size)) * b.size
}

func (b *circularMessageBlock) advanceOffsetWrapping(offset, n int) int {
	offset += n
	if offset >= len(b.bytes) {
		offset %= len(b.bytes)
	}
	return offset
}

func (b *circularMessageBlock) contiguousBytesAt(offset, maxBytes int) []byte {
	return b.bytes[offset:min(offset+maxBytes, len(b.bytes))]
}

func commonPrefixLen(a, b []byte) int {
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
