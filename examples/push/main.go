// Command push is a push gateway for the internet: clients subscribe to topics and receive what is
// published there. It has TLS, if it is given a certificate, heartbeats that detect dead clients, limits on
// connections, a message before shutdown, and metrics on loopback.
//
// Try it with several instances of: nc 127.0.0.1 9000, where you type
//
//	sub news
//	pub news something has happened
package main

import (
	"bytes"
	"context"
	"crypto/tls"
	"flag"
	"fmt"
	"log"
	"net"
	"os/signal"
	"sync"
	"syscall"
	"time"

	"github.com/myriad-go/myriad/tcp"
	"github.com/myriad-go/myriad/tools/admin"
)

// maxTopics limits the memory that clients can use.
const maxTopics = 10_000

// gateway contains the topics.
type gateway struct {
	mu     sync.Mutex
	topics map[string]*tcp.Group
}

func (g *gateway) Opened(c *tcp.Conn) { c.SetValue([]*tcp.Group(nil)) }

func (g *gateway) Message(c *tcp.Conn, line []byte) {
	verb, rest, _ := bytes.Cut(line, []byte(" "))
	name, text, _ := bytes.Cut(rest, []byte(" "))
	switch string(verb) {
	case "sub":
		topic := g.findOrCreateTopic(string(name))
		if topic == nil {
			c.WriteString("error: too many topics\n")
			return
		}
		topic.Add(c.Ref())
		c.SetValue(append(c.Value().([]*tcp.Group), topic))
		fmt.Fprintf(c, "subscribed to %s\n", name)
	case "pub":
		if topic := g.findOrCreateTopic(string(name)); topic != nil {
			sent, full := topic.Broadcast(append(text, '\n'))
			fmt.Fprintf(c, "sent to %d, %d could not receive it\n", sent, full)
		}
	case "pong": // the answer to a heartbeat
	default:
		c.WriteString("error: expected sub TOPIC or pub TOPIC TEXT\n")
	}
}

// findOrCreateTopic returns a topic, nil if there are too many.
func (g *gateway) findOrCreateTopic(name string) *tcp.Group {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.topics[name] == nil && len(g.topics) < maxTopics {
		g.topics[name] = new(tcp.Group)
	}
	return g.topics[name]
}

// Draining is called for each connection when the server starts to shut down.
func (g *gateway) Draining(c *tcp.Conn) { c.WriteString("bye: please reconnect\n") }

func (g *gateway) Closed(c *tcp.Conn, err error) {
	for _, topic := range c.Value().([]*tcp.Group) {
		topic.Remove(c.Ref())
	}
}

func newServer(addr string, heartbeat time.Duration) *tcp.Server {
	return &tcp.Server{
		Addr:      addr,
		Handler:   tcp.Lines(&gateway{topics: map[string]*tcp.Group{}}),
		Heartbeat: tcp.Heartbeat{Interval: heartbeat, Message: []byte("ping\n")},
		Limits: tcp.Limits{
			MaxConnsPerSource: 1000,
			MaxMessage:        4096,
			MaxUnsent:         64 << 10, // a client that falls further behind is closed
		},
		Listening: func(a net.Addr) { fmt.Println("push on", a) },
	}
}

func main() {
	addr := flag.String("addr", "127.0.0.1:9000", "address to listen on")
	adminAddr := flag.String("admin", "127.0.0.1:0", "address of the metrics and health checks")
	heartbeat := flag.Duration("heartbeat", time.Minute, "send a heartbeat after this time without input")
	cert, key := flag.String("cert", "", "certificate `FILE`; empty disables TLS"), flag.String("key", "", "private key `FILE` of the certificate")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	context.AfterFunc(ctx, stop) // a second Ctrl-C ends the process at once
	srv := newServer(*addr, *heartbeat)
	if *cert != "" {
		get, err := tcp.ReloadCertificate(*cert, *key, nil)
		if err != nil {
			log.Fatal(err)
		}
		srv.TLSConfig = &tls.Config{GetCertificate: get}
	}
	// The admin server runs until the server has drained, so that /readyz reports the drain.
	adminCtx, closeAdmin := context.WithCancel(context.Background())
	var wait sync.WaitGroup
	wait.Go(func() {
		if err := admin.Serve(adminCtx, *adminAddr, admin.Config{Source: srv}, nil); err != nil {
			log.Print(err)
		}
	})
	err := srv.ListenAndServe(ctx)
	closeAdmin()
	wait.Wait()
	if err != nil {
		log.Fatal(err)
	}
}
