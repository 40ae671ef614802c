// Command announce pushes to everybody, and to those who have asked for more.
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
	every := flag.Duration("every", time.Second, "how often there is something to tell")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	var details tcp.Group // a connection that has closed leaves it by itself
	srv := &tcp.Server{
		Addr: *addr,
		Handler: tcp.Lines(tcp.MessageFunc(func(c *tcp.Conn, line []byte) {
			if string(line) == "details" {
				details.Add(c.Ref())
			}
		})),
		Limits: tcp.Limits{
			FirstByteTimeout: tcp.Never, // clients that only listen are welcome
			MaxUnsent:        64 << 10,  // how far behind one may be
		},
		SlowConsumer: tcp.DropMessage, // and who is further behind misses messages
		Listening:    func(a net.Addr) { fmt.Println("listening on", a) },
	}
	var wait sync.WaitGroup
	wait.Go(func() {
		for n := 1; ; n++ {
			select {
			case <-time.After(*every):
				if _, err := srv.Broadcast(tcp.Broadcast{All: true, Message: fmt.Appendf(nil, "news %d\n", n)}); err != nil {
					log.Print(err) // ErrFull: too many are under way; nobody gets this one
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
