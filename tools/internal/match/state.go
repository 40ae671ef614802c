package match

// State is where in an answer a stream is. The zero value is the beginning.
type State struct {
	// left is how many bytes of an answer, of the body of one, or of a
	// chunk are still to come; under "bytes" it is how many have come.
	left int64
	// head is how many bytes of the head, or of the trailer, have come.
	head   int32
	status uint16
	phase  phase
	said   said
}

// phase is what comes next in an HTTP response.
type phase uint8

const (
	statusLine phase = iota
	headerLine
	body
	chunkLine
	chunk
	chunkEnd
	trailerLine
	untilEnd // a body that ends with the connection
	last     // nothing: a response was the last one
)

// said are bits for what the head of an HTTP response said.
type said uint8

const (
	saidOld       said = 1 << iota // HTTP/1.0
	saidKeepAlive                  // Connection: keep-alive
	saidClose                      // Connection: close
	saidChunked                    // Transfer-Encoding: chunked
	saidLength                     // Content-Length, which is State.left
)

// Last says that the last answer that was completed is the last of this
// connection: the HTTP response said that the server closes it ("Connection:
// close", or HTTP/1.0 without keep-alive), or ended with it. What comes behind
// it is an error.
func (s *State) Last() bool { return s.phase == last }

// complete ends an HTTP response.
func (s *State) complete(seen func(status int)) {
	if seen != nil {
		seen(int(s.status))
	}
	if s.phase == untilEnd || s.said&saidClose != 0 || s.said&(saidOld|saidKeepAlive) == saidOld {
		*s = State{phase: last}
		return
	}
	*s = State{}
}
