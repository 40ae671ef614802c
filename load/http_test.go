package load

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"
)

// answering serves HTTP requests without a body: answer gives the answer to
// each, numbered over the connection, "" to end the connection.
func answering(t *testing.T, answer func(conn net.Conn, n int) string) *testServer {
	return serve(t, func(c net.Conn) {
		in := bufio.NewReader(c)
		for n := 0; ; n++ {
			if _, err := http.ReadRequest(in); err != nil {
				return
			}
			text := answer(c, n)
			if _, err := io.WriteString(c, text); err != nil || text == "" {
				return
			}
		}
	})
}

// hello is an answer with a date.
func hello(date time.Time) string {
	return "HTTP/1.1 200 OK\r\nDate: " + date.UTC().Format(http.TimeFormat) + "\r\nContent-Length: 5\r\n\r\nhello"
}

// TestHTTP has a server whose answers differ in their date alone.
func TestHTTP(t *testing.T) {
	t.Parallel()
	eachModel(t, func(t *testing.T, model string) {
		epoch := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
		s := answering(t, func(_ net.Conn, n int) string { return hello(epoch.Add(time.Duration(n) * 1e6 * time.Second)) })
		r := check(t, Config{Target: s.addr(), Model: model, HTTP: true, Connections: 10, Pipeline: 16, Messages: 100})
		if err := r.Err(); err != nil {
			t.Error(err)
		}
		want := int64(1000 * len(hello(epoch)))
		if r.Answered != 1000 || r.BytesReceived != want || s.accepted() != 11 {
			t.Errorf("%d answers of %d bytes, want %d bytes; server saw %d connections", r.Answered, r.BytesReceived, want, s.accepted())
		}
	})
}

// TestHTTPMistakes changes one byte of an answer's status, head and content.
func TestHTTPMistakes(t *testing.T) {
	t.Parallel()
	good := hello(time.Unix(0, 0))
	for _, byte := range []int{9, strings.Index(good, "Date"), strings.Index(good, "GMT") + 3, len(good) - 1} {
		s := answering(t, func(_ net.Conn, n int) string {
			if n < 2 {
				return good
			}
			return good[:byte] + "?" + good[byte+1:]
		})
		r := check(t, Config{Target: s.addr(), HTTP: true, Connections: 1, Messages: 5})
		if r.Mismatched != 1 || r.FirstMismatch.Message != 2 || r.FirstMismatch.Byte != byte {
			t.Errorf("byte %d: got %+v, first %v", byte, r, r.FirstMismatch)
		}
	}
}

// TestHTTPRefused has servers whose answers can't be learned.
func TestHTTPRefused(t *testing.T) {
	t.Parallel()
	long := fmt.Sprint("HTTP/1.1 200 OK\r\nContent-Length: ", MaxMessage+1, "\r\n\r\n")
	for want, answer := range map[string]string{
		"status 404":                "HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n",
		"without Content-Length":    "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
		"closes the connection":     "HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 0\r\n\r\n",
		"2 bytes behind the answer": "HTTP/1.1 200 OK\r\nContent-Length: 1\r\n\r\nabc",
		"malformed":                 "hello\r\n\r\n",
		"at most 1048576":           long,
		"unexpected EOF":            "",
	} {
		s := answering(t, func(net.Conn, int) string { return answer })
		r, err := Run(t.Context(), Config{Target: s.addr(), HTTP: true, Connections: 1, Messages: 1})
		if r != nil || err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%.60q: got %+v, %v, want an error with %q", answer, r, err, want)
		}
	}
	if _, err := Run(t.Context(), Config{Target: refusing(t), HTTP: true}); err == nil || !strings.Contains(err.Error(), "refused") {
		t.Errorf("no server: got %v", err)
	}
}

// TestHTTPSilent gives up a server that does not answer, after a time or when
// the context ends.
func TestHTTPSilent(t *testing.T) {
	t.Parallel()
	cfg := Config{Target: serve(t, silent).addr(), HTTP: true, ConnectTimeout: 20 * time.Millisecond}
	_, err := Run(t.Context(), cfg)
	// On a busy machine it is over as soon as it connects, and package net says that.
	if over, ok := errors.AsType[net.Error](err); !ok || !over.Timeout() {
		t.Errorf("got %v, want that the time is over", err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	s := answering(t, func(c net.Conn, _ int) string {
		cancel()
		_, _ = io.Copy(io.Discard, c)
		return ""
	})
	if _, err := Run(ctx, Config{Target: s.addr(), HTTP: true}); err == nil || !strings.Contains(err.Error(), "context canceled") {
		t.Errorf("got %v, want that the context has ended", err)
	}
}
