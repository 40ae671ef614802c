// Command ratelimit echoes lines. A client may send 10 lines and 64 KiB per second, and 100 lines once it has logged
// in. A faster client is not closed: its sends wait.
package main

import (
	"context"
	"flag"
	"fmt"
	"log"
	"net"
	"os/signal"
	"syscall"

	"github.com/myriad-go/myriad/tcp"
)

func main() {
	addr := flag.String("addr", "127.0.0.1:9000", "address to listen on")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	context.AfterFunc(ctx, stop) // a second Ctrl-C ends the process at once
	srv := &tcp.Server{
		Addr: *addr, Listening: func(a net.Addr) { fmt.Println("listening on", a) },
		Handler: tcp.Lines(tcp.MessageFunc(func(c *tcp.Conn, line []byte) {
			if string(line) == "login" { // a real server would check a password
				c.SetReadRate(1<<20, 100)
			}
			fmt.Fprintf(c, "%s\n", line)
		})),
		Limits: tcp.Limits{ReadRate: 64 << 10, MessageRate: 10},
	}
	if err := srv.ListenAndServe(ctx); err != nil {
		log.Fatal(err)
	}
}
