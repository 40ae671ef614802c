// Command waiting serves a limited number of clients. Further ones are not rejected: they wait in the
// kernel's accept queue until another one leaves.
package main

import (
	"context"
	"flag"
	"fmt"
	"log"
	"net"
	"os/signal"
	"sync"
	"syscall"

	"github.com/myriad-go/myriad/tcp"
)

// connLimit stops accepting while max connections are open.
type connLimit struct {
	srv  *tcp.Server
	max  int
	mu   sync.Mutex // keeps pausing and resuming in order
	open int
}

func (l *connLimit) Opened(*tcp.Conn)        { l.updateOpenCount(+1) }
func (l *connLimit) Closed(*tcp.Conn, error) { l.updateOpenCount(-1) }

func (l *connLimit) Message(c *tcp.Conn, line []byte) { fmt.Fprintf(c, "%s\n", line) }

func (l *connLimit) updateOpenCount(delta int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	switch l.open += delta; {
	case delta > 0 && l.open == l.max:
		_ = l.srv.PauseAccepting() // fails when the server stops
	case delta < 0 && l.open == l.max-1:
		_ = l.srv.ResumeAccepting()
	}
}

func main() {
	addr := flag.String("addr", "127.0.0.1:9000", "address to listen on")
	maxOpen := flag.Int("max", 10_000, "maximum number of clients at a time")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	context.AfterFunc(ctx, stop) // a second Ctrl-C ends the process at once
	srv := &tcp.Server{
		Addr: *addr,
		// A single loop calls Opened before it accepts the next connection, so the limit is exact.
		Model: tcp.Epoll, Loops: 1,
		Listening: func(a net.Addr) { fmt.Println("listening on", a) },
	}
	srv.Handler = tcp.Lines(&connLimit{srv: srv, max: *maxOpen})
	if err := srv.ListenAndServe(ctx); err != nil {
		log.Fatal(err)
	}
}
