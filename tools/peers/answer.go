package main

import "bytes"

// answer says what is sent for what has come, and how many bytes of that it has used. It
// may keep neither in nor room, which has room for what is sent.
type answer func(in, room []byte) (out []byte, used int)

// answerEcho sends back all that is at hand.
func answerEcho(in, _ []byte) ([]byte, int) { return in, len(in) }

// answerLines sends back all lines that are complete.
func answerLines(in, _ []byte) ([]byte, int) {
	whole := bytes.LastIndexByte(in, '\n') + 1
	return in[:whole], whole
}

// answerHTTP answers all requests that are complete.
func answerHTTP(in, room []byte) ([]byte, int) {
	requests, used := heads(in)
	text := helloNow()
	for range requests {
		room = append(room, text...)
	}
	return room, used
}
