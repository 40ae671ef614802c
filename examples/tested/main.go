// Command tested counts the lines of each client. Its test needs no network and no waiting.
package main

import (
	"context"
	"fmt"
	"log"
	"os/signal"
	"syscall"
	"time"

	"github.com/myriad-go/myriad/tcp"
)

type counter struct{}

func (counter) Opened(c *tcp.Conn)      { c.SetValue(0) }
func (counter) Closed(*tcp.Conn, error) {}
func (counter) Draining(c *tcp.Conn)    { c.WriteString("bye\n") }
func (counter) Message(c *tcp.Conn, line []byte) {
	n := c.Value().(int) + 1
	c.SetValue(n)
	fmt.Fprintf(c, "%d: %s\n", n, line)
}

func newServer() *tcp.Server {
	return &tcp.Server{
		Addr:    "127.0.0.1:9000",
		Handler: tcp.Lines(counter{}),
		Limits:  tcp.Limits{IdleTimeout: time.Hour},
	}
}

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	context.AfterFunc(ctx, stop) // a second Ctrl-C ends the process at once
	if err := newServer().ListenAndServe(ctx); err != nil {
		log.Fatal(err)
	}
}
