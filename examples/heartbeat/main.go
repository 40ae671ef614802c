// Command heartbeat asks silent clients whether they are there, and closes those that are not.
// A client answers with any line.
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

type game struct{}

func (game) Opened(c *tcp.Conn) { c.SetValue(time.Now()) }

func (game) Message(c *tcp.Conn, line []byte) {
	if string(line) != "pong" {
		fmt.Fprintf(c, "you say %s\n", line)
	}
}

func (game) Closed(c *tcp.Conn, why error) {
	if errors.Is(why, tcp.ErrHeartbeatTimeout) {
		log.Printf("%v has gone without a word after %v", c.RemoteAddr(), time.Since(c.Value().(time.Time)))
	}
}

func main() {
	addr := flag.String("addr", "127.0.0.1:9000", "address to listen on")
	interval := flag.Duration("interval", 20*time.Second, "how long a client may be silent")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	srv := &tcp.Server{
		Addr:      *addr,
		Handler:   tcp.Lines(game{}),
		Heartbeat: tcp.Heartbeat{Interval: *interval, Message: []byte("ping\n"), MaxMissed: 2},
		Limits: tcp.Limits{
			FirstByteTimeout: 10 * time.Second, // for the first word of a client
			MessageTimeout:   5 * time.Second,  // from a line's first byte to its last
			WriteTimeout:     15 * time.Second, // to take what is sent to it
		},
		Listening: func(a net.Addr) { fmt.Println("listening on", a) },
	}
	if err := srv.ListenAndServe(ctx); err != nil {
		log.Fatal(err)
	}
}
