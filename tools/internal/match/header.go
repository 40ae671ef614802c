package match

import (
	"bytes"
	"strconv"
)

// nextLine is the line of a head or a trailer that in begins with, without its
// end, and n its size with it; n is 0 if the end has not come, and err says
// if it can't come within maxHead.
func (s *State) nextLine(in []byte) (line []byte, n int, err error) {
	room := maxHead - int(s.head)
	line, n = cutLine(in, room)
	if n == 0 && len(in) >= room {
		return nil, 0, wrong(in, wantHead)
	}
	s.head += int32(n)
	return line, n, nil
}

// cutLine is the line that in begins with, without its end, and n its size with
// it: 0 if it does not end within the first most bytes.
func cutLine(in []byte, most int) (line []byte, n int) {
	n = bytes.IndexByte(in[:min(len(in), most)], '\n') + 1
	if n == 0 {
		return nil, 0
	}
	line = in[:n-1]
	if len(line) > 0 && line[len(line)-1] == '\r' {
		line = line[:len(line)-1]
	}
	return line, n
}

// header looks at a header line. It says what was wanted instead if the line is
// wrong, otherwise "".
func (s *State) header(line []byte) (want string) {
	name, value := field(line)
	switch {
	case name == nil:
		return wantHeader
	case isWord(name, "content-length"):
		v, ok := whole(value, 10)
		if !ok || v > maxBody || s.said&saidLength != 0 && v != s.left {
			return wantBody
		}
		s.left = v
		s.said |= saidLength
	case isWord(name, "transfer-encoding"):
		if s.said&saidChunked != 0 || !isWord(value, "chunked") {
			return wantEncoding
		}
		s.said |= saidChunked
	case isWord(name, "connection"):
		s.connection(value)
	}
	return ""
}

// connection looks at the value of a Connection line, a list of words.
func (s *State) connection(list []byte) {
	for more := true; more; {
		var word []byte
		word, list, more = bytes.Cut(list, []byte(","))
		switch word = trim(word); {
		case isWord(word, "close"):
			s.said |= saidClose
		case isWord(word, "keep-alive"):
			s.said |= saidKeepAlive
		}
	}
}

// field cuts a header line at its colon; name is nil if it has none, or a name
// with a space at one of its ends, as a line has that goes on from the one
// before it.
func field(line []byte) (name, value []byte) {
	i := bytes.IndexByte(line, ':')
	if i <= 0 || isSpace(line[0]) || isSpace(line[i-1]) {
		return nil, nil
	}
	return line[:i], trim(line[i+1:])
}

func isSpace(c byte) bool { return c == ' ' || c == '\t' }

func trim(b []byte) []byte { return bytes.Trim(b, " \t") }

// isWord compares b with a word of ASCII, letters in either case.
func isWord(b []byte, word string) bool {
	return len(b) == len(word) && bytes.EqualFold(b, []byte(word))
}

// whole is the number below 2^60 that all of b is, in digits of a base.
func whole(b []byte, base int) (v int64, ok bool) {
	n, err := strconv.ParseUint(string(b), base, 60)
	return int64(n), err == nil
}
