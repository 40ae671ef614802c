package tcp_test

import (
	"context"
	"crypto/tls"
	"log"
	"os/signal"
	"syscall"
	"time"

	"github.com/myriad-go/myriad/pool"
	"github.com/myriad-go/myriad/tcp"
)

// lookUp answers lines from a slow database.
type lookUp struct{}

func (lookUp) Opened(*tcp.Conn) {}

func (lookUp) Message(c *tcp.Conn, line []byte) {
	time.Sleep(20 * time.Millisecond)
	c.Write(line)
	c.WriteString("\n")
}

func (lookUp) Closed(*tcp.Conn, error) {}

// Shed answers what no worker has time for.
func (lookUp) Shed(c *tcp.Conn, _ []byte, _ error) { c.WriteString("busy\n") }

// Handlers that wait run on a pool. What it has no time for under overload is
// answered at once.
func ExampleServer_workers() {
	workers, err := pool.New(pool.Config{})
	if err != nil {
		log.Fatal(err)
	}
	defer workers.Close(context.Background()) // when the server has ended
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	srv := &tcp.Server{Addr: ":9000", Handler: tcp.Lines(lookUp{}), Workers: workers}
	if err := srv.ListenAndServe(ctx); err != nil {
		log.Print(err)
	}
}

// One server with three doors: plain TCP on loopback, TLS for everybody, and a unix
// socket for the programs of a group.
func ExampleServer_listeners() {
	certificate, err := tcp.ReloadCertificate("cert.pem", "key.pem", nil)
	if err != nil {
		log.Fatal(err)
	}
	srv := &tcp.Server{
		Addr: "127.0.0.1:9000",
		Listeners: []tcp.Listener{
			{Name: "public", Addr: ":9443", TLSConfig: &tls.Config{GetCertificate: certificate}, MaxConns: 100_000},
			{Name: "local", Network: "unix", Addr: "/run/echo/socket", Mode: 0o660},
		},
		Handler: tcp.Lines(tcp.MessageFunc(func(c *tcp.Conn, line []byte) {
			c.Write(line)
			c.WriteString(" by way of " + c.Listener() + "\n")
		})),
	}
	if err := srv.ListenAndServe(context.Background()); err != nil {
		log.Print(err)
	}
}
