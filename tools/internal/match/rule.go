// Package match counts answers in a stream of bytes whose content is not known
// beforehand: a Rule says where one answer ends and the next begins.
//
//	delimiter:T      each ends in the text T
//	marker:T         each has the text T in it somewhere, once
//	length:4be+8@3   each begins with its length
//	bytes:N          each has N bytes
//	http             each is an HTTP/1.1 or HTTP/1.0 response
//
// Nothing of an answer is kept: a State of 16 bytes for each connection says
// where in an answer its stream is. Feed allocates nothing, but for errors.
package match

import (
	"fmt"
	"strconv"
	"strings"
)

// The bounds of rules.
const (
	// MaxText is the longest text of a delimiter or a marker, in bytes.
	MaxText = 64
	// MaxAnswer is the longest answer of the rules "bytes" and "length", in
	// bytes; for "length" without what is counted apart from it. It tells a
	// length from bytes that are none.
	MaxAnswer = 1 << 30
	// MaxOffset bounds the offset of a "length", and its place in the answer.
	MaxOffset = 4096
)

// kind is a kind of rule.
type kind uint8

const (
	kindDelimiter kind = iota
	kindMarker
	kindLength
	kindSize
	kindHTTP
)

// Rule says how answers are delimited. It does not change: any number of
// goroutines may use it at once, each with a State of its own.
type Rule struct {
	kind kind
	spec string
	// text is what ends or marks an answer.
	text []byte
	// size is how many bytes an answer has.
	size   int64
	prefix lengthPrefix
}

// Parse reads a rule, such as "delimiter:\r\n". In the text of a delimiter or a
// marker a backslash begins an escape such as \r \n \t \0 \\ and \xHH, those of
// message.Unescape; all else stands for itself.
func Parse(spec string) (*Rule, error) {
	name, rest, colon := strings.Cut(spec, ":")
	r := &Rule{spec: spec}
	var err error
	switch {
	case spec == "http":
		r.kind = kindHTTP
	case colon && name == "delimiter":
		r.kind = kindDelimiter
		err = r.parseText(name, rest)
	case colon && name == "marker":
		r.kind = kindMarker
		err = r.parseText(name, rest)
	case colon && name == "length":
		r.kind = kindLength
		r.prefix, err = parseLengthPrefix(rest)
		r.spec = "length:" + r.prefix.String()
	case colon && name == "bytes":
		r.kind = kindSize
		err = r.parseSize(rest)
	default:
		err = fmt.Errorf("match: rule %q; expected delimiter:TEXT, marker:TEXT, length:4be, bytes:N or http", spec)
	}
	if err != nil {
		return nil, err
	}
	return r, nil
}

func (r *Rule) parseText(name, escaped string) (err error) {
	if r.text, err = unescapeText(escaped); err != nil {
		return fmt.Errorf("match: %s: %w", name, err)
	}
	if n := len(r.text); n < 1 || n > MaxText {
		return fmt.Errorf("match: a %s of %d bytes; expected 1 to %d", name, n, MaxText)
	}
	r.spec = name + ":" + escapeText(r.text)
	return nil
}

func (r *Rule) parseSize(text string) error {
	n, err := strconv.ParseUint(text, 10, 64)
	if err != nil || n < 1 || n > MaxAnswer {
		return fmt.Errorf("match: answers of %q bytes; expected 1 to %d", text, MaxAnswer)
	}
	r.size = int64(n)
	r.spec = "bytes:" + strconv.FormatUint(n, 10)
	return nil
}

// String is the rule as Parse reads it, in printable characters.
func (r *Rule) String() string { return r.spec }

// MaxUnused is how many bytes Feed leaves unused at most.
func (r *Rule) MaxUnused() int {
	switch r.kind {
	case kindDelimiter, kindMarker:
		return len(r.text) - 1
	case kindLength:
		return r.prefix.headLen() - 1
	case kindHTTP:
		return maxHead - 1
	default:
		return 0
	}
}

// Feed looks at in, which is what has come behind what was used before. It says
// how many bytes of it are used up, and how many answers they completed; the
// rest, at most Most bytes, is to be offered again with more behind it. How
// the stream was cut into pieces makes no difference to the answers.
//
// Under "http", seen is called with the status of each answer; it can be nil.
//
// An error is an *Error: what lies at in[used:] can't be of an answer. The
// answers before it count. Nothing more may be fed then.
func (r *Rule) Feed(s *State, in []byte, onStatus func(status int)) (used, answers int, err error) {
	switch r.kind {
	case kindLength:
		return r.prefix.feedAnswers(s, in)
	case kindSize:
		all := s.remaining + int64(len(in))
		s.remaining = all % r.size
		return len(in), int(all / r.size), nil
	case kindHTTP:
		return feedHTTP(s, in, onStatus)
	default:
		used, answers = countText(r.text, in)
		return used, answers, nil
	}
}

// FeedEOF says that the peer will send no more, and how many answers that completed:
// one if it was an HTTP response whose end is that of the connection, otherwise
// none. seen is as in Feed.
func (r *Rule) FeedEOF(s *State, onStatus func(status int)) (answers int) {
	if s.phase != phaseUntilClose {
		return 0
	}
	s.finishResponse(onStatus)
	return 1
}

// Error says that what came can't be of an answer.
type Error struct {
	// Want is what was expected: one of a few texts, so that errors can be
	// counted by it.
	Want string
	// Got is what came instead, quoted as in Go, at most 32 bytes of it.
	Got string
}

func (e *Error) Error() string { return "match: got " + e.Got + "; expected " + e.Want }

// errUnexpected is the error for the bytes that in begins with.
func errUnexpected(in []byte, want string) error {
	return &Error{Want: want, Got: strconv.Quote(string(in[:min(len(in), 32)]))}
}
