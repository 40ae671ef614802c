// Command mqtt is a broker for MQTT 3.1.1 without sessions: messages are delivered with QoS 0. It accepts publications
// with QoS 0 and 1, wildcards, retained messages and wills. It does not check user names.
//
//	go run . -addr :1883
package main

import (
	"context"
	"flag"
	"fmt"
	"log"
	"net"
	"os/signal"
	"syscall"

	"github.com/myriad-go/myriad/tcp"
)

func newServer() *tcp.Server {
	return &tcp.Server{
		Handler:      tcp.Split(splitPackets, newBroker()),
		Limits:       tcp.Limits{MaxMessage: maxPacket, MaxUnsent: 256 << 10},
		SlowConsumer: tcp.DropMessage, // a slow subscriber misses messages, which QoS 0 allows
	}
}

func main() {
	addr := flag.String("addr", "127.0.0.1:1883", "address to listen on")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	context.AfterFunc(ctx, stop) // a second Ctrl-C ends the process at once
	srv := newServer()
	srv.Addr, srv.Listening = *addr, func(a net.Addr) { fmt.Println("listening on", a) }
	if err := srv.ListenAndServe(ctx); err != nil {
		log.Fatal(err)
	}
}
