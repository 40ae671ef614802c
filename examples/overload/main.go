// Command overload fills 500 KB and waits 20 ms for each HTTP request. It uses a bounded pool, which
// answers excess requests with 503, or with -naive a goroutine for each connection (net/http).
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

func handleRequest(w http.ResponseWriter, _ *http.Request) {
	block := bytes.Repeat([]byte("x"), 500_000)
	time.Sleep(20 * time.Millisecond)
	fmt.Fprintf(w, "%d bytes\n", len(block))
}

func main() {
	addr := flag.String("addr", "127.0.0.1:8080", "address to listen on")
	naive := flag.Bool("naive", false, "use net/http")
	workers := flag.Int("workers", 0, "maximum number of workers; 0 adapts to the load")
	queue := flag.Int("queue", 1000, "maximum number of requests that wait for a worker")
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
		http.Serve(l, http.HandlerFunc(handleRequest))
		return
	}
	p, err := pool.New(pool.Config{Max: *workers, Queue: *queue})
	if err != nil {
		log.Fatal(err)
	}
	srv := &tcp.Server{
		Addr: *addr, Handler: &web.HTTP{Handler: http.HandlerFunc(handleRequest), Pool: p},
		Listening: func(a net.Addr) { fmt.Println("listening on", a) },
	}
	if err := srv.ListenAndServe(ctx); err != nil {
		log.Fatal(err)
	}
	p.Close(context.Background())
}
