// Command balanced serves behind a load balancer: on SIGTERM it becomes not ready, continues to serve
// until the balancer has noticed, and then drains.
package main

import (
	"context"
	"flag"
	"fmt"
	"log"
	"net"
	"net/http"
	"net/netip"
	"os/signal"
	"syscall"
	"time"

	"github.com/myriad-go/myriad/tcp"
)

func main() {
	addr := flag.String("addr", ":9000", "address to listen on")
	health := flag.String("health", ":9001", "address of the readiness check /readyz")
	noticeTime := flag.Duration("notice", 10*time.Second, "time for the balancer to notice that the server is not ready")
	proxies := flag.String("proxies", "10.0.0.0/8", "addresses of the balancers, which send PROXY headers")
	flag.Parse()
	trusted, err := netip.ParsePrefix(*proxies)
	if err != nil {
		log.Fatal(err)
	}
	shutdownCtx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	context.AfterFunc(shutdownCtx, stop) // a second Ctrl-C ends the process at once
	srv := &tcp.Server{
		Addr: *addr,
		Handler: tcp.Lines(tcp.MessageFunc(func(c *tcp.Conn, line []byte) {
			fmt.Fprintf(c, "%v says %s\n", c.RemoteAddr(), line)
		})),
		TrustedProxies: []netip.Prefix{trusted},
		Listening:      func(a net.Addr) { fmt.Println("listening on", a) },
	}
	http.HandleFunc("/readyz", func(w http.ResponseWriter, _ *http.Request) {
		if shutdownCtx.Err() != nil || srv.ListenAddr() == nil {
			http.Error(w, "not ready", http.StatusServiceUnavailable)
		}
	})
	l, err := net.Listen("tcp", *health)
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println("health on", l.Addr())
	go func() { log.Fatal((&http.Server{ReadHeaderTimeout: time.Second}).Serve(l)) }() // until the program exits
	drainCtx, startDrain := context.WithCancel(context.Background())
	context.AfterFunc(shutdownCtx, func() {
		time.Sleep(*noticeTime)
		startDrain()
	})
	if err := srv.ListenAndServe(drainCtx); err != nil {
		log.Fatal(err)
	}
}
