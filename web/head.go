package web

import (
	"bytes"
	"errors"
	"fmt"
	"net/http"
	"net/netip"
	"net/textproto"
	"net/url"
	"strconv"
	"strings"

	"github.com/myriad-go/myriad/tcp"
)

// The parser accepts only complete and strictly valid request heads. It rejects what RFC 9112 allows a server to
// tolerate: bare LF, folded lines, space before a colon, several lengths, a length together with chunks. A proxy in
// front of the server may interpret such a head differently.

// statusError is the error of a rejected request. It contains the status of the response and the reason.
type statusError struct {
	status int
	reason string
}

func (e *statusError) Error() string { return e.reason }

func badRequest(reason string) error { return &statusError{http.StatusBadRequest, reason} }

var (
	errHeadTooLarge = &statusError{http.StatusRequestHeaderFieldsTooLarge, "the head is larger than MaxHeaderBytes"}
	errBareLF       = badRequest("a line ends with LF alone; expected CR LF")
	errManyFields   = &statusError{http.StatusRequestHeaderFieldsTooLarge, "the head has more than 1,000 fields"}
)

const maxFields = 1000

var headEnd = []byte("\r\n\r\n")

// completeHeadLength returns the length of the HTTP head at the beginning of the input, or 0 if the head is incomplete.
// The length includes the blank line after the head, and a blank line before the head if there is one. alreadySearched
// is the number of bytes in which an earlier call has not found the end of the head. completeHeadLength returns an
// error if the head is larger than maxBytes bytes, or if a line ends with LF alone.
func completeHeadLength(in []byte, alreadySearched, maxBytes int) (int, error) {
	start := 0
	if bytes.HasPrefix(in, headEnd[:2]) {
		start = 2
	}
	window := in[start:]
	if len(window) > maxBytes {
		window = window[:maxBytes]
	}
	for at := max(alreadySearched-start-len(headEnd)+1, 0); ; at++ {
		i := bytes.IndexByte(window[at:], '\n')
		if i < 0 {
			break
		}
		if at += i; at == 0 || window[at-1] != '\r' {
			return 0, errBareLF
		}
		if next := window[at+1:]; len(next) >= 2 && next[0] == '\r' && next[1] == '\n' {
			return start + at + 3, nil
		}
	}
	if len(in)-start >= maxBytes {
		return 0, errHeadTooLarge
	}
	return 0, nil
}

// head contains the properties of a request for which http.Request has no field.
type head struct {
	length             int64 // of the body; -1 if chunked
	closeAfter         bool  // no further request follows on this connection
	keepAlive10        bool  // an HTTP/1.0 client that wants a persistent connection
	expectsContinue    bool  // the client waits for 100 Continue
	unknownExpectation bool  // the Expect field has a value other than 100-continue
	seenHost           bool
	seenLen            bool
	seenTE             bool
	seenUncommon       bool // the head contains Expect, Pragma or Trailer
}

type headBuffer struct {
	text   string // the complete head
	url    *url.URL
	values []string
	used   int

	addr     netip.AddrPort // the last peer; addrText is its text
	addrText string

	reused   bool
	recent   [4]*parsedHead // recent heads; the index is the length of the head, modulo 4
	last     *parsedHead    // the element of recent for this head; nil if the exchange was never reused
	repeated bool           // the head equals last
}

// parsedHead is the cached result of parsing a request head. The cache saves time because clients often repeat a head.
type parsedHead struct {
	text   string // "" if there is none
	head   head
	url    url.URL
	fields []headField

	// Fields of the http.Request:
	method, target, proto, host string

	minor int
	close bool

	// The result of the last mux.Handler call for this head. It is valid only for requests that arrived together on
	// one connection, which ref and reads identify. They need not see a handler registered after their arrival.
	ref     tcp.Ref
	reads   int64
	mux     *http.ServeMux
	handler http.Handler
	pattern string
}

type headField struct{ key, value string }

const maxRepeatedHead = 1 << 10

// findPattern returns the result of mux.Handler for the request of x. It caches the result for requests with the same
// head.
func (x *exchange) findPattern(mux *http.ServeMux) (h http.Handler, pattern string) {
	l := x.headMemory.last
	if l != nil && x.headMemory.repeated && l.ref == x.ref && l.reads == x.reads && l.mux == mux {
		return l.handler, l.pattern
	}
	h, pattern = mux.Handler(x.req)
	if l != nil {
		l.ref, l.reads, l.mux, l.handler, l.pattern = x.ref, x.reads, mux, h, pattern
	}
	return h, pattern
}

func (s *headBuffer) recycle() {
	clear(s.values[:s.used])
	s.used, s.text, s.reused = 0, "", true
}

// recycleWithoutObjects is like recycle, but does not reuse the URL and the values, because the handler may have kept
// them.
func (s *headBuffer) recycleWithoutObjects() {
	s.url, s.values, s.used = nil, nil, 0
	s.recycle()
}

func (s *headBuffer) cacheSlotForLength(n int) *parsedHead {
	if !s.reused {
		return nil
	}
	l := &s.recent[n%len(s.recent)]
	if *l == nil {
		*l = new(parsedHead)
	}
	return *l
}

func (s *headBuffer) oneValueSlice(v string) []string {
	if s.used == len(s.values) {
		s.values, s.used = make([]string, min(max(4*s.used, 4), 16)), 0
	}
	s.values[s.used] = v
	s.used++
	return s.values[s.used-1 : s.used : s.used]
}

// parseHead parses the request head completeHead into r. s provides memory and a cache of heads. completeHead must end
// where the head ends; see completeHeadLength. r.Header must be an empty map, and all other exported fields of r must
// be zero.
func parseHead(completeHead []byte, r *http.Request, s *headBuffer) (head, error) {
	completeHead = bytes.TrimPrefix(completeHead, headEnd[:2])
	l := s.cacheSlotForLength(len(completeHead))
	if s.url == nil {
		s.url = new(url.URL)
	}
	s.last = l
	if s.repeated = l != nil && string(completeHead) == l.text; s.repeated {
		s.text = l.text
		l.copyTo(r, s)
		return l.head, nil
	}
	s.text = string(completeHead)
	if l == nil {
		return parseLines(r, s)
	}
	l.text, l.fields = "", l.fields[:0]
	h, err := parseLines(r, s)
	if err == nil && len(s.text) <= maxRepeatedHead && r.URL == s.url && r.Trailer == nil && len(l.fields) == len(r.Header) { // no field twice
		l.text, l.head, l.url = s.text, h, *s.url
		l.method, l.target, l.proto, l.host, l.minor, l.close = r.Method, r.RequestURI, r.Proto, r.Host, r.ProtoMinor, r.Close
	}
	return h, err
}

// copyTo sets the fields of r to the values that parsing l.text would produce.
func (l *parsedHead) copyTo(r *http.Request, s *headBuffer) {
	*s.url = l.url
	r.Method, r.URL, r.RequestURI, r.Host, r.Close = l.method, s.url, l.target, l.host, l.close
	r.Proto, r.ProtoMajor, r.ProtoMinor = l.proto, 1, l.minor
	setLengthOrChunked(r, l.head.length)
	for _, f := range l.fields {
		r.Header[f.key] = s.oneValueSlice(f.value)
	}
}

// setLengthOrChunked sets the fields of r that depend on the length of its body. length is -1 if the body is chunked.
func setLengthOrChunked(r *http.Request, length int64) {
	if r.ContentLength = length; length < 0 {
		r.TransferEncoding = []string{"chunked"}
	}
}

func parseLines(r *http.Request, s *headBuffer) (h head, err error) {
	line, rest := cutCRLFLine(s.text)
	if err := parseRequestLine(line, r, s); err != nil {
		return h, err
	}
	for n := 0; ; n++ {
		line, rest = cutCRLFLine(rest)
		if line == "" {
			break
		}
		if n == maxFields {
			return h, errManyFields
		}
		if err := h.parseField(line, r, s); err != nil {
			return h, err
		}
	}
	return h, h.validateAndCompleteRequest(r)
}

// cutCRLFLine returns the first line of text, without its line end, and the rest. Every line must end with \r\n.
func cutCRLFLine(text string) (line, rest string) {
	i := strings.IndexByte(text, '\n')
	if i < 1 {
		return text, ""
	}
	return text[:i-1], text[i+1:]
}

func parseRequestLine(line string, r *http.Request, s *headBuffer) error {
	method, rest, ok1 := strings.Cut(line, " ")
	target, proto, ok2 := strings.Cut(rest, " ")
	if !ok1 || !ok2 || method == "" || !allInClass(&methodChars, method) || target == "" {
		return badRequest(fmt.Sprintf("malformed request line %.40q", line))
	}
	switch proto {
	case "HTTP/1.1":
		r.ProtoMajor, r.ProtoMinor = 1, 1
	case "HTTP/1.0":
		r.ProtoMajor, r.ProtoMinor = 1, 0
	default:
		if strings.HasPrefix(proto, "HTTP/") && len(proto) == len("HTTP/1.1") {
			return &statusError{http.StatusHTTPVersionNotSupported, fmt.Sprintf("unsupported protocol version %q; expected HTTP/1.1 or HTTP/1.0", proto)}
		}
		return badRequest(fmt.Sprintf("malformed HTTP version %.40q", proto))
	}
	r.Method, r.RequestURI, r.Proto = method, target, proto
	if r.URL = s.parseUnescapedURL(target); r.URL != nil {
		return nil
	}
	for i := 0; i < len(target); i++ {
		if target[i] <= ' ' || target[i] == 0x7f {
			return badRequest(fmt.Sprintf("malformed request target %.40q", r.RequestURI))
		}
	}
	// As in net/http, the target of CONNECT is a host without a scheme.
	authority := method == http.MethodConnect && !strings.HasPrefix(target, "/")
	if authority {
		target = "http://" + target
	}
	u, err := url.ParseRequestURI(target)
	asterisk := target == "*" && method == http.MethodOptions
	if err != nil || u.User != nil || target[0] != '/' && !asterisk && !isValidHost(u.Host) {
		return badRequest(fmt.Sprintf("malformed request target %.40q", r.RequestURI))
	}
	if authority {
		u.Scheme = ""
	}
	r.URL = u
	return nil
}

// parseUnescapedURL parses a path without escapes and an optional query. It returns nil for any other target.
func (s *headBuffer) parseUnescapedURL(target string) *url.URL {
	if target[0] != '/' {
		return nil
	}
	path, query, more := strings.Cut(target, "?")
	if !allInClass(&plainChars, path) || !allInClass(&queryChars, query) {
		return nil
	}
	*s.url = url.URL{Path: path, RawQuery: query, ForceQuery: more && query == ""}
	return s.url
}

func (h *head) parseField(line string, r *http.Request, s *headBuffer) error {
	name, untrimmed, ok := strings.Cut(line, ":")
	key := canonicalKeyIfValid(name)
	if !ok || key == "" {
		return badRequest(fmt.Sprintf("malformed header field %.40q", name))
	}
	value := trimBlanks(untrimmed)
	if !isValidFieldValue(value) {
		return badRequest(fmt.Sprintf("invalid value of the header field %.40q", name))
	}
	switch key {
	case "Host":
		if h.seenHost {
			return badRequest("too many Host headers")
		}
		h.seenHost, r.Host = true, value
		return nil
	case "Content-Length":
		n, err := strconv.ParseUint(strings.Trim(untrimmed, " "), 10, 63) // as in nginx, without tabs
		if h.seenLen || err != nil {
			return badRequest(fmt.Sprintf("bad Content-Length %.40q", value))
		}
		h.seenLen, h.length = true, int64(n)
	case "Transfer-Encoding":
		if h.seenTE {
			return badRequest("too many transfer encodings")
		}
		if framing := strings.Trim(untrimmed, " "); !equalFold(framing, "chunked") {
			status := http.StatusNotImplemented
			if i := strings.LastIndexByte(framing, ','); i >= 0 && hasToken(framing[:i], "chunked") {
				status = http.StatusBadRequest // chunked must come last: RFC 9112, 6.3
			}
			return &statusError{status, fmt.Sprintf("unsupported transfer encoding %.40q; expected chunked", framing)}
		}
		h.seenTE, h.length = true, -1
		return nil
	case "Connection":
		h.closeAfter = h.closeAfter || value != "keep-alive" && hasToken(value, "close")
		h.keepAlive10 = h.keepAlive10 || hasToken(value, "keep-alive")
	case "Expect", "Pragma", "Trailer":
		h.seenUncommon = true
	}
	if s.last != nil {
		s.last.fields = append(s.last.fields, headField{key, value})
	}
	if have := r.Header[key]; have != nil {
		if singletonFields[key] {
			return badRequest(fmt.Sprintf("header field %s occurs more than once; expected it once", key))
		}
		r.Header[key] = append(have, value)
	} else {
		r.Header[key] = s.oneValueSlice(value)
	}
	return nil
}

// singletonFields are fields that must not be repeated, as in nginx. A proxy and the server could use different values
// of a repeated field. Host, Content-Length and Transfer-Encoding are checked separately.
var singletonFields = map[string]bool{"Authorization": true, "Content-Range": true, "Expect": true, "If-Match": true,
	"If-Modified-Since": true, "If-None-Match": true, "If-Range": true, "If-Unmodified-Since": true}

func (h *head) validateAndCompleteRequest(r *http.Request) error {
	eleven := r.ProtoMinor == 1
	switch {
	case h.seenTE && h.seenLen:
		return badRequest("both Content-Length and Transfer-Encoding; expected only one of them")
	case h.seenTE && !eleven:
		return badRequest("Transfer-Encoding in HTTP/1.0; expected Content-Length")
	case eleven && !h.seenHost:
		return badRequest("missing required Host header")
	case h.seenHost && !isValidHost(r.Host):
		return badRequest(fmt.Sprintf("malformed Host header %.40q", r.Host))
	}
	if r.URL.Host != "" {
		r.Host = r.URL.Host // of an absolute target: RFC 9112, 3.2.2
	}
	setLengthOrChunked(r, h.length)
	h.keepAlive10 = h.keepAlive10 && !eleven
	h.closeAfter = h.closeAfter || !eleven && !h.keepAlive10
	r.Close = h.closeAfter
	h.closeAfter = h.closeAfter || r.Method == http.MethodConnect // the input that follows may belong to a tunnel
	if !h.seenUncommon {
		return nil
	}
	if v := r.Header["Expect"]; v != nil && eleven {
		h.expectsContinue = hasToken(v[0], "100-continue")
		h.unknownExpectation = !h.expectsContinue
	}
	if v := r.Header["Pragma"]; v != nil && v[0] == "no-cache" && r.Header["Cache-Control"] == nil {
		r.Header["Cache-Control"] = []string{"no-cache"}
	}
	return h.parseTrailerHeader(r)
}

func (h *head) parseTrailerHeader(r *http.Request) error {
	values := r.Header["Trailer"]
	if values == nil || !h.seenTE {
		return nil
	}
	delete(r.Header, "Trailer")
	r.Trailer = make(http.Header)
	for _, v := range values {
		for name := range strings.SplitSeq(v, ",") {
			name = textproto.CanonicalMIMEHeaderKey(textproto.TrimString(name))
			switch {
			case name == "":
			case isForbiddenTrailer(name):
				return badRequest(fmt.Sprintf("bad trailer key %.40q", name))
			default:
				r.Trailer[name] = nil
			}
		}
	}
	return nil
}

// isForbiddenTrailer reports whether a field must not occur in a trailer, because it determines how the body is read.
func isForbiddenTrailer(key string) bool {
	return key == "Transfer-Encoding" || key == "Content-Length" || key == "Trailer"
}

func canonicalKeyIfValid(name string) (keyOrEmpty string) {
	switch name {
	case "Accept", "Accept-Encoding", "Accept-Language", "Authorization", "Connection", "Content-Length", "Content-Type",
		"Cookie", "Host", "Origin", "Referer", "User-Agent", "X-Forwarded-For":
		return name
	}
	if !isToken(name) {
		return ""
	}
	return textproto.CanonicalMIMEHeaderKey(name)
}

func trimBlanks(s string) string {
	for s != "" && (s[0] == ' ' || s[0] == '\t') {
		s = s[1:]
	}
	for s != "" && (s[len(s)-1] == ' ' || s[len(s)-1] == '\t') {
		s = s[:len(s)-1]
	}
	return s
}

// equalFold reports whether s and token are equal ASCII strings, ignoring case. Unlike strings.EqualFold, it does not
// treat the Kelvin sign as the letter k.
func equalFold(s, token string) bool { return len(s) == len(token) && strings.EqualFold(s, token) }

func hasToken(list, token string) bool {
	for v := range strings.SplitSeq(list, ",") {
		if equalFold(textproto.TrimString(v), token) {
			return true
		}
	}
	return false
}

var tokenChars, methodChars, plainChars, queryChars, hostChars [256]bool

func init() {
	for c := range 256 {
		letter := c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9'
		tokenChars[c] = letter || c < 0x80 && strings.IndexByte("!#$%&'*+-.^_`|~", byte(c)) >= 0
		methodChars[c] = c >= 'A' && c <= 'Z' || c == '-' || c == '_' // as in nginx: "helloGET" begins with the rest of a body
		plainChars[c] = letter || c < 0x80 && strings.IndexByte("/-._~", byte(c)) >= 0
		queryChars[c] = c > ' ' && c < 0x7f && c != '#'
		hostChars[c] = letter || c < 0x80 && strings.IndexByte("-.:[]_", byte(c)) >= 0
	}
}

func allInClass(class *[256]bool, s string) bool {
	for i := 0; i < len(s); i++ {
		if !class[s[i]] {
			return false
		}
	}
	return true
}

func isToken(s string) bool { return s != "" && allInClass(&tokenChars, s) }

func isValidHost(s string) bool {
	if s == "" || s[0] == ':' || s[0] == '.' {
		return false
	}
	brackets := false
	for i := 0; i < len(s); i++ {
		if !hostChars[s[i]] || s[i] == '.' && s[i-1] == '.' {
			return false
		}
		brackets = brackets || s[i] == '[' || s[i] == ']'
	}
	return brackets == (s[0] == '[')
}

func isValidFieldValue(s string) bool {
	const ones = 0x0101010101010101
	for len(s) >= 8 {
		w := uint64(s[0]) | uint64(s[1])<<8 | uint64(s[2])<<16 | uint64(s[3])<<24 |
			uint64(s[4])<<32 | uint64(s[5])<<40 | uint64(s[6])<<48 | uint64(s[7])<<56
		del := w ^ 0x7f*ones
		if ((w-0x20*ones)&^w|(del-ones)&^del)&(0x80*ones) != 0 {
			break // a control character, which may be a tab, or DEL
		}
		s = s[8:]
	}
	for i := 0; i < len(s); i++ {
		if c := s[i]; c < ' ' && c != '\t' || c == 0x7f {
			return false
		}
	}
	return true
}

func errorStatus(err error) (int, string) {
	var s *statusError
	if errors.As(err, &s) {
		return s.status, s.reason
	}
	return http.StatusBadRequest, err.Error()
}
