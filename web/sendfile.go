package web

import (
	"errors"
	"io"
	"net/http"
	"os"

	"github.com/myriad-go/myriad/internal/sock"
	"github.com/myriad-go/myriad/tcp"
)

// ReadFrom implements io.ReaderFrom. If src is a regular file or an io.LimitedReader of a regular file, the kernel can
// send the data directly from the file.
func (w *response) ReadFrom(src io.Reader) (int64, error) {
	f, offset, n, ok := regularFilePart(src)
	if ok && w.state >= responseSwitching {
		return 0, http.ErrHijacked
	}
	if ok {
		w.ensureStatusWritten()
	}
	if !ok || n == 0 || w.state == responseComplete || w.length < 0 || w.written+n > w.length || w.x.req.Method == http.MethodHead || !statusAllowsBody(w.status) {
		return io.Copy(writerOnly{w}, src)
	}
	if w.state < responseHead && w.header["Content-Type"] == nil {
		return io.Copy(writerOnly{w}, src) // its first bytes determine the Content-Type
	}
	if err := w.body.Flush(); err != nil {
		return 0, err
	}
	w.ensureHeadWritten()
	if !w.deferFileUntilHandlerReturns(f, offset, n) {
		if w.flushPendingOutput(); w.err != nil {
			return 0, w.err
		}
		if err := w.sendFile(f, offset, n); err != nil {
			if errors.Is(err, tcp.ErrClosed) {
				w.err = err
				return 0, err
			}
			return io.Copy(writerOnly{w}, src)
		}
	}
	w.written += n
	_, err := f.Seek(n, io.SeekCurrent)
	if l, ok := src.(*io.LimitedReader); ok {
		l.N -= n
	}
	return n, err
}

// trailingFile is a part of a file at the end of a response. The connection's owner sends it after the handler has
// returned.
type trailingFile struct {
	f         *os.File // nil if there is none
	offset, n int64
}

// deferFileUntilHandlerReturns makes a part of f the response's trailingFile. The trailingFile has its own descriptor,
// so the handler may close f. deferFileUntilHandlerReturns returns false if the part cannot be sent last, for example
// because the response continues after it.
func (w *response) deferFileUntilHandlerReturns(f *os.File, offset, n int64) (deferred bool) {
	if w.conn != nil || w.x.fileSlots <= 0 || w.written+n != w.length || w.x.h.sendsFiles.Load() != w.x.limits {
		return false
	}
	own, err := sock.DupFile(f)
	if err != nil {
		return false
	}
	w.trailing = trailingFile{own, offset, n}
	w.x.fileSlots--
	return true
}

func (l *trailingFile) close() {
	if l.f != nil {
		l.f.Close()
		l.f = nil
	}
}

func (w *response) sendFile(f *os.File, offset, n int64) error {
	if w.conn != nil {
		return w.conn.SendFile(f, offset, n)
	}
	w.x.activateIfPipelined()
	w.x.fileSlots = max(w.x.fileSlots-1, 0)
	result := make(chan error, 1)
	w.x.letOtherGoroutineContinueLoop()
	if err := w.x.ref.Do(func(c *tcp.Conn) { result <- c.SendFile(f, offset, n) }); err != nil {
		return err
	}
	select {
	case err := <-result:
		if err == nil {
			w.x.h.sendsFiles.Store(w.x.limits)
		}
		return err
	case <-w.x.connDone():
		return tcp.ErrClosed
	}
}

func regularFilePart(src io.Reader) (f *os.File, offset, n int64, ok bool) {
	limit := int64(-1)
	if l, limited := src.(*io.LimitedReader); limited {
		src, limit = l.R, l.N
	}
	if f, ok = src.(*os.File); !ok {
		return nil, 0, 0, false
	}
	info, err := f.Stat()
	if err != nil || !info.Mode().IsRegular() {
		return nil, 0, 0, false
	}
	if offset, err = f.Seek(0, io.SeekCurrent); err != nil {
		return nil, 0, 0, false
	}
	if n = max(info.Size()-offset, 0); limit >= 0 {
		n = min(n, limit)
	}
	return f, offset, n, true
}

// writerOnly hides the ReadFrom method of a response from io.Copy.
type writerOnly struct{ io.Writer }
