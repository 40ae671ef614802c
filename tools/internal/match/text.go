package match

import (
	"bytes"
	"fmt"
	"strconv"

	"github.com/myriad-go/myriad/tools/internal/message"
)

// countOccurrences counts the occurrences of a non-empty text in the input. The input may end with an incomplete
// occurrence, which is not counted. usedBeforePartial is the number of bytes before the incomplete occurrence. If there
// is none, it is the length of the input.
func countOccurrences(text, in []byte) (usedBeforePartial, answers int) {
	if len(text) == 1 {
		return len(in), bytes.Count(in, text)
	}
	for {
		i := bytes.Index(in[usedBeforePartial:], text)
		if i < 0 {
			return len(in) - lenOfSuffixThatStartsText(text, in[usedBeforePartial:]), answers
		}
		usedBeforePartial += i + len(text)
		answers++
	}
}

// lenOfSuffixThatStartsText returns the length of the input's longest suffix that is a prefix of the text. The input
// must not contain the whole text.
func lenOfSuffixThatStartsText(text, in []byte) int {
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

func unescapeText(s string) ([]byte, error) {
	b := make([]byte, 0, len(s))
	for at := 0; at < len(s); {
		if s[at] != '\\' {
			b = append(b, s[at])
			at++
			continue
		}
		c, size, err := message.ParseEscapeAtStart(s[at:])
		if err != nil {
			return nil, err
		}
		b = append(b, c)
		at += size
	}
	return b, nil
}

func escapeText(b []byte) string {
	var s []byte
	for _, c := range b {
		switch {
		case c == '"':
			s = append(s, c)
		case c > '~':
			s = fmt.Appendf(s, `\x%02x`, c)
		default:
			quoted := strconv.Quote(string(rune(c)))
			s = append(s, quoted[1:len(quoted)-1]...)
		}
	}
	return string(s)
}
