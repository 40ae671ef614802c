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
)

// The parser accepts only complete and strictly valid request heads. It rejects what RFC 9112 allows a server to
// tolerate: bare LF, folded lines, space before a colon, several lengths, a length together with chunks. A proxy in
// front of the server may interpret such a head differently.

// statusError is the reason why a request is rejected, and the status of the response.
type statusError struct {
	status int
	why    string
}

func (e *statusError) Error() string { return e.why }

func badRequest(why string) error { return &statusError{http.StatusBadRequest, why} }

var (
	errHeadTooLarge = &statusError{http.StatusRequestHeaderFieldsTooLarge, "the head is larger than MaxHeaderBytes"}
	errBareLF       = badRequest("a line ends with LF alone; expected CR LF")
	errManyFields   = &statusError{http.StatusRequestHeaderFieldsTooLarge, "the head has more than 1,000 fields"}
)

const maxFields = 1000

var headEnd = []byte("\r\n\r\n")

// completeHeadLength returns the length of the head at the beginning of in, or 0 if the head is incomplete. The head
// includes the blank line at its end and an empty line before it, which old clients send after a body. The first
// alreadySearched bytes do not contain the end of the head. A head of more than maxBytes bytes is an error.
func completeHeadLength(in []byte, alreadySearched, maxBytes int) (int, error) {
	start := 0
	if bytes.HasPrefix(in, headEnd[:2]) {
		start = 2
	}
	window := in[start:]
	if len(window) > maxBytes {
		window = window[:maxBytes]
	}
	at := max(alreadySearched-start-len(headEnd)+1, 0)
	if i := bytes.Index(window[at:], headEnd); i >= 0 {
		return start + at + i + len(headEnd), nil
	}
	if containsBareLF(window, at) {
		return 0, errBareLF
	}
	if len(in)-start >= maxBytes {
		return 0, errHeadTooLarge
	}
	return 0, nil
}

// containsBareLF reports whether b[at:] contains an LF that does not follow a CR. The CR may be b[at-1].
func containsBareLF(b []byte, at int) bool {
	for ; ; at++ {
		i := bytes.IndexByte(b[at:], '\n')
		if i < 0 {
			return false
		}
		if at += i; at == 0 || b[at-1] != '\r' {
			return true
		}
	}
}

// head contains the properties of a request for which http.Request has no field.
type head struct {
	length             int64 // of the body; -1 if chunked
	closeAfter         bool  // no further request follows on this connection
	keepAlive10        bool  // an HTTP/1.0 client that wants a persistent connection
	expectsContinue    bool  // the client waits for 100 Continue
	unknownExpectation bool  // the client expects something else
	seenHost           bool
	seenLen            bool
	seenTE             bool
}

type headBuffer struct {
	text   string // the complete head
	url    url.URL
	values [16]string
	used   int

	addr     netip.AddrPort // of the last peer; addrText is its text
	addrText string
}

func (s *headBuffer) reuseValueSlice(v string) []string {
	if s.used == len(s.values) {
		return []string{v}
	}
	s.values[s.used] = v
	s.used++
	return s.values[s.used-1 : s.used : s.used]
}

// parseHead parses a complete head into r. If the head contains a bare LF, the error is errBareLF even if something
// else is wrong, too. completeHeadLength returns the same error.
func parseHead(raw []byte, r *http.Request, s *headBuffer) (head, error) {
	raw = bytes.TrimPrefix(raw, headEnd[:2])
	s.text = string(raw)
	h, err := parseLines(r, s)
	if err != nil && containsBareLF(raw, 0) {
		err = errBareLF
	}
	return h, err
}

func parseLines(r *http.Request, s *headBuffer) (h head, err error) {
	line, rest, _ := strings.Cut(s.text, "\r\n")
	if err := parseRequestLine(line, r, s); err != nil {
		return h, err
	}
	for n := 0; ; n++ {
		line, rest, _ = strings.Cut(rest, "\r\n")
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

func parseRequestLine(line string, r *http.Request, s *headBuffer) error {
	method, rest, ok1 := strings.Cut(line, " ")
	target, proto, ok2 := strings.Cut(rest, " ")
	if !ok1 || !ok2 || method == "" || !allInClass(&methodChars, method) || target == "" {
		return badRequest("malformed request line")
	}
	switch proto {
	case "HTTP/1.1":
		r.ProtoMajor, r.ProtoMinor = 1, 1
	case "HTTP/1.0":
		r.ProtoMajor, r.ProtoMinor = 1, 0
	default:
		if strings.HasPrefix(proto, "HTTP/") && len(proto) == len("HTTP/1.1") {
			return &statusError{http.StatusHTTPVersionNotSupported, "unsupported protocol version"}
		}
		return badRequest("malformed HTTP version")
	}
	r.Method, r.RequestURI, r.Proto = method, target, proto
	if r.URL = s.parseUnescapedURL(target); r.URL != nil {
		return nil
	}
	for i := 0; i < len(target); i++ {
		if target[i] <= ' ' || target[i] == 0x7f {
			return badRequest("malformed request target")
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
		return badRequest("malformed request target")
	}
	if authority {
		u.Scheme = ""
	}
	r.URL = u
	return nil
}

// If target is a path without escapes, with or without a query, parseUnescapedURL returns its URL, otherwise nil.
func (s *headBuffer) parseUnescapedURL(target string) *url.URL {
	if target[0] != '/' {
		return nil
	}
	path, query, more := strings.Cut(target, "?")
	for i := 0; i < len(path); i++ {
		if !plainChars[path[i]] {
			return nil
		}
	}
	for i := 0; i < len(query); i++ {
		if query[i] <= ' ' || query[i] >= 0x7f || query[i] == '#' {
			return nil
		}
	}
	s.url = url.URL{Path: path, RawQuery: query, ForceQuery: more && query == ""}
	return &s.url
}

func (h *head) parseField(line string, r *http.Request, s *headBuffer) error {
	name, value, ok := strings.Cut(line, ":")
	if !ok || !isToken(name) {
		return badRequest("malformed header field")
	}
	framing := strings.Trim(value, " ") // nginx rejects tabs in fields that frame the message
	value = strings.Trim(value, " \t")
	if !isValidFieldValue(value) {
		return badRequest(fmt.Sprintf("invalid value of the header field %.40q", name))
	}
	key := textproto.CanonicalMIMEHeaderKey(name)
	switch key {
	case "Host":
		if h.seenHost {
			return badRequest("too many Host headers")
		}
		h.seenHost, r.Host = true, value
		return nil
	case "Content-Length":
		n, err := strconv.ParseUint(framing, 10, 63)
		if h.seenLen || err != nil {
			return badRequest("bad Content-Length")
		}
		h.seenLen, h.length = true, int64(n)
	case "Transfer-Encoding":
		if h.seenTE {
			return badRequest("too many transfer encodings")
		}
		if !equalFold(framing, "chunked") {
			status := http.StatusNotImplemented
			if i := strings.LastIndexByte(framing, ','); i >= 0 && hasToken(framing[:i], "chunked") {
				status = http.StatusBadRequest // chunked must come last: RFC 9112, 6.3
			}
			return &statusError{status, "unsupported transfer encoding"}
		}
		h.seenTE, h.length = true, -1
		return nil
	case "Connection":
		h.closeAfter = h.closeAfter || hasToken(value, "close")
		h.keepAlive10 = h.keepAlive10 || hasToken(value, "keep-alive")
	}
	if have := r.Header[key]; have != nil {
		if singletonFields[key] {
			return badRequest("repeated header field that may occur only once")
		}
		r.Header[key] = append(have, value)
	} else {
		r.Header[key] = s.reuseValueSlice(value)
	}
	return nil
}

// singletonFields are fields that must not be repeated, as in nginx. If a field is repeated, a proxy might use the
// first value and the server the last value. Host, Content-Length and Transfer-Encoding are checked separately.
var singletonFields = map[string]bool{"Authorization": true, "Content-Range": true, "Expect": true, "If-Match": true,
	"If-Modified-Since": true, "If-None-Match": true, "If-Range": true, "If-Unmodified-Since": true}

func (h *head) validateAndCompleteRequest(r *http.Request) error {
	eleven := r.ProtoMinor == 1
	switch {
	case h.seenTE && h.seenLen:
		return badRequest("both Content-Length and Transfer-Encoding")
	case h.seenTE && !eleven:
		return badRequest("Transfer-Encoding in HTTP/1.0")
	case eleven && !h.seenHost:
		return badRequest("missing required Host header")
	case h.seenHost && !isValidHost(r.Host):
		return badRequest("malformed Host header")
	}
	if r.URL.Host != "" {
		r.Host = r.URL.Host // of an absolute target: RFC 9112, 3.2.2
	}
	if r.ContentLength = h.length; h.seenTE {
		r.TransferEncoding = []string{"chunked"}
	}
	h.keepAlive10 = h.keepAlive10 && !eleven
	h.closeAfter = h.closeAfter || !eleven && !h.keepAlive10
	r.Close = h.closeAfter
	h.closeAfter = h.closeAfter || r.Method == http.MethodConnect // what follows may belong to a tunnel
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
				return badRequest("bad trailer key")
			default:
				r.Trailer[name] = nil
			}
		}
	}
	return nil
}

// isForbiddenTrailer reports whether a field frames the message. Such a field must not follow the body.
func isForbiddenTrailer(key string) bool {
	return key == "Transfer-Encoding" || key == "Content-Length" || key == "Trailer"
}

// equalFold compares ASCII strings and ignores case. Unlike in strings.EqualFold, the Kelvin sign does not equal k.
func equalFold(s, token string) bool { return len(s) == len(token) && strings.EqualFold(s, token) }

func hasToken(list, token string) bool {
	for v := range strings.SplitSeq(list, ",") {
		if equalFold(textproto.TrimString(v), token) {
			return true
		}
	}
	return false
}

var tokenChars, methodChars, plainChars, hostChars [256]bool

func init() {
	for c := range 256 {
		letter := c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9'
		tokenChars[c] = letter || c < 0x80 && strings.IndexByte("!#$%&'*+-.^_`|~", byte(c)) >= 0
		methodChars[c] = c >= 'A' && c <= 'Z' || c == '-' || c == '_' // as nginx: "helloGET" is the rest of a body
		plainChars[c] = letter || c < 0x80 && strings.IndexByte("/-._~", byte(c)) >= 0
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
	return s != "" && s[0] != ':' && s[0] != '.' && !strings.Contains(s, "..") && allInClass(&hostChars, s) &&
		strings.ContainsAny(s, "[]") == (s[0] == '[')
}

func isValidFieldValue(s string) bool {
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
		return s.status, s.why
	}
	return http.StatusBadRequest, err.Error()
}
