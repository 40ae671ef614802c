// Command login has a deadline and a timer for each connection: who does not give a name in
// time is closed, and who is there is asked to say something now and then.
package main

import (
	"context"
	"flag"
	"fmt"
	"log"
	"net"
	"os/signal"
	"syscall"
	"time"

	"github.com/myriad-go/myriad/tcp"
)

type guests struct {
	within, every time.Duration
}

func (g guests) Opened(c *tcp.Conn) {
	c.SetDeadline(g.within) // for the name
	c.WriteString("name?\n")
}

func (g guests) Message(c *tcp.Conn, line []byte) {
	if c.Value() == nil {
		c.SetValue(string(line))
		c.SetDeadline(0)
	}
	fmt.Fprintf(c, "%s: %s\n", c.Value(), line)
	c.SetTimer(g.every) // from the last line on
}

// Timer is called when the timer of a connection has run out.
func (g guests) Timer(c *tcp.Conn) {
	fmt.Fprintf(c, "still there, %s?\n", c.Value())
	c.SetTimer(g.every)
}

func (g guests) Closed(c *tcp.Conn, why error) { log.Print(c.RemoteAddr(), ": ", why) }

func main() {
	addr := flag.String("addr", "127.0.0.1:9000", "address to listen on")
	within := flag.Duration("within", 10*time.Second, "time to give a name")
	every := flag.Duration("every", time.Minute, "time between two questions")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	srv := &tcp.Server{Addr: *addr, Handler: tcp.Lines(guests{*within, *every}),
		Listening: func(a net.Addr) { fmt.Println("listening on", a) }}
	if err := srv.ListenAndServe(ctx); err != nil {
		log.Fatal(err)
	}
}
