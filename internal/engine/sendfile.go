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

// This file sends parts of files. Files queue behind the output. Data written after a file queues behind the file,
// before it passes the layer, because a layer's records must be in order. When all output is sent, the driver sends the
// first file, with a call such as sendfile(2) or in pieces from LoadFilePieceIntoOutput. The data behind the file then
// becomes the output.

const (
	MaxQueuedFiles = 16
	// maxFilePiece is the maximum number of bytes of a file that a driver sends at a time.
	maxFilePiece = 256 << 10
	// fileProgressGoal is the number of file bytes that the peer must accept within each Limits.WriteTimeout.
	fileProgressGoal = 64 << 10
)

type queuedFile struct {
	file      *os.File
	offset    int64
	remaining int64
	following *Buffer // data written after the file; nil if none
}

// fileQueue contains the queued files of a connection. A nil fileQueue is empty.
type fileQueue struct {
	entries      []queuedFile
	waitingSince time.Duration // start of the current progress interval, in which progressGoal more bytes must be sent
	progressGoal int
}

// SendFile appends n bytes of a file to the output, starting at offset. If n is negative, it appends all bytes from
// offset to the end of the file. The caller may close the file after the call. If MaxQueuedFiles files are already
// queued, SendFile fails with ErrFull.
func (c *Conn) SendFile(fileToDup *os.File, offset, n int64) error {
	switch {
	case c.is(closing|failed|closingWrite) || !c.is(open):
		return ErrClosed
	case c.hasPendingLayer():
		return ErrBadUse
	}
	n, err := c.checkAndResolveFileRange(fileToDup, offset, n)
	switch {
	case err != nil || n == 0:
		return err
	case n < int64(c.runtime.MinDirectSend) && c.unsentInMemoryBytes()-c.postedBytesInOutput()+c.directSentInEvent()+int(n) <= c.runtime.Limits.MaxUnsent:
		return c.copyFileToOutput(fileToDup, offset, int(n))
	case len(c.fileQueueOrNil().entriesOrNil()) == MaxQueuedFiles:
		return ErrFull
	}
	own, err := sock.DupFile(fileToDup)
	if err != nil {
		return err
	}
	c.blockPartnerFastPath()
	x := c.ensureRare()
	if x.fileQueue == nil {
		x.fileQueue = &fileQueue{}
		x.fileQueue.startProgressTimerIfStopped(c.runtime.Clock())
	}
	x.fileQueue.entries = append(x.fileQueue.entries, queuedFile{file: own, offset: offset, remaining: n})
	return nil
}

func (c *Conn) FileQueueSpace() int { return MaxQueuedFiles - len(c.fileQueueOrNil().entriesOrNil()) }

func (c *Conn) checkAndResolveFileRange(f *os.File, offset, n int64) (length int64, _ error) {
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
		return 0, fmt.Errorf("myriad: SendFile from offset %d of %s; expected 0 to the file's size, %d", offset, f.Name(), info.Size())
	case n > info.Size()-offset:
		return 0, fmt.Errorf("%w: %d bytes of %s from offset %d; its size is %d", ErrShortFile, n, f.Name(), offset, info.Size())
	case n < 0:
		n = info.Size() - offset
	}
	return n, nil
}

var copyBuffers = sync.Pool{New: func() any { return new([minDirectSend]byte) }}

func (c *Conn) copyFileToOutput(f *os.File, offset int64, n int) error {
	room := copyBuffers.Get().(*[minDirectSend]byte)
	defer copyBuffers.Put(room)
	p := room[:n]
	if _, err := f.ReadAt(p, offset); err != nil {
		return mapEOFToErrShortFile(err)
	}
	_, err := c.Write(p)
	return err
}

func mapEOFToErrShortFile(err error) error {
	if errors.Is(err, io.EOF) {
		return ErrShortFile
	}
	return err
}

func (c *Conn) fileQueueOrNil() *fileQueue {
	if c.extra == nil {
		return nil
	}
	return c.extra.fileQueue
}

func (q *fileQueue) entriesOrNil() []queuedFile {
	if q == nil {
		return nil
	}
	return q.entries
}

func (q *fileQueue) sumDataBehindFiles(measure func(*Buffer) int) (n int) {
	for _, f := range q.entriesOrNil() {
		if f.following != nil {
			n += measure(f.following)
		}
	}
	return n
}

// remainingFileBytes returns the number of unsent bytes of all queued files, capped at math.MaxInt / 2.
func (q *fileQueue) remainingFileBytes() int {
	const most = math.MaxInt / 2
	n := int64(0)
	for _, f := range q.entriesOrNil() {
		n = min(n+min(f.remaining, most), most)
	}
	return int(n)
}

func (q *fileQueue) startProgressTimerIfStopped(now time.Duration) {
	if q.progressGoal <= 0 {
		q.progressGoal, q.waitingSince = fileProgressGoal, now
	}
}

func (q *fileQueue) extendProgressTimer(extension, now time.Duration) {
	if q != nil {
		q.waitingSince = min(q.waitingSince+extension, now)
	}
}

func (c *Conn) hasOutput() bool { return c.out != nil || c.fileQueueOrNil() != nil }

func (c *Conn) outputWaitingSince() time.Duration {
	if c.out != nil {
		return c.out.waitingSince
	}
	return c.extra.fileQueue.waitingSince
}

// addrOfLastOutputBuffer returns the address of the field that points to the last output buffer. If there is no such
// buffer yet, the field is nil.
func (c *Conn) addrOfLastOutputBuffer() **Buffer {
	if all := c.fileQueueOrNil().entriesOrNil(); len(all) > 0 {
		return &all[len(all)-1].following
	}
	return &c.out
}

// lastOutput returns the last output buffer. If it returns nil, new output needs a new buffer.
func (c *Conn) lastOutput() *Buffer { return *c.addrOfLastOutputBuffer() }

func (c *Conn) tailBufferOrNew(capacityIfNew int) *Buffer {
	b := c.addrOfLastOutputBuffer()
	if *b == nil {
		c.allocOutputAtTail(b, capacityIfNew)
	}
	return *b
}

// addrOfTransportTail is like addrOfLastOutputBuffer, but for data that a layer has already encoded. Such data is not
// stored behind queued files.
func (c *Conn) addrOfTransportTail() **Buffer {
	if c.layer() != nil {
		return &c.out
	}
	return c.addrOfLastOutputBuffer()
}

func (c *Conn) allocOutputAtTail(tail **Buffer, capacity int) {
	c.blockPartnerFastPath()
	*tail = c.runtime.getOrNewCountedBuffer(capacity)
}

// NextFilePartUnlessLayered returns the part of a queued file that is to be sent next: n bytes of f, starting at
// offset. If the connection has a layer, f is nil, and the driver must call LoadFilePieceIntoOutput instead.
func (c *Conn) NextFilePartUnlessLayered() (f *os.File, offset int64, n int) {
	if c.layer() != nil {
		return nil, 0, 0
	}
	first := &c.extra.fileQueue.entries[0]
	return first.file, first.offset, int(min(first.remaining, maxFilePiece))
}

// advanceFileOrMarkBlocked records that sentBytes bytes of the first queued file were sent. If the whole file has been
// sent, the data behind the file becomes the output. Otherwise, the connection is marked as blocked, because the kernel
// did not accept all bytes.
func (c *Conn) advanceFileOrMarkBlocked(sentBytes int) {
	if c.addSentBytesToFirstFile(sentBytes) {
		c.state &^= blocked
		c.removeFinishedFilesAndAdvance()
	} else {
		c.state |= blocked
		c.fileQueueOrNil().startProgressTimerIfStopped(c.runtime.Clock())
	}
	c.resumeAndScheduleDrainedIfLow()
}

func (c *Conn) addSentBytesToFirstFile(sentBytes int) (fullySent bool) {
	q := c.extra.fileQueue
	first := &q.entries[0]
	first.offset += int64(sentBytes)
	first.remaining -= int64(sentBytes)
	q.progressGoal -= sentBytes
	return first.remaining == 0
}

func (c *Conn) LoadFilePieceIntoOutput() {
	first := &c.extra.fileQueue.entries[0]
	n := int(min(first.remaining, int64(c.runtime.maxPieceSize)))
	b := c.runtime.getOrNewCountedBuffer(n)
	c.runtime.growBuffer(b, n, n)
	b.bytes = b.bytes[:n]
	if _, err := first.file.ReadAt(b.bytes, first.offset); err != nil {
		c.runtime.freeCountedBuffer(b)
		c.abortWith(NormalizeError(mapEOFToErrShortFile(err)))
		return
	}
	c.addSentBytesToFirstFile(n)
	if c.layer() == nil {
		c.out = b
		return
	}
	c.writeThroughLayerAndFree(b)
	c.removeFinishedFilesAndAdvance()
}

// removeFinishedFilesAndAdvance removes files that were sent completely from the front of the queue. The data behind a
// removed file becomes the output. Further files then remain queued until this output has been sent.
func (c *Conn) removeFinishedFilesAndAdvance() {
	for c.out == nil && c.fileQueueOrNil() != nil && !c.is(failed) {
		q := c.extra.fileQueue
		first := q.entries[0]
		if first.remaining > 0 {
			q.progressGoal = 0
			q.startProgressTimerIfStopped(c.runtime.Clock())
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
			c.writeThroughLayerAndFree(first.following)
		} else {
			c.out = first.following
			c.out.waitingSince = c.runtime.Clock()
		}
	}
}

func (c *Conn) writeThroughLayerAndFree(b *Buffer) {
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
	c.freeOutputAndReleasePostedBytes(b)
	if err != nil {
		c.abortWith(err)
	}
}

func (c *Conn) discardFileQueue() {
	q := c.fileQueueOrNil()
	if q == nil {
		return
	}
	c.extra.fileQueue = nil
	for _, f := range q.entries {
		f.file.Close()
		if f.following != nil {
			c.freeOutputAndReleasePostedBytes(f.following)
		}
	}
}
