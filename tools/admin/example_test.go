package admin_test

import (
	"context"
	"log"

	"github.com/myriad-go/myriad/tcp"
	"github.com/myriad-go/myriad/tools/admin"
)

// A live page, metrics, health checks and profiles of a server, on loopback.
func ExampleServe() {
	echo := tcp.MessageFunc(func(c *tcp.Conn, line []byte) { c.Write(append(line[:len(line):len(line)], '\n')) })
	srv := &tcp.Server{Addr: ":9000", Handler: tcp.Lines(echo)}
	ctx, stop := context.WithCancel(context.Background())
	page := make(chan error, 1)
	go func() { page <- admin.Serve(ctx, ":9090", admin.Config{Source: srv}, nil) }()
	if err := srv.ListenAndServe(ctx); err != nil {
		log.Print(err)
	}
	stop()
	if err := <-page; err != nil {
		log.Print(err)
	}
}
