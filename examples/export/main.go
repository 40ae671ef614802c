// Command export sends as many rows as a client asks for, as fast as that reads: a goroutine
// for each export waits for room.
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

// exports are under way, as many at a time as room has places.
type exports struct {
	room chan struct{}
	wait sync.WaitGroup
}

func (e *exports) Opened(*tcp.Conn)        {}
func (e *exports) Closed(*tcp.Conn, error) {}

func (e *exports) Message(c *tcp.Conn, line []byte) {
	n, err := strconv.Atoi(string(line))
	select {
	case e.room <- struct{}{}:
	default:
		c.WriteString("busy\n")
		return
	}
	ref := c.Ref()
	c.Retain() // until all rows have been sent
	e.wait.Go(func() {
		defer func() { ref.Release(); <-e.room }()
		for row := 0; row < n && err == nil; row++ {
			err = ref.SendWait(context.Background(), fmt.Appendf(nil, "row %d\n", row))
		} // it fails when the client has gone
	})
}

func main() {
	addr := flag.String("addr", "127.0.0.1:9000", "address to listen on")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	e := &exports{room: make(chan struct{}, 1000)}
	srv := &tcp.Server{Addr: *addr, Handler: tcp.Lines(e), Listening: func(a net.Addr) { fmt.Println("listening on", a) }}
	err := srv.ListenAndServe(ctx)
	e.wait.Wait()
	if err != nil {
		log.Fatal(err)
	}
}
