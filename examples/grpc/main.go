// Command grpc serves gRPC on a NetListener. Idle connections keep no read buffer: grpc-go uses the method
// ReadOnReady of a connection, if there is one, and otherwise keeps a buffer of 32 KiB.
package main

import (
	"context"
	"flag"
	"fmt"
	"log"
	"net"
	"os"
	"os/signal"
	"syscall"

	"github.com/myriad-go/myriad/tcp"
	"google.golang.org/grpc"
	"google.golang.org/grpc/health"
	"google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/mem"
)

// readOnReadyListener accepts connections with the method ReadOnReady.
type readOnReadyListener struct{ *tcp.NetListener }

func (l readOnReadyListener) Accept() (net.Conn, error) {
	nc, err := l.NetListener.Accept()
	if err != nil {
		return nil, err
	}
	return readOnReadyConn{nc.(*tcp.NetConn)}, nil
}

// readOnReadyConn is a connection with the method that grpc-go looks for.
type readOnReadyConn struct{ *tcp.NetConn }

// ReadOnReady waits for input before it takes a buffer from the pool.
func (c readOnReadyConn) ReadOnReady(size int, pool mem.BufferPool) (buf *[]byte, n int, err error) {
	if err := c.WaitReadable(); err != nil {
		return nil, 0, err
	}
	buf = pool.Get(size)
	if n, err = c.Read(*buf); err != nil {
		pool.Put(buf)
		return nil, 0, err
	}
	return buf, n, nil
}

// serveUntilDone serves g until ctx ends, and then finishes active calls within Limits.ShutdownTimeout.
func serveUntilDone(ctx context.Context, srv *tcp.Server, g *grpc.Server) error {
	l := tcp.NewNetListener()
	srv.Handler = l
	srv.Stopping = func() { go g.GracefulStop() }
	go g.Serve(readOnReadyListener{l}) // until srv closes l
	defer g.Stop()
	return srv.ListenAndServe(ctx)
}

func main() {
	addr := flag.String("addr", "127.0.0.1:9000", "`ADDRESS` to listen on")
	model := flag.String("model", tcp.Auto, "I/O `MODEL`")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	context.AfterFunc(ctx, stop) // a second Ctrl-C ends the process at once
	g := grpc.NewServer()
	grpc_health_v1.RegisterHealthServer(g, health.NewServer())
	srv := &tcp.Server{Addr: *addr, Model: *model,
		Listening: func(a net.Addr) { fmt.Println("gRPC on", a) }}
	if err := serveUntilDone(ctx, srv, g); err != nil {
		log.Fatal(err)
	}
}
