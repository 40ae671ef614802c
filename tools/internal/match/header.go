package match

import (
	"bytes"
	"strconv"
)

// cutHeadLine is the line of a head or a trailer that in begins with, without its
// end, and n its size with it; n is 0 if the end has not come, and err says
// if it can't come within maxHead.
func (s *State) cutHeadLine(in []byte) (line []byte, n int, err error) {
	maxBytes := maxHead - int(s.headBytes)
	line, n = cutLine(in, maxBytes)
	if n == 0 && len(in) >= maxBytes {
		return nil, 0, errUnexpected(in, wantHead)
	}
	s.headBytes += int32(n)
	return line, n, nil
}

// cutLine is the line that in begins with, without its end, and n its size with
// it: 0 if it does not end within the first most bytes.
func cutLine(in []byte, maxBytes int) (line []byte, n int) {
	n = bytes.IndexByte(in[:min(len(in), maxBytes)], '\n') + 1
	if n == 0 {
		return nil, 0
	}
	line = in[:n-1]
	if len(line) > 0 && line[len(line)-1] == '\r' {
		line = line[:len(line)-1]
	}
	return line, n
}

// applyHeader looks at a header line. It says what was wanted instead if the line is
// wrong, otherwise "".
func (s *State) applyHeader(line []byte) (want string) {
	name, value := splitHeader(line)
	switch {
	case name == nil:
		return wantHeader
	case equalsWord(name, "content-length"):
		v, ok := parseDigits(value, 10)
		if !ok || v > maxBody || s.flags&flagLength != 0 && v != s.remaining {
			return wantBody
		}
		s.remaining = v
		s.flags |= flagLength
	case equalsWord(name, "transfer-encoding"):
		if s.flags&flagChunked != 0 || !equalsWord(value, "chunked") {
			return wantEncoding
		}
		s.flags |= flagChunked
	case equalsWord(name, "connection"):
		s.applyConnectionHeader(value)
	}
	return ""
}

// applyConnectionHeader looks at the value of a Connection line, a list of words.
func (s *State) applyConnectionHeader(list []byte) {
	for more := true; more; {
		var word []byte
		word, list, more = bytes.Cut(list, []byte(","))
		switch word = trimBlank(word); {
		case equalsWord(word, "close"):
			s.flags |= flagClose
		case equalsWord(word, "keep-alive"):
			s.flags |= flagKeepAlive
		}
	}
}

// splitHeader cuts a header line at its colon; name is nil if it has none, or a name
// with a space at one of its ends, as a line has that goes on from the one
// before it.
func splitHeader(line []byte) (name, value []byte) {
	i := bytes.IndexByte(line, ':')
	if i <= 0 || isBlank(line[0]) || isBlank(line[i-1]) {
		return nil, nil
	}
	return line[:i], trimBlank(line[i+1:])
}

func isBlank(c byte) bool { return c == ' ' || c == '\t' }

func trimBlank(b []byte) []byte { return bytes.Trim(b, " \t") }

// equalsWord compares b with a word of ASCII, letters in either case.
func equalsWord(b []byte, word string) bool {
	return len(b) == len(word) && bytes.EqualFold(b, []byte(word))
}

// parseDigits is the number below 2^60 that all of b is, in digits of a base.
func parseDigits(b []byte, base int) (v int64, ok bool) {
	n, err := strconv.ParseUint(string(b), base, 60)
	return int64(n), err == nil
}
