package match

import (
	"cmp"
	"fmt"
	"regexp"
	"strconv"
	"sync"
)

// number is a length that an answer begins with.
type number struct {
	// at is how many bytes of the answer come before it.
	at int
	// bytes is its own size: 1, 2, 4 or 8.
	bytes  int
	little bool
	// offset is how many bytes more follow it than it says.
	offset int64
}

// spelling is a number such as 4be, 2le-2 or 4be+8@3.
var spelling = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`^([1248])(be|le|)([+-][0-9]+)?(?:@([0-9]+))?$`) })

// parseNumber reads a number.
func parseNumber(text string) (n number, err error) {
	found := spelling().FindStringSubmatch(text)
	if found == nil || (found[1] == "1") != (found[2] == "") {
		return n, fmt.Errorf("match: length %q; expected 1, 2be, 2le, 4be, 4le, 8be or 8le, and behind it perhaps an offset such as +8, and a place such as @3", text)
	}
	offset, errOffset := strconv.ParseInt(cmp.Or(found[3], "0"), 10, 64)
	at, errAt := strconv.Atoi("0" + found[4])
	if errOffset != nil || errAt != nil || max(offset, -offset) > MaxOffset || at > MaxOffset {
		return n, fmt.Errorf("match: length %q; expected an offset of -%d to +%d, and a place of 0 to %d", text, MaxOffset, MaxOffset, MaxOffset)
	}
	return number{at: at, bytes: int(found[1][0] - '0'), little: found[2] == "le", offset: offset}, nil
}

func (n number) String() string {
	s := strconv.Itoa(n.bytes)
	switch {
	case n.bytes == 1:
	case n.little:
		s += "le"
	default:
		s += "be"
	}
	if n.offset != 0 {
		s += fmt.Sprintf("%+d", n.offset)
	}
	if n.at != 0 {
		s += fmt.Sprintf("@%d", n.at)
	}
	return s
}

// head is how many bytes of an answer it takes to know its length.
func (n number) head() int { return n.at + n.bytes }

// feed is Rule.Feed.
func (n number) feed(s *State, in []byte) (used, answers int, err error) {
	for {
		rest := in[used:]
		if s.left > int64(len(rest)) {
			s.left -= int64(len(rest))
			return len(in), answers, nil
		}
		if s.left > 0 {
			used += int(s.left)
			rest = rest[s.left:]
			s.left = 0
			answers++
		}
		if len(rest) < n.head() {
			return used, answers, nil
		}
		if s.left, err = n.follow(rest); err != nil {
			return used, answers, err
		}
		used += n.head()
		if s.left == 0 {
			answers++
		}
	}
}

const wantLength = "a length for which 0 to 1073741824 bytes follow"

// follow is how many bytes follow the head that in begins with.
func (n number) follow(in []byte) (int64, error) {
	digits := in[n.at:n.head()]
	var v uint64
	for i := range digits {
		if n.little {
			v = v<<8 | uint64(digits[len(digits)-1-i])
		} else {
			v = v<<8 | uint64(digits[i])
		}
	}
	if v > MaxAnswer+MaxOffset {
		return 0, wrong(in[:n.head()], wantLength)
	}
	follow := int64(v) + n.offset
	if follow < 0 || follow > MaxAnswer {
		return 0, wrong(in[:n.head()], wantLength)
	}
	return follow, nil
}
