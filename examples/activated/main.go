// Command activated serves on the socket that systemd has opened, which outlives it: clients
// that connect during a restart wait for the next one.
package main

import (
	"context"
	"fmt"
	"log"
	"net"
	"os"
	"os/signal"
	"syscall"

	"github.com/myriad-go/myriad/tcp"
)

func main() {
	listeners, err := tcp.ActivatedListeners()
	if err != nil {
		log.Fatal(err)
	}
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	srv := &tcp.Server{
		Addr: "127.0.0.1:9000",
		Handler: tcp.Lines(tcp.MessageFunc(func(c *tcp.Conn, line []byte) {
			fmt.Fprintf(c, "%d says %s\n", os.Getpid(), line)
		})),
		Listening: func(a net.Addr) {
			fmt.Println("listening on", a)
			notify("READY=1")
		},
		Stopping: func() { notify("STOPPING=1") },
	}
	if len(listeners) > 0 {
		err = srv.Serve(ctx, listeners[0])
	} else {
		err = srv.ListenAndServe(ctx)
	}
	if err != nil {
		log.Fatal(err)
	}
}

func notify(state string) {
	if _, err := tcp.Notify(state); err != nil {
		log.Print(err)
	}
}
