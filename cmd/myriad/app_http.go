package main

import (
	"bufio"
	"bytes"
	"net/http"
	"sync/atomic"
	"time"

	"github.com/myriad-go/myriad"
)

// maxHead is the most bytes of a request's head, its end included.
const maxHead = 8 << 10

// httpHello answers every HTTP/1.1 GET request without a body, pipelined or not, with
// the same text. Connections stay open as HTTP/1.1 says; any other request is answered
// with 400 and ends its connection.
type httpHello struct {
	myriad.Base
	answers atomic.Pointer[answers]
	last    atomic.Pointer[parsedHead] // clients repeat their requests
}

// parsedHead is a head and what to do with it.
type parsedHead struct {
	text    []byte
	verdict verdict
}

// verdict is what to do with a request.
type verdict uint8

const (
	incomplete verdict = iota // wait for more
	served                    // answer, and stay open
	servedKept                // the same, and say so: HTTP/1.0
	servedLast                // answer, and close
	refused                   // answer with an error, and close

	verdicts = iota
)

// Received answers the requests that are complete.
func (h *httpHello) Received(c *myriad.Conn, in []byte) (used int) {
	a := h.current(time.Now())
	for used < len(in) && !c.Paused() {
		n, verdict := h.parse(in[used:])
		if verdict == incomplete {
			return used + n
		}
		used += n
		// An error says that the connection is closing.
		_, _ = c.Write(a.text[verdict])
		if verdict >= servedLast {
			c.Close()
			return len(in)
		}
	}
	return used
}

// parse looks at the first request. It says how many bytes are used up, with empty
// lines before the request, and what to do.
func (h *httpHello) parse(in []byte) (n int, v verdict) {
	for bytes.HasPrefix(in[n:], []byte("\r\n")) {
		n += 2
	}
	head := in[n:min(len(in), n+maxHead)]
	end := bytes.Index(head, []byte("\r\n\r\n"))
	switch {
	case end < 0 && (len(head) == maxHead || !beginsRequest(head)):
		return n, refused
	case end < 0:
		return n, incomplete
	}
	head = head[:end+4]
	last := h.last.Load()
	if last == nil || !bytes.Equal(last.text, head) {
		last = &parsedHead{bytes.Clone(head), judge(head)}
		h.last.Store(last)
	}
	return n + len(head), last.verdict
}

// beginsRequest says whether a request can begin so: who speaks another protocol hears of
// it at once.
func beginsRequest(head []byte) bool {
	line, _, complete := bytes.Cut(head, []byte("\n"))
	if complete {
		return bytes.Contains(line, []byte(" HTTP/")) && bytes.HasSuffix(line, []byte("\r")) && !bytes.Contains(head, []byte("\n\n"))
	}
	return len(line) == 0 || line[0] >= 'A' && line[0] <= 'Z' || line[0] >= 'a' && line[0] <= 'z' || line[0] == '\r'
}

// judge says what to do with a request whose head is complete.
func judge(head []byte) verdict {
	if !beginsRequest(head) {
		return refused
	}
	r, err := http.ReadRequest(bufio.NewReader(bytes.NewReader(head)))
	switch {
	case err != nil, r.ProtoMajor != 1, r.Method != http.MethodGet, r.ContentLength != 0, r.Host == "" && r.ProtoAtLeast(1, 1):
		return refused
	case r.Close:
		return servedLast
	case !r.ProtoAtLeast(1, 1):
		return servedKept
	}
	return served
}

// answers are what is sent for each verdict, in one second.
type answers struct {
	second int64
	text   [verdicts][]byte
}

// current is the answers of this second. They are made once a second; where two
// loops make them at once, both are right.
func (h *httpHello) current(now time.Time) *answers {
	second := now.Unix()
	a := h.answers.Load()
	if a == nil || a.second != second {
		date := "Date: " + now.UTC().Format(http.TimeFormat) + "\r\n"
		hello := func(connection string) []byte {
			return []byte("HTTP/1.1 200 OK\r\n" + date + "Content-Type: text/plain\r\nContent-Length: 13\r\n" + connection + "\r\nHello, World!")
		}
		a = &answers{second, [verdicts][]byte{
			served:     hello(""),
			servedKept: hello("Connection: keep-alive\r\n"),
			servedLast: hello("Connection: close\r\n"),
			refused:    []byte("HTTP/1.1 400 Bad Request\r\n" + date + "Content-Length: 0\r\nConnection: close\r\n\r\n"),
		}}
		h.answers.Store(a)
	}
	return a
}
