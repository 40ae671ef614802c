// Command balanced serves behind a load balancer: on SIGTERM it says that it is
// not ready, serves on until the balancer has noticed, and drains.
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
	health := flag.String("health", ":9001", "address of /readyz")
	notice := flag.Duration("notice", 10*time.Second, "how long the balancer needs to notice that this is not ready")
	proxies := flag.String("proxies", "10.0.0.0/8", "addresses of balancers that send PROXY headers")
	flag.Parse()
	trusted, err := netip.ParsePrefix(*proxies)
	if err != nil {
		log.Fatal(err)
	}
	ending, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	srv := &tcp.Server{
		Addr: *addr,
		Handler: tcp.Lines(tcp.MessageFunc(func(c *tcp.Conn, line []byte) {
			fmt.Fprintf(c, "%v says %s\n", c.RemoteAddr(), line)
		})),
		TrustedProxies: []netip.Prefix{trusted},
		Listening:      func(a net.Addr) { fmt.Println("listening on", a) },
	}
	http.HandleFunc("/readyz", func(w http.ResponseWriter, _ *http.Request) {
		if ending.Err() != nil || srv.ListenAddr() == nil {
			http.Error(w, "not ready", http.StatusServiceUnavailable)
		}
	})
	l, err := net.Listen("tcp", *health)
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println("health on", l.Addr())
	go func() { log.Fatal((&http.Server{ReadHeaderTimeout: time.Second}).Serve(l)) }() // to the end
	drain, cancel := context.WithCancel(context.Background())
	context.AfterFunc(ending, func() {
		time.Sleep(*notice)
		cancel()
	})
	if err := srv.ListenAndServe(drain); err != nil {
		log.Fatal(err)
	}
}
