package main

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"strconv"

	"github.com/lesismal/llib/std/crypto/tls"
	"github.com/lesismal/nbio"
	nbiotls "github.com/lesismal/nbio/extension/tls"
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

// serveNbioTLS echoes with nbio's TLS, which decrypts on its pollers.
func serveNbioTLS(certFile, keyFile string) (serveFunc, error) {
	cert, err := tls.LoadX509KeyPair(certFile, keyFile)
	if err != nil {
		return nil, fmt.Errorf("--tls-cert and --tls-key: %w", err)
	}
	cfg := &tls.Config{Certificates: []tls.Certificate{cert}}
	return func(ctx context.Context, ln net.Listener, ready func()) error {
		engine := nbio.NewEngine(nbio.Config{Network: "tcp", Addrs: []string{ln.Addr().String()}, Listen: listenFuncFor(ln)})
		engine.OnOpen(nbiotls.WrapOpen(cfg, false, nil))
		engine.OnClose(nbiotls.WrapClose(func(_ *nbio.Conn, c *nbiotls.Conn, _ error) { c.Close() }))
		engine.OnData(nbiotls.WrapData(func(c *nbio.Conn, encrypted *nbiotls.Conn, in []byte) {
			if _, err := encrypted.Write(in); err != nil {
				c.Close()
			}
		}, func() []byte { return make([]byte, 16<<10) }))
		return runNbio(ctx, ready, engine)
	}, nil
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
