package main

import (
	"sync/atomic"
	"time"

	"github.com/myriad-go/myriad"
)

// httpHello answers every HTTP/1.1 GET request, pipelined or not, with the same
// text. Connections stay open as HTTP/1.1 says; a request that it can't serve
// is answered with an error and ends its connection.
type httpHello struct {
	myriad.Base
	answers atomic.Pointer[answers]
}

// Received answers the requests that are complete.
func (h *httpHello) Received(c *myriad.Conn, in []byte) (used int) {
	a := h.current(time.Now())
	for used < len(in) && !c.Paused() {
		n, verdict := parseRequest(in[used:])
		if verdict == incomplete {
			return used + n
		}
		used += n
		// An error says that the connection is closing.
		_, _ = c.Write(a.text[verdict])
		if verdict.closes() {
			c.Close()
			return len(in)
		}
	}
	return used
}

// current is the answers of this second. They are made once a second; where two
// loops make them at once, both are right.
func (h *httpHello) current(now time.Time) *answers {
	second := now.Unix()
	a := h.answers.Load()
	if a == nil || a.second != second {
		a = newAnswers(second)
		h.answers.Store(a)
	}
	return a
}

// answers are what is sent for each verdict, in one second.
type answers struct {
	second int64
	text   [verdicts][]byte
}

const (
	helloHead = "Content-Type: text/plain\r\nContent-Length: 13\r\n"
	helloText = "\r\nHello, World!"
	emptyHead = "Content-Length: 0\r\nConnection: close\r\n"
	noText    = "\r\n"
)

func newAnswers(second int64) *answers {
	const format = "Date: Mon, 02 Jan 2006 15:04:05 GMT\r\n"
	date := time.Unix(second, 0).UTC().Format(format)
	a := &answers{second: second}
	for v, t := range map[verdict]struct{ status, head, text string }{
		served:           {"200 OK", helloHead, helloText},
		servedLast:       {"200 OK", helloHead + "Connection: close\r\n", helloText},
		servedKept:       {"200 OK", helloHead + "Connection: keep-alive\r\n", helloText},
		badRequest:       {"400 Bad Request", emptyHead, noText},
		badMethod:        {"405 Method Not Allowed", "Allow: GET\r\n" + emptyHead, noText},
		headTooLarge:     {"431 Request Header Fields Too Large", emptyHead, noText},
		versionNotServed: {"505 HTTP Version Not Supported", emptyHead, noText},
	} {
		a.text[v] = []byte("HTTP/1.1 " + t.status + "\r\n" + date + t.head + t.text)
	}
	return a
}
