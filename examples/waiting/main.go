// Command waiting serves so many clients at a time. Further ones are not turned away: they wait
// in the kernel's queue until one leaves.
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

// limit stops accepting while max connections are open.
type limit struct {
	srv  *tcp.Server
	max  int
	mu   sync.Mutex // pausing and resuming happen in the order of the counts
	open int
}

func (l *limit) Opened(*tcp.Conn)        { l.count(+1) }
func (l *limit) Closed(*tcp.Conn, error) { l.count(-1) }

func (l *limit) Message(c *tcp.Conn, line []byte) { fmt.Fprintf(c, "%s\n", line) }

func (l *limit) count(n int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	switch l.open += n; {
	case n > 0 && l.open == l.max:
		_ = l.srv.PauseAccepting() // fails when the server ends
	case n < 0 && l.open == l.max-1:
		_ = l.srv.ResumeAccepting()
	}
}

func main() {
	addr := flag.String("addr", "127.0.0.1:9000", "address to listen on")
	most := flag.Int("max", 10_000, "serve as many clients at a time")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	srv := &tcp.Server{
		Addr: *addr,
		// One loop calls Opened before it accepts the next: the limit is exact.
		Model: tcp.Epoll, Loops: 1,
		Listening: func(a net.Addr) { fmt.Println("listening on", a) },
	}
	srv.Handler = tcp.Lines(&limit{srv: srv, max: *most})
	if err := srv.ListenAndServe(ctx); err != nil {
		log.Fatal(err)
	}
}
