// Command chat is a room: what one says, all others read. The first line of
// each is their name. Try it with several of: nc 127.0.0.1 9000
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

// room knows who is there. Its lock is needed because a server with several
// loops calls for several connections at once.
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
		r.tell(c.Ref(), name+" has come")
		return
	}
	r.tell(c.Ref(), name+": "+string(line))
}

func (r *room) Closed(c *tcp.Conn, why error) {
	r.mu.Lock()
	name, known := r.members[c.Ref()]
	delete(r.members, c.Ref())
	r.mu.Unlock()
	if known {
		r.tell(c.Ref(), name+" has gone")
	}
}

// tell sends to all but one. A member that does not read gets ErrFull in the
// end and misses what is said; the others are not held up.
func (r *room) tell(but tcp.Ref, text string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for ref, name := range r.members {
		if ref == but {
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
	defer stop()
	srv := &tcp.Server{
		Addr:      *addr,
		Handler:   tcp.Lines(&room{members: map[tcp.Ref]string{}}),
		Listening: func(a net.Addr) { fmt.Println("chat on", a) },
	}
	if err := srv.ListenAndServe(ctx); err != nil {
		log.Fatal(err)
	}
}
