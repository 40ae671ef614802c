// Command login uses a deadline and a timer for each connection: it closes clients that do not send a name
// in time, and regularly prompts silent ones.
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

type loginHandler struct {
	loginTimeout, promptInterval time.Duration
}

func (g loginHandler) Opened(c *tcp.Conn) {
	c.SetDeadline(g.loginTimeout) // for the name
	c.WriteString("name?\n")
}

func (g loginHandler) Message(c *tcp.Conn, line []byte) {
	if c.Value() == nil {
		c.SetValue(string(line))
		c.SetDeadline(0)
	}
	fmt.Fprintf(c, "%s: %s\n", c.Value(), line)
	c.SetTimer(g.promptInterval) // restarts the timer
}

// Timer is called when a connection's timer expires.
func (g loginHandler) Timer(c *tcp.Conn) {
	fmt.Fprintf(c, "still there, %s?\n", c.Value())
	c.SetTimer(g.promptInterval)
}

func (g loginHandler) Closed(c *tcp.Conn, err error) { log.Print(c.RemoteAddr(), ": ", err) }

func main() {
	addr := flag.String("addr", "127.0.0.1:9000", "address to listen on")
	within := flag.Duration("within", 10*time.Second, "time limit for the name")
	every := flag.Duration("every", time.Minute, "prompt after this time without a line")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	context.AfterFunc(ctx, stop) // a second Ctrl-C ends the process at once
	srv := &tcp.Server{Addr: *addr, Handler: tcp.Lines(loginHandler{*within, *every}),
		Listening: func(a net.Addr) { fmt.Println("listening on", a) }}
	if err := srv.ListenAndServe(ctx); err != nil {
		log.Fatal(err)
	}
}
