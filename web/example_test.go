package web_test

import (
	"context"
	"io"
	"log"
	"net/http"
	"time"

	"github.com/myriad-go/myriad/tcp"
	"github.com/myriad-go/myriad/web"
)

// A program for net/http changes only the line that serves.
func ExampleHandler() {
	http.HandleFunc("/hello", func(w http.ResponseWriter, r *http.Request) { io.WriteString(w, "hello") })
	srv := &tcp.Server{Addr: ":8080", Handler: web.Handler(http.DefaultServeMux)}
	if err := srv.ListenAndServe(context.Background()); err != nil {
		log.Print(err)
	}
}

// Each subscriber gets a stream of events, without a goroutine.
func ExampleEvents() {
	var clocks tcp.Group
	mux := http.NewServeMux()
	mux.Handle("GET /time", &web.Events{Opened: func(c *tcp.Conn) { clocks.Add(c.Ref()) }})
	go func() {
		for now := range time.Tick(time.Second) {
			clocks.SendLatest(web.Event{Data: now.Format(time.TimeOnly)}.Bytes())
		}
	}()
	srv := &tcp.Server{Addr: ":8080", Handler: web.Handler(mux)}
	if err := srv.ListenAndServe(context.Background()); err != nil {
		log.Print(err)
	}
}

// A chat for browsers. Each message is encoded once for all members.
func ExampleGroup() {
	var members web.Group
	mux := http.NewServeMux()
	mux.Handle("GET /chat", &web.WebSocket{Handler: member{all: &members}})
	srv := &tcp.Server{Addr: ":8080", Handler: web.Handler(mux)}
	if err := srv.ListenAndServe(context.Background()); err != nil {
		log.Print(err)
	}
}

type member struct {
	web.SocketBase
	all *web.Group
}

func (m member) Opened(s web.Socket)                              { m.all.Add(s) }
func (m member) Message(_ web.Socket, kind web.Kind, text []byte) { m.all.Broadcast(kind, text) }

// A WebSocket server that echoes messages.
func ExampleWebSocket() {
	echo := web.OnMessage(func(s web.Socket, kind web.Kind, message []byte) { s.Write(kind, message) })
	mux := http.NewServeMux()
	mux.Handle("GET /echo", &web.WebSocket{Handler: echo})
	srv := &tcp.Server{Addr: ":8080", Handler: web.Handler(mux)}
	if err := srv.ListenAndServe(context.Background()); err != nil {
		log.Print(err)
	}
}
