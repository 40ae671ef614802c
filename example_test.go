package myriad_test

import (
	"context"
	"log"
	"os/signal"
	"syscall"
	"time"

	"github.com/myriad-go/myriad"
	"github.com/myriad-go/myriad/pool"
)

// lookUp answers lines from a slow database.
type lookUp struct{}

func (lookUp) Opened(*myriad.Conn) {}

func (lookUp) Message(c *myriad.Conn, line []byte) {
	time.Sleep(20 * time.Millisecond)
	c.Write(line)
	c.WriteString("\n")
}

func (lookUp) Closed(*myriad.Conn, error) {}

// Shed answers what no worker has time for.
func (lookUp) Shed(c *myriad.Conn, _ []byte, _ error) { c.WriteString("busy\n") }

// Handlers that wait run on a pool. What it has no time for under overload is
// answered at once.
func ExampleServer_workers() {
	workers, err := pool.New(pool.Config{})
	if err != nil {
		log.Fatal(err)
	}
	defer workers.Close(context.Background()) // when the server has ended
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	srv := &myriad.Server{Addr: ":9000", Handler: myriad.Lines(lookUp{}), Workers: workers}
	if err := srv.ListenAndServe(ctx); err != nil {
		log.Print(err)
	}
}
