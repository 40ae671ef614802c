// Command proxy passes each connection on to another address, with backpressure and
// half-close both ways. Try it with examples/echo, and nc 127.0.0.1 9100
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
)

// client is the side of those who connect.
type client struct {
	tcp.Base
	to string
}

func (h client) Opened(c *tcp.Conn) {
	c.Pause() // until there is somebody to pass it on to
	if err := c.Dial(tcp.Dial{Addr: h.to, Handler: target{client: c.Ref()}}); err != nil {
		c.CloseWith(err)
	}
}

// target is the other side. When it is open, the two are joined.
type target struct {
	tcp.Base
	client tcp.Ref
}

func (h target) Opened(c *tcp.Conn) {
	if err := c.Relay(h.client); err != nil { // the client has gone
		c.CloseWith(err)
	}
}

func (h target) DialFailed(d tcp.Dial, err error) {
	log.Printf("dial %s: %v", d.Addr, err)
	h.client.Close()
}

func main() {
	addr := flag.String("addr", "127.0.0.1:9100", "listen at this `ADDRESS`")
	to := flag.String("to", "127.0.0.1:9000", "pass connections on to this `ADDRESS`")
	model := flag.String("model", tcp.Auto, "I/O `MODEL`")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	srv := &tcp.Server{Addr: *addr, Handler: client{to: *to}, Model: *model,
		Listening: func(a net.Addr) { fmt.Println("proxy on", a) }}
	if err := srv.ListenAndServe(ctx); err != nil {
		log.Fatal(err)
	}
}
