// Command overload accepts jobs over HTTP. A job fills 500 KB and waits 20 ms. The program runs the jobs on a pool, and
// answers excess requests with 503. With -naive, it starts a goroutine for each job (net/http). GET /stats counts
// jobs, and so does its last output.
package main

import (
	"bytes"
	"context"
	"flag"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"os"
	"os/signal"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/myriad-go/myriad/pool"
	"github.com/myriad-go/myriad/tcp"
	"github.com/myriad-go/myriad/web"
)

var accepted, completed, inTime atomic.Int64

// process performs a job that was accepted at the given time.
func process(at time.Time) {
	block := bytes.Repeat([]byte("x"), 500_000)
	time.Sleep(20 * time.Millisecond)
	if block[0] == 'x' && time.Since(at) <= 100*time.Millisecond {
		inTime.Add(1)
	}
	completed.Add(1)
}

// newHandler returns a handler that starts a job for each request with run.
func newHandler(run func(job func()) error) http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("/", func(w http.ResponseWriter, _ *http.Request) {
		at := time.Now()
		if err := run(func() { process(at) }); err != nil {
			w.Header().Set("Retry-After", "1")
			http.Error(w, err.Error(), http.StatusServiceUnavailable)
			return
		}
		accepted.Add(1)
		w.WriteHeader(http.StatusAccepted)
	})
	mux.HandleFunc("/stats", func(w http.ResponseWriter, _ *http.Request) { writeStats(w) })
	return mux
}

func writeStats(w io.Writer) {
	fmt.Fprintf(w, "%d accepted, %d completed, %d within 100 ms\n", accepted.Load(), completed.Load(), inTime.Load())
}

func main() {
	addr := flag.String("addr", "127.0.0.1:8080", "address to listen on")
	naive := flag.Bool("naive", false, "start a goroutine for each job")
	workers := flag.Int("workers", 0, "maximum number of workers; 0 adapts to the load")
	queue := flag.Int("queue", 1000, "maximum number of jobs that wait for a worker")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	defer writeStats(os.Stdout)
	if *naive {
		l, err := net.Listen("tcp", *addr)
		if err != nil {
			log.Fatal(err)
		}
		fmt.Println("listening on", l.Addr())
		context.AfterFunc(ctx, func() { l.Close() })
		http.Serve(l, newHandler(func(job func()) error { go job(); return nil }))
		return
	}
	p, err := pool.New(pool.Config{Max: *workers, Queue: *queue})
	if err != nil {
		log.Fatal(err)
	}
	h := newHandler(func(job func()) error { return p.TrySubmit(func(context.Context) { job() }) })
	srv := &tcp.Server{
		Addr: *addr, Handler: web.Handler(web.Quick(h)),
		Listening: func(a net.Addr) { fmt.Println("listening on", a) },
	}
	if err := srv.ListenAndServe(ctx); err != nil {
		log.Fatal(err)
	}
	p.Close(context.Background())
}
