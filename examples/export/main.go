// Command export sends the requested number of rows, as fast as the client reads: a goroutine for each
// export waits for space.
package main

import (
	"context"
	"flag"
	"fmt"
	"log"
	"net"
	"os/signal"
	"strconv"
	"sync"
	"syscall"

	"github.com/myriad-go/myriad/tcp"
)

// exports runs exports. slots limits how many run at a time.
type exports struct {
	slots   chan struct{}
	running sync.WaitGroup
}

func (e *exports) Opened(*tcp.Conn)        {}
func (e *exports) Closed(*tcp.Conn, error) {}

func (e *exports) Message(c *tcp.Conn, line []byte) {
	n, err := strconv.Atoi(string(line))
	select {
	case e.slots <- struct{}{}:
	default:
		c.WriteString("busy\n")
		return
	}
	ref := c.Ref()
	c.Retain() // until all rows have been sent
	e.running.Go(func() {
		defer func() { ref.Release(); <-e.slots }()
		for row := 0; row < n && err == nil; row++ {
			err = ref.SendWait(context.Background(), fmt.Appendf(nil, "row %d\n", row))
		} // SendWait fails when the client has disconnected
	})
}

func main() {
	addr := flag.String("addr", "127.0.0.1:9000", "address to listen on")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	context.AfterFunc(ctx, stop) // a second Ctrl-C ends the process at once
	e := &exports{slots: make(chan struct{}, 1000)}
	srv := &tcp.Server{Addr: *addr, Handler: tcp.Lines(e), Listening: func(a net.Addr) { fmt.Println("listening on", a) }}
	err := srv.ListenAndServe(ctx)
	e.running.Wait()
	if err != nil {
		log.Fatal(err)
	}
}
