package match

import (
	"bytes"
	"errors"
	"fmt"
	"strconv"
)

// feedText counts how often text, at least one byte, is in in, and leaves what
// can be the beginning of another.
func feedText(text, in []byte) (used, answers int) {
	if len(text) == 1 {
		return len(in), bytes.Count(in, text)
	}
	for {
		i := bytes.Index(in[used:], text)
		if i < 0 {
			return len(in) - overlap(text, in[used:]), answers
		}
		used += i + len(text)
		answers++
	}
}

// overlap is how many bytes at the end of in text begins with; text is not in it.
func overlap(text, in []byte) int {
	end := in[max(0, len(in)-len(text)+1):]
	for len(end) > 0 {
		i := bytes.IndexByte(end, text[0])
		if i < 0 {
			return 0
		}
		if end = end[i:]; bytes.HasPrefix(text, end) {
			return len(end)
		}
		end = end[1:]
	}
	return 0
}

// unescape replaces the escapes that Parse describes.
func unescape(s string) ([]byte, error) {
	b := make([]byte, 0, len(s))
	for i := 0; i < len(s); i++ {
		if s[i] != '\\' {
			b = append(b, s[i])
			continue
		}
		if i++; i == len(s) {
			return nil, errors.New(`a backslash at the end; expected \\ for a backslash`)
		}
		switch s[i] {
		case 'r':
			b = append(b, '\r')
		case 'n':
			b = append(b, '\n')
		case 't':
			b = append(b, '\t')
		case '0':
			b = append(b, 0)
		case '\\':
			b = append(b, '\\')
		case 'x':
			digits := s[i+1 : min(i+3, len(s))]
			v, err := strconv.ParseUint(digits, 16, 8)
			if err != nil || len(digits) != 2 {
				return nil, fmt.Errorf(`escape %q; expected \x and two hexadecimal digits`, `\x`+digits)
			}
			b = append(b, byte(v))
			i += 2
		default:
			return nil, fmt.Errorf(`escape %q; expected \r, \n, \t, \0, \\ or \xHH`, s[i-1:i+1])
		}
	}
	return b, nil
}

// escape is b in printable ASCII, so that unescape gives b.
func escape(b []byte) string {
	var s []byte
	for _, c := range b {
		switch {
		case c == '\r':
			s = append(s, `\r`...)
		case c == '\n':
			s = append(s, `\n`...)
		case c == '\t':
			s = append(s, `\t`...)
		case c == 0:
			s = append(s, `\0`...)
		case c == '\\':
			s = append(s, `\\`...)
		case c < ' ' || c > '~':
			s = fmt.Appendf(s, `\x%02x`, c)
		default:
			s = append(s, c)
		}
	}
	return string(s)
}
