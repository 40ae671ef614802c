package web

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/textproto"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/myriad-go/myriad/tcp"
)

// response is the http.ResponseWriter of an exchange. It selects the framing of the body and the order of the fields
// like net/http. A response belongs to the handler's goroutine until the handler has returned. Afterwards it belongs to
// the goroutine that owns the connection.
type response struct {
	x    *exchange
	conn *tcp.Conn // set if the handler runs on the connection's owner

	header         http.Header
	headerAtStatus http.Header // copy of header; nil unless the handler called Header between WriteHeader and writeHead
	status         int
	length         int64 // declared by the handler, or -1
	written        int64
	state          responseState
	chunked        bool
	closeAfter     bool // the connection closes after this response
	trailers       []string
	trailing       trailingFile
	writeDeadline  deadline

	*responseBuffers
	err error // the first error of sending
}

type responseBuffers struct {
	body      *bufio.Writer // writes to bodyFramer
	out       []byte        // not yet sent
	fields    []headerField // of the header, during writeHead
	headStart headStart
}

// headStart is the beginning of the last response head, kept for reuse. It is kept only if the status was 200 and the
// handler set no field but Content-Type. It is reused while the date is current.
type headStart struct {
	contentType string
	date        string
	time        time.Duration
	text        []byte
}

const (
	maxHeadStart = 512
	maxDateAge   = 10 * time.Millisecond
)

var freeBuffers = sync.Pool{New: func() any { return &responseBuffers{body: bufio.NewWriterSize(nil, bodyBufferSize)} }}

func (w *response) recycleBuffers() {
	b := w.responseBuffers
	if w.responseBuffers = nil; b == nil {
		return
	}
	if b.body.Reset(nil); cap(b.out) <= 4*flushSize {
		b.out = b.out[:0]
		freeBuffers.Put(b)
	}
}

// bodyBufferSize is the size of the buffer for a response body. A body that fits gets a Content-Length, as in net/http.
const bodyBufferSize = 2048

// flushSize is the maximum number of output bytes that are buffered. If a handler writes more output, the buffered
// output is sent before the handler returns.
const flushSize = 16 << 10

type bodyFramer response

func (w *response) init(x *exchange, c *tcp.Conn) {
	w.x, w.conn, w.length = x, c, -1
	if w.responseBuffers == nil {
		w.responseBuffers = freeBuffers.Get().(*responseBuffers)
	}
	w.body.Reset((*bodyFramer)(w))
}

func (w *response) reset() {
	b := w.responseBuffers
	if b != nil && cap(b.out) > 4*flushSize {
		b = nil
	} else if b != nil {
		b.out = b.out[:0]
	}
	clear(w.header)
	*w = response{header: w.header, responseBuffers: b}
}

// Header implements http.ResponseWriter. A call after WriteHeader first saves a copy of the fields for the response
// head. Later changes therefore do not affect the head.
func (w *response) Header() http.Header {
	if w.header == nil {
		w.header = make(http.Header)
	}
	if w.state == responseStatus && w.headerAtStatus == nil {
		w.headerAtStatus = w.header.Clone()
	}
	return w.header
}

func (w *response) WriteHeader(status int) {
	switch {
	case w.state >= responseSwitching:
		w.x.h.logf("web: WriteHeader on a connection that was hijacked or upgraded")
		return
	case w.state != responsePending:
		w.x.h.logf("web: superfluous WriteHeader for %s %s", w.x.req.Method, w.x.req.RequestURI)
		return
	case status < 100 || status > 999:
		panic(fmt.Sprintf("invalid WriteHeader code %v", status))
	case status >= 100 && status <= 199 && status != http.StatusSwitchingProtocols:
		w.sendInformational(status)
		return
	}
	w.setState(responseStatus)
	w.status = status
	if w.x.expectsContinue && w.conn == nil {
		w.x.mu.Lock()
		w.x.body.responseStarted = true
		w.x.mu.Unlock()
	}
	if v := firstValue(w.header, "Content-Length"); v != "" {
		n, err := strconv.ParseInt(v, 10, 64)
		if err == nil && n >= 0 {
			w.length = n
		} else {
			w.x.h.logf("web: invalid Content-Length of %q", v)
			w.header.Del("Content-Length")
		}
	}
}

func (w *response) ensureStatusWritten() {
	if w.state == responsePending {
		w.WriteHeader(http.StatusOK)
	}
}

func (w *response) sendInformational(status int) {
	if w.x.req.ProtoMinor == 0 {
		return
	}
	if status == http.StatusContinue {
		w.x.mu.Lock()
		w.x.body.continueSent = true
		w.x.mu.Unlock()
	}
	w.out = appendStatusLine(w.out, 1, status)
	w.out = appendHeader(w.out, w.header, contentLength|transferEncoding)
	w.out = append(w.out, "\r\n"...)
	w.flushPendingOutput()
}

func (w *response) Write(p []byte) (int, error) {
	if err := w.prepareBodyWrite(len(p)); err != nil || len(p) == 0 {
		return 0, err
	}
	return w.body.Write(p)
}

func (w *response) WriteString(s string) (int, error) {
	if err := w.prepareBodyWrite(len(s)); err != nil || s == "" {
		return 0, err
	}
	return w.body.WriteString(s)
}

var errReturned = errors.New("web: write to a response after its handler has returned")

// prepareBodyWrite calls WriteHeader if necessary, and returns an error if n more body bytes are not allowed.
func (w *response) prepareBodyWrite(n int) error {
	switch {
	case w.state >= responseSwitching:
		return http.ErrHijacked
	case w.responseBuffers == nil:
		return errReturned
	}
	w.ensureStatusWritten()
	switch {
	case n == 0:
		return nil
	case !statusAllowsBody(w.status):
		return http.ErrBodyNotAllowed
	}
	w.written += int64(n)
	if w.length >= 0 && w.written > w.length {
		return http.ErrContentLength
	}
	return w.err
}

func statusAllowsBody(status int) bool {
	return status >= 200 && status != http.StatusNoContent && status != http.StatusNotModified
}

func (f *bodyFramer) Write(p []byte) (int, error) {
	w, n := (*response)(f), len(p)
	if w.state < responseHead {
		w.writeHead(p)
	}
	if w.x.req.Method == http.MethodHead {
		return n, w.err
	}
	if w.chunked {
		w.out = strconv.AppendInt(w.out, int64(len(p)), 16)
		w.out = append(w.out, "\r\n"...)
	}
	if len(w.out)+len(p) > flushSize {
		if len(p) < flushSize {
			w.flushPendingOutput()
		} else if w.err == nil {
			w.err = w.send(w.out, p)
			w.out, p = w.out[:0], nil
		}
	}
	w.out = append(w.out, p...)
	if w.chunked {
		w.out = append(w.out, "\r\n"...)
	}
	return n, w.err
}

func (w *response) flushPendingOutput() {
	if len(w.out) > 0 && w.err == nil {
		w.err = w.send(w.out, nil)
	}
	w.out = w.out[:0]
}

// writeOnConnOwner writes the buffered output on the goroutine that owns the connection. If the write fails, for
// example because of MaxUnsent, the output is lost and the connection closes after the response.
func (w *response) writeOnConnOwner(c *tcp.Conn) {
	if len(w.out) == 0 {
		return
	}
	if _, err := c.Write(w.out); err != nil {
		w.closeAfter = true
	}
}

// maxSendSize is the maximum number of bytes that a handler's goroutine passes to the connection in one call.
const maxSendSize = 64 << 10

// send sends head and then p. If too much earlier output is unsent, send waits until the peer has received enough of
// it. When send returns, the caller may reuse head and p.
func (w *response) send(head, p []byte) (err error) {
	if w.conn != nil {
		_, _ = w.conn.Write(head)
		_, err = w.conn.Write(p)
		return err
	}
	w.x.activateIfPipelined()
	limit := maxSendSize
	if unsent := w.x.limits.MaxUnsent; unsent != 0 {
		limit = min(limit, unsent)
	}
	for len(head)+len(p) > 0 && err == nil {
		m, n := min(len(head), limit), 0
		if m == len(head) {
			n = min(len(p), limit-m)
		}
		if sent := w.x.loop.trySendOnWorker(head[:m], p[:n]); sent > 0 {
			m, n = min(sent, m), max(sent-m, 0)
		} else if !w.writeOnLoop(head[:m], p[:n]) && !w.writeWithoutCopy(head[:m], p[:n]) {
			if err = w.sendWait(head[:m]); err == nil {
				err = w.sendWait(p[:n])
			}
		}
		head, p = head[m:], p[n:]
	}
	return err
}

func (w *response) sendWait(p []byte) (err error) {
	if len(p) > 0 {
		w.x.waitOutsidePool(func() {
			err = w.writeDeadline.callUntilDeadline(&w.x.mu, func(ctx context.Context) error { return w.x.ref.SendWait(ctx, p) })
		})
	}
	return err
}

// writeOnLoop sends head and p on the event loop. It returns false if the handler does not run on the loop, or if the
// connection has no space for the output.
func (w *response) writeOnLoop(head, p []byte) (accepted bool) {
	w.x.loop.call(func(c *tcp.Conn) { accepted = writeIfSpace(c, head, p, maxUnsent(c)) })
	return accepted
}

// minUncopiedWrite is the minimum size in bytes of the argument p of writeWithoutCopy. For less data, a copy is faster.
const minUncopiedWrite = 16 << 10

// writeWithoutCopy makes the connection's owner send head and p, and waits until the owner has done so. Because the
// caller waits, head and p need not be copied. writeWithoutCopy returns false if earlier output is unsent, p is too
// short, or the connection closes.
func (w *response) writeWithoutCopy(head, p []byte) (accepted bool) {
	if len(p) < minUncopiedWrite {
		return false
	}
	result := make(chan bool, 1)
	if w.x.ref.Do(func(c *tcp.Conn) { result <- writeIfSpace(c, head, p, 0) }) != nil {
		return false
	}
	w.x.waitOutsidePool(func() {
		select {
		case accepted = <-result:
		case <-w.x.connDone():
		}
	})
	return accepted
}

// writeIfSpace writes head and p. It does nothing and returns false if the connection already has unsent output that,
// together with head and p, would exceed maxUnsent bytes. It also returns false if the write fails.
func writeIfSpace(c *tcp.Conn, head, p []byte, maxUnsent int) (accepted bool) {
	if unsent := c.Pending(); unsent > 0 && unsent+len(head)+len(p) > maxUnsent {
		return false
	}
	_, err := c.Write(head)
	if err == nil {
		_, err = c.Write(p)
	}
	return err == nil
}

// writeHead selects the framing of the body and writes the response head. firstData is the beginning of the body; in
// the state responseWhole, it is the whole body.
func (w *response) writeHead(firstData []byte) {
	r, h := w.x.req, w.header
	if w.headerAtStatus != nil {
		h = w.headerAtStatus
	}
	fields, present := appendSortedFields(w.fields[:0], h)
	head, allowed := r.Method == http.MethodHead, statusAllowsBody(w.status)
	if present&trailerField != 0 {
		w.trailers = allowedDeclaredTrailers(h)
	}
	var skip fieldSet
	var addLength bool
	var kind, connection, encoding, wanted string
	if present&transferEncoding != 0 {
		encoding = firstValue(h, "Transfer-Encoding")
	}
	if present&connectionField != 0 {
		wanted = firstValue(h, "Connection")
	}
	closes := wanted != "" && hasToken(wanted, "close")

	if w.state == responseWhole && len(w.trailers) == 0 && present&trailerPrefix == 0 && w.length < 0 && present&(transferEncoding|contentLength) == 0 && allowed && (!head || len(firstData) > 0) {
		w.length, addLength = int64(len(firstData)), true
	}
	w.setState(responseHead)
	if w.x.keepAlive10 && (head || w.length >= 0 || !allowed) && present&connectionField == 0 {
		connection = "keep-alive"
	}
	// An HTTP/1.0 client closes the connection unless the response asks for keep-alive.
	keeps := w.x.keepAlive10 && (connection != "" || hasToken(wanted, "keep-alive"))
	if closes || r.ProtoMinor == 0 && !keeps || w.x.mustCloseAfterResponse() {
		w.closeAfter = true
	}
	if allowed {
		if present&(contentType|transferEncoding) == 0 && len(firstData) > 0 && (present&contentEncoding == 0 || firstValue(h, "Content-Encoding") == "") {
			kind = http.DetectContentType(firstData)
		}
	} else {
		skip |= transferEncoding
		if w.status != http.StatusNotModified {
			skip |= contentLength
		} else {
			skip |= contentType | contentLength
		}
	}
	if w.length >= 0 && encoding != "" && encoding != "identity" {
		w.x.h.logf("web: both Transfer-Encoding of %q and Content-Length of %d", encoding, w.length)
		skip |= contentLength
		w.length = -1
	}
	skip |= w.chooseBodyFraming(encoding, head || !allowed)
	if w.closeAfter && !closes {
		skip |= connectionField
		if connection = ""; r.ProtoMinor == 1 {
			connection = "close"
		}
	}

	w.appendStatusAndFields(fields, present, skip)
	clear(fields)
	w.fields = fields[:0]
	if addLength {
		w.out = strconv.AppendInt(append(w.out, "Content-Length: "...), w.length, 10)
		w.out = append(w.out, "\r\n"...)
	}
	if kind != "" {
		w.out = appendRawField(w.out, "Content-Type", kind)
	}
	if connection != "" {
		w.out = appendRawField(w.out, "Connection", connection)
	}
	if w.chunked {
		w.out = appendRawField(w.out, "Transfer-Encoding", "chunked")
	}
	w.out = append(w.out, "\r\n"...)
}

// appendStatusAndFields appends the status line, the fields except those in skipped, and the date to the output. If the
// last response began with the same text, it copies the text from headStart. present is a result of appendSortedFields.
func (w *response) appendStatusAndFields(fields []headerField, present, skipped fieldSet) {
	minor := w.x.req.ProtoMinor
	last := &w.headStart
	reusable := w.status == http.StatusOK && minor == 1 && present == contentType && len(fields) == 1 && len(fields[0].values) == 1
	if reusable && len(last.text) > 0 && last.contentType == fields[0].values[0] && last.isDateCurrent(w.conn) {
		w.out = append(w.out, last.text...)
	} else {
		start := len(w.out)
		w.out = appendStatusLine(w.out, minor, w.status)
		w.out = appendFields(w.out, fields, skipped|trailerPrefix, w.trailers...)
		if present&dateField == 0 {
			w.out = appendRawField(w.out, "Date", currentHTTPDate())
		}
		if reusable && len(w.out)-start <= maxHeadStart {
			last.contentType, last.text = fields[0].values[0], append(last.text[:0], w.out[start:]...)
			last.date = currentHTTPDate()
			if w.conn != nil {
				last.time = clock(w.conn)
			}
		}
	}
}

// isDateCurrent reports whether the date of s is recent enough. The connection's owner passes c, whose clock is faster
// to read. All other callers must pass nil.
func (s *headStart) isDateCurrent(c *tcp.Conn) bool {
	if c == nil {
		return s.date == currentHTTPDate()
	}
	age := clock(c) - s.time
	return age >= 0 && age < maxDateAge
}

func (w *response) ensureHeadWritten() {
	if w.state < responseHead {
		w.writeHead(nil)
	}
}

// chooseBodyFraming selects whether the length, the chunked encoding or the end of the connection marks the end of the
// body. The caller must omit the fields in skipFields from the head.
func (w *response) chooseBodyFraming(requestedEncoding string, noBody bool) (skipFields fieldSet) {
	switch eleven := w.x.req.ProtoMinor == 1; {
	case noBody, w.length >= 0:
		return transferEncoding
	case eleven && requestedEncoding != "identity":
		w.chunked = true
		if requestedEncoding == "chunked" {
			return contentLength | transferEncoding
		}
		return contentLength
	}
	w.closeAfter = true
	return transferEncoding
}

func allowedDeclaredTrailers(h http.Header) (keys []string) {
	for _, v := range h["Trailer"] {
		for name := range strings.SplitSeq(v, ",") {
			if key := textproto.CanonicalMIMEHeaderKey(textproto.TrimString(name)); key != "" && !isForbiddenTrailer(key) {
				keys = append(keys, key)
			}
		}
	}
	return keys
}

func (w *response) hasTrailers() bool {
	if len(w.trailers) > 0 {
		return true
	}
	for key := range w.header {
		if strings.HasPrefix(key, http.TrailerPrefix) {
			return true
		}
	}
	return false
}

func (w *response) finishResponse() {
	w.ensureStatusWritten()
	if w.state == responseStatus {
		w.setState(responseWhole)
	}
	if err := w.body.Flush(); err != nil && w.err == nil {
		w.err = err
	}
	if w.err != nil {
		w.out, w.closeAfter = w.out[:0], true // closing tells the client that the response is truncated
		w.setState(responseComplete)
		return
	}
	w.ensureHeadWritten()
	if w.chunked && w.x.req.Method != http.MethodHead {
		w.out = append(w.out, "0\r\n"...)
		if w.hasTrailers() {
			w.out = appendHeader(w.out, w.trailerFields(), 0)
		}
		w.out = append(w.out, "\r\n"...)
	}
	if limit := w.x.limits.MaxUnsent; limit > 0 && len(w.out) > limit && w.conn == nil {
		w.flushPendingOutput() // in pieces; the connection rejects a larger write
		w.closeAfter = w.closeAfter || w.err != nil
	}
	if w.length >= 0 && w.written != w.length && w.x.req.Method != http.MethodHead && statusAllowsBody(w.status) {
		w.closeAfter = true // the client expects more data
	}
	w.setState(responseComplete)
}

func (w *response) trailerFields() http.Header {
	t := make(http.Header)
	for key, values := range w.header {
		if name, ok := strings.CutPrefix(key, http.TrailerPrefix); ok {
			t[textproto.CanonicalMIMEHeaderKey(name)] = values
		}
	}
	for _, key := range w.trailers {
		if values := w.header[key]; len(values) > 0 {
			t[key] = values
		}
	}
	return t
}

func (w *response) Flush() { _ = w.FlushError() }

// FlushError sends all output that the handler has written. http.ResponseController calls it.
func (w *response) FlushError() error {
	switch {
	case w.state >= responseSwitching:
		return http.ErrHijacked
	case w.state == responseComplete:
		return errReturned
	}
	w.ensureStatusWritten()
	if err := w.body.Flush(); err != nil {
		return err
	}
	w.ensureHeadWritten()
	w.flushPendingOutput()
	if l := &w.trailing; l.f != nil && w.err == nil {
		w.err = w.sendFile(l.f, l.offset, l.n)
		l.close()
	}
	return w.err
}
