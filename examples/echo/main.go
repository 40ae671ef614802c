// Command echo sends back every line. Try it with: nc 127.0.0.1 9000
package main

import (
	"context"
	"log"
	"os"
	"os/signal"

	"github.com/myriad-go/myriad"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	echo := myriad.MessageFunc(func(c *myriad.Conn, line []byte) {
		c.Write(line)
		c.WriteString("\n")
	})
	srv := &myriad.Server{Addr: "127.0.0.1:9000", Handler: myriad.Lines(echo)}
	if err := srv.ListenAndServe(ctx); err != nil {
		log.Fatal(err)
	}
}
