package message

import (
	"fmt"
	"math"
	"strconv"
	"strings"
	"unicode"
)

// piece is a part of a template: literal text, or an expression.
type piece struct {
	kind      kind
	text      []byte  // kindText
	number    *number // kindNumber
	low, high uint64  // kindBetween
	pattern   node    // kindPattern
	index     int     // of the expression in its template
	scope     scope   // kindPattern
}

type kind uint8

const (
	kindText kind = iota
	kindNumber
	kindMarker
	kindBetween
	kindPattern
)

// scope is what shares a random text.
type scope uint8

const (
	scopeMessage scope = iota
	scopeConnection
	scopeGlobal
)

// lengths are bounds of the bytes that a piece makes.
func (p *piece) lengths() (low, high int) {
	switch p.kind {
	case kindText:
		return len(p.text), len(p.text)
	case kindNumber:
		return 1, len("-9223372036854775808")
	case kindMarker:
		return markerLen, markerLen
	case kindBetween:
		return digits(p.low), digits(p.high)
	default:
		return p.pattern.minLen, p.pattern.maxLen
	}
}

// digits is how many decimal digits a number has.
func digits(n uint64) int {
	var room [20]byte
	return len(strconv.AppendUint(room[:0], n, 10))
}

const (
	// known names the expressions in errors.
	known = "connection.uid, message.uid, seq, message.marker, re, connection.re, global.re, random, hex, number or uuid"
	uuid  = "[0-9a-f]{8}-[0-9a-f]{4}-4[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}"
	blank = " \t\r\n\v\f"
)

// parseExpression reads what stands between \{ and }. Space around it does not
// matter, but at the end of a regular expression.
func parseExpression(body string, index int) (piece, error) {
	body = strings.TrimLeft(body, blank)
	end := strings.IndexFunc(body, func(c rune) bool { return !unicode.IsLetter(c) && c != '.' })
	if end < 0 {
		end = len(body)
	}
	name, argument := body[:end], strings.TrimLeft(body[end:], blank)
	p := piece{kind: kindPattern, index: index}
	var err error
	switch name {
	case "re":
		p.pattern, err = parsePattern(argument)
	case "connection.re":
		p.scope = scopeConnection
		p.pattern, err = parsePattern(argument)
	case "global.re":
		p.scope = scopeGlobal
		p.pattern, err = parsePattern(argument)
	case "random":
		p.pattern, err = parseMany(name, argument, printable)
	case "hex":
		p.pattern, err = parseMany(name, argument, "0123456789abcdef")
	case "uuid":
		if err = alone(argument); err == nil {
			p.pattern, err = parsePattern(uuid)
		}
	case "message.marker":
		p.kind, err = kindMarker, alone(argument)
	case "number":
		p.kind = kindBetween
		p.low, p.high, err = parseBetween(argument)
	default:
		return parseNumber(body)
	}
	if err == nil && p.kind == kindPattern && p.pattern.kind == nodeText {
		return piece{kind: kindText, text: p.pattern.text}, nil // nothing is random
	}
	return p, err
}

// errUnknown is the error for an expression that is none.
func errUnknown(body string) error {
	return fmt.Errorf("unknown expression %q; expected %s", shorten(body), known)
}

// alone is an error if there is an argument.
func alone(argument string) error {
	if argument != "" {
		return fmt.Errorf("%q behind the name; expected nothing", shorten(argument))
	}
	return nil
}

// parseMany reads how many characters of a class there are to be.
func parseMany(name, argument, class string) (node, error) {
	argument = strings.TrimRight(argument, blank)
	n, err := strconv.ParseUint(argument, 10, 32)
	if err != nil || n < 1 || n > MaxLen {
		return node{}, fmt.Errorf("%q characters; expected %s and a number from 1 to %d", shorten(argument), name, MaxLen)
	}
	return repeat(classNode(class), int(n), int(n))
}

// parseBetween reads the ends of a range of integers.
func parseBetween(argument string) (low, high uint64, err error) {
	from, to, _ := strings.Cut(argument, "-")
	low, err1 := strconv.ParseUint(strings.Trim(from, blank), 10, 63)
	high, err2 := strconv.ParseUint(strings.Trim(to, blank), 10, 63)
	if err1 != nil || err2 != nil || low > high {
		return 0, 0, fmt.Errorf("range of %q; expected number A-B with A and B from 0 to %d, and A not above B", shorten(argument), int64(math.MaxInt64))
	}
	return low, high, nil
}

// A marker has the number of the connection in its first 7 hexadecimal digits,
// and that of the message in the other 9. So it is unique below 268 million
// connections and 68 thousand million messages on each.
const (
	markerLen         = 16
	markerMessageBits = 9 * 4
)

func appendMarker(dst []byte, of Of) []byte {
	marker := of.Connection<<markerMessageBits | of.Message&(1<<markerMessageBits-1)
	for shift := 64 - 4; shift >= 0; shift -= 4 {
		dst = append(dst, "0123456789abcdef"[marker>>shift&0xf])
	}
	return dst
}
