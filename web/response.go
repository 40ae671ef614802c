package web

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/textproto"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/myriad-go/myriad/tcp"
)

// response is the http.ResponseWriter of an exchange. The framing of the body and the order of the fields are the same
// as in net/http, so that clients receive the same bytes. A response belongs to the handler's goroutine until the
// handler has returned, and then to the connection's owner.
type response struct {
	x    *exchange
	conn *tcp.Conn // set if the handler runs on the connection's owner

	header        http.Header
	status        int
	length        int64 // declared by the handler; -1 if it is not
	written       int64
	state         responseState
	chunked       bool
	closeAfter    bool // the connection closes after this response
	trailers      []string
	trailing      trailingFile
	writeDeadline deadline

	*responseBuffers
	err error // of sending
}

type responseBuffers struct {
	body *bufio.Writer // writes to bodyFramer
	out  []byte        // not yet sent
}

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

// bodyBufferSize is the size of the buffer for the body. As in net/http, a body that fits gets a Content-Length.
const bodyBufferSize = 2048

// flushSize is the maximum number of output bytes that are buffered before they are sent.
const flushSize = 16 << 10

type bodyFramer response

func (w *response) init(x *exchange, c *tcp.Conn) {
	w.x, w.conn, w.length = x, c, -1
	if w.header == nil {
		w.header = make(http.Header)
	}
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

func (w *response) Header() http.Header { return w.header }

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
	if v := w.header.Get("Content-Length"); v != "" {
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

// If the handler has not called WriteHeader, prepareBodyWrite does. If the body may not grow by n bytes, it fails.
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
		w.flushPendingOutput()
		if len(p) >= flushSize && w.err == nil {
			w.err = w.send(p)
			p = nil
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
		w.err = w.send(w.out)
	}
	w.out = w.out[:0]
}

// writeOnConnOwner writes the output that is still buffered. Output beyond MaxUnsent is lost. The connection then
// closes after the response, so that the client notices.
func (w *response) writeOnConnOwner(c *tcp.Conn) {
	if len(w.out) == 0 {
		return
	}
	if _, err := c.Write(w.out); err != nil {
		w.closeAfter = true
	}
}

// maxSendSize is the maximum number of bytes that a handler's goroutine sends to the connection at a time.
const maxSendSize = 64 << 10

// send sends p. On a worker, send waits until the peer has received enough earlier output.
func (w *response) send(p []byte) error {
	if w.conn != nil {
		_, err := w.conn.Write(p)
		return err
	}
	w.x.markActiveIfPipelined()
	limit := maxSendSize
	if unsent := w.x.limits.MaxUnsent; unsent != 0 {
		limit = min(limit, unsent)
	}
	var err error
	for len(p) > 0 && err == nil {
		n := min(len(p), limit)
		w.x.h.poolOrDefault().Block(func() {
			err = w.writeDeadline.callUntilDeadline(&w.x.mu, func(ctx context.Context) error { return w.x.ref.SendWait(ctx, p[:n]) })
		})
		p = p[n:]
	}
	return err
}

// writeHead chooses the framing and writes the head. The body begins with firstData. In the state responseWhole,
// firstData is the whole body.
func (w *response) writeHead(firstData []byte) {
	r, h := w.x.req, w.header
	head := r.Method == http.MethodHead
	allowed, present := statusAllowsBody(w.status), presentFields(h)
	if present&trailerField != 0 {
		w.trailers = declaredTrailers(h)
	}
	var skip fieldSet
	var length, kind, connection, encoding, wanted string
	if present&transferEncoding != 0 {
		encoding = h.Get("Transfer-Encoding")
	}
	if present&connectionField != 0 {
		wanted = h.Get("Connection")
	}
	closes := wanted != "" && hasToken(wanted, "close")

	if w.state == responseWhole && len(w.trailers) == 0 && present&trailerPrefix == 0 && w.length < 0 && present&(transferEncoding|contentLength) == 0 && allowed && (!head || len(firstData) > 0) {
		w.length = int64(len(firstData))
		length = strconv.Itoa(len(firstData))
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
		if present&(contentType|transferEncoding) == 0 && len(firstData) > 0 && (present&contentEncoding == 0 || h.Get("Content-Encoding") == "") {
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

	w.out = appendStatusLine(w.out, r.ProtoMinor, w.status)
	w.out = appendHeader(w.out, h, skip|trailerPrefix, w.trailers...)
	if _, ok := h["Date"]; !ok {
		w.out = appendRawField(w.out, "Date", currentHTTPDate())
	}
	for _, f := range [...][2]string{{"Content-Length", length}, {"Content-Type", kind}, {"Connection", connection}} {
		if f[1] != "" {
			w.out = appendRawField(w.out, f[0], f[1])
		}
	}
	if w.chunked {
		w.out = appendRawField(w.out, "Transfer-Encoding", "chunked")
	}
	w.out = append(w.out, "\r\n"...)
}

func (w *response) ensureHeadWritten() {
	if w.state < responseHead {
		w.writeHead(nil)
	}
}

// chooseBodyFraming selects how the client detects the end of the body. The fields in skipFields contradict this
// choice.
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

func declaredTrailers(h http.Header) (keys []string) {
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
		w.out, w.closeAfter = w.out[:0], true // tells the client that the response is truncated
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
	if w.state >= responseSwitching {
		return http.ErrHijacked
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

func appendStatusLine(b []byte, minor, status int) []byte {
	if status == http.StatusOK && minor == 1 {
		return append(b, "HTTP/1.1 200 OK\r\n"...)
	}
	b = append(b, "HTTP/1."...)
	b = append(b, byte('0'+minor), ' ')
	b = strconv.AppendInt(b, int64(status), 10)
	b = append(b, ' ')
	if text := http.StatusText(status); text != "" {
		b = append(b, text...)
	} else {
		b = strconv.AppendInt(append(b, "status code "...), int64(status), 10)
	}
	return append(b, "\r\n"...)
}

type fieldSet uint16

const (
	contentLength fieldSet = 1 << iota
	contentType
	contentEncoding
	transferEncoding
	connectionField
	upgradeField
	trailerField
	trailerPrefix // all with the prefix http.TrailerPrefix
	socketPrefix  // all with the prefix Sec-Websocket-
)

func fieldBit(key string) fieldSet {
	switch key {
	case "Content-Length":
		return contentLength
	case "Content-Type":
		return contentType
	case "Content-Encoding":
		return contentEncoding
	case "Transfer-Encoding":
		return transferEncoding
	case "Connection":
		return connectionField
	case "Upgrade":
		return upgradeField
	case "Trailer":
		return trailerField
	}
	switch {
	case strings.HasPrefix(key, http.TrailerPrefix):
		return trailerPrefix
	case strings.HasPrefix(key, "Sec-Websocket-"):
		return socketPrefix
	}
	return 0
}

func presentFields(h http.Header) (has fieldSet) {
	for key, values := range h {
		if f := fieldBit(key); values != nil || f == trailerPrefix {
			has |= f
		}
	}
	return has
}

func appendHeader(b []byte, h http.Header, skip fieldSet, exclude ...string) []byte {
	var room [16]string
	keys := room[:0]
	for key := range h {
		if isToken(key) && skip&fieldBit(key) == 0 && !slices.Contains(exclude, key) {
			keys = append(keys, key)
		}
	}
	slices.Sort(keys)
	for _, key := range keys {
		for _, v := range h[key] {
			b = appendSanitizedField(b, key, v)
		}
	}
	return b
}

// appendSanitizedField appends a field. As in net/http, it trims the value and replaces line ends by spaces.
func appendSanitizedField(b []byte, key, value string) []byte {
	value = textproto.TrimString(value)
	if !isValidFieldValue(value) {
		value = strings.NewReplacer("\r", " ", "\n", " ").Replace(value)
	}
	return appendRawField(b, key, value)
}

func appendRawField(b []byte, key, value string) []byte {
	b = append(b, key...)
	b = append(b, ": "...)
	b = append(b, value...)
	return append(b, "\r\n"...)
}

// cachedDate is the most recent value of the Date field. It is used until the next second begins.
var cachedDate atomic.Pointer[dateStamp]

type dateStamp struct {
	second int64
	text   string
}

func currentHTTPDate() string {
	t := time.Now()
	if s := cachedDate.Load(); s != nil && s.second == t.Unix() {
		return s.text
	}
	s := &dateStamp{t.Unix(), t.UTC().Format(http.TimeFormat)}
	cachedDate.Store(s)
	return s.text
}
