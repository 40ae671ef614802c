package main

import (
	"bytes"
	"encoding/binary"
)

// maxHead is the most bytes of a request's head, its end included.
const maxHead = 8 << 10

// verdict is what to do with a request.
type verdict uint8

const (
	goOn       verdict = iota // so far it is right: never the last word
	incomplete                // wait for more
	served                    // answer, and stay open
	servedKept                // the same, and say so: HTTP/1.0
	servedLast                // answer, and close
	badRequest                // the rest: answer with an error, and close
	badMethod
	headTooLarge
	versionNotServed

	verdicts = iota
)

// closes says whether the connection is closed after the answer.
func (v verdict) closes() bool { return v >= servedLast }

// parseRequest looks at the first request in in. It says how many bytes are
// used up, and what to do; for an incomplete one it is the empty lines before it
// that are used up. What it says depends on the bytes alone, not on how they
// were cut into pieces: it goes through them once, in order, and judges each as
// it comes. A head that has no end within maxHead is too large.
//
// It serves GET without a body. It is strict where leniency has let requests be
// smuggled: lines end in CRLF, a name stands right before its colon, nothing is
// folded, HTTP/1.1 has exactly one Host, and a body of any kind is refused.
func parseRequest(in []byte) (n int, v verdict) {
	for len(in) >= n+2 && in[n] == '\r' && in[n+1] == '\n' {
		n += 2
	}
	if len(in) == n+1 && in[n] == '\r' { // perhaps one more empty line
		return n, incomplete
	}
	h := head{b: in[n:min(len(in), n+maxHead)]}
	var r request
	v = r.first(&h)
	for v == goOn {
		v = r.field(&h)
	}
	if v != incomplete {
		return n + h.at, v
	}
	if len(h.b) == maxHead {
		v = headTooLarge
	}
	return n, v
}

// head is a request's head, of which at bytes have been looked at.
type head struct {
	b  []byte
	at int
}

// span takes the bytes that follow and are of a class.
func (h *head) span(class uint8) []byte {
	rest := h.b[h.at:]
	i := 0
	if class == text {
		for i+8 <= len(rest) && plain(binary.LittleEndian.Uint64(rest[i:])) {
			i += 8
		}
	}
	for i < len(rest) && classes[rest[i]]&class != 0 {
		i++
	}
	h.at += i
	return rest[:i]
}

// plain says whether eight bytes are all text, and no tabs. It looks at them
// together: see "Determine if a word has a byte less than n" in S. E. Anderson,
// Bit Twiddling Hacks.
func plain(b uint64) bool {
	const each = 1<<56 | 1<<48 | 1<<40 | 1<<32 | 1<<24 | 1<<16 | 1<<8 | 1
	controls := (b - each*' ') &^ b
	del := b ^ each*0x7f
	return (controls|(del-each)&^del)&(each*0x80) == 0
}

// ended says whether there is no more to look at.
func (h *head) ended() bool { return h.at == len(h.b) }

// lineEnd takes the end of a line.
func (h *head) lineEnd() verdict {
	switch rest := h.b[h.at:]; {
	case len(rest) > 0 && rest[0] != '\r', len(rest) > 1 && rest[1] != '\n':
		return badRequest
	case len(rest) < 2:
		return incomplete
	}
	h.at += 2
	return goOn
}

// request is what its lines have told so far.
type request struct {
	version     uint8 // 10 or 11, 0 for another
	hosts       uint8 // 2 for more
	close, keep bool  // asked for by Connection
}

// first judges the request line.
func (r *request) first(h *head) verdict {
	method := h.span(token)
	if h.ended() {
		return incomplete
	}
	if len(method) == 0 || h.b[h.at] != ' ' {
		return badRequest
	}
	h.at++
	target := h.span(visible)
	version := h.span(text)
	if h.ended() {
		return incomplete
	}
	switch string(version) {
	case " HTTP/1.1":
		r.version = 11
	case " HTTP/1.0":
		r.version = 10
	default:
		v, ok := bytes.CutPrefix(version, []byte(" HTTP/"))
		if !ok || len(v) != 3 || !isDigit(v[0]) || v[1] != '.' || !isDigit(v[2]) {
			return badRequest
		}
	}
	v := h.lineEnd()
	switch {
	case v != goOn:
		return v
	case len(target) == 0:
		return badRequest
	case r.version == 0:
		return versionNotServed
	case string(method) != "GET":
		return badMethod
	case target[0] != '/' && !bytes.HasPrefix(target, []byte("http://")):
		return badRequest
	}
	return goOn
}

// field judges a line of the head; an empty one ends it.
func (r *request) field(h *head) verdict {
	name := h.span(token)
	if h.ended() {
		return incomplete
	}
	if len(name) == 0 {
		if v := h.lineEnd(); v != goOn {
			return v
		}
		return r.end()
	}
	if h.b[h.at] != ':' {
		return badRequest
	}
	h.at++
	value := h.span(text)
	if v := h.lineEnd(); v != goOn {
		return v
	}
	switch len(name) {
	case len("Host"):
		if is(name, "host") {
			r.hosts = min(r.hosts+1, 2)
		}
	case len("Connection"):
		if is(name, "connection") {
			r.connection(value)
		}
	case len("Content-Length"):
		if is(name, "content-length") && string(bytes.Trim(value, " \t")) != "0" {
			return badRequest
		}
	case len("Transfer-Encoding"):
		if is(name, "transfer-encoding") {
			return badRequest
		}
	}
	return goOn
}

// connection looks for what a Connection asks for.
func (r *request) connection(value []byte) {
	for option := range bytes.SplitSeq(value, []byte(",")) {
		switch option = bytes.Trim(option, " \t"); {
		case is(option, "close"):
			r.close = true
		case is(option, "keep-alive"):
			r.keep = true
		}
	}
}

// end judges a head that is complete.
func (r *request) end() verdict {
	switch {
	case r.hosts > 1, r.hosts == 0 && r.version == 11:
		return badRequest
	case r.close, r.version == 10 && !r.keep:
		return servedLast
	case r.version == 10:
		return servedKept
	}
	return served
}

// is compares without regard to case; lower is in lower case.
func is(name []byte, lower string) bool {
	if len(name) != len(lower) {
		return false
	}
	for i, c := range name {
		if 'A' <= c && c <= 'Z' {
			c += 'a' - 'A'
		}
		if c != lower[i] {
			return false
		}
	}
	return true
}

func isDigit(c byte) bool { return '0' <= c && c <= '9' }

// The classes of characters, as in RFC 9110.
const (
	token   uint8 = 1 << iota // of a name
	visible                   // of a target
	text                      // of a value
)

// classes says which classes each byte is of.
var classes = func() (t [256]uint8) {
	for c := range 256 {
		if c > ' ' && c < 0x7f {
			t[c] |= visible
			if bytes.IndexByte([]byte(`"(),/:;<=>?@[\]{}`), byte(c)) < 0 {
				t[c] |= token
			}
		}
		if c == '\t' || c >= ' ' && c != 0x7f {
			t[c] |= text
		}
	}
	return t
}()
