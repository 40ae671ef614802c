package match

// State is where in an answer a stream is. The zero value is the beginning.
type State struct {
	// remaining is how many bytes of an answer, of the body of one, or of a
	// chunk are still to come; under "bytes" it is how many have come.
	remaining int64
	// headBytes is how many bytes of the head, or of the trailer, have come.
	headBytes int32
	status    uint16
	phase     phase
	flags     headFlags
}

// phase is what comes next in an HTTP response.
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
	phaseClosed     // nothing: a response was the last one
)

// headFlags are bits for what the head of an HTTP response said.
type headFlags uint8

const (
	flagHTTP10    headFlags = 1 << iota // HTTP/1.0
	flagKeepAlive                       // Connection: keep-alive
	flagClose                           // Connection: close
	flagChunked                         // Transfer-Encoding: chunked
	flagLength                          // Content-Length, which is State.left
)

// ServerCloses says that the last answer that was completed is the last of this
// connection: the HTTP response said that the server closes it ("Connection:
// close", or HTTP/1.0 without keep-alive), or ended with it. What comes behind
// it is an error.
func (s *State) ServerCloses() bool { return s.phase == phaseClosed }

// finishResponse ends an HTTP response.
func (s *State) finishResponse(onStatus func(status int)) {
	if onStatus != nil {
		onStatus(int(s.status))
	}
	if s.phase == phaseUntilClose || s.flags&flagClose != 0 || s.flags&(flagHTTP10|flagKeepAlive) == flagHTTP10 {
		*s = State{phase: phaseClosed}
		return
	}
	*s = State{}
}
