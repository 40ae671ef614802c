package goroutine

import (
	"sync"

	"github.com/myriad-go/myriad/internal/engine"
)

// smallReadSize is the size of the buffer that a connection reads into unless the
// last read has filled it: a handler that blocks holds its buffer meanwhile.
const smallReadSize = 4 << 10

var smallBuffers, largeBuffers = newBufferPool(smallReadSize), newBufferPool(engine.ReadSize)

func newBufferPool(size int) *sync.Pool {
	return &sync.Pool{New: func() any {
		b := make([]byte, size)
		return &b
	}}
}

// acquireReadBuffer gives a buffer to read into, a large one if the last was filled. It is
// held only while there is something in it. Large ones are counted, so that those that
// read at the same moment know of each other.
func (c *conn) acquireReadBuffer() []byte {
	if c.lastReadFull {
		c.engine.largeReadBytes.Add(engine.ReadSize) // first, as to allocate may take long
		c.readBuffer = largeBuffers.Get().(*[]byte)
	} else {
		c.readBuffer = smallBuffers.Get().(*[]byte)
	}
	return *c.readBuffer
}

// releaseReadBuffer gives it back.
func (c *conn) releaseReadBuffer() {
	switch {
	case c.readBuffer == nil:
		return
	case len(*c.readBuffer) == smallReadSize:
		smallBuffers.Put(c.readBuffer)
	default:
		largeBuffers.Put(c.readBuffer)
		c.engine.largeReadBytes.Add(-engine.ReadSize)
	}
	c.readBuffer = nil
}

// recordRead is the n bytes that have been read. A full buffer makes the next one
// large.
func (c *conn) recordRead(readBytes int) []byte {
	p := *c.readBuffer
	c.lastReadFull, c.bulk = readBytes == len(p), readBytes > bulkReadSize
	return p[:readBytes]
}
