package goroutine

import (
	"sync"

	"github.com/myriad-go/myriad/internal/engine"
)

const smallReadSize = 4 << 10

var smallBuffers, largeBuffers = newBufferPool(smallReadSize), newBufferPool(engine.ReadSize)

func newBufferPool(size int) *sync.Pool {
	return &sync.Pool{New: func() any {
		b := make([]byte, size)
		return &b
	}}
}

// acquireReadBuffer returns a buffer for the next read. If the last read filled its buffer, the new buffer is a large
// one.
func (c *conn) acquireReadBuffer() []byte {
	if c.lastReadFull {
		c.engine.largeReadBytes.Add(engine.ReadSize) // first, because the allocation may take long
		c.readBuffer = largeBuffers.Get().(*[]byte)
	} else {
		c.readBuffer = smallBuffers.Get().(*[]byte)
	}
	return *c.readBuffer
}

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

// sliceReadAndRecordSize returns the first readBytes bytes of c's read buffer. It also records whether the read has
// filled the buffer, and whether readBytes exceeds bulkReadSize.
func (c *conn) sliceReadAndRecordSize(readBytes int) []byte {
	p := *c.readBuffer
	c.lastReadFull, c.bulk = readBytes == len(p), readBytes > bulkReadSize
	return p[:readBytes]
}
