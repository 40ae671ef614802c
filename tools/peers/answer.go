package main

import "bytes"

// replyFunc says what is sent for what has come, and how many bytes of that it has used. It
// may keep neither in nor room, which has room for what is sent.
type replyFunc func(in, room []byte) (out []byte, used int)

// replyEcho sends back all that is at hand.
func replyEcho(input, _ []byte) ([]byte, int) { return input, len(input) }

// replyLines sends back all lines that are complete.
func replyLines(input, _ []byte) ([]byte, int) {
	whole := bytes.LastIndexByte(input, '\n') + 1
	return input[:whole], whole
}

// replyHTTP answers all requests that are complete.
func replyHTTP(input, buf []byte) ([]byte, int) {
	requests, used := countRequests(input)
	text := responseNow()
	for range requests {
		buf = append(buf, text...)
	}
	return buf, used
}
