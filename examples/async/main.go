// Command async answers from goroutines: the handler starts the work and returns, and the goroutine sends
// the answer later.
package main

import (
	"context"
	"flag"
	"fmt"
	"log"
	"net"
	"os/signal"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/myriad-go/myriad/tcp"
)

// lookup answers names. slots limits the lookups that run at a time.
type lookup struct {
	slots   chan struct{}
	running sync.WaitGroup
}

func (l *lookup) Opened(*tcp.Conn)        {}
func (l *lookup) Closed(*tcp.Conn, error) {}

func (l *lookup) Message(c *tcp.Conn, line []byte) {
	select {
	case l.slots <- struct{}{}:
	default:
		c.WriteString("busy\n")
		return
	}
	ref, name := c.Ref(), string(line) // c and line are valid only during the call
	c.Retain()                         // keeps the connection open until the answer is sent
	l.running.Go(func() {
		defer func() { ref.Release(); <-l.slots }()
		time.Sleep(10 * time.Millisecond) // for example a database query
		_ = ref.Send([]byte(strings.ToUpper(name) + "\n"))
		// An error means that the client has disconnected or does not read.
	})
}

func main() {
	addr := flag.String("addr", "127.0.0.1:9000", "address to listen on")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	context.AfterFunc(ctx, stop) // a second Ctrl-C ends the process at once
	l := &lookup{slots: make(chan struct{}, 1000)}
	srv := &tcp.Server{Addr: *addr, Handler: tcp.Lines(l), Listening: func(a net.Addr) { fmt.Println("listening on", a) }}
	err := srv.ListenAndServe(ctx)
	l.running.Wait()
	if err != nil {
		log.Fatal(err)
	}
}
