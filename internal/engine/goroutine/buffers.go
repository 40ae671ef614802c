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

// buffer is a read buffer that is held only while there is something in it.
type buffer struct{ held *[]byte }

// take gives a buffer to read into, a large one if bulk.
func (b *buffer) take(bulk bool) []byte {
	if bulk {
		b.held = large.Get().(*[]byte)
	} else {
		b.held = small.Get().(*[]byte)
	}
	return *b.held
}

// release gives it back.
func (b *buffer) release() {
	switch {
	case b.held == nil:
		return
	case len(*b.held) == smallRead:
		small.Put(b.held)
	default:
		large.Put(b.held)
	}
	b.held = nil
}

// got is the n bytes that have been read. A full buffer makes the next one
// large.
func (c *conn) got(n int) []byte {
	p := *c.input.held
	c.bulk, c.heavy = n == len(p), n > heavyRead
	return p[:n]
}
