package tcp_test

import (
	"context"
	"crypto/tls"
	"encoding/binary"
	"fmt"
	"io"
	"log"
	"net/http"
	"os/signal"
	"syscall"
	"time"

	"github.com/myriad-go/myriad/pool"
	"github.com/myriad-go/myriad/tcp"
)

// A server that echoes lines until the process gets SIGTERM.
func Example() {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	echo := tcp.MessageFunc(func(c *tcp.Conn, line []byte) {
		c.Write(line)
		c.WriteString("\n")
	})
	srv := &tcp.Server{Addr: ":9000", Handler: tcp.Lines(echo)}
	if err := srv.ListenAndServe(ctx); err != nil {
		log.Fatal(err)
	}
}

// chatRoom sends each line to all members.
type chatRoom struct{ members tcp.Group }

func (r *chatRoom) Opened(c *tcp.Conn) { r.members.Add(c.Ref()) }
func (r *chatRoom) Message(_ *tcp.Conn, line []byte) {
	r.members.Broadcast(append(line[:len(line):len(line)], '\n'))
}
func (r *chatRoom) Closed(*tcp.Conn, error) {} // the group removes closed connections

// A chat room, with heartbeats to silent clients and a limit for fast ones.
func ExampleGroup() {
	srv := &tcp.Server{
		Addr:      ":9000",
		Handler:   tcp.Lines(new(chatRoom)),
		Heartbeat: tcp.Heartbeat{Interval: 30 * time.Second, Message: []byte("ping\n")},
		Limits:    tcp.Limits{MessageRate: 10, MaxMessage: 1024},
	}
	if err := srv.ListenAndServe(context.Background()); err != nil {
		log.Print(err)
	}
}

// A handler that answers later, from another goroutine.
func ExampleRef() {
	later := tcp.MessageFunc(func(c *tcp.Conn, line []byte) {
		ref, name := c.Ref(), string(line) // c and line are valid only during the call
		time.AfterFunc(time.Second, func() {
			if err := ref.Send([]byte("hello, " + name + "\n")); err != nil {
				log.Print(err) // the client has disconnected or does not read
			}
		})
	})
	srv := &tcp.Server{Addr: ":9000", Handler: tcp.Lines(later)}
	if err := srv.ListenAndServe(context.Background()); err != nil {
		log.Print(err)
	}
}

// Messages with their length in front, in four bytes.
func ExampleLengthPrefixed() {
	answer := tcp.MessageFunc(func(c *tcp.Conn, msg []byte) {
		c.Write(binary.BigEndian.AppendUint32(nil, uint32(len(msg))))
		c.Write(msg)
	})
	srv := &tcp.Server{Addr: ":9000", Handler: tcp.Split(tcp.LengthPrefixed(4, binary.BigEndian), answer)}
	if err := srv.ListenAndServe(context.Background()); err != nil {
		log.Print(err)
	}
}

// TLS with a certificate that can be replaced while the server runs.
func ExampleReloadCertificate() {
	certificate, err := tcp.ReloadCertificate("cert.pem", "key.pem", nil)
	if err != nil {
		log.Fatal(err)
	}
	srv := &tcp.Server{Addr: ":9443", Handler: tcp.Lines(new(chatRoom)), TLSConfig: &tls.Config{GetCertificate: certificate}}
	if err := srv.ListenAndServe(context.Background()); err != nil {
		log.Print(err)
	}
}

// Code that reads and writes a net.Conn. An idle connection has no goroutine.
func ExampleBlocking() {
	srv := &tcp.Server{Addr: ":9000", Handler: &tcp.Blocking{Serve: func(n *tcp.NetConn) error {
		var request [4]byte
		if _, err := io.ReadFull(n, request[:]); err != nil {
			return err
		}
		_, err := fmt.Fprintf(n, "%x\n", request)
		return err
	}}}
	if err := srv.ListenAndServe(context.Background()); err != nil {
		log.Print(err)
	}
}

// A library that calls Accept.
func ExampleNewNetListener() {
	l := tcp.NewNetListener()
	library := &http.Server{Handler: http.NotFoundHandler()}
	srv := &tcp.Server{Addr: ":8080", Handler: l, Stopping: func() { go library.Shutdown(context.Background()) }}
	go library.Serve(l)
	if err := srv.ListenAndServe(context.Background()); err != nil {
		log.Print(err)
	}
}

// lookUp answers lines from a slow database.
type lookUp struct{}

func (lookUp) Opened(*tcp.Conn) {}

func (lookUp) Message(c *tcp.Conn, line []byte) {
	time.Sleep(20 * time.Millisecond)
	c.Write(line)
	c.WriteString("\n")
}

func (lookUp) Closed(*tcp.Conn, error) {}

// Shed answers if no worker is free in time.
func (lookUp) Shed(c *tcp.Conn, _ []byte, _ error) { c.WriteString("busy\n") }

// Handlers that block run on a pool. Under overload, Shed answers immediately.
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

// One server with three listeners: plain TCP on loopback, TLS for everybody, and a unix socket.
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
			c.WriteString(" by " + c.Listener() + "\n")
		})),
	}
	if err := srv.ListenAndServe(context.Background()); err != nil {
		log.Print(err)
	}
}
