// Command requests answers requests that carry an id, each when it is done. A frame is its
// length, that counts what follows, an id, both of 4 bytes, big-endian, and a text.
package main

import (
	"context"
	"encoding/binary"
	"flag"
	"fmt"
	"log"
	"net"
	"os/signal"
	"syscall"
	"time"

	"github.com/myriad-go/myriad/pool"
	"github.com/myriad-go/myriad/tcp"
)

type request struct {
	from tcp.Ref
	id   uint32
	text string
}

func (r *request) Run(context.Context) {
	d, _ := time.ParseDuration(r.text) // the text says how long this takes
	time.Sleep(d)
	r.answer("waited " + r.text)
}

func (r *request) Dropped(error) { r.answer("busy") } // it waited too long for a worker
func (r *request) answer(text string) {
	b := binary.BigEndian.AppendUint32(nil, uint32(4+len(text)))
	_ = r.from.Send(append(binary.BigEndian.AppendUint32(b, r.id), text...)) // an error: it has gone
}

func main() {
	addr := flag.String("addr", "127.0.0.1:9000", "address to listen on")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	workers, _ := pool.New(pool.Config{}) // the defaults are not an error
	defer workers.Close(context.Background())
	handler := tcp.MessageFunc(func(c *tcp.Conn, msg []byte) {
		if len(msg) < 4 {
			c.CloseWith(fmt.Errorf("a frame of %d bytes has no id", len(msg)))
			return
		}
		r := &request{from: c.Ref(), id: binary.BigEndian.Uint32(msg), text: string(msg[4:])}
		if err := workers.TrySubmitTask(pool.Task{Job: r}); err != nil {
			r.answer("busy") // too many wait
		}
	})
	split := tcp.LengthPrefixed(4, binary.BigEndian)
	srv := &tcp.Server{Addr: *addr, Handler: tcp.Split(split, handler), Listening: func(a net.Addr) { fmt.Println("listening on", a) }}
	if err := srv.ListenAndServe(ctx); err != nil {
		log.Print(err)
	}
}
