// Command requests answers requests that carry an id, each when it is done: a frame is its
// length, an id, and a text, the first two numbers of 4 bytes, big-endian. The length counts
// what comes after it.
package main

import (
	"context"
	"encoding/binary"
	"errors"
	"flag"
	"fmt"
	"log"
	"net"
	"os/signal"
	"syscall"
	"time"

	"github.com/myriad-go/myriad"
	"github.com/myriad-go/myriad/pool"
)

var errNoID = errors.New("a frame without an id")

func frame(id uint32, text string) []byte {
	b := binary.BigEndian.AppendUint32(nil, uint32(4+len(text)))
	return append(binary.BigEndian.AppendUint32(b, id), text...)
}

func main() {
	addr := flag.String("addr", "127.0.0.1:9000", "address to listen on")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	workers, err := pool.New(pool.Config{})
	if err != nil {
		log.Fatal(err)
	}
	answer := myriad.MessageFunc(func(c *myriad.Conn, msg []byte) {
		if len(msg) < 4 {
			c.CloseWith(errNoID)
			return
		}
		id, wait, ref := binary.BigEndian.Uint32(msg), string(msg[4:]), c.Ref()
		if err := workers.TrySubmit(func(context.Context) {
			d, _ := time.ParseDuration(wait) // the request: how long to work
			time.Sleep(d)
			_ = ref.Send(frame(id, "waited "+wait))
		}); err != nil {
			c.Write(frame(id, "busy"))
		}
	})
	split := myriad.LengthPrefixed(4, binary.BigEndian)
	srv := &myriad.Server{Addr: *addr, Handler: myriad.Split(split, answer), Listening: func(a net.Addr) { fmt.Println("listening on", a) }}
	err = srv.ListenAndServe(ctx)
	_, _ = workers.Close(context.Background()) // what it has accepted is run before
	if err != nil {
		log.Fatal(err)
	}
}
