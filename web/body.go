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

// maxChunkOverhead is the most bytes of lines before chunks beyond 16 for each and 2 for each byte
// of data, as in net/http.
const maxChunkOverhead = 16 << 10

// maxTrailer is the most bytes of the fields behind a chunked body.
const maxTrailer = 8 << 10

// bodyFraming tells a body's bytes from what is around and behind them. It belongs to the
// connection's owner.
type bodyFraming struct {
	remaining int64 // of the body, or of the chunk at hand with the line end behind it
	chunked   bool
	inChunk   bool // within a chunk
	inTrailer bool // behind the last chunk: the trailer
	overhead  int  // of the lines before chunks: see maxChunkOverhead
	done      bool
	trailer   http.Header
}

func newBodyFraming(length int64) bodyFraming {
	return bodyFraming{remaining: max(length, 0), chunked: length < 0, done: length == 0}
}

// nextData gives the next bytes of the body in in, at most most, and how many bytes of in are
// used. It uses nothing when it needs more input.
func (f *bodyFraming) nextData(in []byte, limit int) (data []byte, used int, err error) {
	if f.done || len(in) == 0 {
		return nil, 0, nil
	}
	if !f.chunked {
		data = in[:min(int64(len(in)), f.remaining, int64(limit))]
		f.remaining -= int64(len(data))
		f.done = f.remaining == 0
		return data, len(data), nil
	}
	switch {
	case f.inTrailer:
		return f.parseTrailer(in)
	case !f.inChunk:
		return f.parseChunkSize(in)
	case f.remaining > 2:
		data = in[:min(int64(len(in)), f.remaining-2, int64(limit))]
		f.remaining -= int64(len(data))
		return data, len(data), nil
	case len(in) < 2:
		return nil, 0, nil
	case in[0] != '\r' || in[1] != '\n':
		return nil, 0, badRequest("malformed chunked encoding")
	}
	f.inChunk = false
	return nil, 2, nil
}

// parseChunkSize takes the line before a chunk.
func (f *bodyFraming) parseChunkSize(in []byte) ([]byte, int, error) {
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
	if f.overhead = max(f.overhead+i+1-16-2*int(min(n, maxChunkOverhead)), 0); f.overhead > maxChunkOverhead {
		return nil, 0, badRequest("too much around chunks")
	}
	f.inTrailer, f.inChunk, f.remaining = n == 0, n > 0, int64(n)+2
	return nil, i + 1, nil
}

// parseTrailer takes the trailer.
func (f *bodyFraming) parseTrailer(in []byte) ([]byte, int, error) {
	if bytes.HasPrefix(in, headEnd[:2]) {
		f.done = true
		return nil, 2, nil
	}
	i := bytes.Index(in, headEnd)
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
		if key := textproto.CanonicalMIMEHeaderKey(name); !isForbiddenTrailer(key) {
			f.trailer[key] = append(f.trailer[key], value)
		}
	}
	f.done = true
	return nil, i + len(headEnd), nil
}

// maxUnreadBody is how many bytes of a body that nobody has read pause the connection.
const maxUnreadBody = 64 << 10

// body is a request's body between the connection's owner, who puts in what arrives, and
// the handler's goroutine, which reads it. The exchange's lock guards it.
type body struct {
	x *exchange

	buf             []byte
	readOffset      int
	framing         bodyFraming
	err             error // behind what is in buf; io.EOF at the body's end
	paused          bool  // nothing is read until buf is emptied
	closed          bool  // the handler has closed it, or returned
	continueSent    bool  // 100 Continue was sent, or need not be
	responseStarted bool  // the response has begun: it can't be sent any more
	readDeadline    deadline
}

// bufferInput takes input of the body, and says how much of in was the body's.
func (b *body) bufferInput(in []byte) (used int) {
	for b.err == nil && !b.framing.done && used < len(in) && !b.isFull() {
		data, n, err := b.framing.nextData(in[used:], maxUnreadBody)
		if err != nil {
			b.err = err
			break
		}
		if n == 0 {
			break
		}
		used += n
		if !b.closed {
			if b.readOffset >= maxUnreadBody/2 {
				b.buf, b.readOffset = b.buf[:copy(b.buf, b.buf[b.readOffset:])], 0
			}
			b.buf = append(b.buf, data...)
		}
	}
	if b.framing.done && b.err == nil {
		b.err = io.EOF
	}
	return used
}

func (b *body) isFull() bool { return len(b.buf)-b.readOffset >= maxUnreadBody }

// Read implements io.Reader for the handler.
func (b *body) Read(p []byte) (int, error) {
	b.x.mu.Lock()
	defer b.x.mu.Unlock()
	for {
		switch {
		case b.closed:
			return 0, http.ErrBodyReadAfterClose
		case b.readDeadline.expired:
			return 0, os.ErrDeadlineExceeded
		case b.readOffset < len(b.buf):
			return b.readBuffered(p), nil
		case b.err != nil:
			return 0, b.finalError()
		case len(p) == 0:
			return 0, nil
		}
		if !b.continueSent {
			b.sendContinue()
			continue
		}
		b.x.h.pool().Block(b.x.readable.Wait)
	}
}

// sendContinue lets a client go on that waits for that. The handler may write its response
// meanwhile. It is called with the lock, which it lets go while the mailbox is full.
func (b *body) sendContinue() {
	b.continueSent = true
	b.x.retryWhileFull(func() error {
		if b.responseStarted {
			return nil
		}
		return b.x.ref.Send([]byte("HTTP/1.1 100 Continue\r\n\r\n"))
	})
}

func (b *body) readBuffered(p []byte) int {
	n := copy(p, b.buf[b.readOffset:])
	if b.readOffset += n; b.readOffset == len(b.buf) {
		b.buf, b.readOffset = b.buf[:0], 0
	}
	if b.paused && len(b.buf)-b.readOffset <= maxUnreadBody/2 {
		b.paused = false
		b.x.postToOwner(b.x.resumeReading)
	}
	return n
}

// finalError is the error behind the body. The trailer is the request's from then on.
func (b *body) finalError() error {
	if b.err == io.EOF && b.framing.trailer != nil {
		r := b.x.req
		if r.Trailer == nil {
			r.Trailer = make(http.Header)
		}
		for key, values := range b.framing.trailer {
			r.Trailer[key] = values
		}
		b.framing.trailer = nil
	}
	return b.err
}

// Close implements io.Closer for the handler. What comes still is thrown away.
func (b *body) Close() error {
	b.x.mu.Lock()
	defer b.x.mu.Unlock()
	b.discard()
	return nil
}

func (b *body) discard() {
	b.closed = true
	b.buf, b.readOffset = nil, 0
	if b.paused {
		b.paused = false
		b.x.postToOwner(b.x.resumeReading)
	}
}

// isComplete says whether all of it has arrived.
func (b *body) isComplete() bool { return b.framing.done }
