package match

// StreamState is the position of a stream within an answer. The zero value is the beginning.
type StreamState struct {
	// remaining is the number of missing bytes of an answer, a body or a chunk. Under "bytes" it is the number
	// of bytes received.
	remaining int64
	// headBytes is the number of bytes of the head or the trailer received.
	headBytes int32
	status    uint16
	phase     phase
	flags     headFlags
}

// phase is the next part of an HTTP response.
type phase uint8

const (
	phaseStatusLine phase = iota
	phaseHeaderLine
	phaseBody
	phaseChunkLine
	phaseChunk
	phaseChunkEnd
	phaseTrailerLine
	phaseUntilClose // the body ends with the connection
	phaseClosed     // no part follows: the last response is complete
)

// headFlags records headers of an HTTP response.
type headFlags uint8

const (
	flagHTTP10    headFlags = 1 << iota // HTTP/1.0
	flagKeepAlive                       // Connection: keep-alive
	flagClose                           // Connection: close
	flagChunked                         // Transfer-Encoding: chunked
	flagLength                          // Content-Length; the value is in State.remaining
)

// ServerCloses reports whether the last completed answer is the connection's last. This is so if the HTTP
// response announced a close ("Connection: close", or HTTP/1.0 without keep-alive) or ended with the
// connection. Further input is an error.
func (s *StreamState) ServerCloses() bool { return s.phase == phaseClosed }

func (s *StreamState) reportStatusAndReset(onStatus func(status int)) {
	if onStatus != nil {
		onStatus(int(s.status))
	}
	if s.phase == phaseUntilClose || s.flags&flagClose != 0 || s.flags&(flagHTTP10|flagKeepAlive) == flagHTTP10 {
		*s = StreamState{phase: phaseClosed}
		return
	}
	*s = StreamState{}
}
