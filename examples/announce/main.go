// Command announce sends messages to all clients, and more to those that have asked for details.
package main

import (
	"context"
	"flag"
	"fmt"
	"log"
	"net"
	"os/signal"
	"sync"
	"syscall"
	"time"

	"github.com/myriad-go/myriad/tcp"
)

func main() {
	addr := flag.String("addr", "127.0.0.1:9000", "address to listen on")
	every := flag.Duration("every", time.Second, "interval between messages")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	context.AfterFunc(ctx, stop) // a second Ctrl-C ends the process at once

	var details tcp.Group // closed connections are removed automatically
	srv := &tcp.Server{
		Addr: *addr,
		Handler: tcp.Lines(tcp.MessageFunc(func(c *tcp.Conn, line []byte) {
			if string(line) == "details" {
				details.Add(c.Ref())
			}
		})),
		Limits: tcp.Limits{
			FirstByteTimeout: tcp.Never, // clients may only listen
			MaxUnsent:        64 << 10,  // limit for a client that reads slowly
		},
		SlowConsumer: tcp.DropMessage, // beyond the limit a client misses messages
		Listening:    func(a net.Addr) { fmt.Println("listening on", a) },
	}
	var wait sync.WaitGroup
	wait.Go(func() {
		for n := 1; ; n++ {
			select {
			case <-time.After(*every):
				if _, err := srv.Broadcast(tcp.Broadcast{All: true, Message: fmt.Appendf(nil, "news %d\n", n)}); err != nil {
					log.Print(err) // ErrFull: too many broadcasts are queued; this one is dropped
				}
				details.Broadcast(fmt.Appendf(nil, "details of %d\n", n))
			case <-ctx.Done():
				return
			}
		}
	})
	err := srv.ListenAndServe(ctx)
	stop()
	wait.Wait()
	if err != nil {
		log.Fatal(err)
	}
}
