package match

import (
	"fmt"
	"strconv"
	"strings"
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

// parseNumber reads a number such as 4be, 2le-2 or 4be+8@3.
func parseNumber(text string) (number, error) {
	var n number
	wrong := func(what, got, want string) (number, error) {
		return number{}, fmt.Errorf("match: length %q: %s %q; expected %s", text, what, got, want)
	}
	rest, at, placed := strings.Cut(text, "@")
	if placed {
		v, err := strconv.ParseUint(at, 10, 64)
		if err != nil || v > MaxOffset {
			return wrong("place", at, fmt.Sprintf("0 to %d", MaxOffset))
		}
		n.at = int(v)
	}
	if i := strings.IndexAny(rest, "+-"); i >= 0 {
		v, err := strconv.ParseUint(rest[i+1:], 10, 64)
		if err != nil || v > MaxOffset {
			return wrong("offset", rest[i:], fmt.Sprintf("-%d to +%d", MaxOffset, MaxOffset))
		}
		n.offset = int64(v)
		if rest[i] == '-' {
			n.offset = -n.offset
		}
		rest = rest[:i]
	}
	switch rest {
	case "1", "2be", "2le", "4be", "4le", "8be", "8le":
		n.bytes = int(rest[0] - '0')
		n.little = rest[1:] == "le"
		return n, nil
	}
	return wrong("number", rest, "1, 2be, 2le, 4be, 4le, 8be or 8le")
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
