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
	// MaxFiles is how many may wait for one connection.
	MaxFiles = 16
	// filePiece is the most of a file that a driver is to send at a time.
	filePiece = 256 << 10
	// fileGoal is what a peer has to take of one within Limits.WriteTimeout.
	fileGoal = 64 << 10
)

// file is a part of one that waits to be sent.
type file struct {
	f      *os.File
	offset int64
	left   int64
	behind *Buffer // what was written after it; nil for nothing
}

// files are those of one connection. A nil one is empty.
type files struct {
	list  []file
	since time.Duration // when the bytes at hand began to wait, of which goal are left
	goal  int
}

// SendFile appends a part of a file to the output: n bytes from offset on, or with a
// negative n all from there on.
func (c *Conn) SendFile(f *os.File, offset, n int64) error {
	switch {
	case c.is(closing|failed|closingWrite) || !c.is(open):
		return ErrClosed
	case c.upgrades():
		return ErrBadUse
	}
	n, err := c.checkFile(f, offset, n)
	switch {
	case err != nil || n == 0:
		return err
	case n < int64(c.host.DirectSize) && c.unsent()-c.posted()+c.direct()+int(n) <= c.host.Limits.MaxUnsent:
		return c.copyFile(f, offset, int(n))
	case len(c.files().all()) == MaxFiles:
		return ErrFull
	}
	own, err := sock.DupFile(f)
	if err != nil {
		return err
	}
	c.closeBypass()
	x := c.extra()
	if x.queue == nil {
		x.queue = &files{}
		x.queue.begin(c.host.Clock())
	}
	x.queue.list = append(x.queue.list, file{f: own, offset: offset, left: n})
	return nil
}

// FileRoom is how many files more may wait.
func (c *Conn) FileRoom() int { return MaxFiles - len(c.files().all()) }

// checkFile says how many bytes are to be sent.
func (c *Conn) checkFile(f *os.File, offset, n int64) (int64, error) {
	if c.host.NoFiles {
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

// smallFiles are buffers for files that are copied.
var smallFiles = sync.Pool{New: func() any { return new([directSize]byte) }}

// copyFile writes a small part: that costs less than to keep the file open.
func (c *Conn) copyFile(f *os.File, offset int64, n int) error {
	room := smallFiles.Get().(*[directSize]byte)
	defer smallFiles.Put(room)
	p := room[:n]
	if _, err := f.ReadAt(p, offset); err != nil {
		return readError(err)
	}
	_, err := c.Write(p)
	return err
}

// readError is what a failed read of a file means.
func readError(err error) error {
	if errors.Is(err, io.EOF) {
		return ErrShortFile
	}
	return err
}

// files are those that wait, nil if none does.
func (c *Conn) files() *files {
	if c.more == nil {
		return nil
	}
	return c.more.queue
}

func (q *files) all() []file {
	if q == nil {
		return nil
	}
	return q.list
}

// sum adds up something of what was written behind files.
func (q *files) sum(of func(*Buffer) int) (n int) {
	for _, f := range q.all() {
		if f.behind != nil {
			n += of(f.behind)
		}
	}
	return n
}

// bytes is how many bytes of files are to be sent; more than half of what an int holds
// are as many as that.
func (q *files) bytes() int {
	const most = math.MaxInt / 2
	n := int64(0)
	for _, f := range q.all() {
		n = min(n+min(f.left, most), most)
	}
	return int(n)
}

// begin says that it is time to take something of the first file, as far as it was
// not before.
func (q *files) begin(now time.Duration) {
	if q.goal <= 0 {
		q.goal, q.since = fileGoal, now
	}
}

// extend moves the times on.
func (q *files) extend(d, now time.Duration) {
	if q != nil {
		q.since = min(q.since+d, now)
	}
}

// hasOutput says whether there is something to send.
func (c *Conn) hasOutput() bool { return c.out != nil || c.files() != nil }

// outputSince is since when the first of that waits.
func (c *Conn) outputSince() time.Duration {
	if c.out != nil {
		return c.out.since
	}
	return c.more.queue.since
}

// end is where what is written now goes to.
func (c *Conn) end() **Buffer {
	if all := c.files().all(); len(all) > 0 {
		return &all[len(all)-1].behind
	}
	return &c.out
}

// lastOutput is what was written last, nil if nothing of that waits.
func (c *Conn) lastOutput() *Buffer { return *c.end() }

// room is the buffer to append n bytes to that are written.
func (c *Conn) room(n int) *Buffer {
	b := c.end()
	if *b == nil {
		c.makeOutput(b, n)
	}
	return *b
}

// transport is where what is for the transport goes to: with a layer files wait before it.
func (c *Conn) transport() **Buffer {
	if c.layer() != nil {
		return &c.out
	}
	return c.end()
}

func (c *Conn) makeOutput(b **Buffer, n int) {
	c.closeBypass()
	*b = c.host.get(n)
}

// File is the part of a file that is to be sent next, if it can be sent as it is, and
// not too much of it; otherwise f is nil, and Load makes output of it.
func (c *Conn) File() (f *os.File, offset int64, n int) {
	if c.layer() != nil {
		return nil, 0, 0
	}
	first := &c.more.queue.list[0]
	return first.f, first.offset, int(min(first.left, filePiece))
}

// sentFile says that n bytes of the first file were taken. The rest waits until the
// kernel says that there is room, so that a long file does not hold up others.
func (c *Conn) sentFile(n int) {
	if c.consume(n) {
		c.state &^= blocked
		c.advance()
	} else {
		c.state |= blocked
		c.files().begin(c.host.Clock())
	}
	c.checkLowWater()
}

// consume takes n bytes from the first file, and says whether that was all.
func (c *Conn) consume(n int) (all bool) {
	q := c.more.queue
	first := &q.list[0]
	first.offset += int64(n)
	first.left -= int64(n)
	q.goal -= n
	return first.left == 0
}

// Load makes output of the next piece of the first file.
func (c *Conn) Load() {
	first := &c.more.queue.list[0]
	n := int(min(first.left, int64(c.host.piece)))
	b := c.host.get(n)
	c.host.grow(b, n, n)
	b.bytes = b.bytes[:n]
	if _, err := first.f.ReadAt(b.bytes, first.offset); err != nil {
		c.host.put(b)
		c.fail(Reason(readError(err)))
		return
	}
	c.consume(n)
	if c.layer() == nil {
		c.out = b
		return
	}
	c.seal(b)
	c.advance()
}

// advance goes on when there is no output: with the first file, or with what was
// written behind it if that is through.
func (c *Conn) advance() {
	for c.out == nil && c.files() != nil && !c.is(failed) {
		q := c.more.queue
		first := q.list[0]
		if first.left > 0 {
			q.goal = 0
			q.begin(c.host.Clock())
			return
		}
		first.f.Close()
		if q.list = q.list[1:]; len(q.list) == 0 {
			c.more.queue = nil
		}
		if first.behind == nil {
			continue
		}
		if c.layer() != nil {
			c.seal(first.behind)
		} else {
			c.out = first.behind
			c.out.since = c.host.Clock()
		}
	}
}

// seal gives the layer what has waited in front of it.
func (c *Conn) seal(b *Buffer) {
	l := c.layer()
	err := l.Write(c, b.Bytes())
	for _, piece := range b.rest {
		if err == nil {
			err = l.Write(c, piece.Bytes())
		}
	}
	if c.out != nil {
		c.out.owed, b.owed = c.out.owed+b.owed, 0
	}
	c.release(b)
	if err != nil {
		c.fail(err)
	}
}

// dropFiles lets go of all files, and of what was written behind them.
func (c *Conn) dropFiles() {
	q := c.files()
	if q == nil {
		return
	}
	c.more.queue = nil
	for _, f := range q.list {
		f.f.Close()
		if f.behind != nil {
			c.release(f.behind)
		}
	}
}
