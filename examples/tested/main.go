// Command tested counts the lines of each client. Its test needs no network, and no time.
package main

import (
	"context"
	"fmt"
	"log"
	"os/signal"
	"syscall"
	"time"

	"github.com/myriad-go/myriad"
)

type counter struct{}

func (counter) Opened(c *myriad.Conn)      { c.SetValue(0) }
func (counter) Closed(*myriad.Conn, error) {}
func (counter) Draining(c *myriad.Conn)    { c.WriteString("bye\n") }
func (counter) Message(c *myriad.Conn, line []byte) {
	n := c.Value().(int) + 1
	c.SetValue(n)
	fmt.Fprintf(c, "%d: %s\n", n, line)
}

func newServer() *myriad.Server {
	return &myriad.Server{
		Addr:    "127.0.0.1:9000",
		Handler: myriad.Lines(counter{}),
		Limits:  myriad.Limits{IdleTimeout: time.Hour},
	}
}

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	if err := newServer().ListenAndServe(ctx); err != nil {
		log.Fatal(err)
	}
}
