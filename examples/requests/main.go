// Command requests answers each request, which has an ID, as soon as it is done. A frame is its length
// (4 bytes, big-endian, not counting itself), the ID (4 bytes, big-endian), and text.
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
	conn tcp.Ref
	id   uint32
	text string
}

func (r *request) Run(context.Context) {
	d, _ := time.ParseDuration(r.text) // the text is the time to wait
	time.Sleep(d)
	r.reply("waited " + r.text)
}

func (r *request) Dropped(error) { r.reply("busy") } // it has waited too long for a worker
func (r *request) reply(text string) {
	b := binary.BigEndian.AppendUint32(nil, uint32(4+len(text)))
	_ = r.conn.Send(append(binary.BigEndian.AppendUint32(b, r.id), text...)) // fails if the client has disconnected
}

func main() {
	addr := flag.String("addr", "127.0.0.1:9000", "address to listen on")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	context.AfterFunc(ctx, stop)          // a second Ctrl-C ends the process at once
	workers, _ := pool.New(pool.Config{}) // cannot fail with the defaults
	defer workers.Close(context.Background())
	handler := tcp.MessageFunc(func(c *tcp.Conn, msg []byte) {
		if len(msg) < 4 {
			c.CloseWith(fmt.Errorf("frame of %d bytes; expected at least 4, for the ID", len(msg)))
			return
		}
		r := &request{conn: c.Ref(), id: binary.BigEndian.Uint32(msg), text: string(msg[4:])}
		if err := workers.TrySubmitTask(pool.Task{Job: r}); err != nil {
			r.reply("busy") // the queue is full
		}
	})
	split := tcp.LengthPrefixed(4, binary.BigEndian)
	srv := &tcp.Server{Addr: *addr, Handler: tcp.Split(split, handler), Listening: func(a net.Addr) { fmt.Println("listening on", a) }}
	if err := srv.ListenAndServe(ctx); err != nil {
		log.Print(err)
	}
}
