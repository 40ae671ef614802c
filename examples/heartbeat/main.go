// Command heartbeat sends heartbeats to silent clients and closes those that do not answer. Any line is an
// answer.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"log"
	"net"
	"os/signal"
	"syscall"
	"time"

	"github.com/myriad-go/myriad/tcp"
)

type chatHandler struct{}

func (chatHandler) Opened(c *tcp.Conn) { c.SetValue(time.Now()) }

func (chatHandler) Message(c *tcp.Conn, line []byte) {
	if string(line) != "pong" {
		fmt.Fprintf(c, "you say %s\n", line)
	}
}

func (chatHandler) Closed(c *tcp.Conn, err error) {
	if errors.Is(err, tcp.ErrHeartbeatTimeout) {
		log.Printf("%v did not answer heartbeats; it was connected for %v", c.RemoteAddr(), time.Since(c.Value().(time.Time)))
	}
}

func main() {
	addr := flag.String("addr", "127.0.0.1:9000", "address to listen on")
	interval := flag.Duration("interval", 20*time.Second, "send a heartbeat after this time without input")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	context.AfterFunc(ctx, stop) // a second Ctrl-C ends the process at once
	srv := &tcp.Server{
		Addr:      *addr,
		Handler:   tcp.Lines(chatHandler{}),
		Heartbeat: tcp.Heartbeat{Interval: *interval, Message: []byte("ping\n"), MaxMissed: 2},
		Limits: tcp.Limits{
			FirstByteTimeout: 10 * time.Second, // until the first byte of a client
			MessageTimeout:   5 * time.Second,  // from a line's first byte to its last
			WriteTimeout:     15 * time.Second, // until a client reads what was sent
		},
		Listening: func(a net.Addr) { fmt.Println("listening on", a) },
	}
	if err := srv.ListenAndServe(ctx); err != nil {
		log.Fatal(err)
	}
}
