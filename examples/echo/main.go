// Command echo sends back each line. Try it with: nc 127.0.0.1 9000
package main

import (
	"context"
	"log"
	"os"
	"os/signal"

	"github.com/myriad-go/myriad/tcp"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	context.AfterFunc(ctx, stop) // a second Ctrl-C ends the process at once
	echo := tcp.MessageFunc(func(c *tcp.Conn, line []byte) {
		c.Write(line)
		c.WriteString("\n")
	})
	srv := &tcp.Server{Addr: "127.0.0.1:9000", Handler: tcp.Lines(echo)}
	if err := srv.ListenAndServe(ctx); err != nil {
		log.Fatal(err)
	}
}
