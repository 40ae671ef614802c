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
type buffer struct {
	held *[]byte
	bulk bool // the last read filled its buffer
}

// take gives a buffer to read into.
func (b *buffer) take() []byte {
	if b.bulk {
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

// got notes that n bytes have been read, and gives them.
func (b *buffer) got(n int) []byte {
	p := (*b.held)[:n]
	b.bulk = n == len(*b.held)
	return p
}
