package web

import (
	"bytes"
	"io"
	"net/http"
	"net/textproto"
	"os"
	"strconv"
	"strings"
	"sync"
)

// maxChunkLine is the maximum size in bytes of the line at the beginning of each chunk, including chunk extensions.
const maxChunkLine = 256

// maxChunkOverhead limits the overhead of a chunked body in bytes, as in net/http. Each chunk line adds its size to the
// overhead. The chunk then subtracts 16 bytes plus twice the size of its data, so only small chunks with long lines
// reach the limit.
const maxChunkOverhead = 16 << 10

const maxTrailer = 8 << 10

// bodyDecoder extracts the data and the trailer from the body of a request.
type bodyDecoder struct {
	remaining int64 // bytes of the body, or of the current chunk including its line end
	chunked   bool
	inChunk   bool
	inTrailer bool // after the last chunk
	overhead  int  // see maxChunkOverhead
	done      bool
	trailer   http.Header
}

func newBodyDecoder(length int64) bodyDecoder {
	return bodyDecoder{remaining: max(length, 0), chunked: length < 0, done: length == 0}
}

// nextData decodes the beginning of the input, and returns at most maxBytes bytes of body data. used is the number of
// input bytes that nextData has consumed, including chunk lines and the trailer. If nextData consumes only such
// framing, data is empty. If nextData needs more input or the body is complete, used is 0.
func (f *bodyDecoder) nextData(in []byte, maxBytes int) (data []byte, used int, err error) {
	if f.done || len(in) == 0 {
		return nil, 0, nil
	}
	if !f.chunked {
		data = in[:min(int64(len(in)), f.remaining, int64(maxBytes))]
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
		data = in[:min(int64(len(in)), f.remaining-2, int64(maxBytes))]
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

// wholeChunkedBodyLength returns the encoded length of the chunked body at the beginning of the input. If the body is
// incomplete or invalid, it returns 0.
func wholeChunkedBodyLength(in []byte) (lengthOrZero int) {
	for f := newBodyDecoder(-1); !f.done; {
		_, used, err := f.nextData(in[lengthOrZero:], len(in))
		if used == 0 || err != nil {
			return 0
		}
		lengthOrZero += used
	}
	return lengthOrZero
}

func (f *bodyDecoder) parseChunkSize(in []byte) (noData []byte, used int, _ error) {
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
	if err != nil || len(size) > 16 || !isValidFieldValue(extension) {
		return nil, 0, badRequest("malformed chunked encoding")
	}
	if f.overhead = max(f.overhead+i+1-16-2*int(min(n, maxChunkOverhead)), 0); f.overhead > maxChunkOverhead {
		return nil, 0, badRequest("chunked encoding contains too much non-data")
	}
	f.inTrailer, f.inChunk, f.remaining = n == 0, n > 0, int64(n)+2
	return nil, i + 1, nil
}

func (f *bodyDecoder) parseTrailer(in []byte) (noData []byte, used int, _ error) {
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
		if !ok || !isToken(name) || !isValidFieldValue(value) {
			return nil, 0, badRequest("malformed trailer")
		}
		if key := textproto.CanonicalMIMEHeaderKey(name); !isForbiddenTrailer(key) {
			f.trailer[key] = append(f.trailer[key], value)
		}
	}
	f.done = true
	return nil, i + len(headEnd), nil
}

// maxUnreadBody is the size in bytes of a full body buffer. When the buffer is full, the server stops reading from the
// connection until the handler has read a part of the body.
const maxUnreadBody = 64 << 10

// requestBody is the body of a request. The connection's owner stores the received data in buf, and the handler reads
// the data with Read. x.mu guards all fields except x.
type requestBody struct {
	x *exchange

	buf             []byte
	readOffset      int
	framing         bodyDecoder
	err             error // returned after buf has been read; io.EOF at the end of the body
	paused          bool  // reading is paused until Read or Close resumes it
	direct          bool  // while reading is paused, Read receives from the socket itself
	closed          bool  // by the handler, or because the handler has returned
	abandoned       bool  // closed by the handler while more than maxDiscardedBody bytes had not arrived
	continueSent    bool  // 100 Continue was sent or is not necessary
	responseStarted bool  // 100 Continue must not be sent any more
	readDeadline    deadline
}

func (b *requestBody) decodeBodyIntoBuffer(in []byte) (used int) {
	for b.err == nil && !b.framing.done && used < len(in) && !b.isFull() {
		data, n, err := b.framing.nextData(in[used:], maxUnreadBody-len(b.buf)+b.readOffset)
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
			if b.buf == nil && len(data) >= minDirectReceive {
				b.buf = freeBodyBuffers.Get().(*[maxUnreadBody]byte)[:0]
			}
			b.buf = append(b.buf, data...)
		}
	}
	if b.framing.done && b.err == nil {
		b.err = io.EOF
	}
	return used
}

// minDirectReceive is a number of body bytes. If at least this many bytes have not arrived, the handler's goroutine can
// receive them from the socket itself.
const minDirectReceive = 16 << 10

// freeBodyBuffers contains unused buffers for request bodies. A body gets such a buffer if at least minDirectReceive
// bytes of the body arrive at once.
var freeBodyBuffers = sync.Pool{New: func() any { return new([maxUnreadBody]byte) }}

func (b *requestBody) isFull() bool { return len(b.buf)-b.readOffset >= maxUnreadBody }

// Read implements io.Reader for the handler.
func (b *requestBody) Read(p []byte) (int, error) {
	b.x.mu.Lock()
	defer b.x.mu.Unlock()
	for {
		switch {
		case b.closed:
			return 0, http.ErrBodyReadAfterClose
		case b.readDeadline.expired:
			return 0, os.ErrDeadlineExceeded
		case b.readOffset < len(b.buf):
			return b.readBufferedAndResumeInputLocked(p), nil
		case b.paused && len(p) > 0:
			if n := b.receiveDirectlyOrResumeLocked(p); n > 0 {
				return n, nil
			}
			continue
		case b.err != nil:
			return 0, b.setTrailerAndReturnErrorLocked()
		case len(p) == 0:
			return 0, nil
		}
		if !b.continueSent {
			b.sendContinueUnlessRespondingLocked()
			continue
		}
		b.x.waitOutsidePool(b.x.readable.Wait)
	}
}

// sendContinueUnlessRespondingLocked sends 100 Continue, unless the response has started. The caller holds b.x.mu. If
// the connection's mailbox is full, sendContinueUnlessRespondingLocked waits and releases b.x.mu meanwhile.
func (b *requestBody) sendContinueUnlessRespondingLocked() {
	b.continueSent = true
	b.x.retryWhileMailboxFullLocked(func() error {
		if b.responseStarted {
			return nil
		}
		return b.x.ref.Send([]byte("HTTP/1.1 100 Continue\r\n\r\n"))
	})
}

func (b *requestBody) readBufferedAndResumeInputLocked(p []byte) int {
	n := copy(p, b.buf[b.readOffset:])
	if b.readOffset += n; b.readOffset == len(b.buf) {
		b.buf, b.readOffset = b.buf[:0], 0
	}
	if b.paused && !b.direct && len(b.buf)-b.readOffset <= maxUnreadBody/2 {
		b.resumeInput()
	}
	return n
}

func (b *requestBody) resumeInput() {
	b.paused = false
	b.x.postToConnOwner(b.x.resumeUnlessInputPaused)
}

// receiveDirectlyOrResumeLocked receives a part of the body from the socket and stores it in p. If p is small, it
// receives more data than p can hold, and keeps the rest in b.buf. n is the number of bytes stored in p. If no data is
// available or the body is complete, receiveDirectlyOrResumeLocked makes the connection's owner resume reading.
func (b *requestBody) receiveDirectlyOrResumeLocked(p []byte) (n int) {
	if b.direct && !b.framing.done {
		to := p
		if len(p) < cap(b.buf)/2 {
			to = b.buf[:cap(b.buf)] // fewer system calls
		}
		to = to[:min(int64(len(to)), b.framing.remaining)]
		n = b.x.loop.receiveDirectly(to)
		_, _, _ = b.framing.nextData(to[:n], n) // can't fail, because the body is not chunked
		if len(p) < cap(b.buf)/2 {
			b.buf = to[:n]
			n = b.readBufferedAndResumeInputLocked(p)
		}
		if b.framing.done {
			b.err = io.EOF
		} else if n > 0 {
			return n
		}
	}
	b.resumeInput()
	return n
}

func (b *requestBody) setTrailerAndReturnErrorLocked() error {
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

// Close implements io.Closer for the handler. It discards the unread part of the body. If that part is too long, the
// connection closes after the response.
func (b *requestBody) Close() error {
	b.x.mu.Lock()
	defer b.x.mu.Unlock()
	b.abandoned = b.abandoned || b.isTooLongToDiscard()
	b.closeAndDiscardUnreadLocked()
	return nil
}

func (b *requestBody) closeAndDiscardUnreadLocked() {
	b.closed = true
	if cap(b.buf) == maxUnreadBody {
		freeBodyBuffers.Put((*[maxUnreadBody]byte)(b.buf[:maxUnreadBody]))
	}
	b.buf, b.readOffset = nil, 0
	if b.paused {
		b.resumeInput()
	}
}

func (b *requestBody) isComplete() bool { return b.framing.done }

func (b *requestBody) isTooLongToDiscard() bool {
	return !b.framing.chunked && b.framing.remaining > maxDiscardedBody
}
