package goroutine

import (
	"sync"

	"github.com/myriad-go/myriad/internal/engine"
)

// smallRead is the size of the buffer that a connection reads into unless the
// last read has filled it: a handler that blocks holds its buffer meanwhile.
const smallRead = 4 << 10

var small, large = pool(smallRead), pool(engine.ReadSize)

func pool(size int) *sync.Pool {
	return &sync.Pool{New: func() any {
		b := make([]byte, size)
		return &b
	}}
}

// takeBuffer gives a buffer to read into, a large one if the last was filled. It is
// held only while there is something in it. Large ones are counted, so that those that
// read at the same moment know of each other.
func (c *conn) takeBuffer() []byte {
	if c.fullRead {
		c.group.reading.Add(engine.ReadSize) // first, as to allocate may take long
		c.input = large.Get().(*[]byte)
	} else {
		c.input = small.Get().(*[]byte)
	}
	return *c.input
}

// releaseBuffer gives it back.
func (c *conn) releaseBuffer() {
	switch {
	case c.input == nil:
		return
	case len(*c.input) == smallRead:
		small.Put(c.input)
	default:
		large.Put(c.input)
		c.group.reading.Add(-engine.ReadSize)
	}
	c.input = nil
}

// got is the n bytes that have been read. A full buffer makes the next one
// large.
func (c *conn) got(n int) []byte {
	p := *c.input
	c.fullRead, c.bulk = n == len(p), n > bulkRead
	return p[:n]
}
