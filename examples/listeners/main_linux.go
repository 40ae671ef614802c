// Command listeners serves lines, lines over TLS, HTTP with WebSockets, and the operator's page with one server. On
// SIGUSR2, a new process takes over all four.
package main

import (
	"context"
	"crypto/tls"
	"flag"
	"fmt"
	"log"
	"net"
	"net/http"
	"os"
	"os/signal"
	"syscall"

	"github.com/myriad-go/myriad/tcp"
	"github.com/myriad-go/myriad/tools/admin"
	"github.com/myriad-go/myriad/web"
)

type echoSocket struct{ web.SocketBase }

func (echoSocket) Message(s web.Socket, kind web.Kind, message []byte) { _ = s.Write(kind, message) }

func main() {
	lineAddr, tlsAddr := flag.String("lines", ":9000", "address for lines"), flag.String("tls", ":9001", "address for lines over TLS")
	webAddr, adminAddr := flag.String("web", ":9002", "address for HTTP"), flag.String("admin", "127.0.0.1:9003", "address of the operator's page")
	cert, key := flag.String("cert", "cert.pem", "certificate `FILE`"), flag.String("key", "key.pem", "`FILE` of its private key")
	model := flag.String("model", tcp.Auto, "I/O model")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	context.AfterFunc(ctx, stop) // a second Ctrl-C ends the process at once
	certificate, err := tcp.ReloadCertificate(*cert, *key, nil)
	if err != nil {
		log.Fatal(err)
	}
	lines := tcp.Lines(tcp.MessageFunc(func(c *tcp.Conn, line []byte) { fmt.Fprintf(c, "%s by %s\n", line, c.Listener()) }))
	sockets, mux := &web.WebSocket{Handler: echoSocket{}}, http.NewServeMux()
	mux.HandleFunc("GET /", func(w http.ResponseWriter, _ *http.Request) { fmt.Fprintln(w, "served by", os.Getpid()) })
	mux.Handle("GET /socket", web.Quick(sockets))
	srv := &tcp.Server{Model: *model, Listening: func(a net.Addr) { fmt.Println("listening on", a) }}
	srv.Limits.MaxConnsPerSource = 1000 // for all four together
	srv.Listeners = []tcp.Listener{
		{Name: "lines", Addr: *lineAddr, Handler: lines},
		{Name: "tls", Addr: *tlsAddr, Handler: lines, TLSConfig: &tls.Config{GetCertificate: certificate}},
		{Name: "web", Addr: *webAddr, Handler: &web.HTTP{Handler: mux, Endpoints: map[string]web.Endpoint{"socket": sockets}}},
		{Name: "admin", Addr: *adminAddr, Handler: web.Handler(admin.Handler(admin.Config{Source: srv})), MaxConns: 100},
	}
	upgrades := make(chan os.Signal, 1)
	signal.Notify(upgrades, syscall.SIGUSR2)
	go func() { // until the program exits
		for range upgrades {
			_, _ = srv.Upgrade(ctx) // the server logs the result; after an error, this process continues
		}
	}()
	if err := srv.ListenAndServe(ctx); err != nil {
		log.Fatal(err)
	}
}
