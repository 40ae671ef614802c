// Command gateway connects each TCP client, which sends lines, to a WebSocket of a back end.
package main

import (
	"context"
	"flag"
	"fmt"
	"log"
	"net"
	"os/signal"
	"sync/atomic"
	"syscall"

	"github.com/myriad-go/myriad/tcp"
	"github.com/myriad-go/myriad/web"
)

// pair is the Value of a client and of its socket.
type pair struct {
	client tcp.Ref
	socket atomic.Pointer[tcp.Ref] // nil until the socket is open, the zero Ref after the client has closed
}

type clientHandler struct {
	dialer *web.WebSocket
	url    string
}

func (h clientHandler) Opened(c *tcp.Conn) {
	c.Pause() // until the socket is open
	p := &pair{client: c.Ref()}
	c.SetValue(p)
	if err := h.dialer.DialFrom(c, web.SocketDial{URL: h.url, Value: p}); err != nil {
		c.CloseWith(err)
	}
}

func (h clientHandler) Message(c *tcp.Conn, line []byte) {
	if err := c.Value().(*pair).socket.Load().Send(web.MaskFrame(web.Frame(web.Text, line))); err != nil {
		c.CloseWith(err) // the back end has closed, or it reads too slowly
	}
}

func (h clientHandler) Closed(c *tcp.Conn, _ error) {
	if socket := c.Value().(*pair).socket.Swap(new(tcp.Ref)); socket != nil {
		_ = socket.Send(web.MaskFrame(web.CloseFrame(web.CloseNormal, "the client has closed")))
		_ = socket.Close()
	}
}

type socketHandler struct{}

func (socketHandler) Opened(s web.Socket) {
	p, ref := s.Value().(*pair), s.Ref()
	if !p.socket.CompareAndSwap(nil, &ref) {
		_ = s.Close(web.CloseNormal, "the client has closed")
	}
	_ = p.client.Do((*tcp.Conn).Resume)
}

func (socketHandler) Message(s web.Socket, _ web.Kind, message []byte) {
	if err := s.Value().(*pair).client.Sendv(message, []byte("\n")); err != nil {
		_ = s.Close(web.ClosePolicy, "the client has closed, or it reads too slowly")
	}
}

func (socketHandler) Closed(s web.Socket, _ error) { _ = s.Value().(*pair).client.Close() }

func (socketHandler) DialFailed(d web.SocketDial, err error) {
	log.Print(err)
	_ = d.Value.(*pair).client.Close()
}

func main() {
	addr := flag.String("addr", "127.0.0.1:9000", "address to listen on")
	url := flag.String("url", "ws://127.0.0.1:8080/", "URL of the back end")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	context.AfterFunc(ctx, stop) // a second Ctrl-C ends the process at once
	handler := clientHandler{&web.WebSocket{Handler: socketHandler{}}, *url}
	srv := &tcp.Server{Addr: *addr, Handler: tcp.Lines(handler), Listening: func(a net.Addr) { fmt.Println("listening on", a) }}
	if err := srv.ListenAndServe(ctx); err != nil {
		log.Fatal(err)
	}
}
