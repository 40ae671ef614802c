package tcp

import (
	"io"
	"os"
)

// SendFile appends a part of a regular file to the output: n bytes from offset on, or
// with a negative n all from there to what is its end now. It is sent in order with what
// is written before and after, and is not read into memory as a whole: Linux sends it from
// its page cache; with TLS, and on other systems, it is read 64 KiB at a time, as the peer
// takes it. A part of less than 16 KiB is read at once and written as by Write.
//
// f need not stay open, and its offset is neither used nor changed: SendFile keeps a
// descriptor of its own until the part is sent or the connection closes, so one os.File
// can be sent to many. Each that waits takes one of the process's descriptors; leave room
// for them with Limits.MaxConns. The file should not be changed meanwhile.
//
// Bytes of files that wait count in Pending and Paused, and for Writable, but not against
// Limits.MaxUnsent. Of what waits in files a peer has to take 64 KiB within
// Limits.WriteTimeout; a connection that is closing has Limits.CloseTimeout for all of it.
//
// SendFile takes all of the part or nothing. It fails with ErrOutsideCall when no call for
// this connection is under way, with ErrClosed once the connection is closing or
// CloseWrite was called, with ErrBadUse between StartTLS and Secured, with ErrFull while 16 files wait for this connection, with ErrShortFile if
// the file has less than that, and with the error of the operating system if there is no
// descriptor left. It fails, too, if f is no regular file, and with
// errors.ErrUnsupported where loops have descriptor tables of their own, because
// Limits.MaxConns is more than the limit of descriptors. A file that is cut off or can't
// be read when its turn comes closes the connection at once, with ErrShortFile or the
// syscall.Errno as the reason.
//
// Like all methods it does not wait for the peer; but on an event loop, whoever waits for
// a disk that is slow, here or while the file is sent, holds up the loop.
func (c *Conn) SendFile(f *os.File, offset, n int64) error {
	if !c.core().InHandlerCall() {
		return ErrOutsideCall
	}
	return c.core().SendFile(f, offset, n)
}

// ReadFrom writes all of r, for io.Copy and io.CopyN. A regular *os.File, or an
// *io.LimitedReader of one, is sent as by SendFile from its offset on, which moves to the
// end of what was sent. Anything else is read to its end and written as by Write, as if
// there were no ReadFrom: that may block, and what it brings has to fit in
// Limits.MaxUnsent.
func (c *Conn) ReadFrom(r io.Reader) (int64, error) {
	f, most := r, int64(-1)
	limited, ok := r.(*io.LimitedReader)
	if ok {
		f, most = limited.R, max(limited.N, 0)
	}
	file, ok := f.(*os.File)
	if !ok || !regular(file) {
		return io.Copy(struct{ io.Writer }{c}, r)
	}
	n, err := c.sendFrom(file, most)
	if limited != nil {
		limited.N -= n
	}
	return n, err
}

func regular(f *os.File) bool {
	info, err := f.Stat()
	return err == nil && info.Mode().IsRegular()
}

// sendFrom sends a file from its offset on, at most so much unless that is negative.
func (c *Conn) sendFrom(f *os.File, most int64) (int64, error) {
	offset, err := f.Seek(0, io.SeekCurrent)
	if err != nil {
		return 0, err
	}
	info, err := f.Stat()
	if err != nil {
		return 0, err
	}
	n := max(info.Size()-offset, 0)
	if most >= 0 {
		n = min(n, most)
	}
	if n == 0 {
		return 0, nil
	}
	if err := c.SendFile(f, offset, n); err != nil {
		return 0, err
	}
	_, err = f.Seek(offset+n, io.SeekStart)
	return n, err
}
