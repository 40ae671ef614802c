package main

import (
	"context"
	"io"
	"net"
	"net/http"
	"strconv"

	"github.com/lesismal/nbio"
	"github.com/lesismal/nbio/logging"
	"github.com/lesismal/nbio/nbhttp"
)

// serveNbio serves with nbio: its pollers read and call the handler. Unused input is kept in the connection's
// session.
func serveNbio(a replyFunc) serveFunc {
	return func(ctx context.Context, ln net.Listener, ready func()) error {
		engine := nbio.NewEngine(nbio.Config{Network: "tcp", Addrs: []string{ln.Addr().String()}, Listen: listenFuncFor(ln)})
		engine.OnData(func(c *nbio.Conn, in []byte) {
			left, _ := c.Session().([]byte)
			if len(left) > 0 {
				in = append(left, in...)
			}
			out, used := a(in, nil)
			if used > 0 {
				if _, err := c.Write(out); err != nil {
					c.Close()
					return
				}
			}
			switch rest := in[used:]; {
			case len(rest) > maxPending:
				c.Close()
			case len(left)+len(rest) > 0:
				c.SetSession(append([]byte(nil), rest...))
			}
		})
		return runNbio(ctx, ready, engine)
	}
}

// serveNbioHTTP serves HTTP with nbio's parser and a net/http handler.
func serveNbioHTTP(ctx context.Context, ln net.Listener, ready func()) error {
	return runNbio(ctx, ready, nbhttp.NewEngine(nbhttp.Config{
		Network: "tcp", Addrs: []string{ln.Addr().String()}, Listen: listenFuncFor(ln), ReadLimit: maxPending,
		Handler: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", "text/plain")
			w.Header().Set("Content-Length", strconv.Itoa(len(hello)))
			io.WriteString(w, hello)
		}),
	}))
}

func listenFuncFor(ln net.Listener) func(network, addr string) (net.Listener, error) {
	return func(_, _ string) (net.Listener, error) { return ln, nil }
}

func runNbio(ctx context.Context, ready func(), engine interface {
	Start() error
	Shutdown(context.Context) error
},
) error {
	logging.SetLevel(logging.LevelError)
	if err := engine.Start(); err != nil {
		return err
	}
	ready()
	<-ctx.Done()
	bound, cancel := context.WithTimeout(context.Background(), shutdownTimeout)
	defer cancel()
	return engine.Shutdown(bound)
}
