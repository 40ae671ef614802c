// Command game advances a world 20 times a second. Players steer by lines such as "3 -1" and receive all positions
// after each tick. A player that reads slowly misses older positions and gets the newest.
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
	"time"

	"github.com/myriad-go/myriad/tcp"
)

type player struct{ x, y, dx, dy int }

func main() {
	addr := flag.String("addr", "127.0.0.1:9000", "address to listen on")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	context.AfterFunc(ctx, stop) // a second Ctrl-C ends the process at once
	var mu sync.Mutex
	players := make(map[tcp.Ref]*player)
	var clients tcp.Group // closed connections are removed automatically
	srv := &tcp.Server{
		Addr: *addr, Listening: func(a net.Addr) { fmt.Println("listening on", a) },
		Handler: tcp.Lines(tcp.MessageFunc(func(c *tcp.Conn, line []byte) {
			mu.Lock()
			defer mu.Unlock()
			if players[c.Ref()] == nil {
				players[c.Ref()] = new(player)
				clients.Add(c.Ref())
			}
			_, _ = fmt.Sscan(string(line), &players[c.Ref()].dx, &players[c.Ref()].dy) // ignores other lines
		})),
		Limits:       tcp.Limits{MessageRate: 30}, // lines of a player per second; a faster one waits
		TickInterval: 50 * time.Millisecond,
		OnTick: func() {
			mu.Lock()
			defer mu.Unlock()
			var state []byte
			for ref, p := range players {
				if _, ok := ref.RemoteAddr(); !ok {
					delete(players, ref) // it has disconnected
				}
				p.x, p.y = p.x+p.dx, p.y+p.dy
				state = fmt.Appendf(state, "%v:%d,%d ", ref, p.x, p.y)
			}
			clients.SendLatest(append(state, '\n'))
		},
	}
	if err := srv.ListenAndServe(ctx); err != nil {
		log.Fatal(err)
	}
}
