package message

import (
	"fmt"
	"strconv"
	"strings"
)

// UnescapeKeepingExpressions replaces the escapes in a text from a command line. It is useful in shells without $'...'.
// The escapes are \n \r \t \e \a \b \f \v \\ \' \", \xHH with two hexadecimal digits, and \0 followed by up to three
// octal digits, as in tcpkali. Any other escape is an error.
//
// The result is a template for Parse. Expressions, such as \{seq}, remain unchanged. Only \{ in the original text
// begins an expression. A \{ that results from escapes, such as \\{ or \x5c{, is literal text in the generated
// messages.
func UnescapeKeepingExpressions(text string) (templateText []byte, _ error) {
	out := make([]byte, 0, len(text))
	for at := 0; at < len(text); {
		switch {
		case text[at] != '\\':
			out = appendLiteralTemplateByte(out, text[at])
			at++
		case at+1 < len(text) && text[at+1] == '{':
			size, err := lenBeforeClosingBrace(text, at+2)
			if err != nil {
				return nil, err
			}
			end := at + 2 + size + 1
			out = append(doubleTrailingBackslashes(out), text[at:end]...)
			at = end
		default:
			b, size, err := ParseEscapeAtStart(text[at:])
			if err != nil {
				return nil, fmt.Errorf("%w at byte %d", err, at)
			}
			out = appendLiteralTemplateByte(out, b)
			at += size
		}
	}
	return out, nil
}

// LiteralTemplate returns a template for Parse whose messages all equal the given text.
func LiteralTemplate(text string) string {
	var out []byte
	for _, b := range []byte(text) {
		out = appendLiteralTemplateByte(out, b)
	}
	return string(out)
}

// appendLiteralTemplateByte appends b in a form that Parse treats as literal text.
func appendLiteralTemplateByte(out []byte, b byte) []byte {
	if b == '{' {
		out = doubleTrailingBackslashes(out)
	}
	return append(out, b)
}

func doubleTrailingBackslashes(out []byte) []byte {
	for i := len(out); i > 0 && out[i-1] == '\\'; i-- {
		out = append(out, '\\')
	}
	return out
}

// ParseEscapeAtStart parses the escape at the beginning of text. It accepts the escapes of UnescapeKeepingExpressions.
// b is the byte that the escape represents, and size is the length of the escape.
func ParseEscapeAtStart(text string) (b byte, size int, err error) {
	switch {
	case strings.HasPrefix(text, `\0`):
		return unescapeOctal(text)
	case strings.HasPrefix(text, `\e`):
		return 0x1b, 2, nil
	case len(text) > 1 && strings.IndexByte(`abfnrtvx\'"`, text[1]) >= 0:
		quote := text[1] // UnquoteChar accepts only this quote
		if value, multibyte, rest, err := strconv.UnquoteChar(text, quote); err == nil && !multibyte {
			return byte(value), len(text) - len(rest), nil
		}
	}
	return 0, 0, fmt.Errorf(`%q; expected one of \n \r \t \e \a \b \f \v \\ \' \" \xHH \0 \0377, or \\ for a backslash`, text[:min(len(text), 4)])
}

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
