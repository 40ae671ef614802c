package engine

import (
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"sync"
	"time"

	"github.com/myriad-go/myriad/internal/sock"
)

// This file sends parts of files. They queue behind the output. Data written after a file queues
// behind it, before it passes the layer, because a layer's records must be in order. When all
// output is sent, the driver sends the first file, with a call such as sendfile(2) or in pieces
// from LoadFilePiece. Then the data behind it becomes the output. All this, including the
// duplicated descriptors, belongs to the connection's owner.

const (
	// MaxQueuedFiles is the maximum number of files queued for one connection.
	MaxQueuedFiles = 16
	// maxFilePiece is the maximum that a driver sends at a time.
	maxFilePiece = 256 << 10
	// fileProgressGoal is how many bytes the peer must take within Limits.WriteTimeout.
	fileProgressGoal = 64 << 10
)

type queuedFile struct {
	file      *os.File
	offset    int64
	remaining int64
	following *Buffer // data written after it; nil if none
}

// fileQueue has the queued files of a connection. A nil fileQueue is empty.
type fileQueue struct {
	entries      []queuedFile
	waitingSince time.Duration // start of the current progress interval, of which progressGoal bytes are left
	progressGoal int
}

// SendFile appends n bytes of a file from offset on to the output, or all if n is negative. f may
// be closed afterwards.
func (c *Conn) SendFile(f *os.File, offset, n int64) error {
	switch {
	case c.is(closing|failed|closingWrite) || !c.is(open):
		return ErrClosed
	case c.hasPendingLayer():
		return ErrBadUse
	}
	n, err := c.resolveFileRange(f, offset, n)
	switch {
	case err != nil || n == 0:
		return err
	case n < int64(c.runtime.MinDirectSend) && c.unsentInMemory()-c.postedOutput()+c.directSent()+int(n) <= c.runtime.Limits.MaxUnsent:
		return c.copyFileToOutput(f, offset, int(n))
	case len(c.queuedFiles().all()) == MaxQueuedFiles:
		return ErrFull
	}
	own, err := sock.DupFile(f)
	if err != nil {
		return err
	}
	c.closeFastPath()
	x := c.ensureExtra()
	if x.fileQueue == nil {
		x.fileQueue = &fileQueue{}
		x.fileQueue.startProgressTimer(c.runtime.Clock())
	}
	x.fileQueue.entries = append(x.fileQueue.entries, queuedFile{file: own, offset: offset, remaining: n})
	return nil
}

// FileQueueSpace returns how many more files can be queued.
func (c *Conn) FileQueueSpace() int { return MaxQueuedFiles - len(c.queuedFiles().all()) }

// resolveFileRange checks the range and returns its length in bytes.
func (c *Conn) resolveFileRange(f *os.File, offset, n int64) (int64, error) {
	if c.runtime.NoFiles {
		return 0, fmt.Errorf("myriad: SendFile is not available with more connections than descriptors: %w", errors.ErrUnsupported)
	}
	info, err := f.Stat()
	switch {
	case err != nil:
		return 0, err
	case !info.Mode().IsRegular():
		return 0, fmt.Errorf("myriad: SendFile of %s, a file of mode %v; expected a regular file", f.Name(), info.Mode())
	case offset < 0 || offset > info.Size():
		return 0, fmt.Errorf("myriad: SendFile from offset %d of %s; expected 0 to its size, %d", offset, f.Name(), info.Size())
	case n > info.Size()-offset:
		return 0, fmt.Errorf("%w: %d bytes of %s from offset %d; its size is %d", ErrShortFile, n, f.Name(), offset, info.Size())
	case n < 0:
		n = info.Size() - offset
	}
	return n, nil
}

var copyBuffers = sync.Pool{New: func() any { return new([minDirectSend]byte) }}

// copyFileToOutput writes a small part as data, which is cheaper than keeping the file open.
func (c *Conn) copyFileToOutput(f *os.File, offset int64, n int) error {
	room := copyBuffers.Get().(*[minDirectSend]byte)
	defer copyBuffers.Put(room)
	p := room[:n]
	if _, err := f.ReadAt(p, offset); err != nil {
		return fileReadError(err)
	}
	_, err := c.Write(p)
	return err
}

// fileReadError maps an unexpected end of the file to ErrShortFile.
func fileReadError(err error) error {
	if errors.Is(err, io.EOF) {
		return ErrShortFile
	}
	return err
}

// queuedFiles returns the queue, nil if it is empty.
func (c *Conn) queuedFiles() *fileQueue {
	if c.extra == nil {
		return nil
	}
	return c.extra.fileQueue
}

func (q *fileQueue) all() []queuedFile {
	if q == nil {
		return nil
	}
	return q.entries
}

// sumFollowing sums a measure over the data behind files.
func (q *fileQueue) sumFollowing(measure func(*Buffer) int) (n int) {
	for _, f := range q.all() {
		if f.following != nil {
			n += measure(f.following)
		}
	}
	return n
}

// remainingBytes returns the number of file bytes to send, at most half of the maximum int.
func (q *fileQueue) remainingBytes() int {
	const most = math.MaxInt / 2
	n := int64(0)
	for _, f := range q.all() {
		n = min(n+min(f.remaining, most), most)
	}
	return int(n)
}

// startProgressTimer starts the time limit for the next fileProgressGoal bytes, unless it runs.
func (q *fileQueue) startProgressTimer(now time.Duration) {
	if q.progressGoal <= 0 {
		q.progressGoal, q.waitingSince = fileProgressGoal, now
	}
}

// extendProgressTimer moves the start of the time limit by d, but not beyond now.
func (q *fileQueue) extendProgressTimer(d, now time.Duration) {
	if q != nil {
		q.waitingSince = min(q.waitingSince+d, now)
	}
}

func (c *Conn) hasOutput() bool { return c.out != nil || c.queuedFiles() != nil }

// outputWaitingSince returns since when the first of the output waits.
func (c *Conn) outputWaitingSince() time.Duration {
	if c.out != nil {
		return c.out.waitingSince
	}
	return c.extra.fileQueue.waitingSince
}

// outputTail returns where to append data.
func (c *Conn) outputTail() **Buffer {
	if all := c.queuedFiles().all(); len(all) > 0 {
		return &all[len(all)-1].following
	}
	return &c.out
}

// lastOutput returns the last data written, nil if nothing of it is left.
func (c *Conn) lastOutput() *Buffer { return *c.outputTail() }

// tailBuffer returns the buffer to append n bytes to.
func (c *Conn) tailBuffer(n int) *Buffer {
	b := c.outputTail()
	if *b == nil {
		c.allocOutput(b, n)
	}
	return *b
}

// transportTail returns where to append data for the transport, past the layer and so before files.
func (c *Conn) transportTail() **Buffer {
	if c.layer() != nil {
		return &c.out
	}
	return c.outputTail()
}

func (c *Conn) allocOutput(tail **Buffer, n int) {
	c.closeFastPath()
	*tail = c.runtime.getBuffer(n)
}

// NextFilePart returns the part of a file to send next, at most maxFilePiece. f is nil if the
// driver must call LoadFilePiece instead.
func (c *Conn) NextFilePart() (f *os.File, offset int64, n int) {
	if c.layer() != nil {
		return nil, 0, 0
	}
	first := &c.extra.fileQueue.entries[0]
	return first.file, first.offset, int(min(first.remaining, maxFilePiece))
}

// onFileSent records that n bytes of the first file were sent. The rest waits until the connection
// is writable, so that a long file does not hold up others.
func (c *Conn) onFileSent(n int) {
	if c.advanceQueuedFile(n) {
		c.state &^= blocked
		c.advanceFileQueue()
	} else {
		c.state |= blocked
		c.queuedFiles().startProgressTimer(c.runtime.Clock())
	}
	c.resumeReadingAtLowWater()
}

// advanceQueuedFile moves the first file on by n bytes and reports whether that was all.
func (c *Conn) advanceQueuedFile(n int) (done bool) {
	q := c.extra.fileQueue
	first := &q.entries[0]
	first.offset += int64(n)
	first.remaining -= int64(n)
	q.progressGoal -= n
	return first.remaining == 0
}

// LoadFilePiece makes the next piece of the first file the output.
func (c *Conn) LoadFilePiece() {
	first := &c.extra.fileQueue.entries[0]
	n := int(min(first.remaining, int64(c.runtime.maxPieceSize)))
	b := c.runtime.getBuffer(n)
	c.runtime.growBuffer(b, n, n)
	b.bytes = b.bytes[:n]
	if _, err := first.file.ReadAt(b.bytes, first.offset); err != nil {
		c.runtime.putBuffer(b)
		c.abortWith(NormalizeError(fileReadError(err)))
		return
	}
	c.advanceQueuedFile(n)
	if c.layer() == nil {
		c.out = b
		return
	}
	c.writeBufferThroughLayer(b)
	c.advanceFileQueue()
}

// advanceFileQueue continues with the first file when the output is empty, or with the data
// behind a finished one.
func (c *Conn) advanceFileQueue() {
	for c.out == nil && c.queuedFiles() != nil && !c.is(failed) {
		q := c.extra.fileQueue
		first := q.entries[0]
		if first.remaining > 0 {
			q.progressGoal = 0
			q.startProgressTimer(c.runtime.Clock())
			return
		}
		first.file.Close()
		if q.entries = q.entries[1:]; len(q.entries) == 0 {
			c.extra.fileQueue = nil
		}
		if first.following == nil {
			continue
		}
		if c.layer() != nil {
			c.writeBufferThroughLayer(first.following)
		} else {
			c.out = first.following
			c.out.waitingSince = c.runtime.Clock()
		}
	}
}

// writeBufferThroughLayer passes data that was queued behind a file to the layer.
func (c *Conn) writeBufferThroughLayer(b *Buffer) {
	l := c.layer()
	err := l.Write(c, b.Bytes())
	for _, piece := range b.rest {
		if err == nil {
			err = l.Write(c, piece.Bytes())
		}
	}
	if c.out != nil {
		c.out.postedBytes, b.postedBytes = c.out.postedBytes+b.postedBytes, 0
	}
	c.releaseOutput(b)
	if err != nil {
		c.abortWith(err)
	}
}

func (c *Conn) closeFiles() {
	q := c.queuedFiles()
	if q == nil {
		return
	}
	c.extra.fileQueue = nil
	for _, f := range q.entries {
		f.file.Close()
		if f.following != nil {
			c.releaseOutput(f.following)
		}
	}
}
