// Command upgradable is a chat room that a new binary takes over without disconnecting anybody: names, the last lines
// and lines in transit survive. Upgrades need Linux.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"log"
	"net"
	"os"
	"os/signal"
	"strings"
	"sync"
	"syscall"

	"github.com/myriad-go/myriad/tcp"
)

const maxHistory = 20 // lines

// room is the handler. The lock is needed because the loops of a server call handlers concurrently.
type room struct {
	mu      sync.Mutex
	members tcp.Group
	history []string
}

func (r *room) Opened(c *tcp.Conn) { c.WriteString("Your name?\n") }

func (r *room) Message(c *tcp.Conn, line []byte) {
	name, known := c.Value().(string)
	if !known {
		r.mu.Lock()
		defer r.mu.Unlock()
		c.SetValue(string(line))
		fmt.Fprintf(c, "Welcome, %s.\n%s", line, strings.Join(r.history, ""))
		r.members.Add(c.Ref())
		return
	}
	b := tcp.Broadcast{Group: "room", Message: fmt.Appendf(nil, "%s: %s\n", name, line)}
	if _, err := c.Server().Broadcast(b); err != nil { // during an upgrade, Broadcast queues the line
		fmt.Fprintf(c, "not sent: %v\n", err)
	}
}

func (r *room) Closed(*tcp.Conn, error) {} // the group removes closed connections

// SendToGroup changes the history in both processes, because Server.Broadcast calls it in both.
func (r *room) SendToGroup(b tcp.Broadcast) (receivers int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.history = append(r.history[max(len(r.history)+1-maxHistory, 0):], string(b.Message))
	receivers, _ = r.members.Broadcast(b.Message)
	return receivers
}

const stateVersion = 1 // of what Save writes

func (r *room) Save(c *tcp.Conn, to []byte) ([]byte, error) {
	name, _ := c.Value().(string)
	return append(append(to, stateVersion), name...), nil
}

func (r *room) Restore(c *tcp.Conn, state []byte) error {
	if len(state) == 0 || state[0] != stateVersion {
		return errors.New("unsupported state version")
	}
	if len(state) > 1 {
		c.SetValue(string(state[1:]))
		r.members.Add(c.Ref())
	}
	return nil
}

func (r *room) SaveState(w io.Writer) error { return json.NewEncoder(w).Encode(r.history) } // broadcasts are paused

func (r *room) RestoreState(in io.Reader) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	return json.NewDecoder(in).Decode(&r.history)
}

func main() {
	addr := flag.String("addr", "127.0.0.1:9000", "address to listen on")
	model := flag.String("model", tcp.Auto, "I/O model")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	context.AfterFunc(ctx, stop) // a second Ctrl-C ends the process at once
	srv := &tcp.Server{Addr: *addr, Model: *model, Handler: tcp.Lines(new(room)), Limits: tcp.Limits{MaxMessage: 1024},
		Listening: func(a net.Addr) {
			fmt.Println("chat on", a)
			if _, err := tcp.Notify("READY=1"); err != nil { // without systemd, Notify does nothing
				log.Print(err)
			}
		}}
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
