package match

import "bytes"

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
	case len(name) == len("content-length") && isWord(name, "content-length"):
		v, ok := decimal(value)
		if !ok || v > maxBody || s.said&saidLength != 0 && v != s.left {
			return wantBody
		}
		s.left = v
		s.said |= saidLength
	case len(name) == len("transfer-encoding") && isWord(name, "transfer-encoding"):
		if s.said&saidChunked != 0 || !isWord(value, "chunked") {
			return wantEncoding
		}
		s.said |= saidChunked
	case len(name) == len("connection") && isWord(name, "connection"):
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

// trim is b without spaces and tabs at its ends.
func trim(b []byte) []byte {
	for len(b) > 0 && isSpace(b[0]) {
		b = b[1:]
	}
	for len(b) > 0 && isSpace(b[len(b)-1]) {
		b = b[:len(b)-1]
	}
	return b
}

// isWord compares b with a word of lower-case letters and hyphens, letters of
// ASCII in either case.
func isWord(b []byte, word string) bool {
	if len(b) != len(word) {
		return false
	}
	for i, c := range b {
		if 'A' <= c && c <= 'Z' {
			c += 'a' - 'A'
		}
		if c != word[i] {
			return false
		}
	}
	return true
}

// decimal is the number that all of b is, in 1 to 18 digits and any zeros before
// them.
func decimal(b []byte) (v int64, ok bool) {
	for _, c := range b {
		if c < '0' || c > '9' || v >= 1e17 {
			return 0, false
		}
		v = v*10 + int64(c-'0')
	}
	return v, len(b) > 0
}

// hexadecimal is the number that all of b is, in 1 to 15 digits and any zeros
// before them.
func hexadecimal(b []byte) (v int64, ok bool) {
	for _, c := range b {
		switch {
		case v >= 1<<56:
			return 0, false
		case '0' <= c && c <= '9':
			c -= '0'
		case 'a' <= c && c <= 'f':
			c -= 'a' - 10
		case 'A' <= c && c <= 'F':
			c -= 'A' - 10
		default:
			return 0, false
		}
		v = v<<4 | int64(c)
	}
	return v, len(b) > 0
}
