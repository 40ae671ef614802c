// Command overload runs a job for each HTTP request, on a pool or, with -naive, each on a goroutine. /stats counts
// them.
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
	"sync/atomic"
	"syscall"
	"time"

	"github.com/myriad-go/myriad/pool"
	"github.com/myriad-go/myriad/tcp"
	"github.com/myriad-go/myriad/web"
)

func main() {
	addr := flag.String("addr", "127.0.0.1:8080", "address to listen on")
	naive := flag.Bool("naive", false, "start a goroutine for each job, without overload control as in the published experiment")
	workers := flag.Int("workers", 0, "maximum number of workers; 0 adapts to the load")
	queue := flag.Int("queue", 1000, "maximum number of jobs that wait for a worker")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	context.AfterFunc(ctx, stop) // a second Ctrl-C ends the process at once
	p, err := pool.New(pool.Config{Max: *workers, Queue: *queue})
	if err != nil {
		log.Fatal(err)
	}
	var completed, inTime atomic.Int64
	http.HandleFunc("/", func(w http.ResponseWriter, _ *http.Request) {
		begin := time.Now()
		process := func(context.Context) {
			block := bytes.Repeat([]byte("x"), 500_000)
			time.Sleep(20 * time.Millisecond)
			if completed.Add(1); block[0] == 'x' && time.Since(begin) <= 100*time.Millisecond {
				inTime.Add(1)
			}
		}
		if *naive {
			go process(ctx)
		} else if err := p.TrySubmit(process); err != nil {
			http.Error(w, err.Error(), http.StatusServiceUnavailable)
			return
		}
		w.WriteHeader(http.StatusAccepted)
	})
	http.HandleFunc("/stats", func(w http.ResponseWriter, _ *http.Request) {
		fmt.Fprintln(w, completed.Load(), "jobs completed,", inTime.Load(), "within 100 ms")
	})
	srv := &tcp.Server{Addr: *addr, Handler: web.Handler(web.Quick(http.DefaultServeMux)), Listening: func(a net.Addr) { fmt.Println("listening on", a) }, Overload: tcp.Overload{Off: *naive}}
	if err := srv.ListenAndServe(ctx); err != nil {
		log.Fatal(err)
	}
	p.Close(context.Background())
}
