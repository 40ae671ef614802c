package match

// StreamState is the position of a stream within an answer. The zero value is the beginning of an answer.
type StreamState struct {
	// remaining is the number of bytes that are missing from an answer, a body or a chunk. Under the rule "bytes", it
	// is the number of received bytes of the current answer.
	remaining int64
	headBytes int32
	status    uint16
	phase     phase
	flags     headFlags
}

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

type headFlags uint8

const (
	flagHTTP10    headFlags = 1 << iota // HTTP/1.0
	flagKeepAlive                       // Connection: keep-alive
	flagClose                           // Connection: close
	flagChunked                         // Transfer-Encoding: chunked
	flagLength                          // Content-Length; the value is in StreamState.remaining
)

// ServerCloses reports whether the server closes the connection after the last complete answer. If it does,
// ConsumeInput treats any further input as an error.
func (s *StreamState) ServerCloses() bool { return s.phase == phaseClosed }

func (s *StreamState) reportStatusThenResetOrMarkClosed(onStatus func(status int)) {
	if onStatus != nil {
		onStatus(int(s.status))
	}
	if s.phase == phaseUntilClose || s.flags&flagClose != 0 || s.flags&(flagHTTP10|flagKeepAlive) == flagHTTP10 {
		*s = StreamState{phase: phaseClosed}
		return
	}
	*s = StreamState{}
}
