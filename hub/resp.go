package hub

import (
	"bytes"
	"encoding/hex"
	"fmt"

	"github.com/myriad-go/myriad/tcp"
)

// This file parses the Redis protocol. A command is an array of bulk strings, or a line of words (an inline command).
//
// A command is parsed in place once it is complete. Until then, the connection stores the input, and the session stores
// the position of the next argument. A command that arrives slowly is therefore not examined again from its beginning.
// A command that is too long is rejected as soon as its lengths are known.

// Limits of a Redis command.
const (
	maxCommandArgs = 1 << 20
	maxInlineBytes = 64 << 10
	maxBulkBytes   = 512 << 20 // as in Redis
	maxNumberBytes = 32
	minArgBytes    = 6
	// Limits for clients that have not authenticated.
	maxUnauthenticatedArgs = 10
	maxUnauthenticatedBulk = 16 << 10
)

// protocolError describes a violation of the Redis protocol. The hub sends the text to the client.
type protocolError string

func (e protocolError) Error() string {
	return "hub: the client violated the Redis protocol: " + string(e)
}

type oversizedError struct{ protocolError }

func (e oversizedError) Unwrap() []error { return []error{e.protocolError, tcp.ErrMessageTooLong} }

type commandLimits struct {
	maxArgs, maxBytes int
	maxArgBytes       int // limit for clients that have not authenticated
	unauthenticated   bool
}

func newCommandLimits(maxBytes int, unauthenticated bool) commandLimits {
	b := commandLimits{maxArgs: maxCommandArgs, maxBytes: maxBytes, unauthenticated: unauthenticated}
	if unauthenticated {
		b.maxArgs, b.maxArgBytes = maxUnauthenticatedArgs, min(maxUnauthenticatedBulk, maxBytes)
	}
	return b
}

// parseProgress records how far an incomplete command has been parsed.
type parseProgress struct{ pos, argsLeft int32 }

type commandReader struct {
	commandLimits
	args         [][]byte // arguments of the last command; slices of the input or of unquotedArgs
	unquotedArgs []byte   // decoded arguments of an inline command
}

// parseOrResumeCommand parses the command at the beginning of input into r.args. If the command is incomplete, size is
// 0, and the next call continues at progress.
func (r *commandReader) parseOrResumeCommand(input []byte, progress *parseProgress) (size int, err error) {
	start := *progress
	r.args = r.args[:0]
	if size, err = r.resumeParsing(input, progress); size == 0 || err != nil {
		return 0, err
	}
	*progress = parseProgress{}
	if start.pos > 0 { // earlier calls did not keep the first arguments
		r.args = r.args[:0]
		size, err = r.resumeParsing(input, &parseProgress{})
	}
	return size, err
}

func (r *commandReader) resumeParsing(input []byte, progress *parseProgress) (size int, err error) {
	if input[0] != '*' {
		return r.parseInline(input, progress)
	}
	if progress.pos == 0 {
		n, size, ok := parseNumberLine(input[1:])
		switch {
		case !ok || n > maxCommandArgs:
			return 0, protocolError("invalid multibulk length")
		case size == 0:
			return 0, nil
		case n > r.commandLimits.maxArgs:
			return 0, protocolError("unauthenticated multibulk length")
		}
		progress.pos, progress.argsLeft = int32(1+size), int32(max(n, 0))
	}
	for progress.argsLeft > 0 {
		size, err := r.parseArg(input[progress.pos:], progress)
		if size == 0 || err != nil {
			return 0, err
		}
		progress.pos += int32(size)
		progress.argsLeft--
	}
	return int(progress.pos), nil
}

func (r *commandReader) parseArg(input []byte, progress *parseProgress) (size int, err error) {
	if err := r.checkMinCommandSize(int(progress.pos), int(progress.argsLeft)); err != nil || len(input) == 0 {
		return 0, err
	}
	if input[0] != '$' {
		return 0, protocolError(fmt.Sprintf("expected '$', got '%s'", truncateForError(input[:1])))
	}
	n, head, ok := parseNumberLine(input[1:])
	switch {
	case !ok || n < 0:
		return 0, protocolError("invalid bulk length")
	case head == 0:
		return 0, nil
	case !r.unauthenticated && n > max(maxBulkBytes, r.maxBytes):
		return 0, oversizedError{protocolError("invalid bulk length")}
	case r.unauthenticated && n > r.maxArgBytes:
		return 0, protocolError("unauthenticated bulk length")
	}
	head++
	size = head + n + 2
	if err := r.checkMinCommandSize(int(progress.pos)+size, int(progress.argsLeft)-1); err != nil || len(input) < size {
		return 0, err
	}
	if input[head+n] != '\r' || input[head+n+1] != '\n' {
		return 0, protocolError("expected CRLF after a bulk string")
	}
	r.args = append(r.args, input[head:head+n:head+n])
	return size, nil
}

// checkMinCommandSize returns an error if the command cannot fit into the size limit. pos is the size of the parsed
// part. argsLeft is the number of arguments that have not been parsed.
func (r *commandReader) checkMinCommandSize(pos, argsLeft int) error {
	if minSize := pos + minArgBytes*argsLeft; minSize > r.maxBytes {
		return oversizedError{protocolError(fmt.Sprintf("a command of at least %d bytes; at most %d are allowed", minSize, r.maxBytes))}
	}
	return nil
}

// parseNumberLine parses a number and its line end. If the line is incomplete, size is 0. validSoFar reports whether
// the line is valid or, if it is incomplete, can still become valid.
func parseNumberLine(input []byte) (n, size int, validSoFar bool) {
	end := bytes.IndexByte(input[:min(len(input), maxNumberBytes)], '\r')
	switch {
	case end < 0:
		return 0, 0, len(input) < maxNumberBytes
	case len(input) == end+1:
		return 0, 0, true
	}
	n, validSoFar = parseRedisInt(input[:end])
	return n, end + 2, validSoFar && input[end+1] == '\n'
}

// parseRedisInt parses a decimal integer. As in Redis, a plus sign or a leading zero is invalid.
func parseRedisInt(s []byte) (n int, ok bool) {
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

func (r *commandReader) parseInline(input []byte, progress *parseProgress) (size int, err error) {
	limit := min(maxInlineBytes, r.maxBytes)
	end := bytes.IndexByte(input[progress.pos:min(len(input), limit)], '\n')
	if end < 0 {
		if len(input) >= limit {
			return 0, protocolError("too big inline request")
		}
		progress.pos = int32(len(input))
		return 0, nil
	}
	end += int(progress.pos)
	if !r.splitInline(input[:end]) {
		return 0, protocolError("unbalanced quotes in request")
	}
	return end + 1, nil
}

// splitInline splits a line into r.args at white space. Double quotes allow the escapes \n, \r, \t, \a, \b and \xHH,
// and a backslash before any other byte. Single quotes allow only the escape \'.
func (r *commandReader) splitInline(line []byte) (quotesBalanced bool) {
	r.unquotedArgs = r.unquotedArgs[:0]
	for {
		for len(line) > 0 && isSpace(line[0]) {
			line = line[1:]
		}
		if len(line) == 0 {
			return true
		}
		n := 0
		for n < len(line) && !isSpace(line[n]) && line[n] != '"' && line[n] != '\'' {
			n++
		}
		if n == len(line) || isSpace(line[n]) {
			r.args = append(r.args, line[:n:n])
			line = line[n:]
			continue
		}
		start := len(r.unquotedArgs)
		r.unquotedArgs = append(r.unquotedArgs, line[:n]...)
		if line, quotesBalanced = r.unquoteRestOfArg(line[n:]); !quotesBalanced {
			return false
		}
		r.args = append(r.args, r.unquotedArgs[start:len(r.unquotedArgs):len(r.unquotedArgs)])
	}
}

// unquoteRestOfArg decodes the rest of an argument whose first quote is at the beginning of line. It appends the
// decoded bytes to r.unquotedArgs. rest is the part of line after the argument.
func (r *commandReader) unquoteRestOfArg(line []byte) (rest []byte, quotesBalanced bool) {
	for len(line) > 0 && !isSpace(line[0]) {
		quote := line[0]
		if quote != '"' && quote != '\'' {
			r.unquotedArgs, line = append(r.unquotedArgs, quote), line[1:]
			continue
		}
		for line = line[1:]; ; {
			if len(line) == 0 {
				return nil, false
			}
			if line[0] == quote {
				break
			}
			b, n := decodeQuotedByte(line, quote)
			r.unquotedArgs, line = append(r.unquotedArgs, b), line[n:]
		}
		if line = line[1:]; len(line) > 0 && !isSpace(line[0]) {
			return nil, false
		}
	}
	return line, true
}

// decodeQuotedByte decodes the first byte of quoted text, which may be an escape. size is the number of bytes of s that
// encode the decoded byte.
func decodeQuotedByte(s []byte, quote byte) (b byte, size int) {
	switch {
	case s[0] != '\\' || len(s) == 1:
		return s[0], 1
	case quote == '\'':
		if s[1] == '\'' {
			return '\'', 2
		}
		return '\\', 1
	case len(s) >= 4 && s[1] == 'x':
		var decoded [1]byte
		if _, err := hex.Decode(decoded[:], s[2:4]); err == nil {
			return decoded[0], 4
		}
	}
	if i := bytes.IndexByte([]byte("nrtab"), s[1]); i >= 0 {
		return "\n\r\t\a\b"[i], 2
	}
	return s[1], 2
}

func isSpace(c byte) bool { return c == ' ' || '\t' <= c && c <= '\r' }
