package tcp

import (
	"io"
	"os"
)

// SendFile appends n bytes of the regular file f, starting at offset, to the output. A negative n means up to the
// current end of the file. The bytes are sent in order with other output. A large file is never in memory all at once.
// SendFile accepts all n bytes or nothing.
//
// The caller may close f after the call, because SendFile duplicates its descriptor. The duplicate stays open until the
// bytes are sent or the connection closes. Set Limits.MaxConns low enough to leave descriptors for waiting files.
// SendFile neither uses nor changes the offset of f. Do not change the file until it is sent.
//
// Waiting bytes of files count for Pending, Paused and Writable, but not for Limits.MaxUnsent. The peer must receive at
// least 64 KiB of the file within each Limits.WriteTimeout. After Close, the peer must receive all of the file within
// Limits.CloseTimeout.
//
// SendFile fails with
//   - ErrOutsideCall outside of a handler call for this connection
//   - ErrClosed if the connection is closing or CloseWrite was called
//   - ErrBadUse between StartTLS and Secured
//   - ErrFull if 16 files already wait for this connection
//   - ErrShortFile if the file is too short
//   - an error of the operating system if no descriptor is available
//   - errors.ErrUnsupported if loops have their own descriptor tables (Server.Loops)
//   - another error if f is not a regular file
//
// If the file is truncated or can't be read later, the connection closes immediately with ErrShortFile or the
// syscall.Errno. SendFile does not wait for the peer. A slow disk blocks the event loop, during this call or later.
func (c *Conn) SendFile(f *os.File, offset, n int64) error {
	if !c.core().InHandlerCall() {
		return ErrOutsideCall
	}
	return c.core().SendFile(f, offset, n)
}

// ReadFrom implements io.ReaderFrom, so io.Copy and io.CopyN can send files efficiently. If r is a regular *os.File, or
// an *io.LimitedReader of such a file, ReadFrom sends the file like SendFile, from its current offset, and advances the
// offset. ReadFrom reads any other r to its end, which may block, and passes the data to Write. The data must then fit
// in Limits.MaxUnsent.
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
