// Grpc serves gRPC on a NetListener. An idle connection keeps no read buffer, as on package net:
// grpc-go looks for the method ReadOnReady, which conn has, and otherwise keeps 32 KiB for each.
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

// listener gives grpc.Server connections that it need not keep a buffer for.
type listener struct{ *tcp.NetListener }

func (l listener) Accept() (net.Conn, error) {
	nc, err := l.NetListener.Accept()
	if err != nil {
		return nil, err
	}
	return conn{nc.(*tcp.NetConn)}, nil
}

// conn is a connection with the method that grpc-go looks for.
type conn struct{ *tcp.NetConn }

// ReadOnReady waits for input, and takes a buffer only then.
func (c conn) ReadOnReady(size int, pool mem.BufferPool) (buf *[]byte, n int, err error) {
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

// serve serves g until ctx ends: calls under way are finished, within Limits.ShutdownTimeout.
func serve(ctx context.Context, srv *tcp.Server, g *grpc.Server) error {
	l := tcp.NewNetListener()
	srv.Handler = l
	srv.Stopping = func() { go g.GracefulStop() }
	go g.Serve(listener{l}) // until srv closes l
	defer g.Stop()
	return srv.ListenAndServe(ctx)
}

func main() {
	addr := flag.String("addr", "127.0.0.1:9000", "listen at this `ADDRESS`")
	model := flag.String("model", tcp.Auto, "I/O `MODEL`")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	g := grpc.NewServer()
	grpc_health_v1.RegisterHealthServer(g, health.NewServer())
	srv := &tcp.Server{Addr: *addr, Model: *model,
		Listening: func(a net.Addr) { fmt.Println("gRPC on", a) }}
	if err := serve(ctx, srv, g); err != nil {
		log.Fatal(err)
	}
}
