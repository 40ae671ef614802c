package web

import (
	"bytes"
	"io"
	"net/http"
	"net/textproto"
	"os"
	"strconv"
	"strings"
)

// maxChunkLine is the most bytes of the line before a chunk, its extensions included.
const maxChunkLine = 256

// maxOverhead is the most bytes of lines before chunks beyond 16 for each and 2 for each byte
// of data, as in net/http.
const maxOverhead = 16 << 10

// maxTrailer is the most bytes of the fields behind a chunked body.
const maxTrailer = 8 << 10

// framing tells a body's bytes from what is around and behind them. It belongs to the
// connection's owner.
type framing struct {
	left    int64 // of the body, or of the chunk at hand with the line end behind it
	chunked bool
	chunk   bool // within a chunk
	last    bool // behind the last chunk: the trailer
	extra   int  // of the lines before chunks: see maxOverhead
	done    bool
	trailer http.Header
}

func newFraming(length int64) framing {
	return framing{left: max(length, 0), chunked: length < 0, done: length == 0}
}

// next gives the next bytes of the body in in, at most most, and how many bytes of in are
// used. It uses nothing when it needs more input.
func (f *framing) next(in []byte, most int) (data []byte, used int, err error) {
	if f.done || len(in) == 0 {
		return nil, 0, nil
	}
	if !f.chunked {
		data = in[:min(int64(len(in)), f.left, int64(most))]
		f.left -= int64(len(data))
		f.done = f.left == 0
		return data, len(data), nil
	}
	switch {
	case f.last:
		return f.end(in)
	case !f.chunk:
		return f.size(in)
	case f.left > 2:
		data = in[:min(int64(len(in)), f.left-2, int64(most))]
		f.left -= int64(len(data))
		return data, len(data), nil
	case len(in) < 2:
		return nil, 0, nil
	case in[0] != '\r' || in[1] != '\n':
		return nil, 0, badRequest("malformed chunked encoding")
	}
	f.chunk = false
	return nil, 2, nil
}

// size takes the line before a chunk.
func (f *framing) size(in []byte) ([]byte, int, error) {
	i := bytes.IndexByte(in, '\n')
	switch {
	case i < 0 && len(in) < maxChunkLine:
		return nil, 0, nil
	case i < 1 || i >= maxChunkLine || in[i-1] != '\r':
		return nil, 0, badRequest("malformed chunked encoding")
	}
	size, extension, _ := strings.Cut(string(in[:i-1]), ";")
	size = strings.TrimRight(size, " \t")
	n, err := strconv.ParseUint(size, 16, 62)
	if err != nil || len(size) > 16 || !isFieldValue(extension) {
		return nil, 0, badRequest("malformed chunked encoding")
	}
	if f.extra = max(f.extra+i+1-16-2*int(min(n, maxOverhead)), 0); f.extra > maxOverhead {
		return nil, 0, badRequest("too much around chunks")
	}
	f.last, f.chunk, f.left = n == 0, n > 0, int64(n)+2
	return nil, i + 1, nil
}

// end takes the trailer.
func (f *framing) end(in []byte) ([]byte, int, error) {
	if bytes.HasPrefix(in, blank[:2]) {
		f.done = true
		return nil, 2, nil
	}
	i := bytes.Index(in, blank)
	if i < 0 {
		if len(in) >= maxTrailer || len(in) >= 2 && in[0] == '\r' {
			return nil, 0, badRequest("malformed trailer")
		}
		return nil, 0, nil
	}
	if i > maxTrailer {
		return nil, 0, badRequest("the trailer is too large")
	}
	f.trailer = make(http.Header)
	for line := range strings.SplitSeq(string(in[:i]), "\r\n") {
		name, value, ok := strings.Cut(line, ":")
		value = strings.Trim(value, " \t")
		if !ok || !isToken(name) || !isFieldValue(value) {
			return nil, 0, badRequest("malformed trailer")
		}
		if key := textproto.CanonicalMIMEHeaderKey(name); !notInTrailer(key) {
			f.trailer[key] = append(f.trailer[key], value)
		}
	}
	f.done = true
	return nil, i + len(blank), nil
}

// maxUnread is how many bytes of a body that nobody has read pause the connection.
const maxUnread = 64 << 10

// body is a request's body between the connection's owner, who puts in what arrives, and
// the handler's goroutine, which reads it. The exchange's lock guards it.
type body struct {
	x *exchange

	buf    []byte
	off    int
	framed framing
	err    error // behind what is in buf; io.EOF at the body's end
	paused bool  // nothing is read until buf is emptied
	closed bool  // the handler has closed it, or returned
	told   bool  // 100 Continue was sent, or need not be
	late   bool  // the response has begun: it can't be sent any more
	by     deadline
}

// arrived takes input of the body, and says how much of in was the body's.
func (b *body) arrived(in []byte) (used int) {
	for b.err == nil && !b.framed.done && used < len(in) && !b.full() {
		data, n, err := b.framed.next(in[used:], maxUnread)
		if err != nil {
			b.err = err
			break
		}
		if n == 0 {
			break
		}
		used += n
		if !b.closed {
			if b.off >= maxUnread/2 {
				b.buf, b.off = b.buf[:copy(b.buf, b.buf[b.off:])], 0
			}
			b.buf = append(b.buf, data...)
		}
	}
	if b.framed.done && b.err == nil {
		b.err = io.EOF
	}
	return used
}

func (b *body) full() bool { return len(b.buf)-b.off >= maxUnread }

// Read implements io.Reader for the handler.
func (b *body) Read(p []byte) (int, error) {
	b.x.mu.Lock()
	defer b.x.mu.Unlock()
	for {
		switch {
		case b.closed:
			return 0, http.ErrBodyReadAfterClose
		case b.by.over:
			return 0, os.ErrDeadlineExceeded
		case b.off < len(b.buf):
			return b.take(p), nil
		case b.err != nil:
			return 0, b.end()
		case len(p) == 0:
			return 0, nil
		}
		if !b.told {
			b.sendContinue()
			continue
		}
		b.x.h.pool().Block(b.x.readable.Wait)
	}
}

// sendContinue lets a client go on that waits for that. The handler may write its response
// meanwhile. It is called with the lock, which it lets go while the mailbox is full.
func (b *body) sendContinue() {
	b.told = true
	b.x.retry(func() error {
		if b.late {
			return nil
		}
		return b.x.ref.Send([]byte("HTTP/1.1 100 Continue\r\n\r\n"))
	})
}

func (b *body) take(p []byte) int {
	n := copy(p, b.buf[b.off:])
	if b.off += n; b.off == len(b.buf) {
		b.buf, b.off = b.buf[:0], 0
	}
	if b.paused && len(b.buf)-b.off <= maxUnread/2 {
		b.paused = false
		b.x.post(b.x.resume)
	}
	return n
}

// end is the error behind the body. The trailer is the request's from then on.
func (b *body) end() error {
	if b.err == io.EOF && b.framed.trailer != nil {
		r := b.x.req
		if r.Trailer == nil {
			r.Trailer = make(http.Header)
		}
		for key, values := range b.framed.trailer {
			r.Trailer[key] = values
		}
		b.framed.trailer = nil
	}
	return b.err
}

// Close implements io.Closer for the handler. What comes still is thrown away.
func (b *body) Close() error {
	b.x.mu.Lock()
	defer b.x.mu.Unlock()
	b.drop()
	return nil
}

func (b *body) drop() {
	b.closed = true
	b.buf, b.off = nil, 0
	if b.paused {
		b.paused = false
		b.x.post(b.x.resume)
	}
}

// complete says whether all of it has arrived.
func (b *body) complete() bool { return b.framed.done }
