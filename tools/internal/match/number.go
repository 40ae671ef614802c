package match

import (
	"cmp"
	"fmt"
	"regexp"
	"strconv"
	"sync"
)

type lengthPrefix struct {
	// skip is the number of bytes before the length field.
	skip int
	// size is the size of the length field in bytes: 1, 2, 4 or 8.
	size         int
	littleEndian bool
	// offset is added to the field's value to get the number of bytes that follow the field.
	offset int64
}

// lengthPattern matches a length rule such as 4be+8@3: 4 bytes, big-endian, offset 8, position 3.
var lengthPattern = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`^([1248])(be|le|)([+-][0-9]+)?(?:@([0-9]+))?$`) })

func parseLengthPrefix(text string) (n lengthPrefix, err error) {
	found := lengthPattern().FindStringSubmatch(text)
	if found == nil || (found[1] == "1") != (found[2] == "") {
		return n, fmt.Errorf("match: length is %q; expected 1, 2be, 2le, 4be, 4le, 8be or 8le, optionally followed by an offset such as +8 and a position such as @3", text)
	}
	offset, errOffset := strconv.ParseInt(cmp.Or(found[3], "0"), 10, 64)
	at, errAt := strconv.Atoi("0" + found[4])
	if errOffset != nil || errAt != nil || max(offset, -offset) > MaxOffset || at > MaxOffset {
		return n, fmt.Errorf("match: length is %q; expected an offset of -%d to +%d, and a position of 0 to %d", text, MaxOffset, MaxOffset, MaxOffset)
	}
	return lengthPrefix{skip: at, size: int(found[1][0] - '0'), littleEndian: found[2] == "le", offset: offset}, nil
}

func (n lengthPrefix) String() string {
	s := strconv.Itoa(n.size)
	switch {
	case n.size == 1:
	case n.littleEndian:
		s += "le"
	default:
		s += "be"
	}
	if n.offset != 0 {
		s += fmt.Sprintf("%+d", n.offset)
	}
	if n.skip != 0 {
		s += fmt.Sprintf("@%d", n.skip)
	}
	return s
}

func (n lengthPrefix) prefixEnd() int { return n.skip + n.size }

// consumeAnswers implements AnswerRule.ConsumeInput for answers with a length field.
func (n lengthPrefix) consumeAnswers(s *StreamState, in []byte) (used, answers int, err error) {
	for {
		rest := in[used:]
		if s.remaining > int64(len(rest)) {
			s.remaining -= int64(len(rest))
			return len(in), answers, nil
		}
		if s.remaining > 0 {
			used += int(s.remaining)
			rest = rest[s.remaining:]
			s.remaining = 0
			answers++
		}
		if len(rest) < n.prefixEnd() {
			return used, answers, nil
		}
		if s.remaining, err = n.decodeBodyLen(rest); err != nil {
			return used, answers, err
		}
		used += n.prefixEnd()
		if s.remaining == 0 {
			answers++
		}
	}
}

const wantLength = "a length for which 0 to 1073741824 bytes follow"

func (n lengthPrefix) decodeBodyLen(in []byte) (int64, error) {
	digits := in[n.skip:n.prefixEnd()]
	var v uint64
	for i := range digits {
		if n.littleEndian {
			v = v<<8 | uint64(digits[len(digits)-1-i])
		} else {
			v = v<<8 | uint64(digits[i])
		}
	}
	if v > MaxAnswer+MaxOffset {
		return 0, errUnexpected(in[:n.prefixEnd()], wantLength)
	}
	follow := int64(v) + n.offset
	if follow < 0 || follow > MaxAnswer {
		return 0, errUnexpected(in[:n.prefixEnd()], wantLength)
	}
	return follow, nil
}
