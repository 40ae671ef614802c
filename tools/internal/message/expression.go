package message

import (
	"fmt"
	"math"
	"strconv"
	"strings"
	"unicode"
)

type templatePiece struct {
	kind      kind
	text      []byte   // set for kindText
	low, high uint64   // set for kindNumber
	class     string   // set for kindChars
	texts     []string // set for kindCycle
	count     int      // set for kindChars
	index     int      // index of the expression in its template
}

type kind uint8

const (
	kindText kind = iota
	kindConnection
	kindMessage
	kindMarker
	kindNumber
	kindChars
	kindUUID
	kindCycle
)

func (p *templatePiece) generatedLengthRange() (low, high int) {
	switch p.kind {
	case kindText:
		return len(p.text), len(p.text)
	case kindConnection, kindMessage:
		return 1, len("18446744073709551615")
	case kindMarker:
		return markerLen, markerLen
	case kindNumber:
		return countDigits(p.low), countDigits(p.high)
	case kindUUID:
		return uuidLen, uuidLen
	case kindCycle:
		low, high = len(p.texts[0]), len(p.texts[0])
		for _, text := range p.texts[1:] {
			low, high = min(low, len(text)), max(high, len(text))
		}
		return low, high
	default:
		return p.count, p.count
	}
}

func countDigits(n uint64) int {
	var buf [20]byte
	return len(strconv.AppendUint(buf[:0], n, 10))
}

const (
	// expressionNames lists the expressions for error messages.
	expressionNames = "connection.uid, message.uid, seq, message.marker, random, hex, number, uuid or cycle"
	blank           = " \t\r\n\v\f"
	hexadecimal     = "0123456789abcdef"
)

var printable = func() string {
	var all []byte
	for c := byte('!'); c <= '~'; c++ {
		all = append(all, c)
	}
	return string(all)
}()

// parseExpression parses the text between \{ and }.
func parseExpression(untrimmed string, expressionIndex int) (templatePiece, error) {
	expressionText := strings.Trim(untrimmed, blank)
	end := strings.IndexFunc(expressionText, func(c rune) bool { return !unicode.IsLetter(c) && c != '.' })
	if end < 0 {
		end = len(expressionText)
	}
	name, argument := expressionText[:end], strings.TrimLeft(expressionText[end:], blank)
	p := templatePiece{index: expressionIndex}
	var err error
	switch name {
	case "connection.uid":
		p.kind, err = kindConnection, rejectArgument(argument)
	case "message.uid", "seq":
		p.kind, err = kindMessage, rejectArgument(argument)
	case "message.marker":
		p.kind, err = kindMarker, rejectArgument(argument)
	case "uuid":
		p.kind, err = kindUUID, rejectArgument(argument)
	case "random":
		p.kind, p.class = kindChars, printable
		p.count, err = parseCharCount(name, argument)
	case "hex":
		p.kind, p.class = kindChars, hexadecimal
		p.count, err = parseCharCount(name, argument)
	case "number":
		p.kind = kindNumber
		p.low, p.high, err = parseIntegerRange(argument)
	case "cycle": // its last text may end with white space
		_, texts, _ := strings.Cut(untrimmed, name)
		p.kind, p.texts = kindCycle, strings.Split(strings.TrimLeft(texts, blank), "|")
	default:
		err = errUnknownExpression(expressionText)
	}
	return p, err
}

func errUnknownExpression(body string) error {
	return fmt.Errorf("unknown expression %q; expected %s", truncateForError(body), expressionNames)
}

func rejectArgument(argument string) error {
	if argument != "" {
		return fmt.Errorf("%q after the name of the expression; expected nothing", truncateForError(argument))
	}
	return nil
}

func parseCharCount(name, argument string) (int, error) {
	n, err := strconv.ParseUint(argument, 10, 32)
	if err != nil || n < 1 || n > MaxLen {
		return 0, fmt.Errorf("number of characters is %q; expected %s and a number from 1 to %d", truncateForError(argument), name, MaxLen)
	}
	return int(n), nil
}

// parseIntegerRange parses a range such as 1-6, which includes both ends.
func parseIntegerRange(argument string) (low, high uint64, err error) {
	from, to, _ := strings.Cut(argument, "-")
	low, err1 := strconv.ParseUint(strings.Trim(from, blank), 10, 63)
	high, err2 := strconv.ParseUint(strings.Trim(to, blank), 10, 63)
	if err1 != nil || err2 != nil || low > high {
		return 0, 0, fmt.Errorf("range is %q; expected number A-B with A and B from 0 to %d and A not above B", truncateForError(argument), int64(math.MaxInt64))
	}
	return low, high, nil
}

// A marker is a text of markerLen hexadecimal digits that is unique for each message. It represents a number of 64
// bits. The lowest markerMessageBits bits contain the number of the message, and the other bits contain the number of
// the connection.
const (
	markerLen         = 16
	markerMessageBits = 9 * 4
)

func appendMarker(dst []byte, id ID) []byte {
	return appendHexDigits(dst, id.Connection<<markerMessageBits|id.Message&(1<<markerMessageBits-1), markerLen)
}

func appendHexDigits(dst []byte, n uint64, digits int) []byte {
	for shift := 4 * (digits - 1); shift >= 0; shift -= 4 {
		dst = append(dst, hexadecimal[n>>shift&0xf])
	}
	return dst
}

const uuidLen = 36

// appendUUID appends a random UUID, version 4 (RFC 9562).
func appendUUID(dst []byte, r *splitMix) []byte {
	high, low := r.next(), r.next()
	high = high&^0xf000 | 0x4000
	low = low&^(3<<62) | 2<<62
	dst = append(appendHexDigits(dst, high>>32, 8), '-')
	dst = append(appendHexDigits(dst, high>>16, 4), '-')
	dst = append(appendHexDigits(dst, high, 4), '-')
	dst = append(appendHexDigits(dst, low>>48, 4), '-')
	return appendHexDigits(dst, low, 12)
}
