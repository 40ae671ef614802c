package main

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/http"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/valyala/fasthttp"

	lab "github.com/myriad-go/myriad/tools/internal/lab/app"
)

const hello = "Hello, World!"

// shutdownTimeout limits the shutdown of a server.
const shutdownTimeout = 2 * time.Second

func replyFastHTTPHello(ctx *fasthttp.RequestCtx) {
	ctx.SetContentType("text/plain")
	ctx.SetBodyString(hello)
}

// serveFastHTTP serves the app http with fasthttp, without features that a plain text response does not need.
func serveFastHTTP(ctx context.Context, ln net.Listener, ready func()) error {
	return runFastHTTP(ctx, ln, ready, &fasthttp.Server{Handler: replyFastHTTPHello, GetOnly: true})
}

// serveFastHTTPWeb returns a server of the app web.
func serveFastHTTPWeb(s settings) (serveFunc, error) {
	var cfg tls.Config
	if s.cert != "" {
		cert, err := tls.LoadX509KeyPair(s.cert, s.key)
		if err != nil {
			return nil, fmt.Errorf("--tls-cert and --tls-key: %w", err)
		}
		cfg.Certificates = []tls.Certificate{cert}
	}
	files := (&fasthttp.FS{Root: s.files, PathRewrite: fasthttp.NewPathSlashesStripper(1)}).NewRequestHandler()
	handler := func(ctx *fasthttp.RequestCtx) {
		ctx.SetContentType("text/plain")
		switch path := string(ctx.Path()); {
		case path == "/":
			replyFastHTTPHello(ctx)
		case path == "/pipeline":
			ctx.SetBodyString("ok")
		case path == "/baseline11":
			n, _ := strconv.Atoi(string(ctx.PostBody()))
			ctx.SetBody(strconv.AppendInt(nil, int64(n+ctx.QueryArgs().GetUintOrZero("a")+ctx.QueryArgs().GetUintOrZero("b")), 10))
		case strings.HasPrefix(path, "/json/"):
			count, _ := strconv.Atoi(path[len("/json/"):])
			ctx.SetContentType("application/json")
			ctx.SetBody(lab.MarshalFirstItems(count, ctx.QueryArgs().GetUintOrZero("m")))
		case path == "/64k":
			ctx.SetBody(lab.Large)
		case path == "/upload":
			ctx.SetBody(strconv.AppendInt(nil, int64(len(ctx.PostBody())), 10))
		case path == "/wait":
			ctx.SetBody(lab.Wait2ms())
		case path == "/compute":
			ctx.SetBody(lab.ComputeEvery1000thCall())
		case strings.HasPrefix(path, "/static/"):
			files(ctx)
		default:
			ctx.SetStatusCode(fasthttp.StatusNotFound)
		}
	}
	return func(ctx context.Context, ln net.Listener, ready func()) error {
		if s.cert != "" {
			ln = tls.NewListener(ln, &cfg)
		}
		return runFastHTTP(ctx, ln, ready, &fasthttp.Server{Handler: handler})
	}, nil
}

func runFastHTTP(ctx context.Context, ln net.Listener, ready func(), srv *fasthttp.Server) error {
	ready()
	srv.NoDefaultServerHeader, srv.DisableHeaderNamesNormalizing, srv.CloseOnShutdown = true, true, true
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
		err = errors.Join(err, errors.New("the server did not stop after Close"))
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
