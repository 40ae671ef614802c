package main

import (
	"bytes"
	"io"
	"net/http"

	"github.com/myriad-go/myriad/tcp"
	"github.com/myriad-go/myriad/tools/internal/lab/app"
	"github.com/myriad-go/myriad/web"
)

func newHelloHandler() tcp.Handler {
	return web.Handler(web.Quick(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "text/plain")
		_, _ = io.WriteString(w, app.HelloText) // an error ends the connection
	})))
}

func (f *appFlags) newWebHandler() tcp.Handler {
	quick := func(h http.Handler) http.Handler { return h }
	if f.quick {
		quick = web.Quick
	}
	return web.Handler(app.NewWebHandler(f.files, quick))
}

// webBroadcastEcho broadcasts messages that begin with "!" to all sockets and event streams, and echoes others.
type webBroadcastEcho struct {
	web.SocketBase
	sockets web.Group
	streams tcp.Group
}

func newWebBroadcastEchoHandler() tcp.Handler {
	p, mux := new(webBroadcastEcho), http.NewServeMux()
	enter := func(c *tcp.Conn) { p.streams.Add(c.Ref()) }
	sockets := &web.WebSocket{Handler: p}
	events := &web.Events{Opened: enter, Restore: func(c *tcp.Conn, _ []byte) error { enter(c); return nil }}
	mux.Handle("/", web.Quick(sockets))
	mux.Handle("GET /events", web.Quick(events))
	return &web.HTTP{Handler: mux, Endpoints: map[string]web.Endpoint{"sockets": sockets, "events": events}}
}

func (p *webBroadcastEcho) Opened(s web.Socket) { p.sockets.Add(s) }

// Save implements web.SocketMigrator and saves nothing.
func (p *webBroadcastEcho) Save(_ web.Socket, to []byte) ([]byte, error) { return to, nil }

// Restore implements web.SocketMigrator and adds the socket to the group of broadcast receivers.
func (p *webBroadcastEcho) Restore(s web.Socket, _ []byte) error {
	p.sockets.Add(s)
	return nil
}

func (p *webBroadcastEcho) Message(s web.Socket, kind web.Kind, m []byte) {
	news, toAll := bytes.CutPrefix(m, []byte("!"))
	if !toAll {
		_ = s.Write(kind, m) // an error ends the connection
		return
	}
	p.sockets.Broadcast(kind, news)
	p.streams.Broadcast(web.Event{Data: string(news)}.Bytes())
}
