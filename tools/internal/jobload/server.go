package jobload

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"

	"github.com/myriad-go/myriad/pool"
	"github.com/myriad-go/myriad/tcp"
	"github.com/myriad-go/myriad/web"
)

// Kinds of HTTP servers that run a job for each request they receive.
const (
	managedServer = "server"         // Myriad with its overload manager
	plainServer   = "server-off"     // Myriad without it
	netHTTPServer = "server-nethttp" // package net/http
)

// maxAtOnce limits the concurrent jobs of the shape Limited.
const maxAtOnce = 100

// serveJobsOverHTTPUntilStdinEnds runs an HTTP server that does the work of one job for each request. It writes the
// server's address to the writer addrOut. It returns when ctx ends, or when standard input is closed because the parent
// process has ended.
func serveJobsOverHTTPUntilStdinEnds(ctx context.Context, p Plan, addrOut io.Writer) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	go func() {
		_, _ = io.Copy(io.Discard, os.Stdin) // any error is the end
		cancel()
	}()
	slots := make(chan struct{}, maxAtOnce)
	handler := http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		if p.Work == Limited {
			slots <- struct{}{}
			defer func() { <-slots }()
		}
		pickTaskForJob(p.Work, 0).allocateComputeAndWait(p.Iterations, false)
		_, _ = io.WriteString(w, "done") // an error ends the connection
	})
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	fmt.Fprintln(addrOut, l.Addr())
	if p.Pool == netHTTPServer {
		s := &http.Server{Handler: handler}
		context.AfterFunc(ctx, func() { s.Close() })
		if err := s.Serve(l); !errors.Is(err, http.ErrServerClosed) {
			return err
		}
		return nil
	}
	h := &web.HTTP{Handler: handler}
	if p.Work == Limited {
		workers, err := pool.New(pool.Config{Max: maxAtOnce, Queue: 1 << 20, FixedLimit: true, KeepQueued: true, FIFO: true})
		if err != nil {
			return err
		}
		defer workers.Close(context.Background())
		h.Pool = workers
	}
	s := &tcp.Server{Handler: h, Overload: tcp.Overload{Off: p.Pool == plainServer}}
	if err := s.Serve(ctx, l); !errors.Is(err, tcp.ErrServerClosed) {
		return err
	}
	return nil
}
