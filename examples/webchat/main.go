// Command webchat is a chat for browsers: a page, and a WebSocket for each reader. A million idle WebSockets
// cost about 130 bytes each.
//
//	go run ./examples/webchat -addr :8080
package main

import (
	"context"
	"flag"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"os"
	"os/signal"
	"syscall"

	"github.com/myriad-go/myriad/tcp"
	"github.com/myriad-go/myriad/web"
)

const page = `<!doctype html><title>Chat</title>
<form onsubmit="ws.send(this.say.value); this.say.value=''; return false"><input name=say autofocus maxlength=500></form>
<ul id=all></ul>
<script>
const ws = new WebSocket(location.href.replace(/^http/, "ws") + "chat")
ws.onmessage = m => { const li = document.createElement("li"); li.textContent = m.data; all.prepend(li) }
ws.onclose = () => document.title = "closed"
</script>`

// room contains all participants.
type room struct{ all web.Group }

func (r *room) Opened(s web.Socket) {
	r.all.Add(s)
	r.broadcastf("%v has joined: %d here", s.Ref(), r.all.Len())
}

func (r *room) Message(s web.Socket, _ web.Kind, message []byte) {
	r.broadcastf("%v: %s", s.Ref(), message)
}

func (r *room) Closed(s web.Socket, _ error) {
	r.all.Remove(s)
	r.broadcastf("%v has left", s.Ref())
}

func (r *room) broadcastf(format string, args ...any) {
	r.all.Broadcast(web.Text, fmt.Appendf(nil, format, args...))
}

func main() {
	addr := flag.String("addr", "127.0.0.1:8080", "`ADDRESS` to listen on")
	model := flag.String("model", tcp.Auto, "I/O `MODEL`")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	context.AfterFunc(ctx, stop) // a second Ctrl-C ends the process at once

	mux := http.NewServeMux()
	mux.HandleFunc("GET /{$}", func(w http.ResponseWriter, r *http.Request) { io.WriteString(w, page) })
	mux.Handle("GET /chat", web.Quick(&web.WebSocket{Handler: new(room), MaxMessage: 4 << 10}))
	srv := &tcp.Server{Addr: *addr, Model: *model, Handler: web.Handler(mux),
		Listening: func(a net.Addr) { fmt.Println("webchat on", a) }}
	if err := srv.ListenAndServe(ctx); err != nil {
		log.Fatal(err)
	}
}
