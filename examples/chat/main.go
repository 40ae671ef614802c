// Command chat is a chat room. The first line of each client is its name; further lines are sent to all
// others. Try it with several instances of: nc 127.0.0.1 9000
package main

import (
	"context"
	"flag"
	"fmt"
	"log"
	"net"
	"os/signal"
	"sync"
	"syscall"

	"github.com/myriad-go/myriad/tcp"
)

// room contains the members. The lock is needed because the loops of a server call handlers concurrently.
type room struct {
	mu      sync.Mutex
	members map[tcp.Ref]string
}

func (r *room) Opened(c *tcp.Conn) { c.WriteString("Your name?\n") }

func (r *room) Message(c *tcp.Conn, line []byte) {
	name, known := c.Value().(string)
	if !known {
		name = string(line)
		c.SetValue(name)
		r.mu.Lock()
		r.members[c.Ref()] = name
		r.mu.Unlock()
		fmt.Fprintf(c, "Welcome, %s.\n", name)
		r.sendToOthers(c.Ref(), name+" has come")
		return
	}
	r.sendToOthers(c.Ref(), name+": "+string(line))
}

func (r *room) Closed(c *tcp.Conn, err error) {
	r.mu.Lock()
	name, known := r.members[c.Ref()]
	delete(r.members, c.Ref())
	r.mu.Unlock()
	if known {
		r.sendToOthers(c.Ref(), name+" has gone")
	}
}

// sendToOthers sends text to all members except one. Send does not block: a member that does not read
// eventually gets ErrFull and misses messages.
func (r *room) sendToOthers(sender tcp.Ref, text string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for ref, name := range r.members {
		if ref == sender {
			continue
		}
		if err := ref.Send([]byte(text + "\n")); err != nil && err != tcp.ErrClosed {
			log.Printf("%s misses a message: %v", name, err)
		}
	}
}

func main() {
	addr := flag.String("addr", "127.0.0.1:9000", "address to listen on")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	context.AfterFunc(ctx, stop) // a second Ctrl-C ends the process at once
	srv := &tcp.Server{
		Addr:      *addr,
		Handler:   tcp.Lines(&room{members: map[tcp.Ref]string{}}),
		Listening: func(a net.Addr) { fmt.Println("chat on", a) },
	}
	if err := srv.ListenAndServe(ctx); err != nil {
		log.Fatal(err)
	}
}
