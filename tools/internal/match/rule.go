// Package match counts answers in a stream of bytes whose content is not known in advance. An AnswerRule defines where
// one answer ends and the next begins:
//
//	delimiter:T      each ends in the text T
//	marker:T         each contains the text T once
//	length:4be+8@3   each begins with its length
//	bytes:N          each has N bytes
//	http             each is an HTTP/1.1 or HTTP/1.0 response
//
// Answers are not stored. A StreamState of 16 bytes per connection records the position in the current answer.
package match

import (
	"fmt"
	"strconv"
	"strings"
)

const (
	// MaxText is the maximum length of a delimiter or marker in bytes.
	MaxText = 64
	// MaxAnswer is the maximum length of an answer in bytes, not counting the prefix of a "length" rule.
	MaxAnswer = 1 << 30
	// MaxOffset limits two numbers in a "length" rule: the offset, and the position of the length in the answer.
	MaxOffset = 4096
)

type kind uint8

const (
	kindDelimiter kind = iota
	kindMarker
	kindLength
	kindSize
	kindHTTP
)

// AnswerRule defines where answers end. It is immutable. Each stream needs its own StreamState.
type AnswerRule struct {
	kind kind
	spec string
	// text is the delimiter or the marker.
	text   []byte
	size   int64
	prefix lengthPrefix
}

// Parse parses a rule, such as "delimiter:\r\n". Delimiters and markers can contain escapes such as \r, \0 or \xHH. See
// message.ParseEscapeAtStart for all escapes.
func Parse(spec string) (*AnswerRule, error) {
	name, rest, colon := strings.Cut(spec, ":")
	r := &AnswerRule{spec: spec}
	var err error
	switch {
	case spec == "http":
		r.kind = kindHTTP
	case colon && name == "delimiter":
		r.kind = kindDelimiter
		err = r.parseAndSetText(name, rest)
	case colon && name == "marker":
		r.kind = kindMarker
		err = r.parseAndSetText(name, rest)
	case colon && name == "length":
		r.kind = kindLength
		r.prefix, err = parseLengthPrefix(rest)
		r.spec = "length:" + r.prefix.String()
	case colon && name == "bytes":
		r.kind = kindSize
		err = r.parseAndSetSize(rest)
	default:
		err = fmt.Errorf("match: unknown rule %q; expected delimiter:TEXT, marker:TEXT, length:PREFIX (such as length:4be), bytes:N or http", spec)
	}
	if err != nil {
		return nil, err
	}
	return r, nil
}

func (r *AnswerRule) parseAndSetText(ruleName, escaped string) (err error) {
	if r.text, err = unescapeText(escaped); err != nil {
		return fmt.Errorf("match: %s: %w", ruleName, err)
	}
	if n := len(r.text); n < 1 || n > MaxText {
		return fmt.Errorf("match: %s has %d bytes; expected 1 to %d", ruleName, n, MaxText)
	}
	r.spec = ruleName + ":" + escapeText(r.text)
	return nil
}

func (r *AnswerRule) parseAndSetSize(text string) error {
	n, err := strconv.ParseUint(text, 10, 64)
	if err != nil || n < 1 || n > MaxAnswer {
		return fmt.Errorf("match: answer length is %q bytes; expected 1 to %d", text, MaxAnswer)
	}
	r.size = int64(n)
	r.spec = "bytes:" + strconv.FormatUint(n, 10)
	return nil
}

// String returns the rule in the syntax of Parse. The result contains only printable characters.
func (r *AnswerRule) String() string { return r.spec }

// MaxUnused returns the maximum number of bytes that ConsumeInput leaves unused.
func (r *AnswerRule) MaxUnused() int {
	switch r.kind {
	case kindDelimiter, kindMarker:
		return len(r.text) - 1
	case kindLength:
		return r.prefix.prefixEnd() - 1
	case kindHTTP:
		return maxHead - 1
	default:
		return 0
	}
}

// ConsumeInput counts the answers in the next input of a stream. It returns the number of bytes used, and the number of
// answers that end within these bytes. At most MaxUnused bytes remain unused. The caller must pass the unused bytes
// again, followed by more input. The total number of answers does not depend on how the stream is divided into calls.
//
// Under the rule "http", ConsumeInput calls onStatus with the status of each answer. onStatus can be nil.
//
// An error has the type *Error and means that the input is invalid from in[used:] on. Even then, the result answers
// counts the valid answers before in[used:]. After an error, the caller must not call ConsumeInput again for the
// stream. ConsumeInput allocates memory only for errors.
func (r *AnswerRule) ConsumeInput(s *StreamState, in []byte, onStatus func(status int)) (used, answers int, err error) {
	switch r.kind {
	case kindLength:
		return r.prefix.consumeAnswers(s, in)
	case kindSize:
		all := s.remaining + int64(len(in))
		s.remaining = all % r.size
		return len(in), int(all / r.size), nil
	case kindHTTP:
		return consumeHTTPResponses(s, in, onStatus)
	default:
		used, answers = countOccurrences(r.text, in)
		return used, answers, nil
	}
}

// EndStream handles the end of a stream. If the end of the stream also ends an HTTP response, EndStream calls onStatus
// with the status of the response and returns 1. Otherwise, it returns 0. onStatus can be nil.
func (r *AnswerRule) EndStream(s *StreamState, onStatus func(status int)) (completed int) {
	if s.phase != phaseUntilClose {
		return 0
	}
	s.reportStatusThenResetOrMarkClosed(onStatus)
	return 1
}

// Error describes input that is not a valid answer.
type Error struct {
	// Want describes the expected input. It is one of a few fixed texts, so errors can be grouped by Want.
	Want string
	// Got is the beginning of the actual input: at most 32 bytes, quoted as in Go.
	Got string
}

func (e *Error) Error() string { return "match: got " + e.Got + "; expected " + e.Want }

func errUnexpected(in []byte, want string) error {
	return &Error{Want: want, Got: strconv.Quote(string(in[:min(len(in), 32)]))}
}
