package tcp

import (
	"io"
	"os"
)

// SendFile appends part of a regular file to the output: n bytes from offset or, if n is
// negative, everything up to the current end. It is sent in order with other output and is not
// read into memory as a whole: Linux sends it from the page cache; with TLS and on other systems
// it is read 64 KiB at a time as the peer takes it. A part smaller than 16 KiB is read at once
// and written like by Write.
//
// SendFile duplicates the descriptor until the part has been sent or the connection closes. f may
// be closed, its offset is neither used nor changed, and one os.File can be sent to many
// connections. Each waiting part uses a descriptor of the process; leave some free with
// Limits.MaxConns. Do not change the file meanwhile.
//
// Waiting bytes of files count for Pending, Paused and Writable, but not for Limits.MaxUnsent.
// The peer must take 64 KiB of them within each Limits.WriteTimeout; a closing connection has
// Limits.CloseTimeout for all of them.
//
// SendFile accepts the whole part or nothing. It fails with ErrOutsideCall outside of a call for
// this connection; with ErrClosed once the connection is closing or CloseWrite was called; with
// ErrBadUse between StartTLS and Secured; with ErrFull if 16 files already wait for this
// connection; with ErrShortFile if the file is too short; with an error of the operating system
// if no descriptor is left; with an error if f is not a regular file; and with
// errors.ErrUnsupported if loops have their own descriptor tables because Limits.MaxConns exceeds
// the descriptor limit. If the file is truncated or can't be read when it is its turn, the
// connection is closed at once with ErrShortFile or the syscall.Errno.
//
// SendFile does not wait for the peer. But a slow disk, here or while the file is sent, blocks
// the event loop.
func (c *Conn) SendFile(f *os.File, offset, n int64) error {
	if !c.core().InHandlerCall() {
		return ErrOutsideCall
	}
	return c.core().SendFile(f, offset, n)
}

// ReadFrom writes all of r, for io.Copy and io.CopyN. A regular *os.File, or an *io.LimitedReader
// of one, is sent like by SendFile from its current offset, which advances by the number of
// bytes. Anything else is read to its end and written like by Write: that may block, and the data
// must fit in Limits.MaxUnsent.
func (c *Conn) ReadFrom(r io.Reader) (int64, error) {
	f, limit := r, int64(-1)
	limited, ok := r.(*io.LimitedReader)
	if ok {
		f, limit = limited.R, max(limited.N, 0)
	}
	file, ok := f.(*os.File)
	if !ok || !isRegular(file) {
		return io.Copy(struct{ io.Writer }{c}, r)
	}
	n, err := c.sendFileFromCurrentOffset(file, limit)
	if limited != nil {
		limited.N -= n
	}
	return n, err
}

func isRegular(f *os.File) bool {
	info, err := f.Stat()
	return err == nil && info.Mode().IsRegular()
}

// sendFileFromCurrentOffset sends f from its offset and advances it, by at most limit bytes unless limit
// is negative.
func (c *Conn) sendFileFromCurrentOffset(f *os.File, limit int64) (int64, error) {
	offset, err := f.Seek(0, io.SeekCurrent)
	if err != nil {
		return 0, err
	}
	info, err := f.Stat()
	if err != nil {
		return 0, err
	}
	n := max(info.Size()-offset, 0)
	if limit >= 0 {
		n = min(n, limit)
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
