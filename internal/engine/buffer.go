package engine

import (
	"math/bits"
	"slices"
	"sync"
	"time"
)

// The sizes of buffers. Input is read into a buffer of ReadSize that the owner
// keeps; what a handler leaves unused, and output, go into buffers that start
// at minBufferSize and grow as needed: that of input to any size, because a handler is
// offered all of it at once, those of output to maxPieceSize, and then another one
// follows. So no output is copied from one large buffer to a larger one.
const (
	ReadSize      = 64 << 10
	minBufferSize = 1 << 10
	maxPieceSize  = 64 << 10
	// maxPooledSize is the largest buffer that a pool takes back, maxFreeBytes how much
	// a FreeList, and so a loop, holds: as many small ones as are in use at the
	// same time, where sends complete later, or they would be made anew each time.
	maxPooledSize = 64 << 10
	maxFreeBytes  = 4 << 20
	// keptFreeBytes is how much a FreeList holds on to of what nobody takes.
	keptFreeBytes = 16 << 10
)

// Buffer is a queue of bytes: appended at the end, taken from the front.
type Buffer struct {
	bytes      []byte
	start      int
	inKernel   bool // the kernel reads it: what is there stays where it is
	kernelFull bool // the kernel has not taken all of it, or what is before it

	// Of output, in its first piece: the pieces behind it, and their bytes.
	rest      []*Buffer
	restBytes int

	// waitingSince is when what it holds began to wait: of input the oldest byte, of
	// output what was there then, of which goal bytes are left.
	waitingSince    time.Duration
	withWorkerSince time.Duration // when its connection was handed to a worker; 0 if it is not
	progressGoal    int
	postedBytes     int // how many bytes of output came from outside; still in the mark
}

// Len is the number of bytes in the buffer, and in those behind it.
func (b *Buffer) Len() int { return len(b.bytes) - b.start + b.restBytes }

// Bytes are the bytes in the buffer itself, valid until the next append.
func (b *Buffer) Bytes() []byte { return b.bytes[b.start:] }

// capacity is how much memory it takes, with those behind it.
func (b *Buffer) capacity() int {
	n := cap(b.bytes)
	for _, piece := range b.rest {
		n += cap(piece.bytes)
	}
	return n
}

// discardFront takes n bytes from the front, which it has itself. The room they had is used
// again once it is the larger part, so that a queue that never empties does not creep.
func (b *Buffer) discardFront(n int) {
	b.inKernel, b.kernelFull = false, false
	b.start += n
	if b.start == len(b.bytes) {
		b.bytes, b.start = b.bytes[:0], 0
	} else if b.start > cap(b.bytes)/2 {
		b.bytes, b.start = b.bytes[:copy(b.bytes, b.bytes[b.start:])], 0
	}
}

// recordProgress notes that n bytes have gone, with some left. When all have that were
// there at one moment, the next moment is now.
func (b *Buffer) recordProgress(sent int, now time.Duration) {
	if b.progressGoal -= sent; b.progressGoal <= 0 {
		b.progressGoal, b.waitingSince = b.Len(), now
	}
}

// reset makes it as good as new, but for its room.
func (b *Buffer) reset() { *b = Buffer{bytes: b.bytes[:0]} }

// lastPiece is the piece to append to.
func (b *Buffer) lastPiece() *Buffer {
	if n := len(b.rest); n > 0 {
		return b.rest[n-1]
	}
	return b
}

// spaceLeft is how many bytes can be appended to a piece that may grow to a size.
func (b *Buffer) spaceLeft(maxSize int) int {
	if b.inKernel {
		maxSize = 0
	}
	return max(maxSize, cap(b.bytes)) - len(b.bytes)
}

// grownCap is how much room it is to have for n more bytes: twice as much as now, but no
// more than a size where that is enough.
func (b *Buffer) grownCap(n, maxSize int) int {
	if n += len(b.bytes); n > cap(b.bytes) {
		return max(n, min(2*cap(b.bytes), maxSize))
	}
	return cap(b.bytes)
}

// popFirstPiece makes the next piece the first one.
func (b *Buffer) popFirstPiece() (next *Buffer) {
	next = b.rest[0]
	next.waitingSince, next.withWorkerSince, next.progressGoal, next.postedBytes = b.waitingSince, b.withWorkerSince, b.progressGoal, b.postedBytes
	next.restBytes = b.restBytes - len(next.bytes)
	b.rest[0] = nil
	next.rest = b.rest[1:]
	b.rest, b.restBytes = nil, 0
	return next
}

// BufferPool lends buffers. A connection holds one only while it has bytes in it.
type BufferPool interface {
	// Get gives an empty one for n bytes, if possible with room for them, and no more
	// than smallBufferSize of it if they need no more: so who has little to say never counts
	// as one of the largest when memory is short.
	Get(n int) *Buffer
	Put(*Buffer)
}

// smallBufferSize is the largest buffer that is given to who needs little.
const smallBufferSize = 4 << 10

func newBuffer(n int) *Buffer {
	return &Buffer{bytes: make([]byte, 0, min(max(n, minBufferSize), maxPieceSize))}
}

// FreeList is a Buffers for one owner: last in, first out, so that the buffer
// in use is the one in the cache, and those that are not needed are the first.
type FreeList struct {
	small, large bufferStack
	freeBytes    int // bytes of their room
	reduction    int // by how many bytes it holds less than maxFreeBytes
}

// LimitTo has the list, one of some, hold no more than a part of what all buffers together
// may hold.
func (f *FreeList) LimitTo(limits *Limits, numLists int) {
	if limits.MaxBuffered > 0 {
		f.reduction = maxFreeBytes - min(maxFreeBytes, max(limits.MaxBuffered/mailboxShare/numLists, keptFreeBytes))
	}
}

// bufferStack is buffers, the last one to be taken first.
type bufferStack struct {
	free []*Buffer
	idle int // how many of them, from the first on, nobody has taken since the last Trim
}

func (f *FreeList) stackFor(size int) *bufferStack {
	if size > smallBufferSize {
		return &f.large
	}
	return &f.small
}

func (f *FreeList) Get(size int) *Buffer {
	s := f.stackFor(size)
	n := len(s.free) - 1
	if n < 0 {
		return newBuffer(size)
	}
	b := s.free[n]
	s.free[n] = nil // it may grow, and then it does not come back
	s.free = s.free[:n]
	s.idle = min(s.idle, n)
	f.freeBytes -= cap(b.bytes)
	return b
}

func (f *FreeList) Put(b *Buffer) {
	size := cap(b.bytes)
	if size > maxPooledSize || f.freeBytes+size > maxFreeBytes-f.reduction {
		return
	}
	b.reset()
	f.freeBytes += size
	s := f.stackFor(size)
	s.free = append(s.free, b)
}

// NeedsTrim says whether the list holds more than it does when nobody takes any: then it
// is to be trimmed.
func (f *FreeList) NeedsTrim() bool { return f.freeBytes > keptFreeBytes }

// TrimIdle drops buffers that nobody has taken since the last Trim, the large ones and those
// that have been there longest first, until keptFreeBytes are held. What has been in use in
// between, however short, is kept: a load that comes again and again makes none anew.
func (f *FreeList) TrimIdle() {
	for _, s := range []*bufferStack{&f.large, &f.small} {
		n := 0
		for ; n < s.idle && f.NeedsTrim(); n++ {
			f.freeBytes -= cap(s.free[n].bytes)
		}
		if n > 0 {
			s.free = slices.Clone(s.free[n:]) // the list itself may have been long, too
		}
		s.idle = len(s.free)
	}
}

// SharedBuffers is a Buffers for any number of goroutines.
type SharedBuffers struct{ classes [sizeClasses]sync.Pool }

// sizeClasses is how many sizes of buffers there are: minBufferSize, twice as much, and so on
// to maxPooledSize.
const sizeClasses = 7

// sizeClass gives the first size class that has n bytes.
func sizeClass(size int) int { return bits.Len(uint(max(size, minBufferSize)-1) / minBufferSize) }

func (s *SharedBuffers) Get(n int) *Buffer {
	class := sizeClass(min(n, maxPieceSize))
	if b, ok := s.classes[class].Get().(*Buffer); ok {
		return b
	}
	return newBuffer(minBufferSize << class)
}

func (s *SharedBuffers) Put(b *Buffer) {
	class := bits.Len(uint(cap(b.bytes)/minBufferSize)) - 1 // the last one that it has the size of
	if class < 0 || cap(b.bytes) > maxPooledSize {
		return
	}
	b.reset()
	s.classes[class].Put(b)
}
