package main

import (
	"bytes"
	"io"
	"net/http"

	"github.com/myriad-go/myriad"
	"github.com/myriad-go/myriad/internal/lab/app"
	"github.com/myriad-go/myriad/web"
)

// hello is an application that answers every request with the same text.
func hello() myriad.Handler {
	return web.Handler(web.Quick(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "text/plain")
		_, _ = io.WriteString(w, app.HelloText) // an error ends the connection
	})))
}

// webPush is push for WebSockets and streams of events: a message that begins with "!" goes
// without it to all of both, others are sent back.
type webPush struct {
	web.SocketBase
	sockets web.Group
	streams myriad.Group
}

func newWebPush() myriad.Handler {
	p, mux := new(webPush), http.NewServeMux()
	mux.Handle("/", web.Quick(&web.WebSocket{Handler: p}))
	mux.Handle("GET /events", web.Quick(&web.Events{Opened: func(c *myriad.Conn) { p.streams.Add(c.Ref()) }}))
	return web.Handler(mux)
}

func (p *webPush) Opened(s web.Socket) { p.sockets.Add(s) }

func (p *webPush) Message(s web.Socket, kind web.Kind, m []byte) {
	news, toAll := bytes.CutPrefix(m, []byte("!"))
	if !toAll {
		_ = s.Write(kind, m) // an error ends the connection
		return
	}
	p.sockets.Broadcast(kind, news)
	p.streams.Broadcast(web.Event{Data: string(news)}.Bytes())
}
