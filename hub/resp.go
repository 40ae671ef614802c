package hub

import (
	"bytes"
	"fmt"

	"github.com/myriad-go/myriad/tcp"
)

// This file reads the Redis protocol: commands as arrays of bulk strings, or as lines.
//
// A command is taken where it stands in the input, when all of it is there. Until then the
// connection keeps the input, and the session where the next argument begins: however a
// command drips in, each of its bytes is looked at twice, but for a few dozen of an argument's
// head. That a command will not fit is found as soon as its lengths tell.

// Bounds of a command. What is more closes the connection, with Redis's error.
const (
	maxArgs   = 1 << 20
	maxInline = 64 << 10
	maxBulk   = 512 << 20 // of Redis
	// maxNumber is the most bytes of a number with its line end.
	maxNumber = 32
	// minArg is the fewest bytes of an argument: $0, its line end, and one behind nothing.
	minArg = 6
	// Who has yet to say who it is may send commands of so many arguments, of so many bytes.
	maxStrangerArgs = 10
	maxStrangerBulk = 16 << 10
)

// protocolError is why a connection is closed that does not speak the protocol. Its text is
// also the answer.
type protocolError string

func (e protocolError) Error() string {
	return "hub: the client broke the Redis protocol: " + string(e)
}

// oversized is the protocolError of a command that is larger than Limits.MaxMessage.
type oversized struct{ protocolError }

func (e oversized) Unwrap() []error { return []error{e.protocolError, tcp.ErrMessageTooLong} }

// sizes are the bounds of a command's size.
type sizes struct {
	args, message int
	bulk          int // of an argument of a stranger
	stranger      bool
}

func sizesFor(maxMessage int, stranger bool) sizes {
	b := sizes{args: maxArgs, message: maxMessage, stranger: stranger}
	if stranger {
		b.args, b.bulk = maxStrangerArgs, min(maxStrangerBulk, maxMessage)
	}
	return b
}

// scan is how far a command has been read that is not complete: pos is where the next argument
// begins, or how much of a line has no end, and left how many arguments there are from there.
type scan struct{ pos, left int32 }

// reader takes commands from input.
type reader struct {
	sizes
	args     [][]byte // of the command that was read last, within the input or unquoted
	unquoted []byte   // arguments of a line, without their quotes
}

// next reads the command that in begins with, and says how many bytes it has: 0 if it is not
// complete. at is how far it was read before, and is set anew. A command may have no arguments.
func (r *reader) next(in []byte, at *scan) (size int, err error) {
	from := *at
	r.args = r.args[:0]
	if size, err = r.read(in, at); size == 0 || err != nil {
		return 0, err
	}
	*at = scan{}
	if from.pos > 0 { // the first arguments have not been kept
		r.args = r.args[:0]
		size, err = r.read(in, &scan{})
	}
	return size, err
}

func (r *reader) read(in []byte, at *scan) (size int, err error) {
	if in[0] != '*' {
		return r.line(in, at)
	}
	if at.pos == 0 {
		n, size, ok := number(in[1:])
		switch {
		case !ok || n > maxArgs:
			return 0, protocolError("invalid multibulk length")
		case size == 0:
			return 0, nil
		case n > r.sizes.args:
			return 0, protocolError("unauthenticated multibulk length")
		}
		at.pos, at.left = int32(1+size), int32(max(n, 0))
	}
	for at.left > 0 {
		size, err := r.arg(in[at.pos:], at)
		if size == 0 || err != nil {
			return 0, err
		}
		at.pos += int32(size)
		at.left--
	}
	return int(at.pos), nil
}

// arg reads the argument that in begins with.
func (r *reader) arg(in []byte, at *scan) (size int, err error) {
	if err := r.fits(int(at.pos), int(at.left)); err != nil || len(in) == 0 {
		return 0, err
	}
	if in[0] != '$' {
		return 0, protocolError(fmt.Sprintf("expected '$', got '%s'", shown(in[:1])))
	}
	n, head, ok := number(in[1:])
	switch {
	case !ok || n < 0:
		return 0, protocolError("invalid bulk length")
	case head == 0:
		return 0, nil
	case !r.stranger && n > max(maxBulk, r.message):
		return 0, oversized{protocolError("invalid bulk length")}
	case r.stranger && n > r.bulk:
		return 0, protocolError("unauthenticated bulk length")
	}
	head++
	size = head + n + 2
	if err := r.fits(int(at.pos)+size, int(at.left)-1); err != nil || len(in) < size {
		return 0, err
	}
	if in[head+n] != '\r' || in[head+n+1] != '\n' {
		return 0, protocolError("expected CRLF behind a bulk string")
	}
	r.args = append(r.args, in[head:head+n:head+n])
	return size, nil
}

// fits answers an error if a command that has so many arguments left at pos is larger than it
// may be.
func (r *reader) fits(pos, left int) error {
	if least := pos + minArg*left; least > r.message {
		return oversized{protocolError(fmt.Sprintf("a command of at least %d bytes, at most %d are allowed", least, r.message))}
	}
	return nil
}

// number reads a decimal number and its line end. size is 0 if that is not there yet.
func number(in []byte) (n, size int, ok bool) {
	end := bytes.IndexByte(in[:min(len(in), maxNumber)], '\r')
	switch {
	case end < 0:
		return 0, 0, len(in) < maxNumber
	case len(in) == end+1:
		return 0, 0, true
	}
	n, ok = decimal(in[:end])
	return n, end + 2, ok && in[end+1] == '\n'
}

// decimal is the value of a number as Redis takes it: without a plus sign or leading zeros.
func decimal(s []byte) (n int, ok bool) {
	digits, negative := bytes.CutPrefix(s, []byte("-"))
	if len(digits) == 0 || len(digits) > 18 || digits[0] == '0' && len(s) > 1 {
		return 0, false
	}
	for _, c := range digits {
		if c < '0' || c > '9' {
			return 0, false
		}
		n = 10*n + int(c-'0')
	}
	if negative {
		n = -n
	}
	return n, true
}

// line reads a command that is a line.
func (r *reader) line(in []byte, at *scan) (size int, err error) {
	most := min(maxInline, r.message)
	end := bytes.IndexByte(in[at.pos:min(len(in), most)], '\n')
	if end < 0 {
		if len(in) >= most {
			return 0, protocolError("too big inline request")
		}
		at.pos = int32(len(in))
		return 0, nil
	}
	end += int(at.pos)
	if !r.split(in[:end]) {
		return 0, protocolError("unbalanced quotes in request")
	}
	return end + 1, nil
}

// split cuts a line into arguments at its white space. In double quotes, \n, \r, \t, \a, \b and
// \xHH stand for a byte, and \ before another for that; in single quotes only \'. It reports
// whether all quotes end, and with their argument.
func (r *reader) split(line []byte) (ok bool) {
	r.unquoted = r.unquoted[:0]
	for {
		for len(line) > 0 && space(line[0]) {
			line = line[1:]
		}
		if len(line) == 0 {
			return true
		}
		n := 0
		for n < len(line) && !space(line[n]) && line[n] != '"' && line[n] != '\'' {
			n++
		}
		if n == len(line) || space(line[n]) {
			r.args = append(r.args, line[:n:n])
			line = line[n:]
			continue
		}
		start := len(r.unquoted)
		r.unquoted = append(r.unquoted, line[:n]...)
		if line, ok = r.quoted(line[n:]); !ok {
			return false
		}
		r.args = append(r.args, r.unquoted[start:len(r.unquoted):len(r.unquoted)])
	}
}

// quoted appends the rest of an argument to unquoted, from its first quote on, and gives what is
// behind it.
func (r *reader) quoted(line []byte) (rest []byte, ok bool) {
	for len(line) > 0 && !space(line[0]) {
		quote := line[0]
		if quote != '"' && quote != '\'' {
			r.unquoted, line = append(r.unquoted, quote), line[1:]
			continue
		}
		for line = line[1:]; ; {
			if len(line) == 0 {
				return nil, false
			}
			if line[0] == quote {
				break
			}
			b, n := unquote(line, quote)
			r.unquoted, line = append(r.unquoted, b), line[n:]
		}
		if line = line[1:]; len(line) > 0 && !space(line[0]) {
			return nil, false
		}
	}
	return line, true
}

// unquote is the byte that a quoted text begins with, and how many bytes it is written in.
func unquote(s []byte, quote byte) (b byte, size int) {
	switch {
	case s[0] != '\\' || len(s) == 1:
		return s[0], 1
	case quote == '\'':
		if s[1] == '\'' {
			return '\'', 2
		}
		return '\\', 1
	case len(s) >= 4 && s[1] == 'x' && hexDigit(s[2]) >= 0 && hexDigit(s[3]) >= 0:
		return byte(hexDigit(s[2])<<4 | hexDigit(s[3])), 4
	}
	if i := bytes.IndexByte([]byte("nrtab"), s[1]); i >= 0 {
		return "\n\r\t\a\b"[i], 2
	}
	return s[1], 2
}

func hexDigit(c byte) int {
	switch {
	case '0' <= c && c <= '9':
		return int(c - '0')
	case 'a' <= c|0x20 && c|0x20 <= 'f':
		return int(c|0x20-'a') + 10
	}
	return -1
}

func space(c byte) bool { return c == ' ' || '\t' <= c && c <= '\r' }
