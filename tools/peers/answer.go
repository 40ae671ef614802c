package main

import "bytes"

// replyFunc returns the reply to the input and how many bytes of it are used. It must keep neither slice; the
// reply may be built in buf.
type replyFunc func(input, buf []byte) (out []byte, used int)

func replyEcho(input, _ []byte) ([]byte, int) { return input, len(input) }

func replyLines(input, _ []byte) ([]byte, int) {
	whole := bytes.LastIndexByte(input, '\n') + 1
	return input[:whole], whole
}

func replyHTTP(input, buf []byte) ([]byte, int) {
	requests, used := countRequests(input)
	text := responseNow()
	for range requests {
		buf = append(buf, text...)
	}
	return buf, used
}
