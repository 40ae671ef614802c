// Command activated serves on a socket opened by systemd. Clients that connect during a restart wait for
// the new process.
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
	context.AfterFunc(ctx, stop) // a second Ctrl-C ends the process at once
	srv := &tcp.Server{
		Addr: "127.0.0.1:9000",
		Handler: tcp.Lines(tcp.MessageFunc(func(c *tcp.Conn, line []byte) {
			fmt.Fprintf(c, "%d says %s\n", os.Getpid(), line)
		})),
		Listening: func(a net.Addr) {
			fmt.Println("listening on", a)
			notifySystemd("READY=1")
		},
		Stopping: func() { notifySystemd("STOPPING=1") },
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

func notifySystemd(state string) {
	if _, err := tcp.Notify(state); err != nil {
		log.Print(err)
	}
}
