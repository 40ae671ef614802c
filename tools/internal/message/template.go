// Package message generates the messages of the load generator from a template: a text with expressions such as
// \{connection.uid}. A generated message depends only on a seed, the number of the connection and the number of the
// message. Therefore two runs with the same seed send the same bytes, and the expected echo of a message can be
// generated again.
//
// The syntax is that of tcpkali (https://github.com/satori-com/tcpkali, its man page under "Traffic content
// expressions"), with cycle, and without regular expressions and arithmetic.
//
//	\{connection.uid}  number of the connection, from 0
//	\{message.uid}     number of the message on its connection, from 0; also \{seq}
//	\{message.marker}  16 hexadecimal digits, unique for each message
//	\{random 100}      100 random printable characters
//	\{hex 32}          32 random hexadecimal digits
//	\{number 1-6}      a random integer, both ends included
//	\{uuid}            a random UUID (version 4)
//	\{cycle A|B|C}     one of the texts in turn; successive connections start with successive texts
//
// Text outside of expressions is literal. In a run of backslashes before a {, two stand for one: \\{ is a literal \{,
// and \\\{seq} is a backslash and an expression. All other backslashes are literal; see UnescapeKeepingExpressions.
package message

import (
	"fmt"
	"strconv"
	"strings"
)

const (
	// MaxText is the maximum length of a template in bytes.
	MaxText = 1 << 20
	// MaxExpressions is the maximum number of expressions in a template.
	MaxExpressions = 256
	// MaxLen is the maximum length of a template's messages in bytes.
	MaxLen = 1 << 20
)

// ID identifies a message that a Template generates. Messages with the same ID are equal.
type ID struct {
	Seed uint64
	// Connection is the number of the connection in the run, Message that of the message on it. Both count from 0.
	Connection, Message uint64
}

// Template generates messages. It is immutable and safe for concurrent use.
type Template struct {
	pieces         []templatePiece
	minLen, maxLen int
}

// Parse parses a template. A template without text generates empty messages.
func Parse(text string) (*Template, error) {
	if len(text) > MaxText {
		return nil, fmt.Errorf("template has %d bytes; expected at most %d", len(text), MaxText)
	}
	t := &Template{}
	expressions := 0
	for at := 0; at < len(text); {
		literal, next, open := parseLiteralUpToExpression(text, at)
		if err := t.addOrJoinPiece(templatePiece{kind: kindText, text: literal}); err != nil {
			return nil, err
		}
		if at = next; !open {
			continue
		}
		if expressions++; expressions > MaxExpressions {
			return nil, fmt.Errorf("template has more than %d expressions; expected at most that many", MaxExpressions)
		}
		size, err := lenBeforeClosingBrace(text, at)
		if err != nil {
			return nil, err
		}
		p, err := parseExpression(text[at:at+size], expressions-1)
		if err == nil {
			err = t.addOrJoinPiece(p)
		}
		if err != nil {
			return nil, fmt.Errorf(`\{%s} at byte %d: %w`, truncateForError(text[at:at+size]), at-2, err)
		}
		at += size + 1
	}
	return t, nil
}

// parseLiteralUpToExpression parses the literal text at the beginning of text[at:]. The literal text may end before the
// next expression begins. text[next:] is the part of the text that remains to be parsed. atExpression reports whether
// text[next:] begins inside an expression, just after \{.
func parseLiteralUpToExpression(text string, at int) (literal []byte, next int, atExpression bool) {
	brace := strings.IndexByte(text[at:], '{')
	if brace < 0 {
		return []byte(text[at:]), len(text), false
	}
	before := text[at : at+brace]
	plain := strings.TrimRight(before, `\`)
	run := len(before) - len(plain)
	literal = []byte(before[:len(plain)+run/2])
	if atExpression = run%2 == 1; !atExpression {
		literal = append(literal, '{')
	}
	return literal, at + brace + 1, atExpression
}

func lenBeforeClosingBrace(text string, at int) (int, error) {
	size := strings.IndexByte(text[at:], '}')
	if size < 0 {
		return 0, fmt.Errorf(`\{%s at byte %d has no end; expected a closing }, or \\{ for a literal \{`, truncateForError(text[at:]), at-2)
	}
	return size, nil
}

func truncateForError(text string) string {
	const most = 64
	if len(text) > most {
		return text[:most] + "..."
	}
	return text
}

func (t *Template) addOrJoinPiece(p templatePiece) error {
	low, high := p.generatedLengthRange()
	t.minLen += low
	if t.maxLen += high; t.maxLen > MaxLen {
		return fmt.Errorf("messages of up to %d bytes; expected at most %d", t.maxLen, MaxLen)
	}
	last := len(t.pieces) - 1
	switch {
	case high == 0:
	case p.kind == kindText && last >= 0 && t.pieces[last].kind == kindText:
		t.pieces[last].text = append(t.pieces[last].text, p.text...)
	default:
		t.pieces = append(t.pieces, p)
	}
	return nil
}

// MaxLen returns an upper limit for the length of a message in bytes.
func (t *Template) MaxLen() int { return t.maxLen }

// MinLen returns a lower limit for the length of a message in bytes.
func (t *Template) MinLen() int { return t.minLen }

// MessageIfConstant returns the message and true if the template has no expressions, so that all messages are equal.
// Otherwise, it returns false. The caller must not change the message.
func (t *Template) MessageIfConstant() ([]byte, bool) {
	switch {
	case len(t.pieces) == 0:
		return nil, true
	case len(t.pieces) == 1 && t.pieces[0].kind == kindText:
		return t.pieces[0].text, true
	}
	return nil, false
}

// Append appends the message with the given ID to dst. It allocates memory only if dst lacks capacity.
func (t *Template) Append(dst []byte, id ID) []byte {
	key := messageKey(id)
	for i := range t.pieces {
		p := &t.pieces[i]
		r := p.newRandom(key)
		switch p.kind {
		case kindText:
			dst = append(dst, p.text...)
		case kindConnection:
			dst = strconv.AppendUint(dst, id.Connection, 10)
		case kindMessage:
			dst = strconv.AppendUint(dst, id.Message, 10)
		case kindMarker:
			dst = appendMarker(dst, id)
		case kindNumber:
			dst = strconv.AppendUint(dst, p.low+r.belowN(p.high-p.low+1), 10)
		case kindChars:
			dst = r.appendChars(dst, p.count, p.class)
		case kindUUID:
			dst = appendUUID(dst, &r)
		case kindCycle:
			dst = append(dst, p.texts[(id.Connection+id.Message)%uint64(len(p.texts))]...)
		}
	}
	return dst
}
