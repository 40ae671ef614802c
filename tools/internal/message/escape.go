package message

import (
	"fmt"
	"strconv"
	"strings"
)

// UnescapeTemplateText replaces escapes in a text from a command line, for shells without $'...': \n \r \t \e
// \a \b \f \v \\ \' \", \xHH with two hexadecimal digits, and \0 with up to three octal digits
// after it, as in tcpkali. Any other escape is an error.
//
// The result is input for Parse. Expressions are unchanged, and a backslash from an escape never
// begins one: \\{ and \x5c{ are a literal \{ for Parse, too. For a text without expressions, the
// bytes are those of Fixed, after Parse.
func UnescapeTemplateText(text string) ([]byte, error) {
	out := make([]byte, 0, len(text))
	for at := 0; at < len(text); {
		switch {
		case text[at] != '\\':
			out = appendLiteralTemplateByte(out, text[at])
			at++
		case at+1 < len(text) && text[at+1] == '{':
			size, err := lenUpToClosingBrace(text, at+2)
			if err != nil {
				return nil, err
			}
			end := at + 2 + size + 1
			out = append(doubleTrailingBackslashes(out), text[at:end]...)
			at = end
		default:
			b, size, err := UnescapeByte(text[at:])
			if err != nil {
				return nil, fmt.Errorf("%w at byte %d", err, at)
			}
			out = appendLiteralTemplateByte(out, b)
			at += size
		}
	}
	return out, nil
}

// LiteralTemplate returns the template that generates a text verbatim.
func LiteralTemplate(text string) string {
	var out []byte
	for _, b := range []byte(text) {
		out = appendLiteralTemplateByte(out, b)
	}
	return string(out)
}

// appendLiteralTemplateByte appends a byte so that Parse takes it literally.
func appendLiteralTemplateByte(out []byte, b byte) []byte {
	if b == '{' {
		out = doubleTrailingBackslashes(out)
	}
	return append(out, b)
}

// doubleTrailingBackslashes doubles the backslashes at the end, because a { follows.
func doubleTrailingBackslashes(out []byte) []byte {
	for i := len(out); i > 0 && out[i-1] == '\\'; i-- {
		out = append(out, '\\')
	}
	return out
}

// UnescapeByte parses the escape at the beginning of a text, one of those of Unescape, and returns
// its size in bytes.
func UnescapeByte(text string) (b byte, size int, err error) {
	switch {
	case strings.HasPrefix(text, `\0`):
		return unescapeOctal(text)
	case strings.HasPrefix(text, `\e`):
		return 0x1b, 2, nil
	case len(text) > 1 && strings.IndexByte(`abfnrtvx\'"`, text[1]) >= 0:
		quote := text[1] // UnquoteChar accepts an escaped quote only if it is told so
		if value, multibyte, rest, err := strconv.UnquoteChar(text, quote); err == nil && !multibyte {
			return byte(value), len(text) - len(rest), nil
		}
	}
	return 0, 0, fmt.Errorf(`%q; expected one of \n \r \t \e \a \b \f \v \\ \' \" \xHH \0 \0377, or \\ for a backslash`, text[:min(len(text), 4)])
}

// unescapeOctal parses a \0 with up to three octal digits after it.
func unescapeOctal(text string) (b byte, size int, err error) {
	size = 2
	for size < min(5, len(text)) && text[size] >= '0' && text[size] <= '7' {
		size++
	}
	n, err := strconv.ParseUint(text[1:size], 8, 8)
	if err != nil {
		return 0, 0, fmt.Errorf(`%q; expected at most \0377`, text[:size])
	}
	return byte(n), size, nil
}
