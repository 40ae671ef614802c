package match

// StreamState is the position of a stream in an answer. The zero value is the beginning.
type StreamState struct {
	// remaining is how many bytes of an answer, of a body, or of a chunk are missing; under "bytes"
	// it is how many have arrived.
	remaining int64
	// headBytes is how many bytes of the head, or of the trailer, have arrived.
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
	phaseUntilClose // a body that ends with the connection
	phaseClosed     // nothing: the last response is complete
)

// headFlags records headers of an HTTP response.
type headFlags uint8

const (
	flagHTTP10    headFlags = 1 << iota // HTTP/1.0
	flagKeepAlive                       // Connection: keep-alive
	flagClose                           // Connection: close
	flagChunked                         // Transfer-Encoding: chunked
	flagLength                          // Content-Length, in State.remaining
)

// ServerCloses reports whether the last completed answer is the last one of the connection: the
// HTTP response announced a close ("Connection: close", or HTTP/1.0 without keep-alive), or ended
// with the connection. Further input is an error.
func (s *StreamState) ServerCloses() bool { return s.phase == phaseClosed }

// reportStatusAndReset completes an HTTP response.
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
