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

// response is the http.ResponseWriter of an exchange. What it decides about framing
// (Content-Length, chunks, Connection) and the order of fields is what net/http's server
// does, so that a client sees the same bytes.
//
// It belongs to the handler's goroutine until the handler has returned, then to the
// connection's owner.
type response struct {
	x    *exchange
	conn *tcp.Conn // set while the handler runs on the connection's owner

	header   http.Header
	status   int
	length   int64 // as the handler has declared it; -1 if it has not
	written  int64
	state    responseState
	chunked  bool
	close    bool // behind this response
	trailers []string
	last     lastFile
	by       deadline

	*buffers
	err error // of the connection
}

// buffers are a response's memory, used again for others.
type buffers struct {
	body *bufio.Writer // into frame
	out  []byte        // what is not sent
}

var freeBuffers = sync.Pool{New: func() any { return &buffers{body: bufio.NewWriterSize(nil, beforeChunks)} }}

// putBuffers makes the memory available to others. A handler that writes later has an error.
func (w *response) putBuffers() {
	b := w.buffers
	if w.buffers = nil; b == nil {
		return
	}
	if b.body.Reset(nil); cap(b.out) <= 4*maxOut {
		b.out = b.out[:0]
		freeBuffers.Put(b)
	}
}

// A response's body is written at once with its length if it fits here, as in net/http.
const beforeChunks = 2048

// maxOut is how much output is put together before it is sent.
const maxOut = 16 << 10

// frame is a response as the io.Writer of its buffer: the framed body.
type frame response

func (w *response) init(x *exchange, c *tcp.Conn) {
	w.x, w.conn, w.length = x, c, -1
	if w.header == nil {
		w.header = make(http.Header)
	}
	if w.buffers == nil {
		w.buffers = freeBuffers.Get().(*buffers)
	}
	w.body.Reset((*frame)(w))
}

// reset makes it as new, for another request, but for its memory.
func (w *response) reset() {
	b := w.buffers
	if b != nil && cap(b.out) > 4*maxOut {
		b = nil
	} else if b != nil {
		b.out = b.out[:0]
	}
	clear(w.header)
	*w = response{header: w.header, buffers: b}
}

// Header implements http.ResponseWriter.
func (w *response) Header() http.Header { return w.header }

// WriteHeader implements http.ResponseWriter.
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
		w.informational(status)
		return
	}
	w.setState(responseStatus)
	w.status = status
	if w.x.expects && w.conn == nil {
		w.x.mu.Lock()
		w.x.body.late = true
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

// writeOK calls WriteHeader if the handler has not.
func (w *response) writeOK() {
	if w.state == responsePending {
		w.WriteHeader(http.StatusOK)
	}
}

// informational sends a response of 1xx, before the real one.
func (w *response) informational(status int) {
	if w.x.req.ProtoMinor == 0 {
		return
	}
	if status == http.StatusContinue {
		w.x.mu.Lock()
		w.x.body.told = true
		w.x.mu.Unlock()
	}
	w.out = appendStatus(w.out, 1, status)
	w.out = appendHeader(w.out, w.header, contentLength|transferEncoding)
	w.out = append(w.out, "\r\n"...)
	w.flush()
}

// Write implements io.Writer.
func (w *response) Write(p []byte) (int, error) {
	if err := w.startBody(len(p)); err != nil || len(p) == 0 {
		return 0, err
	}
	return w.body.Write(p)
}

// WriteString implements io.StringWriter.
func (w *response) WriteString(s string) (int, error) {
	if err := w.startBody(len(s)); err != nil || s == "" {
		return 0, err
	}
	return w.body.WriteString(s)
}

var errReturned = errors.New("web: the response was written to when its handler had returned")

// startBody calls WriteHeader if the handler has not, and reports why n bytes of body can't follow.
func (w *response) startBody(n int) error {
	switch {
	case w.state >= responseSwitching:
		return http.ErrHijacked
	case w.buffers == nil:
		return errReturned
	}
	w.writeOK()
	switch {
	case n == 0:
		return nil
	case !bodyAllowed(w.status):
		return http.ErrBodyNotAllowed
	}
	w.written += int64(n)
	if w.length >= 0 && w.written > w.length {
		return http.ErrContentLength
	}
	return w.err
}

func bodyAllowed(status int) bool {
	return status >= 200 && status != http.StatusNoContent && status != http.StatusNotModified
}

// Write frames a piece of the body.
func (f *frame) Write(p []byte) (int, error) {
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
	if len(w.out)+len(p) > maxOut {
		w.flush()
		if len(p) >= maxOut && w.err == nil {
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

// flush sends what has been put together.
func (w *response) flush() {
	if len(w.out) > 0 && w.err == nil {
		w.err = w.send(w.out)
	}
	w.out = w.out[:0]
}

// maxPiece is the most that is sent at once to a connection by another goroutine.
const maxPiece = 64 << 10

// send sends p, and waits for room where it may.
func (w *response) send(p []byte) error {
	if w.conn != nil {
		_, err := w.conn.Write(p)
		return err
	}
	w.x.sendsFromHandler()
	most := maxPiece
	if limit := w.x.limits.MaxUnsent; limit != 0 {
		most = min(most, limit)
	}
	var err error
	for len(p) > 0 && err == nil {
		n := min(len(p), most)
		w.x.h.pool().Block(func() {
			err = w.by.wait(&w.x.mu, func(ctx context.Context) error { return w.x.ref.SendWait(ctx, p[:n]) })
		})
		p = p[n:]
	}
	return err
}

// writeHead decides how the body is framed, of which p is the beginning, and all of it in
// responseWhole, and writes the head.
func (w *response) writeHead(p []byte) {
	r, h := w.x.req, w.header
	head := r.Method == http.MethodHead
	allowed, has := bodyAllowed(w.status), fieldsOf(h)
	if has&trailerField != 0 {
		w.trailers = declaredTrailers(h)
	}
	var skip fields
	var length, kind, connection, encoding, wish string
	if has&transferEncoding != 0 {
		encoding = h.Get("Transfer-Encoding")
	}
	if has&connectionField != 0 {
		wish = h.Get("Connection")
	}
	closes := wish != "" && hasToken(wish, "close")

	if w.state == responseWhole && len(w.trailers) == 0 && has&trailerPrefix == 0 && w.length < 0 && has&(transferEncoding|contentLength) == 0 && allowed && (!head || len(p) > 0) {
		w.length = int64(len(p))
		length = strconv.Itoa(len(p))
	}
	w.setState(responseHead)
	if w.x.keep10 && (head || w.length >= 0 || !allowed) && has&connectionField == 0 {
		connection = "keep-alive"
	}
	// A client of HTTP/1.0 that hears nothing else ends its connection.
	keeps := w.x.keep10 && (connection != "" || hasToken(wish, "keep-alive"))
	if closes || r.ProtoMinor == 0 && !keeps || w.x.mustClose() {
		w.close = true
	}
	if allowed {
		if has&(contentType|transferEncoding) == 0 && len(p) > 0 && (has&contentEncoding == 0 || h.Get("Content-Encoding") == "") {
			kind = http.DetectContentType(p)
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
	skip |= w.frameBody(encoding, head || !allowed)
	if w.close && !closes {
		skip |= connectionField
		if connection = ""; r.ProtoMinor == 1 {
			connection = "close"
		}
	}

	w.out = appendStatus(w.out, r.ProtoMinor, w.status)
	w.out = appendHeader(w.out, h, skip|trailerPrefix, w.trailers...)
	if _, ok := h["Date"]; !ok {
		w.out = appendLine(w.out, "Date", date())
	}
	for _, f := range [...][2]string{{"Content-Length", length}, {"Content-Type", kind}, {"Connection", connection}} {
		if f[1] != "" {
			w.out = appendLine(w.out, f[0], f[1])
		}
	}
	if w.chunked {
		w.out = appendLine(w.out, "Transfer-Encoding", "chunked")
	}
	w.out = append(w.out, "\r\n"...)
}

// finishHead writes the head if that has not been done, of a body without a first part.
func (w *response) finishHead() {
	if w.state < responseHead {
		w.writeHead(nil)
	}
}

// frameBody decides how the client sees the body's end, and says which fields of the handler
// do not go with that.
func (w *response) frameBody(encoding string, none bool) (skip fields) {
	switch eleven := w.x.req.ProtoMinor == 1; {
	case none, w.length >= 0:
		return transferEncoding
	case eleven && encoding != "identity":
		w.chunked = true
		if encoding == "chunked" {
			return contentLength | transferEncoding
		}
		return contentLength
	}
	w.close = true
	return transferEncoding
}

// declaredTrailers are the fields that the handler has announced to come behind the body.
func declaredTrailers(h http.Header) (keys []string) {
	for _, v := range h["Trailer"] {
		for name := range strings.SplitSeq(v, ",") {
			if key := textproto.CanonicalMIMEHeaderKey(textproto.TrimString(name)); key != "" && !notInTrailer(key) {
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

// finishRequest ends the response when the handler has returned; what is not sent is in out.
func (w *response) finishRequest() {
	w.writeOK()
	if w.state == responseStatus {
		w.setState(responseWhole)
	}
	if err := w.body.Flush(); err != nil && w.err == nil {
		w.err = err
	}
	if w.err != nil {
		w.out, w.close = w.out[:0], true // the client hears that it is cut off
		w.setState(responseComplete)
		return
	}
	w.finishHead()
	if w.chunked && w.x.req.Method != http.MethodHead {
		w.out = append(w.out, "0\r\n"...)
		if w.hasTrailers() {
			w.out = appendHeader(w.out, w.trailer(), 0)
		}
		w.out = append(w.out, "\r\n"...)
	}
	if w.length >= 0 && w.written != w.length && w.x.req.Method != http.MethodHead && bodyAllowed(w.status) {
		w.close = true // the client still expects some
	}
	w.setState(responseComplete)
}

// trailer is what the handler has set by now of the fields behind the body.
func (w *response) trailer() http.Header {
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

// Flush implements http.Flusher.
func (w *response) Flush() { _ = w.FlushError() }

// FlushError sends what has been written, for http.ResponseController.
func (w *response) FlushError() error {
	if w.state >= responseSwitching {
		return http.ErrHijacked
	}
	w.writeOK()
	if err := w.body.Flush(); err != nil {
		return err
	}
	w.finishHead()
	w.flush()
	if l := &w.last; l.f != nil && w.err == nil {
		w.err = w.sendFile(l.f, l.offset, l.n)
		l.close()
	}
	return w.err
}

// appendStatus appends a status line.
func appendStatus(b []byte, minor, status int) []byte {
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

// fields are some that a response has a meaning for.
type fields uint16

const (
	contentLength fields = 1 << iota
	contentType
	contentEncoding
	transferEncoding
	connectionField
	upgradeField
	trailerField
	trailerPrefix // all that begin with http.TrailerPrefix
	socketPrefix  // all that begin with Sec-Websocket-
)

// fieldOf says which of them a field is; 0 for another.
func fieldOf(key string) fields {
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

// fieldsOf says which of them a header has.
func fieldsOf(h http.Header) (has fields) {
	for key, values := range h {
		if f := fieldOf(key); values != nil || f == trailerPrefix {
			has |= f
		}
	}
	return has
}

// appendHeader appends fields in the order of their names, but those to be skipped.
func appendHeader(b []byte, h http.Header, skip fields, also ...string) []byte {
	var room [16]string
	keys := room[:0]
	for key := range h {
		if isToken(key) && skip&fieldOf(key) == 0 && !slices.Contains(also, key) {
			keys = append(keys, key)
		}
	}
	slices.Sort(keys)
	for _, key := range keys {
		for _, v := range h[key] {
			b = appendField(b, key, v)
		}
	}
	return b
}

// appendField appends one field. A line end in its value is a space, and those around it
// go, as in net/http.
func appendField(b []byte, key, value string) []byte {
	value = textproto.TrimString(value)
	if !isFieldValue(value) {
		value = strings.NewReplacer("\r", " ", "\n", " ").Replace(value)
	}
	return appendLine(b, key, value)
}

// appendLine appends a field whose value is as it is to be.
func appendLine(b []byte, key, value string) []byte {
	b = append(b, key...)
	b = append(b, ": "...)
	b = append(b, value...)
	return append(b, "\r\n"...)
}

// now is the Date of responses, made once a second.
var now atomic.Pointer[stamp]

type stamp struct {
	second int64
	text   string
}

func date() string {
	t := time.Now()
	if s := now.Load(); s != nil && s.second == t.Unix() {
		return s.text
	}
	s := &stamp{t.Unix(), t.UTC().Format(http.TimeFormat)}
	now.Store(s)
	return s.text
}
