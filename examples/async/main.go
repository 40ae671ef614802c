// Command async answers from goroutines: the handler hands the work over and returns, and the
// answer is sent when it is there.
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

// lookup answers names, as many at a time as room has places.
type lookup struct {
	room chan struct{}
	wait sync.WaitGroup
}

func (l *lookup) Opened(*tcp.Conn)        {}
func (l *lookup) Closed(*tcp.Conn, error) {}

func (l *lookup) Message(c *tcp.Conn, line []byte) {
	select {
	case l.room <- struct{}{}:
	default:
		c.WriteString("busy\n")
		return
	}
	ref, name := c.Ref(), string(line) // c and line are valid during the call only
	c.Retain()                         // an answer is to come: no drain, no half-close ends it before
	l.wait.Go(func() {
		defer func() { ref.Release(); <-l.room }()
		time.Sleep(10 * time.Millisecond) // a database, another server
		_ = ref.Send([]byte(strings.ToUpper(name) + "\n"))
		// An error says that nobody waits any more: the client has gone, or does not read.
	})
}

func main() {
	addr := flag.String("addr", "127.0.0.1:9000", "address to listen on")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	l := &lookup{room: make(chan struct{}, 1000)}
	srv := &tcp.Server{Addr: *addr, Handler: tcp.Lines(l), Listening: func(a net.Addr) { fmt.Println("listening on", a) }}
	err := srv.ListenAndServe(ctx)
	l.wait.Wait()
	if err != nil {
		log.Fatal(err)
	}
}
