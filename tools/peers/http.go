package main

import (
	"bytes"
	"context"
	"errors"
	"net"
	"net/http"
	"sync/atomic"
	"time"

	"github.com/valyala/fasthttp"
)

const hello = "Hello, World!"

// shutdownTimeout limits the shutdown of a server.
const shutdownTimeout = 2 * time.Second

// serveFastHTTP serves HTTP with fasthttp, without features that a plain text response does not need.
func serveFastHTTP(ctx context.Context, ln net.Listener, ready func()) error {
	ready()
	srv := &fasthttp.Server{
		Handler: func(ctx *fasthttp.RequestCtx) {
			ctx.SetContentType("text/plain")
			ctx.SetBodyString(hello)
		},
		GetOnly:                       true,
		NoDefaultServerHeader:         true,
		DisableHeaderNamesNormalizing: true,
		CloseOnShutdown:               true,
	}
	return serveUntilDone(ctx, func() error { return srv.Serve(ln) }, func() error {
		bound, cancel := context.WithTimeout(context.Background(), shutdownTimeout)
		defer cancel()
		return srv.ShutdownWithContext(bound)
	})
}

// serveUntilDone serves until ctx ends, which is not an error, or serve fails, and then calls closeAll. A
// server that misses the close, because it was just starting, is abandoned after shutdownTimeout.
func serveUntilDone(ctx context.Context, serve, closeAll func() error) error {
	served := make(chan error, 1)
	go func() { served <- serve() }()
	select {
	case err := <-served:
		return errors.Join(err, closeAll())
	case <-ctx.Done():
	}
	err := closeAll()
	select {
	case <-served:
	case <-time.After(shutdownTimeout):
		err = errors.Join(err, errors.New("the server did not stop when it was closed"))
	}
	return err
}

// cachedResponse is the response to all requests within a second.
type cachedResponse struct {
	second int64
	text   []byte
}

var currentResponse atomic.Pointer[cachedResponse]

func responseNow() []byte {
	now := time.Now()
	a := currentResponse.Load()
	if a == nil || a.second != now.Unix() {
		a = &cachedResponse{now.Unix(), []byte("HTTP/1.1 200 OK\r\nDate: " + now.UTC().Format(http.TimeFormat) +
			"\r\nContent-Type: text/plain\r\nContent-Length: 13\r\n\r\n" + hello)}
		currentResponse.Store(a)
	}
	return a.text
}

var headEnd = []byte("\r\n\r\n")

// countRequests returns the number of complete requests in the input and their length. It ignores their
// content.
func countRequests(input []byte) (requests, used int) {
	for {
		i := bytes.Index(input[used:], headEnd)
		if i < 0 {
			return requests, used
		}
		used += i + len(headEnd)
		requests++
	}
}
