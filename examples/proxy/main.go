// Command proxy forwards each connection to another address, with backpressure and half-close in both
// directions. Try it with examples/echo and: nc 127.0.0.1 9100
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

// clientHandler handles the connections of clients.
type clientHandler struct {
	tcp.Base
	targetAddr string
}

func (h clientHandler) Opened(c *tcp.Conn) {
	c.Pause() // until the target is connected
	if err := c.Dial(tcp.Dial{Addr: h.targetAddr, Handler: targetHandler{client: c.Ref()}}); err != nil {
		c.CloseWith(err)
	}
}

// targetHandler handles the connections to the target. It relays each to its client.
type targetHandler struct {
	tcp.Base
	client tcp.Ref
}

func (h targetHandler) Opened(c *tcp.Conn) {
	if err := c.Relay(h.client); err != nil { // the client has disconnected
		c.CloseWith(err)
	}
}

func (h targetHandler) DialFailed(d tcp.Dial, err error) {
	log.Printf("dial %s: %v", d.Addr, err)
	h.client.Close()
}

func main() {
	addr := flag.String("addr", "127.0.0.1:9100", "`ADDRESS` to listen on")
	to := flag.String("to", "127.0.0.1:9000", "`ADDRESS` to forward connections to")
	model := flag.String("model", tcp.Auto, "I/O `MODEL`")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	context.AfterFunc(ctx, stop) // a second Ctrl-C ends the process at once
	srv := &tcp.Server{Addr: *addr, Handler: clientHandler{targetAddr: *to}, Model: *model,
		Listening: func(a net.Addr) { fmt.Println("proxy on", a) }}
	if err := srv.ListenAndServe(ctx); err != nil {
		log.Fatal(err)
	}
}
