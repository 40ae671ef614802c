package web_test

import (
	"net/http"
	"strings"

	"github.com/myriad-go/myriad/tcp"
	"github.com/myriad-go/myriad/web"
)

// chat is a WebSocket handler whose sockets have a name and move in upgrades.
type chat struct {
	web.SocketBase
	all web.Group
}

func (c *chat) Opened(s web.Socket) {
	s.SetValue("guest")
	c.all.Add(s)
	_ = s.WriteText("your name?")
}

func (c *chat) Message(s web.Socket, kind web.Kind, m []byte) {
	if name, ok := strings.CutPrefix(string(m), "my name is "); ok {
		s.SetValue(name)
		return
	}
	c.all.Broadcast(kind, append([]byte(s.Value().(string)+": "), m...))
}

// Save appends the socket's name.
func (c *chat) Save(s web.Socket, to []byte) ([]byte, error) {
	return append(to, s.Value().(string)...), nil
}

// Restore is like Opened, without the greeting.
func (c *chat) Restore(s web.Socket, state []byte) error {
	s.SetValue(string(state))
	c.all.Add(s)
	return nil
}

var _ web.SocketMigrator = new(chat)

// WebSockets move to the new process in tcp.Server.Upgrade.
func ExampleHTTP_endpoints() {
	_ = &tcp.Server{Addr: ":8080", Handler: newHandler(http.NewServeMux())}
}

func newHandler(mux *http.ServeMux) tcp.Handler {
	sockets := &web.WebSocket{Handler: new(chat)}
	mux.Handle("GET /chat", web.Quick(sockets))
	return &web.HTTP{Handler: mux, Endpoints: map[string]web.Endpoint{"chat": sockets}}
}
