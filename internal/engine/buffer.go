package engine

import (
	"math/bits"
	"slices"
	"sync"
	"time"
)

// The sizes of buffers. Input is read into a buffer of ReadSize that the owner
// keeps; what a handler leaves unused, and output, go into buffers that start
// at startSize and grow as needed: that of input to any size, because a handler is
// offered all of it at once, those of output to pieceSize, and then another one
// follows. So no output is copied from one large buffer to a larger one.
const (
	ReadSize  = 64 << 10
	startSize = 1 << 10
	pieceSize = 64 << 10
	// keepSize is the largest buffer that a pool takes back, keepBytes how much
	// a FreeList, and so a loop, holds: as many small ones as are in use at the
	// same time, where sends complete later, or they would be made anew each time.
	keepSize  = 64 << 10
	keepBytes = 4 << 20
	// restBytes is how much a FreeList holds on to of what nobody takes.
	restBytes = 16 << 10
)

// Buffer is a queue of bytes: appended at the end, taken from the front.
type Buffer struct {
	bytes []byte
	off   int
	lent  bool // the kernel reads it: what is there stays where it is
	full  bool // the kernel has not taken all of it, or what is before it

	// Of output, in its first piece: the pieces behind it, and their bytes.
	rest   []*Buffer
	behind int

	// since is when what it holds began to wait: of input the oldest byte, of
	// output what was there then, of which goal bytes are left.
	since  time.Duration
	handed time.Duration // when its connection was handed to a worker; 0 if it is not
	goal   int
	owed   int // how many bytes of output came from outside; still in the mark
}

// Len is the number of bytes in the buffer, and in those behind it.
func (b *Buffer) Len() int { return len(b.bytes) - b.off + b.behind }

// Bytes are the bytes in the buffer itself, valid until the next append.
func (b *Buffer) Bytes() []byte { return b.bytes[b.off:] }

// room is how much memory it takes, with those behind it.
func (b *Buffer) room() int {
	n := cap(b.bytes)
	for _, piece := range b.rest {
		n += cap(piece.bytes)
	}
	return n
}

// skip takes n bytes from the front, which it has itself. The room they had is used
// again once it is the larger part, so that a queue that never empties does not creep.
func (b *Buffer) skip(n int) {
	b.lent, b.full = false, false
	b.off += n
	if b.off == len(b.bytes) {
		b.bytes, b.off = b.bytes[:0], 0
	} else if b.off > cap(b.bytes)/2 {
		b.bytes, b.off = b.bytes[:copy(b.bytes, b.bytes[b.off:])], 0
	}
}

// progress notes that n bytes have gone, with some left. When all have that were
// there at one moment, the next moment is now.
func (b *Buffer) progress(n int, now time.Duration) {
	if b.goal -= n; b.goal <= 0 {
		b.goal, b.since = b.Len(), now
	}
}

// reset makes it as good as new, but for its room.
func (b *Buffer) reset() { *b = Buffer{bytes: b.bytes[:0]} }

// last is the piece to append to.
func (b *Buffer) last() *Buffer {
	if n := len(b.rest); n > 0 {
		return b.rest[n-1]
	}
	return b
}

// fits is how many bytes can be appended to a piece that may grow to a size.
func (b *Buffer) fits(size int) int {
	if b.lent {
		size = 0
	}
	return max(size, cap(b.bytes)) - len(b.bytes)
}

// grown is how much room it is to have for n more bytes: twice as much as now, but no
// more than a size where that is enough.
func (b *Buffer) grown(n, size int) int {
	if n += len(b.bytes); n > cap(b.bytes) {
		return max(n, min(2*cap(b.bytes), size))
	}
	return cap(b.bytes)
}

// follow makes the next piece the first one.
func (b *Buffer) follow() (next *Buffer) {
	next = b.rest[0]
	next.since, next.handed, next.goal, next.owed = b.since, b.handed, b.goal, b.owed
	next.behind = b.behind - len(next.bytes)
	b.rest[0] = nil
	next.rest = b.rest[1:]
	b.rest, b.behind = nil, 0
	return next
}

// Buffers lends buffers. A connection holds one only while it has bytes in it.
type Buffers interface {
	// Get gives an empty one for n bytes, if possible with room for them, and no more
	// than smallSize of it if they need no more: so who has little to say never counts
	// as one of the largest when memory is short.
	Get(n int) *Buffer
	Put(*Buffer)
}

// smallSize is the largest buffer that is given to who needs little.
const smallSize = 4 << 10

func newBuffer(n int) *Buffer {
	return &Buffer{bytes: make([]byte, 0, min(max(n, startSize), pieceSize))}
}

// FreeList is a Buffers for one owner: last in, first out, so that the buffer
// in use is the one in the cache, and those that are not needed are the first.
type FreeList struct {
	small, large stack
	held         int // bytes of their room
	less         int // by how many bytes it holds less than keepBytes
}

// SetMax has the list, one of some, hold no more than a part of what all buffers together
// may hold.
func (f *FreeList) SetMax(l *Limits, lists int) {
	if l.MaxBuffered > 0 {
		f.less = keepBytes - min(keepBytes, max(l.MaxBuffered/mailPart/lists, restBytes))
	}
}

// stack is buffers, the last one to be taken first.
type stack struct {
	free []*Buffer
	idle int // how many of them, from the first on, nobody has taken since the last Trim
}

func (f *FreeList) of(n int) *stack {
	if n > smallSize {
		return &f.large
	}
	return &f.small
}

func (f *FreeList) Get(size int) *Buffer {
	s := f.of(size)
	n := len(s.free) - 1
	if n < 0 {
		return newBuffer(size)
	}
	b := s.free[n]
	s.free[n] = nil // it may grow, and then it does not come back
	s.free = s.free[:n]
	s.idle = min(s.idle, n)
	f.held -= cap(b.bytes)
	return b
}

func (f *FreeList) Put(b *Buffer) {
	size := cap(b.bytes)
	if size > keepSize || f.held+size > keepBytes-f.less {
		return
	}
	b.reset()
	f.held += size
	s := f.of(size)
	s.free = append(s.free, b)
}

// Spare says whether the list holds more than it does when nobody takes any: then it
// is to be trimmed.
func (f *FreeList) Spare() bool { return f.held > restBytes }

// Trim drops buffers that nobody has taken since the last Trim, the large ones and those
// that have been there longest first, until restBytes are held. What has been in use in
// between, however short, is kept: a load that comes again and again makes none anew.
func (f *FreeList) Trim() {
	for _, s := range []*stack{&f.large, &f.small} {
		n := 0
		for ; n < s.idle && f.Spare(); n++ {
			f.held -= cap(s.free[n].bytes)
		}
		if n > 0 {
			s.free = slices.Clone(s.free[n:]) // the list itself may have been long, too
		}
		s.idle = len(s.free)
	}
}

// SharedBuffers is a Buffers for any number of goroutines.
type SharedBuffers struct{ classes [sizeClasses]sync.Pool }

// sizeClasses is how many sizes of buffers there are: startSize, twice as much, and so on
// to keepSize.
const sizeClasses = 7

// sizeClass gives the first size class that has n bytes.
func sizeClass(n int) int { return bits.Len(uint(max(n, startSize)-1) / startSize) }

func (s *SharedBuffers) Get(n int) *Buffer {
	class := sizeClass(min(n, pieceSize))
	if b, ok := s.classes[class].Get().(*Buffer); ok {
		return b
	}
	return newBuffer(startSize << class)
}

func (s *SharedBuffers) Put(b *Buffer) {
	class := bits.Len(uint(cap(b.bytes)/startSize)) - 1 // the last one that it has the size of
	if class < 0 || cap(b.bytes) > keepSize {
		return
	}
	b.reset()
	s.classes[class].Put(b)
}
