package match

import "bytes"

// Limits of an HTTP response.
const (
	// maxHead limits the size in bytes of all lines before a body, and of a trailer.
	maxHead = 64 << 10
	// maxChunkLine limits the length in bytes of the line before a chunk.
	maxChunkLine = 4096
	// maxBody limits the length in bytes of a chunk, and of a body with a Content-Length.
	maxBody = 1 << 40
)

// Values of Error.Want for HTTP responses.
const (
	wantResponse  = "an HTTP/1.1 or HTTP/1.0 response"
	wantHead      = "the end of a header, or a trailer, of at most 65536 bytes"
	wantHeader    = "a header line with a name, a colon and a value"
	wantBody      = "one Content-Length of 0 to 1099511627776 bytes"
	wantEncoding  = "the Transfer-Encoding chunked, only once"
	wantChunk     = "a chunk of 0 to 1099511627776 bytes, in hexadecimal digits"
	wantChunkLine = "the end of a chunk's first line of at most 4096 bytes"
	wantChunkEnd  = "a line break after a chunk"
	wantNothing   = "nothing after a response that closes the connection"
)

// consumeHTTPResponses implements AnswerRule.ConsumeInput for HTTP responses (RFC 9112). It does not support responses
// to HEAD and CONNECT, which have no body.
func consumeHTTPResponses(s *StreamState, in []byte, onStatus func(status int)) (used, answers int, err error) {
	for used < len(in) {
		n, done, err := s.parseNextResponsePart(in[used:])
		if n == 0 || err != nil {
			return used, answers, err
		}
		used += n
		if done {
			s.reportStatusThenResetOrMarkClosed(onStatus)
			answers++
		}
	}
	return used, answers, nil
}

// parseNextResponsePart parses the next part of a response, such as one header line. The input must not be empty. n is
// the size of the part. If n is 0 and err is nil, the part is incomplete and more input is needed.
func (s *StreamState) parseNextResponsePart(in []byte) (n int, responseDone bool, err error) {
	switch s.phase {
	case phaseStatusLine:
		return s.parseStatusLine(in)
	case phaseHeaderLine:
		return s.parseHeaderLine(in)
	case phaseBody:
		n = s.skipRestOfBodyOrChunk(in)
		return n, s.remaining == 0, nil
	case phaseChunkLine:
		return s.parseChunkLine(in)
	case phaseChunk:
		if n = s.skipRestOfBodyOrChunk(in); s.remaining == 0 {
			s.phase = phaseChunkEnd
		}
		return n, false, nil
	case phaseChunkEnd:
		return s.parseChunkEnd(in)
	case phaseTrailerLine:
		return s.parseTrailerLine(in)
	case phaseUntilClose:
		return len(in), false, nil
	}
	return 0, false, errUnexpected(in, wantNothing)
}

func (s *StreamState) skipRestOfBodyOrChunk(in []byte) int {
	n := min(s.remaining, int64(len(in)))
	s.remaining -= n
	return int(n)
}

const version = "HTTP/1."

func (s *StreamState) parseStatusLine(in []byte) (n int, responseDone bool, err error) {
	// Reject other protocols early, because their input may not contain any line.
	if begin := in[:min(len(in), len(version))]; string(begin) != version[:len(begin)] {
		return 0, false, errUnexpected(in, wantResponse)
	}
	line, n, err := s.cutLineWithinHeadLimit(in)
	if n == 0 {
		return 0, false, err
	}
	const codeAt, codeEnd = len("HTTP/1.1 "), len("HTTP/1.1 200")
	if len(line) < codeEnd || line[7] != '0' && line[7] != '1' || line[8] != ' ' || len(line) > codeEnd && line[codeEnd] != ' ' {
		return 0, false, errUnexpected(in, wantResponse)
	}
	code, ok := parseDigits(line[codeAt:codeEnd], 10)
	if !ok || code < 100 {
		return 0, false, errUnexpected(in, wantResponse)
	}
	if line[7] == '0' {
		s.flags = flagHTTP10
	}
	s.status = uint16(code)
	s.phase = phaseHeaderLine
	return n, false, nil
}

func (s *StreamState) parseHeaderLine(in []byte) (n int, responseDone bool, err error) {
	line, n, err := s.cutLineWithinHeadLimit(in)
	if n == 0 {
		return 0, false, err
	}
	if len(line) == 0 {
		return n, s.selectPhaseAfterHead(), nil
	}
	want := s.applyHeaderLine(line)
	if want != "" {
		return 0, false, errUnexpected(in, want)
	}
	return n, false, nil
}

func (s *StreamState) selectPhaseAfterHead() (responseDone bool) {
	switch {
	case s.status == 101, s.status == 204, s.status == 304:
		return true
	case s.status < 200:
		*s = StreamState{headBytes: s.headBytes}
		return false
	}
	s.headBytes = 0
	switch {
	// HTTP/1.0 has no chunks. net/http also ignores the header in that case.
	case s.flags&(flagChunked|flagHTTP10) == flagChunked:
		s.remaining = 0
		s.phase = phaseChunkLine
	case s.flags&flagLength != 0:
		s.phase = phaseBody
		return s.remaining == 0
	default:
		s.phase = phaseUntilClose
	}
	return false
}

func (s *StreamState) parseChunkLine(in []byte) (n int, responseDone bool, err error) {
	line, n := cutLineWithin(in, maxChunkLine)
	if n == 0 {
		if len(in) >= maxChunkLine {
			err = errUnexpected(in, wantChunkLine)
		}
		return 0, false, err
	}
	digits, _, _ := bytes.Cut(line, []byte(";"))
	v, ok := parseDigits(bytes.TrimRight(digits, " \t"), 16)
	if !ok || v > maxBody {
		return 0, false, errUnexpected(in, wantChunk)
	}
	s.remaining = v
	s.phase = phaseChunk
	if v == 0 {
		s.phase = phaseTrailerLine
	}
	return n, false, nil
}

func (s *StreamState) parseChunkEnd(in []byte) (n int, responseDone bool, err error) {
	switch {
	case in[0] == '\n':
		n = 1
	case in[0] != '\r' || len(in) > 1 && in[1] != '\n':
		return 0, false, errUnexpected(in, wantChunkEnd)
	case len(in) == 1:
		return 0, false, nil
	default:
		n = 2
	}
	s.phase = phaseChunkLine
	return n, false, nil
}

func (s *StreamState) parseTrailerLine(in []byte) (n int, responseDone bool, err error) {
	line, n, err := s.cutLineWithinHeadLimit(in)
	if n == 0 {
		return 0, false, err
	}
	if len(line) == 0 {
		return n, true, nil
	}
	if name, _ := splitHeaderOrNil(line); name == nil {
		return 0, false, errUnexpected(in, wantHeader)
	}
	return n, false, nil
}
