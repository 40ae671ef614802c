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

	"github.com/myriad-go/myriad"
)

type game struct{}

func (game) Opened(c *myriad.Conn) { c.SetValue(time.Now()) }

func (game) Message(c *myriad.Conn, line []byte) {
	if string(line) != "pong" {
		fmt.Fprintf(c, "you say %s\n", line)
	}
}

func (game) Closed(c *myriad.Conn, why error) {
	if errors.Is(why, myriad.ErrHeartbeatTimeout) {
		log.Printf("%v has gone without a word after %v", c.RemoteAddr(), time.Since(c.Value().(time.Time)))
	}
}

func main() {
	addr := flag.String("addr", "127.0.0.1:9000", "address to listen on")
	interval := flag.Duration("interval", 20*time.Second, "how long a client may be silent")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	srv := &myriad.Server{
		Addr:      *addr,
		Handler:   myriad.Lines(game{}),
		Heartbeat: myriad.Heartbeat{Interval: *interval, Message: []byte("ping\n"), MaxMissed: 2},
		Limits: myriad.Limits{
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
