// Command overload answers each HTTP request when 500 KB have been filled and 20 ms have
// passed: on a bounded pool, which has a 503 for those that it has no time for, or with
// -naive in a goroutine for each connection of net/http.
package main

import (
	"bytes"
	"context"
	"flag"
	"fmt"
	"log"
	"net"
	"net/http"
	"os/signal"
	"syscall"
	"time"

	"github.com/myriad-go/myriad/pool"
	"github.com/myriad-go/myriad/tcp"
	"github.com/myriad-go/myriad/web"
)

func work(w http.ResponseWriter, _ *http.Request) {
	block := bytes.Repeat([]byte("x"), 500_000)
	time.Sleep(20 * time.Millisecond)
	fmt.Fprintf(w, "%d bytes\n", len(block))
}

func main() {
	addr := flag.String("addr", "127.0.0.1:8080", "address to listen on")
	naive := flag.Bool("naive", false, "serve with net/http")
	workers := flag.Int("workers", 0, "have at most this many workers; 0 for what the work needs")
	queue := flag.Int("queue", 1000, "let as many requests wait for one")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	if *naive {
		l, err := net.Listen("tcp", *addr)
		if err != nil {
			log.Fatal(err)
		}
		fmt.Println("listening on", l.Addr())
		context.AfterFunc(ctx, func() { l.Close() })
		http.Serve(l, http.HandlerFunc(work))
		return
	}
	p, err := pool.New(pool.Config{Max: *workers, Queue: *queue})
	if err != nil {
		log.Fatal(err)
	}
	srv := &tcp.Server{
		Addr: *addr, Handler: &web.HTTP{Handler: http.HandlerFunc(work), Pool: p},
		Listening: func(a net.Addr) { fmt.Println("listening on", a) },
	}
	if err := srv.ListenAndServe(ctx); err != nil {
		log.Fatal(err)
	}
	p.Close(context.Background())
}
