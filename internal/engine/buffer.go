package engine

import (
	"math/bits"
	"slices"
	"sync"
	"time"
)

// Sizes of buffers in bytes.
const (
	ReadSize      = 64 << 10
	minBufferSize = 1 << 10  // initial size of a connection's buffers
	maxPieceSize  = 64 << 10 // for output; input buffers may be larger
	maxPooledSize = 64 << 10 // larger buffers are not reused
	// maxFreeBytes limits the bytes in a FreeList. It must exceed the total size of the small buffers in use at the
	// same time; otherwise asynchronous sends would allocate.
	maxFreeBytes  = 4 << 20
	keptFreeBytes = 16 << 10 // FreeIdleBuffers reduces a FreeList to this size
)

// Buffer is a FIFO queue of bytes. Long output is stored in several Buffers, called pieces. The first piece contains
// the list of the others.
type Buffer struct {
	bytes      []byte
	start      int
	inKernel   bool // the kernel reads the bytes, so they must not move
	kernelFull bool // the kernel did not accept all of this or of earlier output

	// In the first piece of output, rest contains the further pieces. restBytes is the number of bytes in rest.
	rest      []*Buffer
	restBytes int

	// For input, waitingSince is the time from which Limits.MessageTimeout counts. For output, it is the start of the
	// current progress interval: progressGoal more bytes must be sent within Limits.WriteTimeout.
	waitingSince    time.Duration
	withWorkerSince time.Duration // when the connection was passed to a worker; 0 if no worker has it
	progressGoal    int
	postedBytes     int // number of output bytes that still count as posted; see generationAndPosted
}

// Len returns the number of bytes that are left in this buffer. If this buffer is the first piece of a list, the number
// includes the bytes of all pieces.
func (b *Buffer) Len() int { return len(b.bytes) - b.start + b.restBytes }

// Bytes returns the bytes that are left in this buffer, without those of other pieces. The slice is valid until the
// next append.
func (b *Buffer) Bytes() []byte { return b.bytes[b.start:] }

func (b *Buffer) totalCapacity() int {
	n := cap(b.bytes)
	for _, piece := range b.rest {
		n += cap(piece.bytes)
	}
	return n
}

func (b *Buffer) discardFrontBytes(numBytes int) {
	b.inKernel, b.kernelFull = false, false
	b.start += numBytes
	if b.start == len(b.bytes) {
		b.bytes, b.start = b.bytes[:0], 0
	} else if b.start > cap(b.bytes)/2 {
		b.bytes, b.start = b.bytes[:copy(b.bytes, b.bytes[b.start:])], 0
	}
}

func (b *Buffer) countSentAndRestartTimerAtGoal(sent int, now time.Duration) {
	if b.progressGoal -= sent; b.progressGoal <= 0 {
		b.progressGoal, b.waitingSince = b.Len(), now
	}
}

func (b *Buffer) reset() { *b = Buffer{bytes: b.bytes[:0]} }

func (b *Buffer) lastPiece() *Buffer {
	if n := len(b.rest); n > 0 {
		return b.rest[n-1]
	}
	return b
}

// appendableBytes returns how many bytes fit into the buffer if its capacity may grow to maxCap.
func (b *Buffer) appendableBytes(maxCap int) int {
	if b.inKernel {
		maxCap = 0
	}
	return max(maxCap, cap(b.bytes)) - len(b.bytes)
}

// grownCap returns the capacity that the buffer needs to store extraBytes more bytes. If the capacity must grow, it at
// least doubles, up to softMaxCap. It exceeds softMaxCap only if the bytes would not fit otherwise.
func (b *Buffer) grownCap(extraBytes, softMaxCap int) int {
	if extraBytes += len(b.bytes); extraBytes > cap(b.bytes) {
		return max(extraBytes, min(2*cap(b.bytes), softMaxCap))
	}
	return cap(b.bytes)
}

func (b *Buffer) promoteNextPiece() (newFirst *Buffer) {
	newFirst = b.rest[0]
	newFirst.waitingSince, newFirst.withWorkerSince, newFirst.progressGoal, newFirst.postedBytes = b.waitingSince, b.withWorkerSince, b.progressGoal, b.postedBytes
	newFirst.restBytes = b.restBytes - len(newFirst.bytes)
	b.rest[0] = nil
	newFirst.rest = b.rest[1:]
	b.rest, b.restBytes = nil, 0
	return newFirst
}

// BufferPool allocates buffers and reuses freed ones. A connection has a buffer only while it has bytes to store.
type BufferPool interface {
	// GetOrNew returns an empty buffer, if possible with capacity for capacityHint bytes. If capacityHint is at most
	// smallBufferSize, so is the capacity.
	GetOrNew(capacityHint int) *Buffer
	Put(*Buffer)
}

const smallBufferSize = 4 << 10

func newBuffer(capacityHint int) *Buffer {
	return &Buffer{bytes: make([]byte, 0, min(max(capacityHint, minBufferSize), maxPieceSize))}
}

// FreeList is a BufferPool for one loop. It is not safe for concurrent use. GetOrNew prefers recently used buffers.
type FreeList struct {
	small, large bufferStack
	freeBytes    int // total capacity of the buffers
	reduction    int // maxFreeBytes minus the limit of this list
}

// LimitToShare limits the memory that f keeps for reuse. If numLists free lists have this limit, they keep at most
// 1/mailboxShare of limits.MaxBuffered together. But each of them may keep keptFreeBytes, even if the total is then
// larger. If MaxBuffered is 0, LimitToShare has no effect.
func (f *FreeList) LimitToShare(limits *Limits, numLists int) {
	if limits.MaxBuffered > 0 {
		f.reduction = maxFreeBytes - min(maxFreeBytes, max(limits.MaxBuffered/mailboxShare/numLists, keptFreeBytes))
	}
}

type bufferStack struct {
	free []*Buffer
	idle int // number of buffers at the bottom that were not used since the last FreeIdleBuffers
}

func (f *FreeList) smallOrLargeStackFor(size int) *bufferStack {
	if size > smallBufferSize {
		return &f.large
	}
	return &f.small
}

func (f *FreeList) GetOrNew(capacityHint int) *Buffer {
	s := f.smallOrLargeStackFor(capacityHint)
	n := len(s.free) - 1
	if n < 0 {
		return newBuffer(capacityHint)
	}
	b := s.free[n]
	s.free[n] = nil // the list must not keep b, which may not come back
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
	s := f.smallOrLargeStackFor(size)
	s.free = append(s.free, b)
}

// NeedsTrim reports whether the list contains more bytes than FreeIdleBuffers would keep.
func (f *FreeList) NeedsTrim() bool { return f.freeBytes > keptFreeBytes }

// FreeIdleBuffers frees buffers that were not used since the previous call. It stops when keptFreeBytes bytes are left
// in the list. It frees large buffers before small ones, and old buffers before recently used ones.
func (f *FreeList) FreeIdleBuffers() {
	for _, s := range []*bufferStack{&f.large, &f.small} {
		n := 0
		for ; n < s.idle && f.NeedsTrim(); n++ {
			f.freeBytes -= cap(s.free[n].bytes)
		}
		if n > 0 {
			s.free = slices.Clone(s.free[n:]) // also frees a long backing array
		}
		s.idle = len(s.free)
	}
}

// SharedBuffers is a BufferPool that is safe for concurrent use.
type SharedBuffers struct{ classes [sizeClasses]sync.Pool }

// sizeClasses is the number of different buffer sizes. All sizes are powers of two.
const sizeClasses = 7

func sizeClass(size int) int { return bits.Len(uint(max(size, minBufferSize)-1) / minBufferSize) }

func (s *SharedBuffers) GetOrNew(capacityHint int) *Buffer {
	class := sizeClass(min(capacityHint, maxPieceSize))
	if b, ok := s.classes[class].Get().(*Buffer); ok {
		return b
	}
	return newBuffer(minBufferSize << class)
}

func (s *SharedBuffers) Put(b *Buffer) {
	class := bits.Len(uint(cap(b.bytes)/minBufferSize)) - 1 // the largest class with at most this capacity
	if class < 0 || cap(b.bytes) > maxPooledSize {
		return
	}
	b.reset()
	s.classes[class].Put(b)
}
