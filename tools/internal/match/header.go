package match

import (
	"bytes"
	"strconv"
)

// cutLineWithinHeadLimit returns the first line of the input, without its line end. The line belongs to a head or a
// trailer. n is the size of the line including its line end, or 0 if the line is incomplete. An error means that the
// head or the trailer is longer than maxHead bytes.
func (s *StreamState) cutLineWithinHeadLimit(in []byte) (line []byte, n int, err error) {
	maxBytes := maxHead - int(s.headBytes)
	line, n = cutLineWithin(in, maxBytes)
	if n == 0 && len(in) >= maxBytes {
		return nil, 0, errUnexpected(in, wantHead)
	}
	s.headBytes += int32(n)
	return line, n, nil
}

// cutLineWithin returns the first line of the input, without its line end. n is the size of the line including its line
// end, or 0 if no line ends within the first maxBytes bytes.
func cutLineWithin(in []byte, maxBytes int) (line []byte, n int) {
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

// applyHeaderLine records what a header line declares about the body and the connection. It returns "" for a valid
// line. For an invalid line, it returns a description of the line that was expected.
func (s *StreamState) applyHeaderLine(line []byte) (expectedIfInvalid string) {
	name, value := splitHeaderOrNil(line)
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

func (s *StreamState) applyConnectionHeader(list []byte) {
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

func splitHeaderOrNil(line []byte) (name, value []byte) {
	i := bytes.IndexByte(line, ':')
	if i <= 0 || isBlank(line[0]) || isBlank(line[i-1]) {
		return nil, nil
	}
	return line[:i], trimBlank(line[i+1:])
}

func isBlank(c byte) bool { return c == ' ' || c == '\t' }

func trimBlank(b []byte) []byte { return bytes.Trim(b, " \t") }

func equalsWord(b []byte, word string) bool {
	return len(b) == len(word) && bytes.EqualFold(b, []byte(word))
}

func parseDigits(b []byte, base int) (v int64, ok bool) {
	n, err := strconv.ParseUint(string(b), base, 60)
	return int64(n), err == nil
}
