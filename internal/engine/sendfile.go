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

// This file is how parts of files are sent. They wait in a queue behind the output;
// what is written after a file waits with it, in front of the layer if there is one,
// because a layer's bytes have an order of their own. When all output is sent, the
// first file is: by the driver, with a call such as sendfile(2), or in pieces that
// Load makes output of. When it is through, what waits behind it becomes the output.
// The connection's owner owns all of that, the copies of descriptors too.

const (
	// MaxQueuedFiles is how many may wait for one connection.
	MaxQueuedFiles = 16
	// maxFilePiece is the most of a file that a driver is to send at a time.
	maxFilePiece = 256 << 10
	// fileProgressGoal is what a peer has to take of one within Limits.WriteTimeout.
	fileProgressGoal = 64 << 10
)

// queuedFile is a part of one that waits to be sent.
type queuedFile struct {
	file      *os.File
	offset    int64
	remaining int64
	following *Buffer // what was written after it; nil for nothing
}

// fileQueue are those of one connection. A nil one is empty.
type fileQueue struct {
	entries      []queuedFile
	waitingSince time.Duration // when the bytes at hand began to wait, of which goal are left
	progressGoal int
}

// SendFile appends a part of a file to the output: n bytes from offset on, or with a
// negative n all from there on.
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
		return c.writeFileCopy(f, offset, int(n))
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

// FileQueueSpace is how many files more may wait.
func (c *Conn) FileQueueSpace() int { return MaxQueuedFiles - len(c.queuedFiles().all()) }

// resolveFileRange says how many bytes are to be sent.
func (c *Conn) resolveFileRange(f *os.File, offset, n int64) (int64, error) {
	if c.runtime.NoFiles {
		return 0, fmt.Errorf("myriad: SendFile with more connections than descriptors: %w", errors.ErrUnsupported)
	}
	info, err := f.Stat()
	switch {
	case err != nil:
		return 0, err
	case !info.Mode().IsRegular():
		return 0, fmt.Errorf("myriad: SendFile of %s, which is %v; expected a regular file", f.Name(), info.Mode())
	case offset < 0 || offset > info.Size():
		return 0, fmt.Errorf("myriad: SendFile from byte %d of %s; expected 0 to %d, its size", offset, f.Name(), info.Size())
	case n > info.Size()-offset:
		return 0, fmt.Errorf("%w: %d bytes of %s from byte %d on; its size is %d", ErrShortFile, n, f.Name(), offset, info.Size())
	case n < 0:
		n = info.Size() - offset
	}
	return n, nil
}

// copyBuffers are buffers for files that are copied.
var copyBuffers = sync.Pool{New: func() any { return new([minDirectSend]byte) }}

// writeFileCopy writes a small part: that costs less than to keep the file open.
func (c *Conn) writeFileCopy(f *os.File, offset int64, n int) error {
	room := copyBuffers.Get().(*[minDirectSend]byte)
	defer copyBuffers.Put(room)
	p := room[:n]
	if _, err := f.ReadAt(p, offset); err != nil {
		return fileReadError(err)
	}
	_, err := c.Write(p)
	return err
}

// fileReadError is what a failed read of a file means.
func fileReadError(err error) error {
	if errors.Is(err, io.EOF) {
		return ErrShortFile
	}
	return err
}

// queuedFiles are those that wait, nil if none does.
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

// sumFollowing adds up something of what was written behind files.
func (q *fileQueue) sumFollowing(measure func(*Buffer) int) (n int) {
	for _, f := range q.all() {
		if f.following != nil {
			n += measure(f.following)
		}
	}
	return n
}

// remainingBytes is how many bytes of files are to be sent; more than half of what an int holds
// are as many as that.
func (q *fileQueue) remainingBytes() int {
	const most = math.MaxInt / 2
	n := int64(0)
	for _, f := range q.all() {
		n = min(n+min(f.remaining, most), most)
	}
	return int(n)
}

// startProgressTimer says that it is time to take something of the first file, as far as it was
// not before.
func (q *fileQueue) startProgressTimer(now time.Duration) {
	if q.progressGoal <= 0 {
		q.progressGoal, q.waitingSince = fileProgressGoal, now
	}
}

// extendWaiting moves the times on.
func (q *fileQueue) extendWaiting(d, now time.Duration) {
	if q != nil {
		q.waitingSince = min(q.waitingSince+d, now)
	}
}

// hasOutput says whether there is something to send.
func (c *Conn) hasOutput() bool { return c.out != nil || c.queuedFiles() != nil }

// outputWaitingSince is since when the first of that waits.
func (c *Conn) outputWaitingSince() time.Duration {
	if c.out != nil {
		return c.out.waitingSince
	}
	return c.extra.fileQueue.waitingSince
}

// outputTail is where what is written now goes to.
func (c *Conn) outputTail() **Buffer {
	if all := c.queuedFiles().all(); len(all) > 0 {
		return &all[len(all)-1].following
	}
	return &c.out
}

// lastOutput is what was written last, nil if nothing of that waits.
func (c *Conn) lastOutput() *Buffer { return *c.outputTail() }

// tailBuffer is the buffer to append n bytes to that are written.
func (c *Conn) tailBuffer(n int) *Buffer {
	b := c.outputTail()
	if *b == nil {
		c.allocOutput(b, n)
	}
	return *b
}

// transportTail is where what is for the transport goes to: with a layer files wait before it.
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

// NextFilePart is the part of a file that is to be sent next, if it can be sent as it is, and
// not too much of it; otherwise f is nil, and Load makes output of it.
func (c *Conn) NextFilePart() (f *os.File, offset int64, n int) {
	if c.layer() != nil {
		return nil, 0, 0
	}
	first := &c.extra.fileQueue.entries[0]
	return first.file, first.offset, int(min(first.remaining, maxFilePiece))
}

// onFileSent says that n bytes of the first file were taken. The rest waits until the
// kernel says that there is room, so that a long file does not hold up others.
func (c *Conn) onFileSent(n int) {
	if c.advanceFile(n) {
		c.state &^= blocked
		c.promoteQueuedOutput()
	} else {
		c.state |= blocked
		c.queuedFiles().startProgressTimer(c.runtime.Clock())
	}
	c.checkLowWater()
}

// advanceFile takes n bytes from the first file, and says whether that was all.
func (c *Conn) advanceFile(n int) (all bool) {
	q := c.extra.fileQueue
	first := &q.entries[0]
	first.offset += int64(n)
	first.remaining -= int64(n)
	q.progressGoal -= n
	return first.remaining == 0
}

// LoadFilePiece makes output of the next piece of the first file.
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
	c.advanceFile(n)
	if c.layer() == nil {
		c.out = b
		return
	}
	c.writeBufferThroughLayer(b)
	c.promoteQueuedOutput()
}

// promoteQueuedOutput goes on when there is no output: with the first file, or with what was
// written behind it if that is through.
func (c *Conn) promoteQueuedOutput() {
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

// writeBufferThroughLayer gives the layer what has waited in front of it.
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

// closeFiles lets go of all files, and of what was written behind them.
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
